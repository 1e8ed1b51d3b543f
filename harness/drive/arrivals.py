"""When requests are due: pure. The scheduled time is kept with every request, whenever it could be sent."""

from __future__ import annotations

import random
from typing import Literal

Arrivals = Literal["closed", "constant", "poisson", "burst"]


def schedule(arrivals: Arrivals, count: int, rate: float, *, burst: int = 1, seed: int = 0) -> list[int]:
    """Nanoseconds after the start at which each of `count` requests is due, at `rate` requests per second on average.

    constant: evenly; poisson: exponential gaps from the seed; burst: `burst` at once, evenly spaced. Raises ValueError for
    a rate that is not positive.
    """
    if rate <= 0:
        raise ValueError(f"arrivals = {arrivals!r} needs a rate above 0 requests per second, not {rate}")
    if arrivals == "constant":
        return [round(number / rate * 1e9) for number in range(count)]
    if arrivals == "burst":
        size = max(1, burst)
        return [round(number // size * size / rate * 1e9) for number in range(count)]
    draw = random.Random(seed)
    at, due = 0.0, []
    for _ in range(count):
        due.append(round(at * 1e9))
        at += draw.expovariate(rate)
    return due
