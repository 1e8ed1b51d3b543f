"""Figures of timing rules by boot pair, taken from the cells of each leg."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from evenhand.judge.columns import Columns, Reader
from evenhand.judge.equality import Comparison
from evenhand.judge.ladder import LadderRow
from evenhand.judge.rules import Rule
from evenhand.judge.stats import Figure, median, percentile, percentile_adjusted
from evenhand.judge.timing import Legs
from evenhand.records import LegRow

_PERCENTILES: dict[str, tuple[Callable[[Columns], list[float | None]], float]] = {
    "ttft_p50": (lambda c: c.ttft_s, 0.5),
    "ttft_p95": (lambda c: c.ttft_s, 0.95),
    "tpot_p50": (lambda c: c.tpot_s, 0.5),
}


def timing_legs(
    rules: Sequence[Rule],
    reader: Reader,
    rows: Sequence[LadderRow],
    baseline: Sequence[LegRow],
    candidate: Sequence[LegRow],
    comparisons: Sequence[Comparison],
) -> dict[str, Legs]:
    """Figures of every timing rule. `rows`: judged cells per leg, of the ladder where there is one, else of the pressure run.

    A leg's figure in a cell is the percentile over its requests; where any leg of either arm has failures in that cell, the
    error-adjusted one for all of them. A p50 of a long prompt, which may be one request, is the plain median.
    """
    kinds = {"ladder"} if any(r.kind == "ladder" for r in rows) else {"pressure"}
    legs = {leg.leg for leg in (*baseline, *candidate)}
    chosen = {(r.legs[0], r.cell): r for r in rows if r.kind in kinds and r.repeat == 0 and r.legs[0] in legs}
    cells = list(dict.fromkeys(cell for _, cell in chosen))
    failing = {cell for (_, cell), r in chosen.items() if r.has_figures and r.failed + r.interrupted}
    found = {}
    for rule in rules:
        missing: list[str] = []
        by_leg: dict[int, dict[str, float]] = {}
        for leg in (*baseline, *candidate):
            figures = {}
            for cell in cells:
                row = chosen.get((leg.leg, cell))
                figure = _figure(rule, reader, leg.leg, row, cell in failing) if row else Figure(reason="not measured")
                if figure.value is None:
                    missing.append(f"{cell} on leg {leg.leg} ({leg.arm}): {figure.reason}")
                else:
                    figures[cell] = figure.value
            by_leg[leg.leg] = figures
        if rule.name == "throughput":
            differing = sum(c.work_differs for c in comparisons)
            if differing:
                missing.insert(0, f"different work: output tokens differ on {differing} request pairs")
        paired = [(by_leg[a.leg], by_leg[b.leg]) for a, b in zip(baseline, candidate, strict=False)]
        found[rule.name] = Legs(
            baseline=[a for a, _ in paired],
            candidate=[b for _, b in paired],
            control=_control(by_leg, baseline),
            order=[(a.leg, b.leg) for a, b in zip(baseline, candidate, strict=False)],
            missing=missing,
        )
    return found


def _figure(rule: Rule, reader: Reader, leg: int, row: LadderRow, failing: bool) -> Figure:
    if not row.has_figures:
        return Figure(reason=f"{row.outcome}: {row.reason or 'no reason given'}")
    if rule.name == "throughput":
        return Figure(value=row.tokens_per_s, reason=row.tokens_per_s_reason)
    column, q = _PERCENTILES[rule.name]
    columns = reader.columns(leg)
    at = columns.where(row.cell)
    values = column(columns)
    good = [values[i] for i in at if columns.outcome[i] == "ok"]
    if failing:
        figure = percentile_adjusted(good, len(at) - len(good), q)
        return Figure(value=math.inf, n=figure.n) if figure.reason == "failures" else figure
    if row.kind == "pressure" and q == 0.5:
        return Figure(value=median(good), reason="no values")
    return percentile(good, q)


def _control(
    by_leg: Mapping[int, dict[str, float]], baseline: Sequence[LegRow]
) -> list[tuple[dict[str, float], dict[str, float]]]:
    """The baseline's boots against each other, two by two.

    Earlier and later boots change places from one to the next, as the arms do in ABBA, so that a drift cancels.
    """
    in_time = sorted(baseline, key=lambda leg: leg.leg)
    matched = list(zip(in_time[::2], in_time[1::2], strict=False))
    matched = [(b, a) if n % 2 else (a, b) for n, (a, b) in enumerate(matched)]
    return [
        (by_leg[a.leg], by_leg[b.leg])
        for a, b in matched
        if _usable(by_leg[a.leg]) and by_leg[a.leg].keys() == by_leg[b.leg].keys() and _usable(by_leg[b.leg])
    ]


def _usable(figures: Mapping[str, float]) -> bool:
    return bool(figures) and all(v > 0 and math.isfinite(v) for v in figures.values())
