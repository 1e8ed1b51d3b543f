"""Waiting for idle on a clock of our own."""

from collections.abc import Callable, Mapping

import pytest

from evenhand.watch.idle import Settle, wait_idle


class FakeClock:
    """Time moves only when somebody sleeps."""

    def __init__(self, start_s: float) -> None:
        self.now_ns = int(start_s * 1e9)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float, /) -> None:
        self.now_ns += int(seconds * 1e9)


def wait(
    read: Callable[[float], Mapping[str, float | None] | None], start_s: float = 10.0, limit_s: float = 15.0
) -> tuple[Settle, float]:
    clock = FakeClock(start_s)
    settle = wait_idle(lambda: read(clock.now_ns / 1e9), limit_s, clock)
    return settle, clock.now_ns / 1e9


def test_b38_gauges_that_never_move_end_the_wait_as_stale() -> None:
    settle, end_s = wait(lambda t: {"running": 106.0, "waiting": 0.0, "usage": 0.90})
    assert end_s == pytest.approx(25.0, abs=0.5)
    assert settle.reason == "stale gauges"
    assert settle.settle_ns is None
    assert settle.values["running"] == 106


def test_idle_is_dated_by_its_first_reading() -> None:
    settle, _ = wait(lambda t: {"running": 0.0 if t >= 12 else 3.0, "waiting": 0.0, "usage": 0.0})
    assert settle.settle_ns == 12_000_000_000
    assert settle.reason is None
    assert settle.waited_s == pytest.approx(2.25)


def test_a_pool_gauge_that_lags_is_waited_for() -> None:
    settle, _ = wait(lambda t: {"running": 0.0, "waiting": 0.0, "usage": 0.5 if t < 11 else 0.0})
    assert settle.values["usage"] == 0.0
    assert settle.settle_ns == 11_000_000_000
    held, end_s = wait(lambda t: {"running": 0.0, "waiting": 0.0, "usage": 0.5})
    assert (held.settle_ns, held.values["usage"], end_s) == (10_000_000_000, 0.5, 11.75)
    moving, _ = wait(lambda t: {"running": 0.0, "waiting": 0.0, "usage": t})
    assert moving.reason == "the pool gauge kept changing"


def test_one_idle_reading_between_two_requests_is_not_idle() -> None:
    readings = iter([0.0, 1.0, 0.0, 1.0] + [0.0] * 4)
    settle, end_s = wait(lambda t: {"running": next(readings), "waiting": 0.0, "usage": 0.0})
    assert settle.settle_ns == 11_000_000_000
    assert end_s == 11.25


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda t: {"running": 3.0, "waiting": t, "usage": 0.1}, "still busy: running 3, waiting 25"),
        (lambda t: None, "no metrics could be read"),
        (lambda t: {"usage": 0.0}, "the engine has no gauge of running requests"),
    ],
)
def test_the_reason_says_what_was_seen(read: Callable[[float], Mapping[str, float | None] | None], reason: str) -> None:
    settle, end_s = wait(read)
    assert settle.reason is not None
    assert settle.reason.startswith(reason)
    assert end_s == pytest.approx(25.0)


def test_without_a_queue_gauge_running_decides() -> None:
    settle, _ = wait(lambda t: {"running": 0.0})
    assert settle.reason is None


def test_a_busy_reading_in_which_nothing_moves_is_stale_before_the_limit() -> None:
    """An engine that pushes gauges from steps alone keeps its last running request; waiting for the limit would buy nothing."""
    clock = FakeClock(0.0)
    reading = {"running": 1.0, "waiting": 0.0, "usage": 0.0, "generation_tokens": 1801.0}
    found = wait_idle(lambda: reading, 30.0, clock, 0.25, stale_after_s=3.0)
    assert found.settle_ns is None
    assert found.reason is not None
    assert found.reason.startswith("stale gauges")
    assert 3.0 <= found.waited_s < 4.0


def test_a_counter_that_moves_is_an_engine_at_work() -> None:
    clock, tokens = FakeClock(0.0), iter(range(10_000))
    found = wait_idle(lambda: {"running": 1.0, "waiting": 0.0, "generation_tokens": float(next(tokens))}, 8.0, clock, 0.25, 3.0)
    assert found.waited_s >= 8.0
