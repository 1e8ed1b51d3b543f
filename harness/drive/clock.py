"""One time line: `time.monotonic_ns`, and the kernel's real-time stamps converted to it by pairs taken through a run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

STEP_NS = 100_000
"""Real time that moves against monotonic time by more than this was set: slewing moves both alike."""

_TIES = 5
"""Readings per pair at most; the tightest is kept, so that being descheduled between two clocks is not taken for a step."""

_TIGHT_NS = 500
"""A reading this tight needs no other: its offset is right to a quarter of a microsecond."""


class Pair(NamedTuple):
    """Both clocks at one instant."""

    monotonic_ns: int
    offset_ns: int
    """real time - monotonic"""
    width_ns: int
    """How long the reading took: the offset is right to half of it."""


class Step(NamedTuple):
    """The real-time clock was set somewhere between two monotonic instants."""

    after_ns: int
    before_ns: int
    old_offset_ns: int
    new_offset_ns: int


def read_pair() -> Pair:
    """Read both clocks together; the tightest of a few tries."""
    best: Pair | None = None
    for _ in range(_TIES):
        first = time.monotonic_ns()
        real = time.time_ns()
        last = time.monotonic_ns()
        if best is None or last - first < best.width_ns:
            best = Pair(last, real - (first + last) // 2, last - first)
            if best.width_ns <= _TIGHT_NS:
                break
    assert best is not None
    return best


class Clock:
    """Pairs through a rung. `check` costs half a microsecond and is called a few times a second and before every spill."""

    def __init__(self, read: object = None) -> None:
        self._read = read if callable(read) else read_pair
        pair: Pair = self._read()
        self.offset_ns = pair.offset_ns
        self._last_ns = pair.monotonic_ns
        self.steps: list[Step] = []

    def check(self) -> None:
        """Take a pair; note a step since the last one."""
        pair: Pair = self._read()
        if abs(pair.offset_ns - self.offset_ns) > STEP_NS + pair.width_ns:
            self.steps.append(Step(self._last_ns, pair.monotonic_ns, self.offset_ns, pair.offset_ns))
            self.offset_ns = pair.offset_ns
        self._last_ns = pair.monotonic_ns


def to_monotonic(kernel_ns: int, own_ns: int, offset_ns: int, steps: Sequence[Step] = ()) -> int | None:
    """A kernel stamp (real time) on the monotonic line; None when a clock step makes it uncertain.

    `offset_ns` is the offset after all `steps`. `own_ns` (monotonic, taken when the bytes were read) says between which steps
    the stamp lies: a read is uncertain when a step fell before its own stamp and its kernel stamp fits the old offset only.
    """
    for step in reversed(steps):
        if own_ns >= step.before_ns:
            at = kernel_ns - step.new_offset_ns
            return at if step.before_ns <= at <= own_ns + STEP_NS else None
        if own_ns > step.after_ns:
            return None
        offset_ns = step.old_offset_ns
    return kernel_ns - offset_ns
