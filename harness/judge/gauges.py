"""Samples of the engine's gauges inside a cell's window: peaks with what could have been missed."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

from evenhand.judge.columns import longest_gap, sample_ns
from evenhand.judge.stats import extent
from evenhand.judge.view import JudgeRow
from evenhand.records import CellRow, Pool, SampleRow


def inside(samples: Sequence[SampleRow], start_ns: int | None, end_ns: int | None) -> Sequence[SampleRow]:
    """Samples, in order of time as Reader has them, rendered between the first send and the last byte of a cell."""
    if start_ns is None or end_ns is None:
        return []
    return samples[bisect_left(samples, start_ns, key=sample_ns) : bisect_right(samples, end_ns, key=sample_ns)]


class Peak(JudgeRow, frozen=True, kw_only=True):
    """The largest sample of a gauge: a lower bound of the true peak."""

    value: float | None = None
    reason: str | None = None
    samples: int = 0
    largest_gap_s: float | None = None
    """Longest time without a sample, the window's ends included."""
    unsampled_share: float | None = None
    """Share of the window that lies in gaps of more than 1.5 intervals."""
    nonfinite: int = 0
    out_of_range: int = 0
    at_ns: int | None = None


def peak(
    samples: Sequence[SampleRow],
    name: str,
    cell: CellRow,
    *,
    worked: bool,
    interval_s: float,
    low: float | None = None,
    high: float | None = None,
) -> Peak:
    """Largest value of one neutral gauge inside the cell's window.

    `worked`: tokens were produced in the window. A gauge that then reads 0 in every sample was not seen at work, which is null
    ("undersampled"), not 0. `low` and `high`: values outside are counted, never clipped. A metric that never came is "absent".
    """
    window = inside(samples, cell.start_ns, cell.end_ns)
    if not window:
        if not samples:
            return Peak(reason="not sampled")
        bad = sorted({s.status for s in samples if s.status != "ok"})
        if bad and all(s.status != "ok" for s in samples):
            return Peak(reason=f"unavailable: {', '.join(bad)}")
        return Peak(reason="undersampled: no sample inside the window")
    answered = [s for s in window if s.status == "ok"]
    if not answered:
        return Peak(reason=f"unavailable: {', '.join(sorted({s.status for s in window}))}")
    values = [s.values.get(name) for s in answered]
    found = extent(values, low, high)
    flagged = sum(flag.partition("=")[0] in (f"nonfinite:{name}",) for s in answered for flag in s.flags)
    beyond = sum(flag.partition("=")[0] == f"out_of_range:{name}" for s in answered for flag in s.flags)
    nonfinite, outside = max(found.nonfinite, flagged), max(found.out_of_range, beyond)
    times = [sample_ns(s) for s, v in zip(answered, values, strict=True) if v is not None and math.isfinite(v)]
    if found.peak is None and outside:
        reason: str | None = f"every sample was out of range ({outside})"
    elif found.peak is None:
        reason = f"every sample was not finite ({nonfinite})" if nonfinite else "absent"
    elif found.peak == 0 and worked:
        reason = "undersampled: tokens came while every sample read 0"
    else:
        reason = None
    return Peak(
        value=found.peak if reason is None else None,
        reason=reason,
        samples=found.n,
        nonfinite=nonfinite,
        out_of_range=outside,
        largest_gap_s=_gap_s(times, cell),
        unsampled_share=_unsampled(times, cell, interval_s),
        at_ns=next((sample_ns(s) for s, v in zip(answered, values, strict=True) if v == found.peak), None),
    )


def _gap_s(times_ns: list[int], cell: CellRow) -> float | None:
    if not times_ns or cell.start_ns is None or cell.end_ns is None:
        return None
    gap = longest_gap([cell.start_ns, *times_ns, cell.end_ns])
    return None if gap is None else gap / 1e9


def _unsampled(times_ns: list[int], cell: CellRow, interval_s: float) -> float | None:
    if not times_ns or cell.start_ns is None or cell.end_ns is None or cell.end_ns <= cell.start_ns:
        return None
    edges = [cell.start_ns, *times_ns, cell.end_ns]
    holes = sum(b - a for a, b in pairwise(edges) if b - a > 1.5e9 * interval_s)
    return holes / (cell.end_ns - cell.start_ns)


def usage_peak(samples: Sequence[SampleRow], cell: CellRow, *, worked: bool, interval_s: float) -> Peak:
    """Peak share of the KV pool, 0..1."""
    return peak(samples, "usage", cell, worked=worked, interval_s=interval_s, low=0.0, high=1.0)


class PoolPeak(JudgeRow, frozen=True, kw_only=True):
    """Peak pool use in the engine's own unit and in blocks."""

    share: float | None = None
    blocks: int | None = None
    reason: str | None = None
    source: str = ""
    """The gauge behind `blocks`: "used_blocks", "used_tokens" or "usage"."""
    sampled: Peak = Peak()


def pool_peak(samples: Sequence[SampleRow], cell: CellRow, pool: Pool | None, *, worked: bool, interval_s: float) -> PoolPeak:
    """Peak of the pool; gauges that count exactly (blocks, then tokens) go before the rounded share."""
    usage = usage_peak(samples, cell, worked=worked, interval_s=interval_s)
    exact = peak(samples, "used_blocks", cell, worked=worked, interval_s=interval_s, low=0.0)
    usable = _usable(pool)
    if exact.value is not None:
        share = usage.value if usage.value is not None else (exact.value / usable if usable else None)
        return PoolPeak(share=share, blocks=round(exact.value), source="used_blocks", sampled=exact)
    tokens = peak(samples, "used_tokens", cell, worked=worked, interval_s=interval_s, low=0.0)
    if tokens.value is not None and pool is not None and pool.block_tokens:
        share = usage.value if usage.value is not None else (tokens.value / pool.tokens if pool.tokens else None)
        return PoolPeak(share=share, blocks=math.ceil(tokens.value / pool.block_tokens), source="used_tokens", sampled=tokens)
    blocks = blocks_of(usage.value, pool)
    reason = usage.reason if usage.reason is not None else (None if blocks is not None else "the pool's size is not known")
    return PoolPeak(
        share=usage.value, blocks=blocks, reason=reason, source="usage" if blocks is not None else "", sampled=usage
    )


def _usable(pool: Pool | None) -> int | None:
    if pool is None:
        return None
    return pool.usable_blocks if pool.usable_blocks is not None else pool.blocks


def blocks_of(share: float | None, pool: Pool | None) -> int | None:
    """A share of the pool in blocks: usage divides by the usable ones (the null block is not among them)."""
    usable = _usable(pool)
    return None if share is None or usable is None else round(share * usable)


def worst_engine(samples: Sequence[SampleRow], cell: CellRow) -> float | None:
    """Largest usage of any one engine, where several report (data parallel); None where there is one."""
    values = [
        value
        for s in inside(samples, cell.start_ns, cell.end_ns)
        for value in s.by_engine.get("usage", {}).values()
        if value is not None and 0 <= value <= 1
    ]
    return max(values, default=None)


def settled(samples: Sequence[SampleRow], cell: CellRow, until_ns: int | None) -> float | None:
    """Usage in the last sample after the cell went idle and before the next one began."""
    if cell.settle_ns is None:
        return None
    end = None if until_ns is None else bisect_left(samples, until_ns, key=sample_ns)
    idle = samples[bisect_left(samples, cell.settle_ns, key=sample_ns) : end]
    return next((usage for s in reversed(idle) if s.status == "ok" and (usage := s.values.get("usage")) is not None), None)
