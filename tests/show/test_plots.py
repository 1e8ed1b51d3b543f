"""Pictures: gaps stay gaps, outcomes are drawn as such, nothing depends on the day."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from evenhand.show.pictures import (
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
from evenhand.show.plots import (
    divergence_map,
    gpu,
    history,
    ladder_throughput,
    ladder_ttft,
    paired_differences,
    pool_over_time,
    retained_states,
)
from evenhand.show.style import look, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

B50 = Series(name="_base", x=[0, 0.25, 0.5, 3.0, 6.0], y=[0.2, 0.2, 0.2, 0.8, 0.3], interval=0.25)


def texts(figure: Figure) -> str:
    """Every text of a figure, one a line."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def data(line: Line2D) -> list[tuple[float, float]]:
    """Points of a line."""
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def ys(axis: Axes) -> list[float]:
    """Every y of every line drawn on an axis (not those placed in axes coordinates)."""
    return [y for line in axis.get_lines() if line.get_transform() == axis.transData for _, y in data(line)]


def ladder() -> list[LadderCurve]:
    def served(c: int, outcome: str = "ok") -> LadderPoint:
        return LadderPoint(
            concurrency=c, outcome=outcome, total_tps=40.0 * c, stream_tps=60.0 - c, ttft_p50_s=0.1 * c, ttft_p95_s=0.2 * c
        )

    refused = LadderPoint(concurrency=32, outcome="refused", reason="43.40 GiB needed, 38.70 GiB available")
    died = LadderPoint(concurrency=4, outcome="died")
    return [
        LadderCurve(name="vllm.cpp", points=[served(1), died, served(8), refused]),
        LadderCurve(name="_base", points=[served(1), served(4), served(8, "clamped"), served(32, "queued")]),
    ]


def test_b50_gaps_are_gaps() -> None:
    cut = broken(B50)
    assert (cut.gaps, cut.longest_gap) == (2, 3.0)
    assert cut.unsampled_share == pytest.approx(5.5 / 6.0)
    for left, right in ((0.5, 3.0), (3.0, 6.0)):
        between = [y for x, y in zip(cut.x, cut.y, strict=True) if left < x < right]
        assert len(between) == 1
        assert math.isnan(between[0])
    assert (3.0, 0.8) in cut.lone


def test_b50_picture_says_what_it_did_not_see() -> None:
    figure = pool_over_time([PoolPanel(prompt_tokens=14_000, lines=[B50], quantum=1 / 899)], unit="share")
    assert "lower bound: 92 % of the window unsampled" in texts(figure)
    assert "0.8 sampled" in texts(figure)
    (axis,) = figure.axes
    marked = [line for line in axis.get_lines() if line.get_marker() not in ("", "None")]
    assert (3.0, 0.8) in [point for line in marked for point in data(line)]
    joined = [line for line in axis.get_lines() if line.get_linestyle() != "None"]
    assert any(math.isnan(y) for line in joined for _, y in data(line))


def test_null_values_and_no_values() -> None:
    cut = broken(Series(name="a", x=[0, 1, 2, 3], y=[1.0, None, 2.0, math.nan]))
    assert cut.gaps == 1
    assert cut.lone == [(0, 1.0), (2, 2.0)]
    empty = broken(Series(name="a", x=[0, 1], y=[None, None], interval=0.5))
    assert (empty.x, empty.gaps, empty.unsampled_share) == ([], 0, 0.0)
    figure = pool_over_time([PoolPanel(prompt_tokens=1000, lines=[Series(name="a", x=[0], y=[None])])])
    assert "a: no sample" in texts(figure)


def test_even_samples_have_no_gap() -> None:
    cut = broken(Series(name="a", x=[0, 0.25, 0.55, 0.9], y=[1, 2, 3, 4], interval=0.25))
    assert (cut.gaps, cut.unsampled_share, cut.lone) == (0, 0.0, [])


def test_exact_peak_stands_beside_the_sampled_one() -> None:
    line = Series(name="base", x=[0, 1], y=[100.0, 174.0], exact_peak=175, predicted_peak=175)
    figure = pool_over_time([PoolPanel(prompt_tokens=45_000, lines=[line])])
    assert "base: 175 exact, 174 sampled, 175 predicted" in texts(figure)
    assert "lower bound" not in texts(figure)


def test_arms_named_with_an_underscore_are_in_the_legend() -> None:
    for figure in (
        pool_over_time([PoolPanel(prompt_tokens=1, lines=[B50])]),
        ladder_ttft(ladder()),
        ladder_throughput(ladder()),
        retained_states([B50]),
        gpu([GpuTrace(name="_base", t_s=[0, 1], clock_mhz=[1980, 1965])]),
    ):
        assert figure is not None
        (shown,) = figure.legends
        assert "_base" in [text.get_text() for text in shown.get_texts()]


def test_b56_a_refused_rung_is_drawn_as_refused_and_never_as_zero() -> None:
    figure = ladder_ttft(ladder())
    assert "refused" in texts(figure)
    assert "vllm.cpp, c=32: refused (43.40 GiB needed, 38.70 GiB available)" in texts(figure)
    assert "vllm.cpp, c=4: died" in texts(figure)
    for axis in figure.axes:
        assert 0.0 not in ys(axis)
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ["1", "4", "8", "32"]
    throughput = ladder_throughput(ladder())
    assert 0.0 not in ys(throughput.axes[0])
    assert "vllm.cpp, c=32: refused" in texts(throughput)


def test_a_curve_breaks_at_a_rung_without_figures() -> None:
    line = ladder_ttft(ladder()).axes[0].get_lines()[0]
    values = [y for _, y in data(line)]
    assert [math.isnan(y) for y in values] == [False, True, False, True]


def test_queued_and_clamped_are_told_apart() -> None:
    shown = texts(ladder_throughput(ladder()))
    assert "hollow: queued, fewer ran than asked" in shown
    assert "grey: seats clamped by the engine" in shown
    only_ok = [LadderCurve(name="a", points=[LadderPoint(concurrency=1, outcome="ok", total_tps=1.0, stream_tps=1.0)])]
    assert "hollow" not in texts(ladder_throughput(only_ok))


def test_every_rung_is_labelled_and_the_axes_begin_at_zero() -> None:
    from matplotlib.text import Annotation

    def curve(name: str, speeds: list[float]) -> LadderCurve:
        points = [
            LadderPoint(concurrency=2**n, outcome="ok", total_tps=speed * 2**n, stream_tps=speed)
            for n, speed in enumerate(speeds)
        ]
        return LadderCurve(name=name, points=points)

    apart = ladder_throughput([curve("a", [300, 299, 298, 290]), curve("b", [200, 199, 198, 150])])
    shown = [note.get_text() for note in apart.findobj(Annotation)]
    assert sorted(shown) == sorted(["1", "2", "4", "8"] * 2)
    assert (apart.axes[0].get_xlim()[0], apart.axes[0].get_ylim()[0]) == (0, 0)
    assert "decode tokens/s per stream (1/TPOT)" in texts(apart)
    alike = ladder_throughput([curve("a", [300, 299]), curve("b", [300, 299]), curve("c", [300, 299])])
    assert sorted(note.get_text() for note in alike.findobj(Annotation)) == ["1", "2"]


def test_power_and_memory_begin_at_zero() -> None:
    trace = GpuTrace(
        name="a", t_s=[0, 1], clock_mhz=[1980, 1965], power_w=[300.0, 310.0], memory_bytes=[40 * 2**30, 40 * 2**30 + 12 * 2**20]
    )
    figure = gpu([trace])
    assert figure is not None
    clock, power, memory = (axis.get_ylim() for axis in figure.axes)
    assert clock[0] > 1000
    assert power[0] == memory[0] == 0
    assert memory[1] > 42


def test_a_ladder_that_never_started() -> None:
    curves = [LadderCurve(name="a", points=[LadderPoint(concurrency=1, outcome="launch_failed")])]
    assert "a, c=1: launch failed" in texts(ladder_throughput(curves))
    assert "launch failed" in texts(ladder_ttft(curves))


def test_divergence_counts_identical_requests() -> None:
    rows = [Divergence(cell="ladder/c=8", index=index, tokens=64, first=[None, None, 5][index % 3]) for index in range(9)]
    figure = divergence_map([*rows, Divergence(cell="ladder/c=1", index=0, tokens=64, first=0, near_tie=True)])
    assert "ladder/c=8: 6 of 9" in texts(figure)
    assert "ladder/c=1: 0 of 1" in texts(figure)
    assert "near tie there" in texts(figure)


def test_paired_differences_show_interval_noise_and_margin() -> None:
    metric = PairedMetric(
        name="TTFT p50", differences=[0.01, 0.03], interval=(0.0, 0.04), margin=0.05, noise=(-0.01, 0.01), verdict="pass"
    )
    figure = paired_differences([metric, PairedMetric(name="TPOT p50", differences=[])])
    assert "TTFT p50\npass" in texts(figure)
    assert 5.0 in {x for line in figure.axes[0].get_lines() for x, _ in data(line)}
    assert figure.axes[0].patches[0].get_width() == pytest.approx(2.0)  # type: ignore[attr-defined]


def test_b78_a_panel_without_readings_is_left_out() -> None:
    trace = GpuTrace(name="a", t_s=[0, 1, 2], clock_mhz=[None] * 3, power_w=[300.0, None, 310.0], memory_bytes=[2**30] * 3)
    figure = gpu([trace])
    assert figure is not None
    assert [axis.get_ylabel() for axis in figure.axes] == ["power, W", "memory used, GiB"]
    assert "Not observed: SM clock." in texts(figure)
    assert 0.0 not in [y for axis in figure.axes for y in ys(axis)]
    assert gpu([GpuTrace(name="a", t_s=[0], clock_mhz=[None])]) is None


def test_history_marks_changes_and_missing_figures() -> None:
    points = [
        HistoryPoint(commit="aaaaaaa", value=21.0, low=20.8, high=21.2),
        HistoryPoint(commit="bbbbbbb", value=None),
        HistoryPoint(commit="ccccccc", value=23.0, changed=True),
    ]
    shown = texts(history("TPOT p50", "ms", points))
    assert "no figure" in shown
    assert "change that leaves the noise" in shown
    assert "TPOT p50, ms" in shown


def every() -> Iterator[Figure]:
    """One of each."""
    yield pool_over_time(
        [PoolPanel(prompt_tokens=n, lines=[B50]) for n in (1, 2, 3)], notes=["reference model, not a measurement"]
    )
    yield ladder_throughput(ladder())
    yield ladder_ttft(ladder())
    yield divergence_map([Divergence(cell="c", index=0, tokens=8, first=3)])
    yield paired_differences([PairedMetric(name="m", differences=[0.1])])
    yield retained_states([B50], needed=5)
    yield history("m", "ms", [HistoryPoint(commit="a", value=1.0)])
    figure = gpu([GpuTrace(name="a", t_s=[0, 1], power_w=[1.0, 2.0])])
    assert figure is not None
    yield figure


def test_every_axis_says_its_unit() -> None:
    for figure in every():
        for axis in figure.axes:
            assert axis.get_xlabel()
            assert axis.get_ylabel() or axis is not figure.axes[0] or len(axis.get_yticks()) == 1


def test_the_same_figure_is_the_same_file(tmp_path: Path) -> None:
    for figure, again in zip(every(), every(), strict=True):
        first, second = save(figure, tmp_path / "first"), save(again, tmp_path / "second.v2")
        assert [path.name for path in second] == ["second.v2.svg", "second.v2.png"]
        for one, other in zip(first, second, strict=True):
            assert one.read_bytes() == other.read_bytes()
        assert b"<dc:date>" not in first[0].read_bytes()


@pytest.mark.filterwarnings("error")
def test_names_from_outside_are_only_text(tmp_path: Path) -> None:
    odd = LadderCurve(name="_a $x_{1$ <b>&", points=ladder()[0].points)
    (svg, _) = save(ladder_throughput([odd], notes=["a" * 300]), tmp_path / "odd")
    assert b"<b>" not in svg.read_bytes()


def test_looks_differ_in_more_than_colour() -> None:
    names = [f"arm{index}" for index in range(7)]
    for part in ("color", "linestyle", "marker"):
        assert len({str(look(names, name)[part]) for name in names}) == 7


def test_matplotlib_is_imported_only_when_drawing() -> None:
    code = "import sys, evenhand.show.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
