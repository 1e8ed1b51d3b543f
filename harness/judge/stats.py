"""Percentiles, peaks and changes, in which nothing is ever silently 0 or NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evenhand.judge.view import JudgeRow
from evenhand.quantile import quantile


class Figure(JudgeRow, frozen=True, kw_only=True):
    """A number, or null with the reason why there is none."""

    value: float | None = None
    n: int = 0
    reason: str | None = None


def known(values: Iterable[float | None]) -> list[float]:
    """The measured, finite ones."""
    return [v for v in values if v is not None and math.isfinite(v)]


def enough(n: int, q: float) -> bool:
    """Whether n values can carry the percentile q: n >= 1/(1-q)."""
    return n > 0 and n * (1 - q) >= 1 - 1e-9


def percentile(values: Iterable[float | None], q: float) -> Figure:
    """The q-th quantile (0 <= q < 1) of the measured values; null below 1/(1-q) of them."""
    ordered = sorted(known(values))
    n = len(ordered)
    if not n:
        return Figure(reason="no values")
    if not enough(n, q):
        return Figure(n=n, reason=f"p{q * 100:g} needs {math.ceil(1 / (1 - q) - 1e-9)} values, has {n}")
    return Figure(value=quantile(ordered, q), n=n)


def percentile_adjusted(values: Iterable[float | None], failed: int, q: float) -> Figure:
    """Nearest rank over successes and failures, a failure counting as infinitely slow.

    Null with the reason "failures" where the rank falls among them.
    """
    ordered = sorted(known(values))
    n = len(ordered) + failed
    if not n:
        return Figure(reason="no values")
    if not enough(n, q):
        return Figure(n=n, reason=f"p{q * 100:g} needs {math.ceil(1 / (1 - q) - 1e-9)} values, has {n}")
    rank = max(1, math.ceil(q * n - 1e-9))
    if rank > len(ordered):
        return Figure(n=n, reason="failures")
    return Figure(value=ordered[rank - 1], n=n)


def median(values: Iterable[float | None]) -> float | None:
    """Median of the measured values, however few; null when there are none. For statistics of legs, not for claims."""
    return quantile(sorted(known(values)), 0.5)


class Extent(JudgeRow, frozen=True, kw_only=True):
    """Peak of a gauge, with what was left out."""

    peak: float | None = None
    n: int = 0
    nonfinite: int = 0
    out_of_range: int = 0


def extent(values: Iterable[float | None], low: float | None = None, high: float | None = None) -> Extent:
    """Peak over finite values within [low, high]; the others are counted and never clipped."""
    finite: list[float] = []
    nonfinite = outside = 0
    for value in values:
        if value is None:
            continue
        if not math.isfinite(value):
            nonfinite += 1
        elif (low is not None and value < low) or (high is not None and value > high):
            outside += 1
        else:
            finite.append(value)
    if not finite:
        return Extent(nonfinite=nonfinite, out_of_range=outside)
    return Extent(peak=max(finite), n=len(finite), nonfinite=nonfinite, out_of_range=outside)


def change(baseline: float | None, candidate: float | None) -> Figure:
    """candidate/baseline - 1; null with "no data" or "bad baseline"."""
    if baseline is None or candidate is None or not math.isfinite(candidate) or not math.isfinite(baseline):
        return Figure(reason="no data")
    if baseline <= 0:
        return Figure(reason="bad baseline")
    return Figure(value=candidate / baseline - 1, n=1)
