"""A gauge over time as it may be drawn: a gap in the samples is a gap in the line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from evenhand.judge.view import JudgeRow


class Trace(JudgeRow, frozen=True, kw_only=True):
    """Points to draw, with a null where the line must break."""

    points: list[tuple[float, float | None]] = msgspec.field(default_factory=list)
    """(seconds, value); a null value stands in the middle of every gap."""
    lonely: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """Points between two breaks: they have no segment and need a marker."""
    gaps: int = 0
    longest_gap_s: float | None = None
    unsampled_share: float | None = None
    peak: float | None = None
    label: str = ""
    """What may be claimed of the peak: "peak" or "lower bound: 92 % of the window unsampled"."""


def trace(samples: Sequence[tuple[float, float | None]], interval_s: float) -> Trace:
    """Break a series of (seconds, value) wherever neighbours are more than 1.5 intervals apart or a value is null."""
    seen = sorted((t, v) for t, v in samples if v is not None)
    if not seen:
        return Trace(label="no samples")
    runs: list[list[tuple[float, float]]] = [[seen[0]]]
    holes = []
    for before, point in pairwise(seen):
        if point[0] - before[0] > 1.5 * interval_s:
            holes.append((before[0], point[0]))
            runs.append([])
        runs[-1].append(point)
    points: list[tuple[float, float | None]] = []
    for run, hole in zip(runs, [*holes, None], strict=True):
        points += run
        if hole:
            points.append(((hole[0] + hole[1]) / 2, None))
    length = seen[-1][0] - seen[0][0]
    dark = sum(b - a for a, b in holes)
    share = dark / length if length else None
    peak = max(v for _, v in seen)
    return Trace(
        points=points,
        lonely=[run[0] for run in runs if len(run) == 1],
        gaps=len(holes),
        longest_gap_s=max((b - a for a, b in holes), default=None),
        unsampled_share=share,
        peak=peak,
        label=f"lower bound: {share:.0%} of the window unsampled".replace("%", " %") if share else "lower bound: sampled",
    )
