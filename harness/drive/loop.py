"""The rung's loop: links on epoll, requests handed to free slots (closed loop) or at their due times (open loop).

While it runs it stores reads and finds message ends. Everything else waits until after a batch of events: finished exchanges
are spilled, deadlines looked at, the clock pair taken, progress told.
"""

from __future__ import annotations

import errno
import gc
import select
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from evenhand.drive.clock import Clock
from evenhand.drive.ends import END
from evenhand.drive.queues import Queue, Timer
from evenhand.drive.spill import Exchange, Spill
from evenhand.drive.stream import ANCILLARY_BYTES, IN, NO_STAMP, READ_BYTES, Link, Target
from evenhand.drive.wake import realtime
from evenhand.scenario import Deadlines

TICK_NS = 250_000_000
"""Between two looks at deadlines, clock, death, stop and progress: none is in a hurry. A look takes 0.1 ms and 2 us a
link, and what `alive` and `on_progress` take."""
_TICK_READS = 1024
"""After so many reads (16 MiB at most) it is time as well: a flood must not fill the memory before it is seen."""
_BUSY_NS = 50_000_000
"""Finished exchanges that found no quiet moment for this long are written all the same."""
_BACK_OFF_NS = 100_000_000
_PROGRESS_NS = 250_000_000
_SPILL_PER_PASS = 4
"""Exchanges written between two looks at the sockets while these are quiet."""
MAX_ANSWER_BYTES = 64 << 20
"""An answer is kept until it ends; one that never does must not fill the memory."""
_MANY_READS = 1024
_SPILL_WHEN_BUSY = 64
"""Exchanges written at once when the sockets have not been quiet for _BUSY_NS."""


class Stop(Protocol):
    """Set to end a rung early (threading.Event will do)."""

    def is_set(self) -> bool: ...


class Request(NamedTuple):
    """A request before it is sent."""

    number: int
    """Its index in the cell."""
    key: str
    prompt_sha256: str
    prompt_tokens_asked: int
    data: bytes | memoryview


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How a rung stands."""

    cell: str
    planned: int
    done: int
    failed: int
    """Of `done`, as far as the transport knows (errors inside a stream are found when the rung is decoded)."""
    in_flight: int
    reads: int
    elapsed_s: float


class Figures(msgspec.Struct, kw_only=True):
    """What one client process knows of a rung beyond the spill."""

    start_ns: int = 0
    end_ns: int = 0
    cpu_ns: int = 0
    reads: int = 0
    done: int = 0
    max_in_flight: int = 0
    clock_steps: int = 0
    died: str | None = None
    limit: str | None = None
    interrupted: bool = False
    realtime: bool = False
    """The kernel let the client run as soon as it woke."""
    batches_ns: list[int] = []
    """How long the loop was away from its sockets, each time: reading, sending, writing what is finished, looking around."""


class Rung:
    """One client process's part of a rung. `connect` first, then `run`."""

    def __init__(
        self,
        *,
        cell: str,
        target: Target,
        requests: Sequence[Request],
        slots: Sequence[int],
        queue: Queue,
        due: Sequence[int] | None,
        deadlines: Deadlines,
        spill: Spill,
        stamps: bool,
        alive: Callable[[], str | None] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        stop: Stop | None = None,
    ) -> None:
        """`due`: nanoseconds after the start, per index, for open arrivals; None for the closed loop."""
        self._cell, self._requests, self._queue, self._due = cell, requests, queue, due
        self._deadlines, self._spill, self._stamps = deadlines, spill, stamps
        self._alive, self._on_progress, self._stop = alive, on_progress, stop
        self._epoll: Any = select.epoll() if hasattr(select, "epoll") else select.poll()
        self._unit = 1.0 if hasattr(select, "epoll") else 1000.0
        self._by_fd: dict[int, Link] = {}
        self._links = [Link(target, slot, self, stamps) for slot in slots]
        self._idle: deque[Link] = deque()
        self._failed_links: dict[int, str] = {}
        """slot -> why it could not connect, before the start"""
        self._retry: list[tuple[int, Link]] = []
        self._finished: list[tuple[Exchange, list[Any]]] = []
        self._answered: set[int] = set()
        self._next: int | None = None
        self._exhausted = False
        self._running = False
        self._in_flight = 0
        self._failed = 0
        self._suspect = False
        self._clock = Clock()
        self._timer = Timer() if due is not None and hasattr(select, "epoll") else None
        if self._timer is not None:
            self._epoll.register(self._timer.fd, IN)
        self._ending = False
        self.figures = Figures()

    # --- the owner's side of a link ---

    def watch(self, link: Link, mask: int, *, new: bool) -> None:
        """Link wants events."""
        if new:
            self._by_fd[link.fd] = link
            self._epoll.register(link.fd, mask)
        else:
            self._epoll.modify(link.fd, mask)

    def unwatch(self, link: Link) -> None:
        """Link closes."""
        self._by_fd.pop(link.fd, None)
        self._epoll.unregister(link.fd)

    def ready(self, link: Link) -> None:
        """A slot is free."""
        self._failed_links.pop(link.slot, None)
        if self._ending:
            link.close()
        elif self._due is not None or not self._running:
            if link not in self._idle:
                self._idle.append(link)
        else:
            index = self._take()
            if index is None:
                link.close()
            else:
                self._fire(link, index)

    def over(self, link: Link, exchange: Exchange) -> None:
        """An exchange ended."""
        self._in_flight -= 1
        self._finished.append((exchange, link.reads))
        if exchange.complete:
            self._answered.add(link.slot)
        else:
            self._answered.discard(link.slot)
            self._failed += 1
            self._suspect = True
        if link.state == "idle":
            self.ready(link)
        elif not self._ending and not self._all_taken():
            link.connect()

    def no_connection(self, link: Link, reason: str) -> None:
        """A slot cannot connect: that is the fate of its next request."""
        if reason.startswith("client limit"):
            self.figures.limit = reason
        if self._ending:
            return
        if not self._running:
            self._failed_links[link.slot] = reason
            return
        self._suspect = True
        index = self._take() if self._due is None else self._take_due(time.monotonic_ns())
        if index is not None:
            exchange = self._exchange(link, index)
            exchange.end_ns, exchange.reason = time.monotonic_ns(), reason
            self._failed += 1
            self._finished.append((exchange, []))
        if not self._all_taken():
            self._retry.append((time.monotonic_ns() + _BACK_OFF_NS, link))

    # --- requests ---

    def _take(self) -> int | None:
        if self._exhausted:
            return None
        index = self._queue.take()
        self._exhausted = index is None
        return index

    def _take_due(self, now: int) -> int | None:
        """Open loop: the next index if its time has come."""
        assert self._due is not None
        if self._next is None:
            self._next = self._take()
        if self._next is None or self.figures.start_ns + self._due[self._next] > now:
            return None
        index, self._next = self._next, None
        return index

    def _all_taken(self) -> bool:
        return self._exhausted and self._next is None

    def _exchange(self, link: Link, index: int) -> Exchange:
        request = self._requests[index]
        return Exchange(
            index=request.number,
            key=request.key,
            prompt_sha256=request.prompt_sha256,
            prompt_tokens_asked=request.prompt_tokens_asked,
            slot=link.slot,
            scheduled_ns=None if self._due is None else self.figures.start_ns + self._due[index],
            first_on_slot=self._due is not None or link.slot not in self._answered,
        )

    def _fire(self, link: Link, index: int) -> None:
        self._in_flight += 1
        if self._in_flight > self.figures.max_in_flight:
            self.figures.max_in_flight = self._in_flight
        link.fire(self._exchange(link, index), self._requests[index].data)

    def _fire_due(self) -> None:
        while self._idle:
            if self._idle[0].state != "idle":  # reconnecting: it will say when it is ready
                self._idle.popleft()
                continue
            index = self._take_due(time.monotonic_ns())
            if index is None:
                break
            self._fire(self._idle.popleft(), index)
        if self._timer is not None and self._next is not None and self._idle and self._due is not None:
            self._timer.set(self.figures.start_ns + self._due[self._next])

    # --- running ---

    def connect(self) -> None:
        """Open every connection (none is left unasked; a slot that fails will say so with its first request)."""
        for link in self._links:
            link.connect()
        last = time.monotonic_ns() + int(self._deadlines.connect_s * 1e9)
        while len(self._idle) + len(self._failed_links) < len(self._links):
            if self._stop is not None and self._stop.is_set():
                return
            for fd, mask in self._epoll.poll(0.05 * self._unit):
                if fd in self._by_fd:
                    self._by_fd[fd].on_event(mask)
            if time.monotonic_ns() > last:
                for link in self._links:
                    if link.state in ("connecting", "handshake"):
                        link.give_up(f"connect timeout: no connection within {self._deadlines.connect_s:g} s")

    def run(self, start_ns: int | None = None) -> Figures:
        """Run to the end, the stop, or the engine's death."""
        figures = self.figures
        if start_ns is not None:
            time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9))
        self._clock.check()
        cpu = time.thread_time_ns()
        figures.start_ns = time.monotonic_ns()
        if self._stop is not None and self._stop.is_set():
            figures.interrupted = True
        else:
            self._start()
            self._loop()
        figures.cpu_ns = time.thread_time_ns() - cpu
        figures.end_ns = time.monotonic_ns()
        self._clock.check()
        figures.clock_steps = len(self._clock.steps)
        for link in self._links:
            link.close()
        if self._timer is not None:
            self._timer.close()
        if hasattr(self._epoll, "close"):
            self._epoll.close()
        return figures

    def _start(self) -> None:
        self._running = True
        if self._due is None:
            waiting, self._idle = self._idle, deque()
            for link in waiting:
                if link.state == "idle":
                    self.ready(link)
        else:
            self._fire_due()
        failed, self._failed_links = self._failed_links, {}
        for link in self._links:
            if link.slot in failed:
                self.no_connection(link, failed[link.slot])

    def _loop(self) -> None:
        poll, by_fd, now_ns = self._epoll.poll, self._by_fd, time.monotonic_ns
        batches = array("q")
        reads = 0
        quiet = now_ns()
        tick, look = quiet + TICK_NS, _TICK_READS
        timeout = (0.001 if self._due is not None and self._timer is None else TICK_NS / 1e9) * self._unit
        while True:
            busy = events = poll(0 if self._finished else timeout)
            woke = now_ns()
            if not events or not self._finished:  # nothing waits to be read, or nothing to be written
                quiet = woke
            for fd, mask in events:
                try:
                    link = by_fd[fd]
                except KeyError:
                    if self._timer is not None and fd == self._timer.fd:
                        self._timer.clear()
                    continue
                reads += 1
                if mask == IN and link.lazy:
                    try:
                        data, ancillary, _, _ = link.recvmsg(READ_BYTES, ANCILLARY_BYTES)
                    except OSError as error:
                        if error.errno != errno.EAGAIN:
                            link.lost(error)
                        continue
                    own = now_ns()
                    stamp = ancillary[0][2] if ancillary else NO_STAMP
                    if data[-4:] != END and len(data) >= 4:
                        link.reads += own, stamp, data
                    else:
                        link.took(own, stamp, data)
                else:
                    link.on_event(mask)
            if self._due is not None:
                self._fire_due()
            now = now_ns()
            if self._finished and (not events or now - quiet > _BUSY_NS):
                self._write_finished(_SPILL_WHEN_BUSY if events else _SPILL_PER_PASS)
                quiet = now = now_ns()
                busy = True
            if not self._in_flight and self._all_done():
                break
            if now >= tick or reads >= look or self._suspect:
                self.figures.reads = reads
                if not self._tick(now):
                    break
                busy, now = True, now_ns()
                tick, look = now + TICK_NS, reads + _TICK_READS
            if busy:
                batches.append(now - woke)
        self.figures.reads = reads
        self.figures.batches_ns = batches.tolist()

    def _all_done(self) -> bool:
        if self._finished:
            return False
        if self._due is not None and self._next is None and not self._exhausted:
            self._next = self._take()
        return self._all_taken() or self._ending

    def _write_finished(self, most: int | None = None) -> None:
        """Spill finished exchanges, `most` at a time: those of streams that end in lock step must not hold up the reads and
        sends of the others."""
        self._clock.check()
        steps = [tuple(step) for step in self._clock.steps]
        batch, self._finished = self._finished[:most], self._finished[most:] if most is not None else []
        for exchange, reads in batch:
            exchange.offset_ns, exchange.steps = self._clock.offset_ns, steps  # type: ignore[assignment]
            self._spill.append(seal(exchange, reads))
            self.figures.done += 1

    def _tick(self, now: int) -> bool:
        """Deadlines, clock, death, stop, progress. False ends the rung."""
        self._clock.check()
        if self._stop is not None and self._stop.is_set():
            self.figures.interrupted = True
            self._end_all("interrupted", interrupted=True)
            return False
        if self._alive is not None and (reason := self._alive()) is not None:
            self.figures.died = reason
            self._end_all(reason, interrupted=False)
            return False
        self._suspect = False
        for link in self._links:
            if (reason := overdue(link, now, self._deadlines)) is not None:
                link.give_up(reason)
            else:
                link.catch_up()
        if self._retry:
            late = [link for at, link in self._retry if at <= now]
            self._retry = [(at, link) for at, link in self._retry if at > now]
            for link in late:
                link.connect()
        if self._on_progress is not None and now >= self._next_progress:
            self._next_progress = now + _PROGRESS_NS
            self._on_progress(self._progress(now))
        return True

    _next_progress = 0

    def _end_all(self, reason: str, *, interrupted: bool) -> None:
        self._ending = True
        for link in self._links:
            link.give_up(reason, interrupted=interrupted)
        self._write_finished()

    def _progress(self, now: int) -> Progress:
        return Progress(
            cell=self._cell,
            planned=len(self._requests),
            done=self.figures.done,
            failed=self._failed,
            in_flight=self._in_flight,
            reads=self.figures.reads,
            elapsed_s=(now - self.figures.start_ns) / 1e9,
        )


def quietly(run: Callable[[], Figures]) -> Figures:
    """Call it with garbage collection frozen and off, and woken at once where the kernel lets us."""
    was = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with realtime() as woken:
            figures = run()
        figures.realtime = woken
        return figures
    finally:
        gc.unfreeze()
        if was:
            gc.enable()


def overdue(link: Link, now_ns: int, deadlines: Deadlines) -> str | None:
    """Which deadline a link has passed, in words that go into the row."""
    if link.state in ("connecting", "handshake"):
        if now_ns - link.since_ns > deadlines.connect_s * 1e9:
            return f"connect timeout: no connection within {deadlines.connect_s:g} s"
        return None
    if link.exchange is None:
        return None
    if now_ns - (link.exchange.send_ns or link.since_ns) > deadlines.total_s * 1e9:
        return f"total timeout: not finished within {deadlines.total_s:g} s"
    if link.reads:
        if len(link.reads) > 3 * _MANY_READS and _estimate(link.reads) > MAX_ANSWER_BYTES:
            return f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB"
        if now_ns - link.reads[-3] > deadlines.silence_s * 1e9:
            return f"read timeout: silent for {deadlines.silence_s:g} s"
    elif now_ns - link.since_ns > deadlines.first_byte_s * 1e9:
        return f"first byte timeout: nothing came within {deadlines.first_byte_s:g} s"
    return None


def _estimate(reads: Sequence[Any]) -> int:
    """Bytes of an answer so far, from its last reads: adding all of them up at every tick would cost more than it is worth."""
    last = reads[:-193:-3]
    return sum(map(len, last)) * len(reads) // (3 * len(last))


def seal(exchange: Exchange, reads: Sequence[Any]) -> Exchange:
    """Pack the reads into the exchange."""
    pieces = reads[2::3]
    exchange.own = array("q", reads[::3]).tobytes()
    exchange.kernel = b"".join(reads[1::3])
    exchange.sizes = array("I", map(len, pieces)).tobytes()
    exchange.data = b"".join(pieces)
    return exchange
