"""A rung in client processes that do nothing else: slots are dealt out, requests come from one shared queue, one clock, one
spill. What the harness does meanwhile (is the engine alive? how far are we?) takes no time from the reads."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import IO, Any

import msgspec

from evenhand.drive.decode import Decoded
from evenhand.drive.loop import Figures, Progress, Request, Stop
from evenhand.drive.worker import LENGTH, DecodeJob, RungJob, environment
from evenhand.scenario import Deadlines

SLOTS_PER_PROCESS = 128
"""Streams that one process reads within a few milliseconds when an engine step wakes all of them."""

_START_AHEAD_NS = 20_000_000
_ALIVE_S = 0.5
_READY_S = 30.0


def process_count(asked: int | str, concurrency: int, cores: int) -> int:
    """Client processes for a rung: as asked; "auto" gives one per SLOTS_PER_PROCESS, and leaves half of the cores alone."""
    if isinstance(asked, int):
        return max(1, min(asked, concurrency))
    return max(1, min(math.ceil(concurrency / SLOTS_PER_PROCESS), cores // 2))


def pins(processes: int, cores: Sequence[int]) -> list[int | None]:
    """A core for each of several processes where the machine has twice as many to spare; else none is pinned."""
    if processes == 1 or len(cores) < 2 * (processes + 1):
        return [None] * processes
    return list(cores[-processes:])


class _Client:
    """The parent's side of one worker."""

    def __init__(self, job: RungJob, fds: Sequence[int]) -> None:
        self.process = _start(job, fds)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin: IO[bytes] = self.process.stdin
        self.stdout: IO[bytes] = self.process.stdout
        self.buffer = b""
        self.ready = self.closed = False
        self.progress: Progress | None = None
        self.figures: Figures | None = None
        self.error: OSError | None = None
        self.lost = "client limit: a client process ended without figures"

    def read(self) -> None:
        """What it said since."""
        piece = os.read(self.stdout.fileno(), 1 << 16)
        self.closed = not piece
        *lines, self.buffer = (self.buffer + piece).split(b"\n")
        for line in lines:
            message: dict[str, Any] = msgspec.json.decode(line)
            if "ready" in message:
                self.ready = True
            elif "progress" in message:
                self.progress = msgspec.convert(message["progress"], Progress)
            elif "failed" in message:
                self.error = OSError(*message["failed"])
            else:
                self.figures = msgspec.convert(message["figures"], Figures)

    def tell(self, line: str) -> None:
        """Say something to it; it may be gone."""
        try:
            self.stdin.write(line.encode() + b"\n")
            self.stdin.flush()
        except OSError:
            pass


def _start(job: RungJob | DecodeJob, fds: Sequence[int] = ()) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", "from evenhand.drive.worker import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=tuple(fds),
        env=environment(),
        start_new_session=True,  # a terminal's signals are for the harness, which then ends its workers by their pipes
    )
    assert process.stdin is not None
    pickled = pickle.dumps(job)
    process.stdin.write(LENGTH.pack(len(pickled)) + pickled)
    process.stdin.flush()
    return process


def run_spread(
    *,
    processes: int,
    cell: str,
    base_url: str,
    stamps: bool,
    requests: Sequence[Request],
    concurrency: int,
    due: list[int] | None,
    deadlines: Deadlines,
    spill_path: str,
    alive: Callable[[], str | None] | None,
    on_progress: Callable[[Progress], None] | None,
    stop: Stop | None,
) -> list[Figures]:
    """Run the rung and give every process's figures. A worker that dies or is late is a limit of the client.

    Raises OSError where one could not write, as a loop in this process would.
    """
    metas = [(r.number, r.key, r.prompt_sha256, r.prompt_tokens_asked) for r in requests]
    marks = [0]
    cores = pins(processes, sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else [None] * processes
    clients: list[_Client] = []
    with tempfile.TemporaryFile() as queue, tempfile.TemporaryFile() as encoded:
        for request in requests:
            encoded.write(request.data)
            marks.append(marks[-1] + len(request.data))
        encoded.flush()
        queue.write(b"".join(number.to_bytes(4, "little") for number in range(len(requests))))
        queue.seek(0)
        try:
            for part in range(processes):
                job = RungJob(
                    cell=cell,
                    base_url=base_url,
                    stamps=stamps,
                    slots=list(range(part, concurrency, processes)),
                    due=due,
                    deadlines=deadlines,
                    spill_path=spill_path,
                    queue_fd=queue.fileno(),
                    requests_fd=encoded.fileno(),
                    metas=metas,
                    marks=marks,
                    core=cores[part],
                )
                clients.append(_Client(job, [queue.fileno(), encoded.fileno()]))
            _watch(clients, len(requests), cell, alive, on_progress, stop, deadlines.connect_s + _READY_S)
        finally:
            for client in clients:
                with contextlib.suppress(BrokenPipeError):
                    client.stdin.close()
                try:
                    client.process.wait(5)
                except subprocess.TimeoutExpired:
                    client.process.kill()
                    client.process.wait()
                client.stdout.close()
    for client in clients:
        if client.error is not None:
            raise client.error
    return [client.figures or Figures(limit=client.lost) for client in clients]


def _watch(
    clients: list[_Client],
    planned: int,
    cell: str,
    alive: Callable[[], str | None] | None,
    on_progress: Callable[[Progress], None] | None,
    stop: Stop | None,
    ready_s: float,
) -> None:
    selector = selectors.DefaultSelector()
    for client in clients:
        selector.register(client.stdout, selectors.EVENT_READ, client)
    started = told = False
    opened = ask = time.monotonic()
    while any(not client.closed for client in clients):
        heard = selector.select(0.1)
        for key, _ in heard:
            client = key.data
            client.read()
            if client.closed:
                selector.unregister(client.stdout)
        now = time.monotonic()
        broken = any(client.closed and client.figures is None for client in clients)
        if not started and not broken and all(client.ready for client in clients):
            started = True
            for client in clients:
                client.tell(f"go {time.monotonic_ns() + _START_AHEAD_NS}")
            opened = now
        if not started and now - opened > ready_s:
            for client in clients:
                if not client.ready:
                    client.lost = f"client limit: a client process was not ready within {ready_s:.3g} s"
                    client.process.kill()
        if not told and (broken or (stop is not None and stop.is_set())):
            told = True
            for client in clients:
                client.tell("stop")
        if alive is not None and started and not told and now - ask > _ALIVE_S:
            ask = now
            if (reason := alive()) is not None:
                told = True
                for client in clients:
                    client.tell(f"died {' '.join(reason.split())}")
        parts = [client.progress for client in clients if client.progress is not None]
        if on_progress is not None and heard and parts:
            on_progress(_together(cell, planned, parts, now - opened))
    selector.close()


def _together(cell: str, planned: int, parts: Sequence[Progress], elapsed_s: float) -> Progress:
    return Progress(
        cell=cell,
        planned=planned,
        done=sum(part.done for part in parts),
        failed=sum(part.failed for part in parts),
        in_flight=sum(part.in_flight for part in parts),
        reads=sum(part.reads for part in parts),
        elapsed_s=elapsed_s,
    )


def decode_parts(jobs: Sequence[DecodeJob]) -> list[Decoded]:
    """Decode parts of a spill side by side. Raises RuntimeError when a worker fails, pickle's errors for a dialect that cannot
    travel."""
    processes = [_start(job) for job in jobs]
    decoder = msgspec.msgpack.Decoder(list[Decoded])
    decoded: list[Decoded] = []
    for process in processes:
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"decoding ended with exit code {process.returncode}")
        decoded += decoder.decode(output)
    return decoded
