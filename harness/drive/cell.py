"""Run one cell: encode, connect, drive, spill; then decode into rows and the client's own Lag."""

from __future__ import annotations

import itertools
import os
import pickle
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from evenhand.drive.arrivals import Arrivals, schedule
from evenhand.drive.decode import Decoded, decode_all, sampling_dict
from evenhand.drive.loop import Figures, Progress, Request, Rung, Stop, quietly
from evenhand.drive.prompts import prompt_sha256
from evenhand.drive.queues import LocalQueue
from evenhand.drive.spill import Head, Spill, exchanges, offsets, read_head
from evenhand.drive.spread import decode_parts, process_count, run_spread
from evenhand.drive.stream import encode_request, kernel_stamps, resolve
from evenhand.drive.worker import DecodeJob
from evenhand.engines.base import Dialect, Sampling
from evenhand.quantile import quantile
from evenhand.records import Lag, RequestRow
from evenhand.scenario import Deadlines

_SPARE_FILES = 64
DECODE_APART_BYTES = 20_000_000
"""Spills larger than this are decoded in worker processes."""


class CellSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one cell needs; prompts are made before it."""

    leg: int
    arm: str
    cell: str
    repeat: int = 0
    kind: Literal["ladder", "pressure", "reuse", "warmup", "control"] = "ladder"
    base_url: str
    dialect: Dialect
    model: str
    prompts: Sequence[Sequence[int] | str]
    """One per request: token ids, or text."""
    prompt_tokens: Sequence[int] | None = None
    """Tokens asked, per request; None: the lengths of the prompts (needed for text)."""
    keys: Sequence[str] | None = None
    """None: `cell#index`."""
    sampling: Sampling
    concurrency: int
    """Closed loop: slots. Open loop: most requests in flight, one connection each."""
    arrivals: Arrivals = "closed"
    rate: float | None = None
    burst: int = 1
    seed: int = 0
    deadlines: Deadlines = Deadlines()
    spill_path: str | Path
    keep_spill: bool = False
    processes: int | Literal["auto"] = "auto"
    """1: the loop runs in this process, which must do nothing else meanwhile. Else in others, as many as asked."""
    headers: dict[str, str] = {}
    alive: Callable[[], str | None] | None = None
    """Reason why the engine is dead, or None; asked twice a second, outside the loop unless that runs in this process."""
    on_progress: Callable[[Progress], None] | None = None
    stop: Stop | None = None
    """Set (by a signal handler): in-flight requests become interrupted rows and the cell returns."""
    stamp: Literal["auto", "user"] = "auto"
    """ "user": do not ask for kernel stamps."""


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell gave."""

    rows: list[RequestRow]
    """Of every request that was sent (or could not be), by index."""
    lag: Lag
    start_ns: int | None
    """First send."""
    end_ns: int | None
    """Last byte of the last request."""
    interrupted: bool = False
    died: str | None = None
    limit: str | None = None
    """ "client limit: ...": this machine could not hold the asked concurrency, or lost a client process."""


def run_cell(spec: CellSpec) -> CellResult:
    """Drive one cell. What goes wrong on the wire becomes rows; only a wrong specification raises (ValueError, OSError of the
    spill file, gaierror of the host)."""
    limit = _file_limit(spec.concurrency + _SPARE_FILES)
    if limit is not None:
        return CellResult(rows=[], lag=Lag(stamp="user"), start_ns=None, end_ns=None, limit=limit)
    target = resolve(spec.base_url)
    requests, sampling = prepare(spec)
    stamps = spec.stamp == "auto" and kernel_stamps()
    head = Head(leg=spec.leg, arm=spec.arm, cell=spec.cell, repeat=spec.repeat, sampling=sampling)
    due = None
    if spec.arrivals != "closed":
        due = schedule(spec.arrivals, len(requests), spec.rate or 0.0, burst=spec.burst, seed=spec.seed)
    processes = process_count(spec.processes, spec.concurrency, _cores())
    spill = Spill(spec.spill_path, head)
    if spec.processes != 1:
        spill.close()
        figures = run_spread(
            processes=processes,
            cell=spec.cell,
            base_url=spec.base_url,
            stamps=stamps,
            requests=requests,
            concurrency=spec.concurrency,
            due=due,
            deadlines=spec.deadlines,
            spill_path=str(spec.spill_path),
            alive=spec.alive,
            on_progress=spec.on_progress,
            stop=spec.stop,
        )
        return finish(spec, figures)
    rung = Rung(
        cell=spec.cell,
        target=target,
        requests=requests,
        slots=range(spec.concurrency),
        queue=LocalQueue(len(requests)),
        due=due,
        deadlines=spec.deadlines,
        spill=spill,
        stamps=stamps,
        alive=spec.alive,
        on_progress=spec.on_progress,
        stop=spec.stop,
    )
    rung.connect()
    figures = [quietly(rung.run)]
    spill.close()
    return finish(spec, figures)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare(spec: CellSpec) -> tuple[list[Request], dict[str, Any]]:
    """Encode every request; also the sampling parameters as they stand in the bodies."""
    target = resolve(spec.base_url)
    encode = msgspec.json.Encoder().encode
    requests: list[Request] = []
    sampling: dict[str, Any] = {}
    for index, prompt in enumerate(spec.prompts):
        post = spec.dialect.request(prompt, spec.sampling, spec.model)
        sampling = sampling or sampling_dict(post.body)
        asked = spec.prompt_tokens[index] if spec.prompt_tokens is not None else len(prompt)
        key = spec.keys[index] if spec.keys is not None else f"{spec.cell}#{index}"
        headers = [*post.headers.items(), *spec.headers.items()]
        data = encode_request(target, post.path, encode(post.body), headers)
        requests.append(Request(index, key, prompt_sha256(prompt), asked, data))
    return requests, sampling


def finish(spec: CellSpec, parts: Sequence[Figures]) -> CellResult:
    """Decode the spill and sum up."""
    decoded = decode_spill(spec.spill_path, spec.dialect)
    if not spec.keep_spill:
        Path(spec.spill_path).unlink(missing_ok=True)
    decoded.sort(key=lambda item: (item.row.index, item.row.send_ns or 0))
    rows = [item.row for item in decoded]
    sends = [row.send_ns for row in rows if row.send_ns is not None]
    ends = [row.end_ns for row in rows if row.end_ns is not None]
    limit = next((part.limit for part in parts if part.limit is not None), None)
    return CellResult(
        rows=rows,
        lag=lag_of(decoded, parts),
        start_ns=min(sends, default=None),
        end_ns=max(ends, default=None),
        interrupted=limit is None and any(part.interrupted for part in parts),  # else the others were told to stop
        died=next((part.died for part in parts if part.died is not None), None),
        limit=limit,
    )


def decode_spill(path: str | Path, dialect: Dialect) -> list[Decoded]:
    """Every whole exchange of a spill file."""
    head = read_head(path)
    if head is None:
        return []
    marks = offsets(path)
    size = marks[-1] - marks[1]
    if size > DECODE_APART_BYTES and _cores() > 1:
        try:
            parts = max(2, min(_cores(), size // DECODE_APART_BYTES))
            cuts = [marks[1 + part * (len(marks) - 2) // parts] for part in range(parts)] + [marks[-1]]
            return decode_parts(
                [DecodeJob(path=str(path), start=a, stop=b, dialect=dialect) for a, b in itertools.pairwise(cuts)]
            )
        except (RuntimeError, pickle.PicklingError, AttributeError, TypeError):
            pass  # a dialect that cannot travel to another process is decoded here
    return decode_all(head, exchanges(path, marks[1], marks[-1]), dialect)


def recover(spill_path: str | Path, dialect: Dialect) -> list[RequestRow]:
    """Rows of a spill that a killed run left behind, by index: every request that had finished is there."""
    if not Path(spill_path).exists():
        return []
    return sorted((item.row for item in decode_spill(spill_path, dialect)), key=lambda row: row.index)


def turnarounds_ns(decoded: Sequence[Decoded]) -> list[int]:
    """next send - stamp of the previous request's last byte, per slot, where both are known."""
    found: list[int] = []
    last: dict[int, int | None] = {}
    for item in sorted((d for d in decoded if d.row.send_ns is not None), key=lambda d: d.row.send_ns or 0):
        previous = last.get(item.row.slot)
        if previous is not None and not item.first_on_slot and item.row.send_ns is not None:
            found.append(item.row.send_ns - previous)
        last[item.row.slot] = item.last_ns
    return found


def lag_of(decoded: Sequence[Decoded], parts: Sequence[Figures]) -> Lag:
    """The client's own lag and cost."""
    lags = sorted(lag for item in decoded for lag in item.lag_ns)
    turns = sorted(turnarounds_ns(decoded))
    late = [
        row.send_ns - row.scheduled_ns
        for row in (item.row for item in decoded)
        if row.scheduled_ns is not None and row.send_ns is not None
    ]
    events = sum(item.events for item in decoded)
    batches = sorted(batch for part in parts for batch in part.batches_ns)
    stamped = bool(lags) and all(item.row.stamp == "kernel" for item in decoded if item.reads)
    cpu = sum(part.cpu_ns for part in parts)
    return Lag(
        stamp="kernel" if stamped else "user",
        events=events,
        reads=sum(item.reads for item in decoded),
        coalesced=sum(item.coalesced for item in decoded),
        lag_p50_s=_share(lags, 0.5),
        lag_p99_s=_share(lags, 0.99),
        lag_max_s=_share(lags, 1.0),
        loop_lag_p99_s=_share(batches, 0.99),
        cpu_per_event_s=cpu / events / 1e9 if events else None,
        send_lag_max_s=max(late) / 1e9 if late else None,
        turnaround_p50_s=_share(turns, 0.5),
        turnaround_max_s=_share(turns, 1.0),
        processes=len(parts),
        realtime=bool(parts) and all(part.realtime for part in parts),
        clock_steps=max((part.clock_steps for part in parts), default=0),
        max_in_flight=sum(part.max_in_flight for part in parts),
    )


def _share(ordered: Sequence[int], share: float) -> float | None:
    """Quantile of sorted nanoseconds, in seconds; None when empty."""
    found = quantile(ordered, share)
    return None if found is None else found / 1e9


def _file_limit(needed: int) -> str | None:
    """Raise the soft limit of open files as far as allowed; why it is not enough, or None."""
    open_now = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 32  # noqa: PTH112, PTH208
    needed += open_now
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return None
    if hard != resource.RLIM_INFINITY and hard < needed:
        return f"client limit: {needed} open files are needed and the hard limit is {hard} (ulimit -Hn)"
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return None
