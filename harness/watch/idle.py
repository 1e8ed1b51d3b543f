"""Wait until the engine's own gauges say that it is idle, and know when they never will."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec


class Clock(Protocol):
    """The two calls of the `time` module that waiting needs."""

    def monotonic_ns(self) -> int: ...
    def sleep(self, seconds: float, /) -> None: ...


HELD_READINGS = 8
"""Equal readings of a pool that does not read empty before it is believed (2 s at the default interval)."""


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """How the wait ended."""

    settle_ns: int | None
    """When the gauges first said idle; None when they never did."""
    waited_s: float
    reason: str | None
    """Why there is no settle: "stale gauges", "still busy: running 3, waiting 0", "metrics unavailable (404)"."""
    values: dict[str, float | None] = {}
    """The last reading: usage after settling is the pool that did not come back."""


def wait_idle(
    read: Callable[[], Mapping[str, float | None] | None],
    limit_s: float,
    clock: Clock = time,
    interval_s: float = 0.25,
    stale_after_s: float | None = None,
) -> Settle:
    """Poll `read` (neutral gauges; None when a scrape failed) until nothing runs or waits and the pool gauge stands still.

    Two readings alike when the pool reads empty (one may fall between two requests), HELD_READINGS when it does not: the pool
    gauge may lag behind the request gauge, and a pool that stays occupied is something to be sure of. Ends at `limit_s` with
    a reason: "stale gauges" when no reading ever changed (engines that push only from steps keep their last values for ever
    after an abort), else what was still busy. `stale_after_s`: a busy reading in which nothing moves for so long
    is stale, too (SGLang 0.5.15 keeps one running request for half a minute after its last). Never waits without a limit.
    """
    start_ns = clock.monotonic_ns()
    limit_ns = start_ns + int(limit_s * 1e9)
    seen: set[tuple[float | None, ...]] = set()
    last: dict[str, float | None] = {}
    idle_ns: int | None = None
    idle_usage: float | None = None
    alike = 0
    moved_ns = start_ns
    while True:
        now_ns = clock.monotonic_ns()
        reading = read()
        if reading is not None:
            if dict(reading) != last:
                moved_ns = now_ns
            last = dict(reading)
            running, waiting, usage = (last.get(name) for name in ("running", "waiting", "usage"))
            seen.add((running, waiting, usage))
            if running == 0 and not waiting:
                alike = alike + 1 if alike and usage == idle_usage else 1
                if alike == 1:
                    idle_ns, idle_usage = now_ns, usage
                if alike >= (HELD_READINGS if usage else 2):
                    return Settle(settle_ns=idle_ns, waited_s=(clock.monotonic_ns() - start_ns) / 1e9, reason=None, values=last)
            else:
                alike, idle_usage = 0, None
                if stale_after_s is not None and now_ns - moved_ns >= stale_after_s * 1e9:
                    still_s = (now_ns - moved_ns) / 1e9
                    why = f"stale gauges: running {running}, waiting {waiting}, nothing moved for {still_s:.1f} s"
                    return Settle(settle_ns=None, waited_s=(now_ns - start_ns) / 1e9, reason=why, values=last)
        left_s = (limit_ns - clock.monotonic_ns()) / 1e9
        if left_s <= 0:
            break
        clock.sleep(min(interval_s, left_s))
    waited_s = (clock.monotonic_ns() - start_ns) / 1e9
    return Settle(settle_ns=None, waited_s=waited_s, reason=_why(last, len(seen)), values=last)


def _why(last: Mapping[str, float | None], different: int) -> str:
    running, waiting = last.get("running"), last.get("waiting")
    if not last:
        return "no metrics could be read"
    if running is None:
        return "the engine has no gauge of running requests"
    if running == 0 and not waiting:
        return "the pool gauge kept changing"
    if different == 1:
        return "stale gauges"
    return f"still busy: running {running:g}, waiting {waiting or 0:g}"
