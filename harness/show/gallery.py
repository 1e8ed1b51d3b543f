"""Which pictures a run gives, and what goes into each: judge's rows in, titled figures out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from evenhand.judge.columns import sample_ns
from evenhand.judge.equality import Comparison
from evenhand.judge.gauges import blocks_of
from evenhand.judge.ladder import LadderRow
from evenhand.judge.pressure import PressureRow
from evenhand.judge.timing import TimingResult
from evenhand.records import CellRow, LegRow, SampleRow
from evenhand.show.judged import Judged
from evenhand.show.pictures import Divergence, GpuTrace, LadderCurve, LadderPoint, PairedMetric, PoolPanel, Series
from evenhand.show.table import SIMULATED, clean

MAX_REQUESTS = 240
"""Requests that the divergence map draws: those that differ first, then an even choice of the others."""
MAX_TRACES = 7


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One picture, with what a reader who cannot see it is told."""

    slug: str
    """Name of its files."""
    title: str
    caption: str
    figure: Any


def gallery(judged: Judged) -> Iterator[Shown]:
    """Pictures one after the other, so that only one is in memory."""
    from evenhand.show import plots

    notes = [SIMULATED] if judged.simulated else []
    curves = _curves(judged)
    if len({point.concurrency for curve in curves for point in curve.points}) > 1:  # one rung is no curve
        yield Shown(
            slug="ladder-throughput",
            title="Throughput against speed per stream",
            caption="Total tokens/s against 1 / median TPOT, a point a rung; up and to the right is better.",
            figure=plots.ladder_throughput(curves, notes=notes),
        )
        yield Shown(
            slug="ladder-ttft",
            title="Time to first token against concurrency",
            caption="Median and 95th percentile; rungs without figures stand above the axes.",
            figure=plots.ladder_ttft(curves, notes=notes),
        )
    yield from _pool(judged, notes)
    series, needed = _retained(judged)
    if series:
        yield Shown(
            slug="retained-states",
            title="Retained recurrent states while a prompt is computed",
            caption="Of the request that held most, on the longest prompt; a line that climbs keeps what it no longer needs.",
            figure=plots.retained_states(series, needed=needed, notes=notes),
        )
    yield from _gate(judged, notes)
    traces = _gpu(judged)
    figure = plots.gpu(traces, notes=notes) if traces else None
    if figure is not None:
        yield Shown(
            slug="gpu",
            title="Device clock, power and memory",
            caption="The first boot of each arm, from its readiness on.",
            figure=figure,
        )


# --- ladder ---------------------------------------------------------------------------------------------------------------


def _curves(judged: Judged) -> list[LadderCurve]:
    return [
        LadderCurve(name=arm, points=[_point(row) for row in judged.rungs if row.arm == arm])
        for arm in judged.arms
        if any(row.arm == arm for row in judged.rungs)
    ]


def _point(row: LadderRow) -> LadderPoint:
    if not row.has_figures:
        return LadderPoint(concurrency=row.concurrency, outcome=row.outcome, reason=_short(row.reason or ""))
    stream = 1 / row.tpot_p50_s if row.tpot_p50_s else None
    return LadderPoint(
        concurrency=row.concurrency,
        outcome=row.outcome,
        total_tps=row.tokens_per_s,
        stream_tps=stream,
        ttft_p50_s=row.ttft_p50_s,
        ttft_p95_s=row.ttft_p95_s,
        reason=_short(row.reason or row.tokens_per_s_reason or ""),
    )


def _short(text: str, limit: int = 80) -> str:
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


# --- pool -----------------------------------------------------------------------------------------------------------------


def _pool(judged: Judged, notes: list[str]) -> Iterator[Shown]:
    from evenhand.show import plots

    legs = {leg.leg: leg for leg in judged.run.legs}
    cells = {(cell.leg, cell.cell, cell.repeat): cell for cell in judged.run.cells}
    rows = [row for row in judged.pressure if row.has_figures and row.repeat == 0 and row.leg in legs]
    if not rows:
        return
    sizes = {leg.pool.block_tokens if leg.pool else None for leg in (legs[row.leg] for row in rows)}
    in_blocks = len(sizes) == 1 and all(_usable(legs[row.leg]) for row in rows)
    pair = _pair(rows, judged.arms)
    panels = []
    for cell in dict.fromkeys(row.cell for row in sorted(rows, key=lambda row: row.prompt_tokens)):
        shown = [row for row in rows if row.cell == cell and row.pair == pair]
        mine = [row for arm in judged.arms if (row := _highest(shown, arm)) is not None]
        if not mine:
            continue
        lines = [_usage(judged, row, legs[row.leg], cells[row.leg, row.cell, 0], in_blocks) for row in mine]
        step = 1.0 if in_blocks else max((100 * row.quantum_share for row in mine if row.quantum_share), default=0.0)
        panels.append(PoolPanel(prompt_tokens=mine[0].prompt_tokens, lines=lines, quantum=step))
    said = list(notes)
    if not in_blocks:
        said.insert(0, "Each arm in % of its own pool; their pools differ, so heights do not compare across arms.")
    if len(judged.arms) > 1:
        said.insert(0, "Times are not compared here: one boot of each arm is drawn.")
    if any(len({r.leg for r in rows if r.arm == arm}) > 1 for arm in judged.arms):
        which = "Of each arm the boot with the highest peak" if pair is None else f"The boots of pair {pair}"
        said.insert(0, f"{which}; all boots are in the table.")
    yield Shown(
        slug="pool",
        title="Pool use over time, by prompt length",
        caption="Peaks are marked; a gap in the line is a gap in the samples, and a sampled peak is a lower bound.",
        figure=plots.pool_over_time(panels, unit="blocks" if in_blocks else "% of the pool", notes=said),
    )


def _usable(leg: LegRow) -> int | None:
    return blocks_of(1.0, leg.pool)


def _pair(rows: Sequence[PressureRow], arms: Sequence[str]) -> int | None:
    """The first boot pair in which every arm has figures: boots that ran one after the other. None in a plain run."""
    ran: dict[int, set[str]] = {}
    for row in rows:
        if row.pair is not None:
            ran.setdefault(row.pair, set()).add(row.arm)
    return next((pair for pair in sorted(ran) if len(ran[pair]) == len(arms)), min(ran, default=None))


def _highest(rows: Sequence[PressureRow], arm: str) -> PressureRow | None:
    mine = [row for row in rows if row.arm == arm]
    # of boots with the same exact peak the one that was sampled best
    return max(mine, key=lambda row: (row.blocks or 0, -(row.unsampled_share or 0.0), row.peak_share or 0.0), default=None)


def _usage(judged: Judged, row: PressureRow, leg: LegRow, cell: CellRow, in_blocks: bool) -> Series:
    """Pool use from the first send until the engine settled, in seconds since the send."""
    start = cell.start_ns or 0
    end = max(n for n in (cell.end_ns, cell.settle_ns, start) if n is not None) + 500_000_000
    later = [c.start_ns for c in judged.run.cells if c.leg == cell.leg and c.start_ns is not None and c.start_ns > start]
    end = min([end, *later])
    seen = [s for s in judged.reader.samples(row.leg) if start <= sample_ns(s) < end]
    usable = _usable(leg)
    scale = 100 / usable if usable else None
    exact = row.exact_blocks
    predicted = _prediction(judged, row)
    if not in_blocks:
        exact_value = exact * scale if exact is not None and scale else None
        predicted_value = predicted * scale if predicted is not None and scale else None
    else:
        exact_value, predicted_value = exact, predicted
    watch = judged.run.manifest.scenario.get("watch") or {}
    return Series(
        name=row.arm,
        x=[(sample_ns(s) - start) / 1e9 for s in seen],
        y=[_level(s, usable, in_blocks) for s in seen],
        interval=float(watch.get("interval_s", 0.25)),
        exact_peak=exact_value,
        predicted_peak=predicted_value,
    )


def _level(sample: SampleRow, usable: int | None, in_blocks: bool) -> float | None:
    if sample.status != "ok":
        return None
    blocks, share = sample.values.get("used_blocks"), sample.values.get("usage")
    if in_blocks:
        return blocks if blocks is not None else (share * usable if share is not None and usable else None)
    if share is not None:
        return 100 * share
    return 100 * blocks / usable if blocks is not None and usable else None


def _prediction(judged: Judged, row: PressureRow) -> int | None:
    if judged.predicted is None:
        return None
    found = (c for c in judged.predicted.rows if (c.leg, c.cell) == (row.leg, row.cell))
    return next((c.predicted_blocks for c in found), None)


def _retained(judged: Judged) -> tuple[list[Series], int | None]:
    """States of the request that held most, on the longest prompt of each arm."""
    series = []
    for arm in judged.arms:
        rows = [row for row in judged.pressure if row.arm == arm and row.retained and row.repeat == 0]
        if not rows:
            continue
        longest = max(row.prompt_tokens for row in rows)
        most = max((s for row in rows if row.prompt_tokens == longest for s in row.retained), key=lambda s: s.most)
        name = f"{arm}, {longest:,} tokens"
        series.append(Series(name=name, x=[float(c) for c, _ in most.series], y=[float(n) for _, n in most.series]))
    forecasts = [c.forecast for c in (judged.predicted.rows if judged.predicted else ()) if c.forecast is not None]
    needed = {f.patched.retained_max for f in forecasts}
    return series, needed.pop() if len(needed) == 1 else None


# --- gate -----------------------------------------------------------------------------------------------------------------


def _gate(judged: Judged, notes: list[str]) -> Iterator[Shown]:
    from evenhand.show import plots

    verdict = judged.verdict
    if verdict is None:
        return
    differing = next((c for c in verdict.comparisons if c.mismatches), None)
    if differing is not None:
        rows, said = _divergences(judged, differing)
        if rows:
            yield Shown(
                slug="divergence",
                title="First divergence over requests",
                caption=f"Output of every request, {differing.label}; the line ends where both arms stop being the same.",
                figure=plots.divergence_map(rows, notes=[*said, *notes]),
            )
    metrics = [metric for result in verdict.timing if (metric := _paired(result)) is not None]
    if metrics:
        yield Shown(
            slug="paired-differences",
            title="Paired differences",
            caption=f"{verdict.candidate} against {verdict.baseline}, a dot a boot pair; right of zero is worse.",
            figure=plots.paired_differences(metrics, notes=notes),
        )


def _divergences(judged: Judged, comparison: Comparison) -> tuple[list[Divergence], list[str]]:
    columns = judged.reader.columns(comparison.legs[0])
    pairs = {pair.key: pair for pair in comparison.pairs}
    rows, placeless = [], 0
    for i, key in enumerate(columns.key):
        if columns.repeat[i] or columns.outcome[i] != "ok" or columns.cell[i].startswith("warmup"):
            continue
        pair = pairs.get(key)
        tokens = columns.output_tokens[i] or 0
        differs = pair is not None and pair.mismatch
        if differs and pair is not None and pair.index is None:
            placeless += 1  # only the text is known to differ: there is no token to mark
            continue
        if pair is not None and pair.kind in ("unpaired", "not comparable", "prompt differs"):
            continue
        first = pair.index if differs and pair is not None else None
        near = pair is not None and pair.kind == "near tie"
        rows.append(Divergence(cell=columns.cell[i], index=columns.index[i], tokens=tokens, first=first, near_tie=near))
    said = [f"{placeless} requests differ in text only and are not drawn."] if placeless else []
    if len(rows) > MAX_REQUESTS:
        said.append(f"{MAX_REQUESTS} of {len(rows)} requests are drawn: those that differ first, then an even choice.")
        rows = _chosen(rows)
    return rows, said


def _chosen(rows: list[Divergence]) -> list[Divergence]:
    differing = [row for row in rows if row.first is not None][:MAX_REQUESTS]
    same = [row for row in rows if row.first is None]
    room = MAX_REQUESTS - len(differing)
    step = len(same) / room if room else math.inf
    return [*differing, *(same[int(n * step)] for n in range(min(room, len(same))))]


def _paired(result: TimingResult) -> PairedMetric | None:
    if result.decision is None or not result.decision.spread.d:
        return None
    spread, control = result.decision.spread, result.control
    noise = None
    if control is not None and control.spread.d:
        edges = (control.spread.low, control.spread.high)
        low, high = edges if None not in edges else (min(control.spread.d), max(control.spread.d))
        noise = (math.expm1(low or 0.0), math.expm1(high or 0.0))
    return PairedMetric(
        name=result.rule,
        differences=[math.expm1(d) for d in spread.d],
        interval=None if spread.low is None or spread.high is None else (math.expm1(spread.low), math.expm1(spread.high)),
        mean=None if spread.mean is None else math.expm1(spread.mean),
        margin=result.margin,
        noise=noise,
        verdict=result.status,
    )


# --- device ---------------------------------------------------------------------------------------------------------------


def _gpu(judged: Judged) -> list[GpuTrace]:
    traces = []
    for arm in judged.arms:
        leg = next((leg for leg in judged.run.legs if leg.arm == arm and leg.role == "measure"), None)
        rows = judged.reader.gpu(leg.leg) if leg else []
        devices = dict.fromkeys(row.index for row in rows)
        for device in devices:
            mine = [row for row in rows if row.index == device]
            # cells may be of an earlier boot than the leg's row tells of; its sampling began when that was ready
            first = [row for row in mine if leg and leg.start_ns is not None and row.t_ns < leg.start_ns]
            origin = leg.ready_ns if leg and leg.ready_ns is not None and not first else mine[0].t_ns
            mine = first or [row for row in mine if row.t_ns >= origin]
            traces.append(
                GpuTrace(
                    name=arm if len(devices) == 1 else f"{arm}, device {device}",
                    t_s=[(row.t_ns - origin) / 1e9 for row in mine],
                    clock_mhz=[row.sm_clock_mhz for row in mine],
                    power_w=[row.power_w for row in mine],
                    memory_bytes=[row.memory_used_bytes for row in mine],
                    interval=_interval([row.t_ns for row in mine]),
                )
            )
    return traces[:MAX_TRACES]


def _interval(times_ns: Sequence[int]) -> float | None:
    """Usual distance of two readings: a gap is measured against it."""
    steps = sorted(b - a for a, b in pairwise(times_ns))
    return steps[len(steps) // 2] / 1e9 if steps else None
