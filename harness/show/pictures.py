"""What pictures are made of: frozen structs that depend on no other room, and the cutting of a series at its gaps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import msgspec

GAP_FACTOR = 1.5
"""Two samples more than this many intervals apart have a gap between them."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is drawn."""


class Series(Picture, frozen=True, kw_only=True):
    """One line over time (seconds) or tokens; None in y is a gap."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    interval: float | None = None
    """Nominal distance of two points; None: points are joined whatever their distance."""
    exact_peak: float | None = None
    """From the engine's own step-by-step count."""
    predicted_peak: float | None = None


class Broken(Picture, frozen=True, kw_only=True):
    """A series with its gaps as NaN, ready to plot."""

    x: list[float]
    y: list[float]
    lone: list[tuple[float, float]]
    """Points with a gap (or an end) on both sides: no line shows them, so they need a marker."""
    gaps: int
    longest_gap: float
    unsampled_share: float
    """Share of first to last point that lies in gaps, 0..1."""


class PoolPanel(Picture, frozen=True, kw_only=True):
    """Pool use while one prompt length runs, every arm."""

    prompt_tokens: int
    lines: Sequence[Series]
    quantum: float = 1.0
    """The smallest step the gauge can show, in the axis's unit."""


class LadderPoint(Picture, frozen=True, kw_only=True):
    """One rung. Figures are None where the outcome has none."""

    concurrency: int
    outcome: str
    """A word of the closed list of outcomes."""
    total_tps: float | None = None
    stream_tps: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    reason: str = ""
    """For rungs without figures: why, in a few words."""


class LadderCurve(Picture, frozen=True, kw_only=True):
    """One arm's ladder."""

    name: str
    points: Sequence[LadderPoint]


class Divergence(Picture, frozen=True, kw_only=True):
    """One pair of requests."""

    cell: str
    index: int
    tokens: int
    """Output tokens compared."""
    first: int | None = None
    """Token index of the first difference; None: identical."""
    near_tie: bool = False


class PairedMetric(Picture, frozen=True, kw_only=True):
    """Paired differences of one metric, as shares (0.05 is 5 % worse)."""

    name: str
    differences: Sequence[float]
    interval: tuple[float, float] | None = None
    """90 % interval of the mean."""
    margin: float | None = None
    noise: tuple[float, float] | None = None
    """Spread of the A/A control."""
    mean: float | None = None
    """Centre of the interval; None: the mean of the differences."""
    verdict: str = ""


class GpuTrace(Picture, frozen=True, kw_only=True):
    """One leg's device over time; a list of None throughout is a panel that is left out."""

    name: str
    t_s: Sequence[float]
    clock_mhz: Sequence[float | None] = ()
    power_w: Sequence[float | None] = ()
    memory_bytes: Sequence[float | None] = ()
    interval: float | None = None


class HistoryPoint(Picture, frozen=True, kw_only=True):
    """One run in the history of a metric."""

    commit: str
    value: float | None
    low: float | None = None
    high: float | None = None
    changed: bool = False
    """The change against the run before leaves the noise."""
    apart: bool = False
    """Another machine, model or workload than the run before: the line is cut."""


def broken(series: Series) -> Broken:
    """Cut a series at its gaps: a null value, or two points more than GAP_FACTOR intervals apart."""
    points = [(x, float(y)) for x, y in zip(series.x, series.y, strict=True) if y is not None and math.isfinite(y)]
    known = {x for x, _ in points}
    holes = [x for x in series.x if x not in known]
    xs: list[float] = []
    ys: list[float] = []
    gaps, longest, missing = 0, 0.0, 0.0
    cut = {0, len(points)}
    for at, (x, y) in enumerate(points):
        before = points[at - 1][0] if at else x
        wide = series.interval is not None and x - before > GAP_FACTOR * series.interval
        if at and (wide or any(before < hole < x for hole in holes)):
            cut.add(at)
            gaps, longest, missing = gaps + 1, max(longest, x - before), missing + x - before
            xs.append((before + x) / 2)
            ys.append(math.nan)
        xs.append(x)
        ys.append(y)
    span = points[-1][0] - points[0][0] if points else 0.0
    lone = [points[start] for start, end in pairwise(sorted(cut)) if end - start == 1]
    return Broken(x=xs, y=ys, lone=lone, gaps=gaps, longest_gap=longest, unsampled_share=missing / span if span > 0 else 0.0)
