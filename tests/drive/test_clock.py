"""Kernel stamps on the monotonic line, and clock steps that are seen."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from evenhand.drive.clock import STEP_NS, Clock, Pair, Step, read_pair, to_monotonic

S = 1_000_000_000


def test_a_pair_holds_both_clocks_of_one_instant() -> None:
    pair = read_pair()
    assert pair.width_ns >= 0
    assert abs(pair.monotonic_ns + pair.offset_ns - time.time_ns()) < 60 * S


def test_a_loose_reading_is_taken_again_a_tight_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    line = iter([0, 90_000, 100_000, 100_100])
    monkeypatch.setattr("evenhand.drive.clock.time", SimpleNamespace(monotonic_ns=lambda: next(line), time_ns=lambda: 50 * S))
    assert read_pair() == Pair(100_100, 50 * S - 100_050, 100)


def scripted(*pairs: Pair) -> Clock:
    readings = iter(pairs)
    return Clock(lambda: next(readings))


def test_a_quiet_clock_has_no_step() -> None:
    clock = scripted(Pair(0, 50 * S, 100), Pair(S, 50 * S + STEP_NS, 100), Pair(2 * S, 50 * S - 10, 100))
    clock.check()
    clock.check()
    assert clock.steps == []


def test_a_step_is_seen_between_two_checks() -> None:
    clock = scripted(Pair(0, 50 * S, 100), Pair(S, 50 * S, 100), Pair(2 * S, 57 * S, 100))
    clock.check()
    clock.check()
    assert clock.steps == [Step(S, 2 * S, 50 * S, 57 * S)]
    assert clock.offset_ns == 57 * S


def test_a_reading_that_was_torn_apart_is_no_step() -> None:
    clock = scripted(Pair(0, 50 * S, 100), Pair(S, 50 * S + 5 * STEP_NS, 5 * STEP_NS))
    clock.check()
    assert clock.steps == []


def test_conversion_without_steps() -> None:
    assert to_monotonic(60 * S, 10 * S + 5, 50 * S) == 10 * S


def test_conversion_around_a_step() -> None:
    step = Step(10 * S, 11 * S, 50 * S, 57 * S)
    assert to_monotonic(59 * S, 9 * S + 1, 57 * S, [step]) == 9 * S
    assert to_monotonic(60 * S + 5, 10 * S + 6, 57 * S, [step]) is None
    assert to_monotonic(69 * S, 12 * S + 1, 57 * S, [step]) == 12 * S
    # Stamped before the step, read after it: only the old offset would fit.
    assert to_monotonic(59 * S, 12 * S, 57 * S, [step]) is None


def test_a_step_backwards() -> None:
    step = Step(10 * S, 11 * S, 50 * S, 43 * S)
    assert to_monotonic(59 * S, 12 * S, 43 * S, [step]) is None
    assert to_monotonic(55 * S, 12 * S + 1, 43 * S, [step]) == 12 * S


def test_two_steps() -> None:
    steps = [Step(10 * S, 11 * S, 50 * S, 57 * S), Step(20 * S, 21 * S, 57 * S, 50 * S)]
    assert to_monotonic(55 * S, 5 * S + 1, 50 * S, steps) == 5 * S
    assert to_monotonic(72 * S, 15 * S + 1, 50 * S, steps) == 15 * S
    assert to_monotonic(80 * S, 30 * S + 1, 50 * S, steps) == 30 * S
