"""What the in-engine probe saw: exact peaks step by step, and retained recurrent states per request.

Rows come from inside another process and are read leniently. Used of them (engines/probes says how they are taken):

    {"t_ns", "step", "used", ...}                        blocks in use at the step's worst moment
    {"t_ns", "request", "computed", "state", "kept"}     state blocks by group: held after allocation, kept after retiring
    {"t_ns", "probe": "off", "missing": [...]}           when and why it fell silent; older probes do not say when
    {"probe": "dropped", "rows": n}                      rows that were lost
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

import msgspec

from evenhand.judge.view import JudgeRow
from evenhand.records import CellRow


class ExactPeak(JudgeRow, frozen=True, kw_only=True):
    """Most blocks in use at the end of any scheduler step of a cell."""

    blocks: int
    step: int | None = None
    steps: int
    """Steps seen inside the window."""


class Retained(JudgeRow, frozen=True, kw_only=True):
    """Recurrent-state blocks that one request held, over the tokens it had computed."""

    request: str
    first: int
    last: int
    most: int
    computed_tokens: int
    """Where the series ends."""
    growth_per_1000_tokens: float | None = None
    """(most - first) over the computed tokens between them, times 1000; None where nothing grew or nothing was computed."""
    series: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """(computed tokens, blocks) wherever the count changed, first and last included."""
    text: str = ""
    """ "4, 5, ..., 16" """


def exact_peak(probe: Sequence[dict[str, Any]], cell: CellRow, sampled: int | None) -> tuple[ExactPeak | None, str | None]:
    """(exact peak inside the cell's window, None), or (None, why there is none).

    A probe that lost rows, or was off for any part of the cell, saw only a lower bound. So did one whose peak is below
    `sampled`, the largest sample in blocks: no sample can exceed an exact peak.
    """
    if not probe:
        return None, "no probe"
    lost = _lost_rows(probe)
    if lost:
        return None, f"the probe dropped {lost} rows"
    off = _off(probe, cell)
    if off:
        return None, f"the probe turned itself off: {off}"
    found = _highest(probe, cell)
    if found is None:
        return None, "the probe logged no step in this cell"
    if sampled is not None and found.blocks < sampled:
        return None, f"the probe saw {found.blocks} blocks where a sample read {sampled}"
    return found, None


def _highest(probe: Sequence[dict[str, Any]], cell: CellRow) -> ExactPeak | None:
    best: tuple[int, int | None] | None = None
    steps = 0
    for row in probe:
        used = row.get("used")
        if "step" not in row or not isinstance(used, int) or not _inside(row, cell):
            continue
        steps += 1
        if best is None or used > best[0]:
            step = row.get("step")
            best = (used, step if isinstance(step, int) else None)
    return None if best is None else ExactPeak(blocks=best[0], step=best[1], steps=steps)


def _off(probe: Sequence[dict[str, Any]], cell: CellRow) -> str | None:
    """Why a probe was off for part of the cell, or None.

    Rows come in order of time, those of one engine (data parallel) among themselves. A row that does not say when it fell
    silent is dated by the last row before it: from there on nothing was seen.
    """
    last: dict[Any, int] = {}
    silent: dict[Any, tuple[int, str]] = {}
    start, end = cell.start_ns or 0, cell.end_ns or 0
    for row in probe:
        engine, t = row.get("engine"), row.get("t_ns")
        if row.get("probe") == "off":
            missing = row.get("missing")
            why = ", ".join(map(str, missing)) if isinstance(missing, list) else "no reason given"
            silent[engine] = (t if isinstance(t, int) else last.get(engine, 0), why)
        elif isinstance(t, int):
            if engine in silent:
                since, why = silent.pop(engine)
                if since <= end and t >= start:
                    return why
            last[engine] = t
    return next((why for since, why in silent.values() if since <= end), None)


def _lost_rows(probe: Sequence[dict[str, Any]]) -> int:
    """Rows that the probe's writer had to drop: with any, an exact peak is only a lower bound."""
    return max((row["rows"] for row in probe if row.get("probe") == "dropped" and isinstance(row.get("rows"), int)), default=0)


def retained(probe: Sequence[dict[str, Any]], cell: CellRow) -> list[Retained]:
    """One series per request of the cell, in order of appearance.

    Counted where blocks are removed, before the step allocates one more, as far as the probe saw that moment; of several state
    groups the one that holds most.
    """
    held: dict[str, list[tuple[int, int]]] = {}
    kept: dict[str, list[tuple[int, int]]] = {}
    for row in probe:
        request, computed = row.get("request"), row.get("computed")
        if request is None or not isinstance(computed, int) or not _inside(row, cell):
            continue
        for name, series in (("state", held), ("kept", kept)):
            blocks = _most(row.get(name))
            if blocks is not None:
                series.setdefault(str(request), []).append((computed, blocks))
    found = []
    for request, points in held.items():
        rising = list(dropwhile(lambda point: point[1] == 0, kept.get(request) or points))  # nothing was held yet
        if rising:
            found.append(_retained(request, rising))
    return found


def _most(groups: Any) -> int | None:
    """The largest of the groups' counts; None where there are none."""
    counts = [c for c in (groups if isinstance(groups, list | tuple) else [groups]) if isinstance(c, int)]
    return max(counts, default=None)


def _retained(request: str, points: list[tuple[int, int]]) -> Retained:
    counts = [blocks for _, blocks in points]
    top = max(counts)
    at_top = next(computed for computed, blocks in points if blocks == top)
    span = at_top - points[0][0]
    growth = (top - counts[0]) / span * 1000 if span > 0 and top > counts[0] else None
    kept = [p for i, p in enumerate(points) if i in (0, len(points) - 1) or p[1] != points[i - 1][1]]
    return Retained(
        request=request,
        first=counts[0],
        last=counts[-1],
        most=top,
        computed_tokens=points[-1][0],
        growth_per_1000_tokens=growth,
        series=kept,
        text=series_text(counts),
    )


def series_text(counts: Sequence[int]) -> str:
    """The rise of a series in the form "4, 5, ..., 16"; "5" where it never rose."""
    rising: list[int] = []
    for count in counts:
        if not rising or count > rising[-1]:
            rising.append(count)
    if len(rising) > 4:
        return f"{rising[0]}, {rising[1]}, ..., {rising[-1]}"
    return ", ".join(map(str, rising))


def _inside(row: dict[str, Any], cell: CellRow) -> bool:
    t = row.get("t_ns")
    return isinstance(t, int) and cell.start_ns is not None and cell.end_ns is not None and cell.start_ns <= t <= cell.end_ns
