"""Runs in memory, as small as a test needs."""

from __future__ import annotations

import hashlib
from typing import Any

from evenhand.judge.columns import Columns
from evenhand.judge.view import MemoryRun
from evenhand.records import CellRow, FileHash, GpuRow, Lag, LegRow, Manifest, Pool, RequestRow, SampleRow

S = 1_000_000_000
POOL = Pool(blocks=900, usable_blocks=899, block_tokens=272, tokens=100_000, bytes=1 << 30, source="test")
GREEDY = {"temperature": 0, "top_p": 1, "n": 1, "seed": 0}


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def request(key: str = "ladder/c=1#0", **kw: Any) -> RequestRow:
    """One successful request of 4 tokens, 1 s long, unless told otherwise."""
    cell, _, number = key.rpartition("#")
    ids = kw.pop("ids", [10, 11, 12, 13])
    base: dict[str, Any] = {
        "leg": 0,
        "arm": "base",
        "cell": cell,
        "index": int(number) if number.isdigit() else 0,
        "key": key,
        "prompt_sha256": sha(key),
        "prompt_tokens_asked": 8,
        "prompt_tokens": 8,
        "cached_tokens": 0,
        "outcome": "ok",
        "stamp": "kernel",
        "send_ns": 0,
        "end_ns": S,
        "ttft_s": 0.4,
        "ttft_kind": "first token",
        "tpot_s": 0.2,
        "token_ids": ids,
        "text": "".join(chr(97 + i % 26) for i in ids or []),
        "finish_reason": "length",
        "output_tokens": None if ids is None else len(ids),
        "token_source": "none" if ids is None else "ids",
        "event_ns": [] if ids is None else [400_000_000 + 200_000_000 * i for i in range(len(ids))],
        "event_tokens": [] if ids is None else [1] * len(ids),
        "gaps_kind": "itl",
        "sampling": GREEDY,
    }
    return RequestRow(**(base | kw))


def failed(key: str, reason: str = "HTTP 500", **kw: Any) -> RequestRow:
    """A request that failed before any token."""
    empty = {"ids": None, "ttft_s": None, "tpot_s": None, "ttft_kind": None, "text": "", "finish_reason": None}
    return request(key, outcome="failed", reason=reason, prompt_tokens=None, cached_tokens=None, **(empty | kw))


def cell(name: str = "ladder/c=1", leg: int = 0, arm: str = "base", **kw: Any) -> CellRow:
    base: dict[str, Any] = {
        "kind": name.partition("/")[0],
        "concurrency": 1,
        "outcome": "ok",
        "start_ns": 0,
        "end_ns": S,
        "prompt_tokens": 8,
        "output_tokens": 4,
        "lag": Lag(stamp="kernel", lag_p99_s=0.00001, turnaround_p50_s=0.0001, max_in_flight=1),
    }
    return CellRow(leg=leg, arm=arm, cell=name, **(base | kw))


def leg(number: int = 0, arm: str = "base", **kw: Any) -> LegRow:
    base: dict[str, Any] = {
        "engine": "vllm",
        "outcome": "ok",
        "seats_requested": 8,
        "seats_resolved": 8,
        "pool": POOL,
        "config": {"mamba_cache_mode": "align"},
        "version": "0.32.0",
        "files": [FileHash(path="m/model.safetensors", sha256="aa", size_bytes=1)],
        "log_errors": 0,
    }
    return LegRow(leg=number, arm=arm, **(base | kw))


def sample(t_s: float, leg: int = 0, status: str = "ok", flags: list[str] | None = None, **values: Any) -> SampleRow:
    by_engine = values.pop("by_engine", {})
    t = round(t_s * S)
    return SampleRow(
        leg=leg, due_ns=t, start_ns=t, first_byte_ns=t, end_ns=t, status=status, values=values, by_engine=by_engine,
        flags=flags or [],
    )  # fmt: skip


def gpu(leg: int, t_s: float, **kw: Any) -> GpuRow:
    base: dict[str, Any] = {
        "uuid": "GPU-a", "index": 0, "utilisation_pct": 90.0, "sm_clock_mhz": 1650, "clock_reasons": 0, "power_limit_w": 700.0,
    }  # fmt: skip
    return GpuRow(leg=leg, t_ns=round(t_s * S), **(base | kw))


def manifest(**kw: Any) -> Manifest:
    scenario = {
        "name": "t",
        "model": "/models/m",
        "arm": [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm"}],
        "ladder": {"concurrency": [1], "arrivals": "closed"},
        "client_lag_share": 0.1,
        "watch": {"interval_s": 0.25},
    } | kw.pop("scenario", {})
    base: dict[str, Any] = {
        "evenhand": "0.1.0", "run": "t-1", "kind": "run", "status": "finished", "started_utc": "2026-01-01T00:00:00Z",
        "anchor_monotonic_ns": 0, "scenario": scenario, "scenario_sha256": "ab" * 32, "plan": {}, "machine": {},
        "versions": {}, "command": [], "seed": 0, "simulated": False,
    }  # fmt: skip
    return Manifest(**(base | kw))


def columns(*rows: RequestRow) -> Columns:
    return Columns(rows)


def run(**kw: Any) -> MemoryRun:
    kw.setdefault("manifest", manifest())
    kw.setdefault("legs", [leg()])
    kw.setdefault("cells", [])
    return MemoryRun(**kw)


def gate(
    pairs: int = 2,
    rules: dict[str, Any] | None = None,
    requests: Any = None,
    scenario: dict[str, Any] | None = None,
    order: str | None = None,
    compare: str = "same",
    legs: Any = None,
    cells: Any = None,
    cell_names: tuple[str, ...] = ("ladder/c=1",),
    count: int = 20,
    repeat: bool = True,
    **kw: Any,
) -> MemoryRun:
    """A gate in ABBA order. `requests(leg, arm, cell, index, repeat)` -> changes of that request (or None: leave it out);
    `legs(number, arm)` and `cells(number, arm, cell)` -> changes of those rows.
    """
    letters = order or "".join("AB" if p % 2 == 0 else "BA" for p in range(pairs))
    seen = {"A": 0, "B": 0}
    all_legs, all_cells, rows = [], [], []
    for number, letter in enumerate(letters):
        arm = {"A": "base", "B": "new"}[letter]
        pair = seen[letter]
        seen[letter] += 1
        all_legs.append(leg(number, arm, pair=pair, **(legs(number, arm) if legs else {})))
        start = number * 1000 * S
        for again in (0, 1) if repeat and number == 0 else (0,):
            for name in cell_names:
                made = 0
                for i in range(count):
                    changes = requests(number, arm, name, i, again) if requests else {}
                    if changes is None:
                        continue
                    maker = failed if changes.get("outcome") == "failed" else request
                    changes = {k: v for k, v in changes.items() if not (maker is failed and k == "outcome")}
                    at = {"send_ns": start + i * S, "end_ns": start + (i + 1) * S, "leg": number, "arm": arm, "repeat": again}
                    rows.append(maker(**({"key": f"{name}#{i}"} | at | changes)))
                    made += 1
                changed = cells(number, arm, name) if cells else {}
                base = {"planned": count, "repeat": again, "start_ns": start, "end_ns": start + count * S}
                all_cells.append(cell(name, number, arm, **(base | changed)))
    arms = [{"name": "base", "engine": "vllm"}, {"name": "new", "engine": "vllm"}]
    if compare == "differ":
        arms[1]["args"] = ["--fast"]  # type: ignore[assignment]
    made_scenario = {
        "arm": arms,
        "gate": {
            "baseline": "base", "candidate": "new", "compare": compare, "pairs": pairs,
            "rules": rules if rules is not None else {"outputs": "identical"},
        },
    } | (scenario or {})  # fmt: skip
    return MemoryRun(
        manifest=manifest(kind="gate", scenario=made_scenario, **kw.pop("manifest", {})),
        legs=all_legs,
        cells=all_cells,
        requests=rows,
        **kw,
    )
