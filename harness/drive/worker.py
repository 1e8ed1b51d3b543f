"""Client work in a process of its own: part of a rung, or the decoding of part of a spill.

The job comes pickled on stdin (length first). A rung's worker then says "ready", waits for "go START_NS", and answers with one
JSON line of progress four times a second and one of figures at the end; "stop" or "died REASON" on stdin stops it. When stdin
ends, the parent is gone and the worker goes at once: nothing may come into the spill after a recovery has read it.
"""

from __future__ import annotations

import mmap
import os
import pickle
import select
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

from evenhand.drive.decode import Decoded, decode_all
from evenhand.drive.loop import Figures, Request, Rung, quietly
from evenhand.drive.queues import FileQueue
from evenhand.drive.spill import Spill, exchanges, read_head
from evenhand.drive.stream import kernel_stamps, resolve
from evenhand.engines.base import Dialect
from evenhand.scenario import Deadlines

LENGTH = struct.Struct("<Q")


class RungJob(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a rung."""

    cell: str
    base_url: str
    stamps: bool
    slots: list[int]
    due: list[int] | None
    deadlines: Deadlines
    spill_path: str
    queue_fd: int
    requests_fd: int
    metas: list[tuple[int, str, str, int]]
    marks: list[int]
    """Byte offsets of the requests in requests_fd, and the end."""
    core: int | None = None


class DecodeJob(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a spill."""

    path: str
    start: int
    stop: int
    dialect: Dialect


class RequestFile(Sequence[Request]):
    """Encoded requests in a shared file, mapped, not copied."""

    def __init__(self, fd: int, metas: list[tuple[int, str, str, int]], marks: list[int]) -> None:
        self._map = memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)) if marks[-1] else memoryview(b"")
        self._metas, self._marks = metas, marks

    def __len__(self) -> int:
        return len(self._metas)

    def __getitem__(self, place: Any) -> Any:
        number, key, sha256, asked = self._metas[place]
        return Request(number, key, sha256, asked, self._map[self._marks[place] : self._marks[place + 1]])


class _Orders:
    """Lines from the parent, read without waiting: a Stop and an `alive` in one."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno()
        os.set_blocking(self._fd, False)
        self._buffer = b""
        self._start_ns: int | None = None
        self._stopped = False
        self._died: str | None = None

    def wait_go(self) -> int | None:
        """Wait for "go": the start time, or None when told to stop first."""
        while not self.is_set() and self._start_ns is None:
            select.select([self._fd], [], [])
        return self._start_ns

    def _poll(self) -> None:
        try:
            piece = os.read(self._fd, 4096)
        except BlockingIOError:
            return
        *lines, self._buffer = (self._buffer + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"go "):
                self._start_ns = int(line[3:])
            elif line.startswith(b"died "):
                self._died = line[5:].decode()
            elif line == b"stop":
                self._stopped = True
        if not piece:
            sys.exit(1)

    def is_set(self) -> bool:
        """Stop was said. Raises SystemExit when the parent is gone."""
        self._poll()
        return self._stopped

    def alive(self) -> str | None:
        """Why the engine is dead, when the parent said so."""
        return self._died


def _say(message: dict[str, Any]) -> None:
    """Raises SystemExit when the parent is gone."""
    try:
        os.write(sys.stdout.fileno(), msgspec.json.encode(message) + b"\n")
    except BrokenPipeError:
        sys.exit(1)


def run_part(job: RungJob) -> None:
    """A rung's share of slots. An OSError (a full disk) is told to the parent, which raises it."""
    try:
        _run_part(job)
    except OSError as error:
        _say({"failed": [error.errno, error.strerror or str(error), error.filename]})


def _run_part(job: RungJob) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides; a terminal signals the whole group
    if job.core is not None:
        os.sched_setaffinity(0, {job.core})
    orders = _Orders()
    spill = Spill(job.spill_path, None)
    rung = Rung(
        cell=job.cell,
        target=resolve(job.base_url),
        requests=RequestFile(job.requests_fd, job.metas, job.marks),
        slots=job.slots,
        queue=FileQueue(job.queue_fd),
        due=job.due,
        deadlines=job.deadlines,
        spill=spill,
        stamps=job.stamps and kernel_stamps(),
        alive=orders.alive,
        on_progress=lambda progress: _say({"progress": progress}),
        stop=orders,
    )
    rung.connect()
    _say({"ready": True})
    start_ns = orders.wait_go()
    if start_ns is None:
        _say({"figures": Figures(interrupted=True)})
        return
    figures = quietly(lambda: rung.run(start_ns))
    spill.close()
    _say({"figures": figures})


def decode_part(job: DecodeJob) -> None:
    """A spill's share of exchanges, as MessagePack."""
    head = read_head(job.path)
    decoded: list[Decoded] = [] if head is None else decode_all(head, exchanges(job.path, job.start, job.stop), job.dialect)
    sys.stdout.buffer.write(msgspec.msgpack.encode(decoded))
    sys.stdout.buffer.flush()


def main() -> None:
    """Read the job, do it."""
    (length,) = LENGTH.unpack(_exactly(LENGTH.size))
    job = pickle.loads(_exactly(length))  # from our own parent, over a pipe
    if isinstance(job, RungJob):
        run_part(job)
    else:
        decode_part(job)


def _exactly(length: int) -> bytes:
    pieces: list[bytes] = []
    while length:
        piece = os.read(sys.stdin.fileno(), min(length, 1 << 20))
        if not piece:
            sys.exit("evenhand.drive.worker: no job on stdin")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def environment() -> dict[str, str]:
    """So that a worker finds the modules (also a third party's adapter) its parent has."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path}
