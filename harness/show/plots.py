"""Pictures of a run. Pure: structs in, a matplotlib Figure out; `style.save` writes it as SVG and PNG.

Gaps in a series stay gaps, a rung without figures is drawn as what became of it and never as zero, and every axis has its unit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from evenhand.show.pictures import (
    Broken,
    Divergence,
    GpuTrace,
    HistoryPoint,
    LadderCurve,
    LadderPoint,
    PairedMetric,
    PoolPanel,
    Series,
    broken,
)
from evenhand.show.style import INK, MUTED, WARN, footer, grid, legend, look, plain, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@styled
def pool_over_time(panels: Sequence[PoolPanel], *, unit: str = "blocks", notes: Sequence[str] = ()) -> Figure:
    """Pool use over time, one panel per prompt length; each arm's peak is marked, with what sampling left open."""
    names = [line.name for panel in panels for line in panel.lines]
    columns = 2 if len(panels) > 1 else 1
    figure, axes = grid(max(1, math.ceil(len(panels) / columns)), columns, row_in=2.6 if columns == 2 else 3.2)
    cuts = [[broken(line) for line in panel.lines] for panel in panels]
    words = [
        [
            (text, look(names, line.name)["color"])
            for line, cut in zip(panel.lines, row, strict=True)
            for text in _words(line, cut, ",.0f" if unit == "blocks" else ",.3g" if unit == "share" else ",.1f")
        ]
        for panel, row in zip(panels, cuts, strict=True)
    ]
    room = max(map(len, words), default=0)
    for axis, panel, row, text in zip(axes, panels, cuts, words, strict=False):
        top = 0.0
        for line, cut in zip(panel.lines, row, strict=True):
            style = look(names, line.name)
            axis.plot(cut.x, cut.y, **{**style, "marker": ""})
            axis.plot([x for x, _ in cut.lone], [y for _, y in cut.lone], **{**style, "linestyle": ""})
            top = max(top, _peak(axis, line, cut, style))
        title = f"{panel.prompt_tokens:,}-token prompt, peaks:"
        plain(axis, x="time since the request was sent, s", y=f"pool in use, {unit}", title=title)
        _subtitles(axis, text, room)
        axis.set_ylim(0, top * 1.08 or 1)
        axis.margins(x=0.02)
    for axis in axes[len(panels) :]:
        axis.remove()
    quanta = sorted({panel.quantum for panel in panels})
    legend(figure, [(_handle(look(names, name)), name) for name in dict.fromkeys(names)])
    footer(figure, [*(f"Smallest step of the gauge ({unit}): {quantum:,.3g}" for quantum in quanta), *notes])
    return figure


def _subtitles(axis: Axes, lines: Sequence[tuple[str, str]], room: int) -> None:
    """Up to `room` lines of text between title and axes, each in its arm's colour: nothing is written over a curve."""
    for at, (text, color) in enumerate(lines):
        note = axis.annotate(text, (0, 1), xycoords="axes fraction", xytext=(0, 4 + 11 * (room - 1 - at)),
                             textcoords="offset points", fontsize=7.5, color=color)  # fmt: skip
        note.set_in_layout(False)
    axis.set_title(axis.get_title(loc="left"), pad=6 + 11 * room)


def _peak(axis: Axes, line: Series, cut: Broken, style: dict[str, Any]) -> float:
    """Mark the peak where it was seen, exact and predicted ones as levels; returns the highest value drawn."""
    points = [(x, y) for x, y in zip(cut.x, cut.y, strict=True) if y == y]
    levels = [value for value in (line.exact_peak, line.predicted_peak) if value is not None]
    if line.predicted_peak is not None:
        axis.axhline(line.predicted_peak, color=style["color"], linewidth=0.8, linestyle=(0, (1, 3)))
    if not points:
        return max(levels, default=0.0)
    at, sampled = max(points, key=lambda point: point[1])
    if line.exact_peak is not None:
        axis.plot([at], [line.exact_peak], color=style["color"], marker="_", markersize=16, markeredgewidth=2)
    axis.plot([at], [sampled], **{**style, "linestyle": ""}, markersize=7, markerfacecolor="white", markeredgewidth=1.6)
    return max([sampled, *levels])


def _words(line: Series, cut: Broken, form: str) -> list[str]:
    """ "base: 175 exact, 174 sampled, 175 predicted", and below it how much of the window was not seen."""
    seen = [y for y in cut.y if y == y]
    parts = [f"{line.exact_peak:{form}} exact"] if line.exact_peak is not None else []
    if seen:
        parts.append(f"{max(seen):{form}} sampled")
    if line.predicted_peak is not None:
        parts.append(f"{line.predicted_peak:{form}} predicted")
    words = [f"{line.name}: {', '.join(parts) or 'no sample'}"]
    if cut.gaps and line.exact_peak is None:
        share = f"{cut.unsampled_share * 100:.0f}" if cut.unsampled_share >= 0.01 else "under 1"
        words.append(f"  lower bound: {share} % of the window unsampled")
    return words


SAME = "#7fa8cc"
_HALO = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}
_FILL = {"ok": None, "queued": "white", "clamped": "#bfbfbf"}


@styled
def ladder_throughput(curves: Sequence[LadderCurve], *, notes: Sequence[str] = ()) -> Figure:
    """Total tokens/s against those of a stream while it decodes, a point a rung; rungs without figures are listed."""
    figure, (axis,) = grid(1, 1, row_in=4.0)
    names = [curve.name for curve in curves]
    labels: list[tuple[str, float, float, str]] = []
    for curve in curves:
        style = look(names, curve.name)
        points = [(p, p.stream_tps, p.total_tps) for p in sorted(curve.points, key=lambda p: p.concurrency)]
        axis.plot(
            [math.nan if x is None or y is None else x for _, x, y in points],
            [math.nan if x is None or y is None else y for _, x, y in points],
            **{**style, "marker": ""},
        )
        drawn = [point for point, x, y in points if x is not None and y is not None]
        ends = (*drawn[:1], *drawn[-1:])
        for point, x, y in points:
            if x is None or y is None:
                continue
            _mark(axis, x, y, style, point.outcome)
            if len(curves) <= 3 or point in ends:
                labels.append((str(point.concurrency), x, y, style["color"]))
    axis.margins(0.08)
    known = [x for _, x, *_ in labels] or [1.0]
    axis.set_xlim(0, 1.08 * max(known))  # a difference of a per cent must not look like one of a half
    axis.set_ylim(bottom=0)
    _label(axis, labels)
    plain(axis, x="decode tokens/s per stream (1/TPOT)", y="tokens/s in total")
    legend(figure, [*((_handle(look(names, name)), name) for name in names), *_outcome_entries(curves)])
    footer(figure, ["Figures at the points: concurrency.", *_without_figures(curves), *notes])
    return figure


def _label(axis: Axes, labels: Sequence[tuple[str, float, float, str]]) -> None:
    """Concurrency beside every point, clear of other labels and points; points of one rung that coincide share one."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    # in points, roughly: a label is about 12 wide and 9 high
    at = [((x - left) / (right - left) * 460, (y - bottom) / (top - bottom) * 250) for _, x, y, _ in labels]
    taken = [(x, y, 4.0) for x, y in at]
    shared: dict[int, int] = {}
    for i, (text, *_) in enumerate(labels):
        near = (j for j in range(i) if labels[j][0] == text and math.dist(at[i], at[j]) < 14)
        shared[i] = next((shared[j] for j in near), i)
    for i, (text, x, y, color) in enumerate(labels):
        if shared[i] != i:
            continue
        room = {
            spot: min(_apart(at[i], spot, other) for j, other in enumerate(taken) if j != i or len(taken) == 1)
            for spot in _SPOTS
        }
        spot = next((spot for spot, free in room.items() if free >= 1), max(room, key=lambda s: room[s]))
        taken.append((at[i][0] + spot[0], at[i][1] + spot[1], 12.0))
        alone = sum(owner == i for owner in shared.values()) == 1
        axis.annotate(
            text, (x, y), xytext=spot, textcoords="offset points", ha="center", va="center", color=color if alone else INK,
            fontsize=7.5, zorder=5,
        )  # fmt: skip


_SPOTS = ((9, 7), (-9, 7), (9, -8), (-9, -8), (0, 11), (0, -12), (14, 0), (-14, 0), (16, 14), (-16, -14), (16, -14), (-16, 14))
"""Where a label may lie, in points from its mark, best first."""


def _apart(point: tuple[float, float], spot: tuple[int, int], other: tuple[float, float, float]) -> float:
    """Distance of a label to a point (size 4) or a label (size 12), 1 where they touch."""
    x, y, size = other
    wide, high = (12.0, 9.0) if size > 4 else (9.0, 7.0)
    return max(abs(point[0] + spot[0] - x) / wide, abs(point[1] + spot[1] - y) / high)


@styled
def ladder_ttft(curves: Sequence[LadderCurve], *, notes: Sequence[str] = ()) -> Figure:
    """TTFT p50 and p95 against concurrency; rungs without figures stand in a lane of their own above the axes."""
    figure, axes = grid(1, 2, row_in=3.3, sharey=True)
    names = [curve.name for curve in curves]
    rungs = sorted({point.concurrency for curve in curves for point in curve.points})
    values: list[float] = []
    for axis, field, title in zip(axes, ("ttft_p50_s", "ttft_p95_s"), ("p50", "p95"), strict=True):
        for curve in curves:
            style = look(names, curve.name)
            points = sorted(curve.points, key=lambda p: p.concurrency)
            figures = [getattr(point, field) for point in points]
            values += [value for value in figures if value is not None]
            axis.plot(
                [rungs.index(p.concurrency) for p in points],
                [math.nan if value is None else value for value in figures],
                **{**style, "marker": ""},
            )
            for point, value in zip(points, figures, strict=True):
                if value is not None:
                    _mark(axis, rungs.index(point.concurrency), value, style, point.outcome)
        plain(axis, x="concurrency, requests in flight", y="time to first token, s" if title == "p50" else "", title=title)
    if values and min(values) > 0 and max(values) / min(values) > 20:
        axes[0].set_yscale("log")
        _plain_log(axes[0])
        axes[0].set_ylabel("time to first token, s (log scale)")
    else:
        axes[0].set_ylim(0, 1.08 * max(values, default=1.0))
    for axis in axes:
        axis.set_xticks(range(len(rungs)), [str(rung) for rung in rungs])
        axis.set_xlim(-0.4, len(rungs) - 0.6)
        _lane(axis, curves, names, rungs)
    legend(figure, [*((_handle(look(names, name)), name) for name in names), *_outcome_entries(curves)])
    footer(figure, [*_without_figures(curves), *notes])
    return figure


def _lane(axis: Axes, curves: Sequence[LadderCurve], names: Sequence[str], rungs: Sequence[int]) -> None:
    """Rungs without figures: a cross in the arm's colour on a lane above the axes, and the outcome in words."""
    lost = [(curve.name, point) for curve in curves for point in curve.points if not _served(point)]
    if not lost:
        return
    arms = list(dict.fromkeys(name for name, _ in lost))
    for name, point in lost:
        height = 1.03 + 0.06 * arms.index(name)
        x = rungs.index(point.concurrency)
        axis.plot(
            [x], [height], marker="x", markersize=7, markeredgewidth=2, color=look(names, name)["color"],
            transform=axis.get_xaxis_transform(), clip_on=False,
        )  # fmt: skip
        axis.annotate(
            point.outcome.replace("_", " "), (x, height), xycoords=axis.get_xaxis_transform(), xytext=(-7, 0),
            textcoords="offset points", ha="right", va="center", fontsize=7.5, color=look(names, name)["color"],
        )  # fmt: skip
    axis.set_title(axis.get_title(loc="left"), pad=8 + 12 * len(arms))


def _mark(axis: Axes, x: float, y: float, style: dict[str, Any], outcome: str) -> None:
    fill = _FILL.get(outcome) or style["color"]
    axis.plot(
        [x],
        [y],
        color=style["color"],
        marker=style["marker"],
        markerfacecolor=fill,
        markeredgewidth=1.5,
        markersize=6,
        zorder=4,
    )


def _served(point: LadderPoint) -> bool:
    return point.total_tps is not None or point.ttft_p50_s is not None


def _outcome_entries(curves: Sequence[LadderCurve]) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    seen = {point.outcome for curve in curves for point in curve.points if _served(point)}
    words = {"queued": "hollow: queued, fewer ran than asked", "clamped": "grey: seats clamped by the engine"}
    return [
        (Line2D([], [], color=INK, marker="o", linestyle="", markerfacecolor=_FILL[outcome], markeredgewidth=1.5), text)
        for outcome, text in words.items()
        if outcome in seen
    ]


def _without_figures(curves: Sequence[LadderCurve]) -> list[str]:
    """ "vllm.cpp, c=16, 32: refused (43.40 GiB needed)": one line per arm and outcome, what its reasons have in common."""
    lost: dict[tuple[str, str], list[LadderPoint]] = {}
    for curve in curves:
        for point in curve.points:
            if not _served(point):
                lost.setdefault((curve.name, point.outcome.replace("_", " ")), []).append(point)
    lines = []
    for (name, outcome), points in lost.items():
        reasons = list(dict.fromkeys(point.reason for point in points if point.reason))
        kinds = list(dict.fromkeys(reason.partition(":")[0] for reason in reasons))
        said = reasons[0] if len(reasons) == 1 else "; ".join(kinds[:2])
        rungs = ", ".join(str(point.concurrency) for point in points)
        lines.append(f"{name}, c={rungs}: {outcome}{f' ({said})' if said else ''}")
    return lines


@styled
def divergence_map(rows: Sequence[Divergence], *, title: str = "", notes: Sequence[str] = ()) -> Figure:
    """One line per request, as long as its output: solid up to the first difference, thin beyond it."""
    from matplotlib.lines import Line2D

    figure, (axis,) = grid(1, 1, row_in=min(7.0, max(2.4, 0.11 * len(rows) + 1.0)))
    pitch = 72 * (figure.get_figheight() - 1.6) / max(1.0, len(rows) + 1.2 * len({row.cell for row in rows}))
    width = min(5.0, pitch * (0.65 if pitch > 4 else 1.05))  # rows that are thin touch: hairline gaps would shimmer
    cells = list(dict.fromkeys(row.cell for row in rows))
    ordered = sorted(rows, key=lambda row: (cells.index(row.cell), row.index))
    y = 0.0
    ticks: list[tuple[float, str]] = []
    for cell in cells:
        start = y
        members = [row for row in ordered if row.cell == cell]
        for row in members:
            same = row.tokens if row.first is None else row.first
            axis.plot([0, same], [y, y], color=SAME, linewidth=width, solid_capstyle="butt")
            if row.first is not None:
                axis.plot([same, row.tokens], [y, y], color="#bdbdbd", linewidth=width * 0.35, solid_capstyle="butt")
                axis.plot([same], [y], color=WARN, marker="o" if row.near_tie else "X", markersize=5, markeredgewidth=0.6,
                          markerfacecolor="white" if row.near_tie else WARN, zorder=4)  # fmt: skip
            y += 1
        same_count = sum(row.first is None for row in members)
        ticks.append(((start + y - 1) / 2, f"{cell}: {same_count} of {len(members)}"))
        y += 1.2
    plain(axis, x="output token, index", y="requests by cell: identical, of all", title=title)
    axis.set_yticks([at for at, _ in ticks], [text for _, text in ticks])
    axis.grid(visible=False, axis="y")
    axis.set_ylim(y - 0.6, -0.8)
    axis.set_xlim(left=0)
    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=SAME, linewidth=4), "identical"),
        (Line2D([], [], color=WARN, marker="X", linestyle=""), "first difference"),
        (Line2D([], [], color="#bdbdbd", linewidth=2), "after it"),
    ]
    if any(row.near_tie for row in rows):
        entries.insert(2, (Line2D([], [], color=WARN, marker="o", linestyle="", markerfacecolor="white"), "near tie there"))
    legend(figure, entries)
    footer(figure, notes)
    return figure


@styled
def paired_differences(metrics: Sequence[PairedMetric], *, notes: Sequence[str] = ()) -> Figure:
    """Each boot pair's difference, the interval of their mean, the A/A noise floor and the margin; right is worse."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure, (axis,) = grid(1, 1, row_in=max(1.6, 0.62 * len(metrics) + 0.9))
    for y, metric in enumerate(metrics):
        if metric.noise is not None:
            low, high = (100 * value for value in metric.noise)
            axis.barh(y, high - low, left=low, height=0.62, color="#e3e3e3", edgecolor="#b0b0b0", linewidth=0.6, zorder=1)
        if metric.interval is not None:
            low, high = (100 * value for value in metric.interval)
            axis.plot([low, high], [y, y], color="#0a2f6b", linewidth=3, solid_capstyle="butt", zorder=3)
        count = len(metric.differences)
        spread = [y + (0.16 if at % 2 else -0.16) for at in range(count)]
        axis.plot([100 * d for d in metric.differences], spread, marker="o", linestyle="", color=MUTED, markersize=4,
                  markerfacecolor="white", zorder=4)  # fmt: skip
        if count:
            mean = sum(metric.differences) / count if metric.mean is None else metric.mean
            axis.plot([100 * mean], [y], marker="D", color="#0a2f6b", markersize=6, zorder=5)
        if metric.margin is not None:
            axis.plot([100 * metric.margin] * 2, [y - 0.38, y + 0.38], color=WARN, linestyle="--", linewidth=1.6, zorder=2)
    axis.axvline(0, color=INK, linewidth=0.9)
    plain(axis, x="change of the candidate against the baseline, % (right of zero is worse)", y="")
    axis.set_yticks(range(len(metrics)), [f"{m.name}\n{m.verdict}" if m.verdict else m.name for m in metrics])
    axis.grid(visible=False, axis="y")
    axis.set_ylim(len(metrics) - 0.5, -0.5)
    axis.use_sticky_edges = False
    axis.margins(x=0.06)
    legend(
        figure,
        [
            (Line2D([], [], marker="o", linestyle="", color=MUTED, markerfacecolor="white"), "one boot pair"),
            (Line2D([], [], marker="D", color="#0a2f6b", linewidth=3), "mean, 90 % interval"),
            (Patch(facecolor="#e3e3e3", edgecolor="#b0b0b0"), "A/A noise floor"),
            (Line2D([], [], color=WARN, linestyle="--"), "margin"),
        ],
    )
    footer(figure, notes)
    return figure


@styled
def retained_states(lines: Sequence[Series], *, needed: int | None = None, notes: Sequence[str] = ()) -> Figure:
    """Recurrent-state blocks retained per group over computed tokens."""
    from matplotlib.ticker import MaxNLocator

    figure, (axis,) = grid(1, 1, row_in=3.2)
    names = [line.name for line in lines]
    for line in lines:
        style = look(names, line.name)
        cut = broken(line)
        axis.plot(cut.x, cut.y, **style, drawstyle="steps-post")
        if line.y and any(value == value for value in cut.y):
            top = max(value for value in cut.y if value == value)
            axis.annotate(f"max {top:,.0f}", (cut.x[-1], cut.y[-1]), xytext=(6, 5), textcoords="offset points", va="bottom",
                          color=style["color"], fontsize=8, bbox=_HALO)  # fmt: skip
    plain(axis, x="computed tokens of the prompt", y="retained states per group, blocks")
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(0, 1.05 * axis.get_ylim()[1])
    axis.margins(x=0.1)
    entries = [(_handle(look(names, name)), name) for name in dict.fromkeys(names)]
    if needed is not None:
        entries.append((axis.axhline(needed, color=INK, linewidth=1, linestyle=(0, (1, 2))), f"needed: {needed}"))
    legend(figure, entries)
    footer(figure, notes)
    return figure


@styled
def gpu(traces: Sequence[GpuTrace], *, notes: Sequence[str] = ()) -> Figure | None:
    """Clock, power and memory over time, one panel each; a panel without any reading is left out, None when all are."""
    kinds = [
        ("clock_mhz", "SM clock, MHz", 1.0),
        ("power_w", "power, W", 1.0),
        ("memory_bytes", "memory used, GiB", float(2**30)),
    ]
    shown = [kind for kind in kinds if any(value is not None for trace in traces for value in getattr(trace, kind[0]))]
    if not shown:
        return None
    figure, axes = grid(len(shown), 1, row_in=1.7, sharex=True)
    names = [trace.name for trace in traces]
    for axis, (field, label, scale) in zip(axes, shown, strict=True):
        ys = [value / scale for trace in traces for value in getattr(trace, field) if value is not None]
        for trace in traces:
            values = getattr(trace, field)
            if not any(value is not None for value in values):
                continue
            y = [None if value is None else value / scale for value in values]
            cut = broken(Series(name=trace.name, x=trace.t_s, y=y, interval=trace.interval))
            style = look(names, trace.name)
            axis.plot(cut.x, cut.y, **{**style, "marker": ""})
            axis.plot([x for x, _ in cut.lone], [v for _, v in cut.lone], **{**style, "linestyle": ""})
        plain(axis, x="time since the leg was ready, s" if axis is axes[-1] else "", y=label)
        axis.margins(x=0.02)
        if field != "clock_mhz":  # what is used has a zero, and a change of little must look little
            axis.set_ylim(0, 1.1 * max(ys) or 1.0)
    missing = [label.split(",")[0] for field, label, _ in kinds if field not in {kind[0] for kind in shown}]
    legend(figure, [(_handle(look(names, name)), name) for name in dict.fromkeys(names)])
    footer(figure, [*([f"Not observed: {', '.join(missing)}."] if missing else []), *notes])
    return figure


@styled
def history(metric: str, unit: str, points: Sequence[HistoryPoint], *, notes: Sequence[str] = ()) -> Figure:
    """One metric over commits, oldest first, with intervals; changes that leave the noise are marked."""
    from matplotlib.lines import Line2D

    figure, (axis,) = grid(1, 1, row_in=3.0)
    xs: list[float] = []
    ys: list[float] = []
    for x, point in enumerate(points):
        if point.apart and x:
            axis.axvline(x - 0.5, color=MUTED, linewidth=0.8, linestyle=(0, (1, 3)))
            xs.append(x - 0.5)
            ys.append(math.nan)
        xs.append(x)
        ys.append(math.nan if point.value is None else point.value)
    axis.plot(xs, ys, color="#0a2f6b", marker="o")
    for x, point in enumerate(points):
        if point.value is None:
            axis.annotate("no figure", (x, 0.02), xycoords=axis.get_xaxis_transform(), ha="center", fontsize=7.5, color=MUTED)
            continue
        if point.low is not None and point.high is not None:
            axis.plot([x, x], [point.low, point.high], color="#0a2f6b", linewidth=1)
        if point.changed:
            axis.plot(
                [x], [point.value], marker="o", markersize=13, markerfacecolor="none", markeredgecolor=WARN, markeredgewidth=1.8
            )
    plain(axis, x="commit or version, oldest first", y=f"{metric}, {unit}")
    step = max(1, math.ceil(len(points) / 16))
    longest = max((len(point.commit) for point in points), default=0)
    crowded = longest * min(len(points), 16) > 80
    axis.set_xticks(
        range(0, len(points), step), [point.commit for point in points[::step]], rotation=35 if crowded else 0,
        ha="right" if crowded else "center", rotation_mode="anchor" if crowded else None,
    )  # fmt: skip
    axis.margins(0.08, 0.15)
    axis.set_xlim(-0.6, max(len(points), 1) - 0.4)
    ring = Line2D(
        [], [], marker="o", linestyle="", markersize=11, markerfacecolor="none", markeredgecolor=WARN, markeredgewidth=1.8
    )
    entries: list[tuple[Any, str]] = [(Line2D([], [], color="#0a2f6b", marker="o"), metric)]
    if any(point.apart for point in points[1:]):
        notes = [*notes, "Dotted: from there on another machine, model or workload."]
    if any(point.changed for point in points):
        entries.append((ring, "change that leaves the noise"))
    legend(figure, entries)
    footer(figure, notes)
    return figure


def _handle(style: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def _plain_log(axis: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
