"""Percentiles, means and matched comparisons, in which nothing is ever silently 0 or NaN."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from evenhand.judge.view import JudgeRow


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


def interpolate(ordered: Sequence[float], q: float) -> float:
    """Linear interpolation (Hyndman and Fan type 7) in sorted values, kept within [min, max]."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    value = ordered[low] + (ordered[high] - ordered[low]) * (position - low)
    return min(max(value, ordered[0]), ordered[-1])


def percentile(values: Iterable[float | None], q: float) -> Figure:
    """The q-th quantile (0 <= q < 1) of the measured values; null below 1/(1-q) of them."""
    ordered = sorted(known(values))
    n = len(ordered)
    if not n:
        return Figure(reason="no values")
    if not enough(n, q):
        return Figure(n=n, reason=f"p{q * 100:g} needs {math.ceil(1 / (1 - q) - 1e-9)} values, has {n}")
    return Figure(value=interpolate(ordered, q), n=n)


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
    ordered = sorted(known(values))
    return interpolate(ordered, 0.5) if ordered else None


class Extent(JudgeRow, frozen=True, kw_only=True):
    """Peak and mean of a gauge, with what was left out."""

    peak: float | None = None
    mean: float | None = None
    n: int = 0
    nonfinite: int = 0
    out_of_range: int = 0


def extent(values: Iterable[float | None], low: float | None = None, high: float | None = None) -> Extent:
    """Peak and mean over finite values within [low, high]; the others are counted and never clipped."""
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
    return Extent(
        peak=max(finite), mean=math.fsum(finite) / len(finite), n=len(finite), nonfinite=nonfinite, out_of_range=outside
    )


class Matched(JudgeRow, frozen=True, kw_only=True):
    """A geometric mean ratio b/a over the keys that both sides measured."""

    ratio: float | None = None
    pairs: int = 0
    only_a: list[str] = msgspec.field(default_factory=list)
    only_b: list[str] = msgspec.field(default_factory=list)
    reason: str | None = None


def geomean_ratio(a: Mapping[str, float | None], b: Mapping[str, float | None]) -> Matched:
    """exp(mean(log(b/a))) over matched keys with positive values; what is not matched is named, never averaged in."""

    def usable(side: Mapping[str, float | None]) -> dict[str, float]:
        return {k: v for k, v in side.items() if v is not None and math.isfinite(v) and v > 0}

    left, right = usable(a), usable(b)
    keys = sorted(left.keys() & right.keys())
    only_a = sorted((left.keys() | (a.keys() - b.keys())) - right.keys())
    only_b = sorted((right.keys() | (b.keys() - a.keys())) - left.keys())
    if not keys:
        return Matched(only_a=only_a, only_b=only_b, reason="no pair was measured on both sides")
    mean = math.fsum(math.log(right[k] / left[k]) for k in keys) / len(keys)
    return Matched(ratio=math.exp(mean), pairs=len(keys), only_a=only_a, only_b=only_b)


def change(baseline: float | None, candidate: float | None) -> Figure:
    """candidate/baseline - 1; null with "no data" or "bad baseline"."""
    if baseline is None or candidate is None or not math.isfinite(candidate) or not math.isfinite(baseline):
        return Figure(reason="no data")
    if baseline <= 0:
        return Figure(reason="bad baseline")
    return Figure(value=candidate / baseline - 1, n=1)
