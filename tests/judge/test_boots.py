"""Cells that were kept from an earlier boot are drawn and told as that boot's, and the client's share is told per cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from judge_runs import S, cell, gpu, leg, request, run

from evenhand.judge.ladder import ladder_rows
from evenhand.records import Lag
from evenhand.show.gallery import gallery
from evenhand.show.judged import judge_run
from evenhand.show.tables import client_table
from evenhand.store import RunWriter, open_run


def test_a_device_is_drawn_on_the_boot_that_measured_the_first_cell(tmp_path: Path) -> None:
    made = run(
        legs=[leg(start_ns=300 * S, ready_ns=330 * S)],  # the boot after the run was resumed
        cells=[cell(planned=1, start_ns=10 * S, end_ns=12 * S)],
        requests=[request(send_ns=10 * S, end_ns=12 * S)],
        gpu=[gpu(0, t, power_w=300.0) for t in (5, 6, 11, 12, 331, 332)],
    )
    tmp_path.joinpath("run").mkdir()
    writer = RunWriter(tmp_path / "run", made.manifest)
    folder = writer.leg_folder(0, "base")
    writer.leg(made.legs[0])
    writer.cell(made.cells[0])
    writer.requests(folder, made.requests())
    writer.append(folder / "gpu.jsonl", made.gpu(0))
    writer.close()
    judged = judge_run(open_run(writer.path), "now")
    (figure,) = [shown.figure for shown in gallery(judged) if shown.slug == "gpu"]
    drawn = [x for axis in figure.axes for line in axis.get_lines() for x in line.get_xdata()]
    assert (min(drawn), max(drawn)) == (0.0, 7.0)


def test_the_turn_around_is_told_as_a_share_of_tpot() -> None:
    lag = Lag(stamp="kernel", lag_p99_s=1e-5, turnaround_p50_s=0.05)
    made = run(cells=[cell(planned=2, lag=lag)], requests=[request(f"ladder/c=1#{i}") for i in (0, 1)])
    (row,) = ladder_rows(made)
    assert row.outcome == "void"
    assert "is 25% of the median TPOT (above 10%) and a seat waited 4.8% of its time (above 1%)" in (row.reason or "")
    table = client_table(made.cells, False, rows=[row])
    assert table is not None
    at = [column.name for column in table.columns].index("of TPOT")
    assert table.rows[0][at] == "25.0"
    assert row.turnaround_share == pytest.approx(0.25)
