"""What going on with a run keeps, and what it says of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evenhand.plan import CellPlan, LegPlan, Plan
from evenhand.records import CellRow, LegRow, Manifest, RequestRow
from evenhand.resume import finished, prepare
from evenhand.scenario import Arm, Scenario
from evenhand.secrecy import recorded_scenario
from evenhand.store import RunWriter, open_run

SCENARIO = Scenario(name="n", model="m", arm=[Arm(name="a", engine="reference")])
CELLS = ["ladder/c=1", "ladder/c=2"]


def plan(kind: str) -> Plan:
    cells = [CellPlan(cell=name, kind="ladder", requests=1, prompt_tokens=8) for name in CELLS]
    return Plan(kind="gate" if kind == "gate" else "run", seed=0, legs=[LegPlan(leg=0, arm="a", cells=cells)])


def interrupted(out: Path, done: int, kind: str = "run", leg_row: bool = True) -> Path:
    """A run of one leg that was cut after `done` cells."""
    made = plan(kind)

    def manifest(run: str) -> Manifest:
        return Manifest(
            evenhand="0", run=run, kind=made.kind, status="running", started_utc="x", anchor_monotonic_ns=0,
            scenario=recorded_scenario(SCENARIO), scenario_sha256="", plan=msgspec.to_builtins(made), machine={}, versions={},
            command=[], seed=0, simulated=True,
        )  # fmt: skip

    writer = RunWriter.create(out, "n", "s", manifest)
    folder = writer.leg_folder(0, "a")
    for number, name in enumerate(CELLS):
        outcome = "ok" if number < done else "not_run"
        writer.cell(CellRow(leg=0, arm="a", cell=name, kind="ladder", concurrency=1, outcome=outcome))  # type: ignore[arg-type]
        if number < done:
            row = RequestRow(
                leg=0, arm="a", cell=name, index=0, key=f"{name}#0", prompt_sha256="", prompt_tokens_asked=8, outcome="ok",
                stamp="kernel",
            )  # fmt: skip
            writer.requests(folder, [row])
    if leg_row:
        row = LegRow(leg=0, arm="a", engine="reference", outcome="interrupted", reason="cut", version="1", ready_ns=5)
        writer.leg(row)
    writer.finish("interrupted", "y")
    return writer.path


def test_a_leg_that_was_cut_after_its_last_cell_is_not_booted_again(tmp_path: Path) -> None:
    path = interrupted(tmp_path, done=2)
    writer, done = prepare(path, SCENARIO, plan("run"))
    assert (done.legs, done.earlier) == ({0}, {})
    writer.finish("finished", "z")
    run = open_run(path)
    assert [(leg.outcome, leg.reason) for leg in run.legs] == [("ok", None)]
    assert not any(cell.relaunched for cell in run.cells)


def test_a_boot_of_a_gate_that_was_cut_is_measured_again_whole(tmp_path: Path) -> None:
    done = finished(open_run(interrupted(tmp_path, done=2, kind="gate")), plan("gate"))
    assert (done.legs, done.cells, done.earlier) == (set(), set(), {})


@pytest.mark.parametrize("leg_row", [True, False])
def test_kept_cells_of_a_leg_that_boots_again_are_marked(tmp_path: Path, leg_row: bool) -> None:
    path = interrupted(tmp_path, done=1, leg_row=leg_row)
    writer, done = prepare(path, SCENARIO, plan("run"))
    assert (done.legs, done.cells) == (set(), {(0, "ladder/c=1", 0)})
    assert {n: [row.ready_ns for row in rows] for n, rows in done.earlier.items()} == ({0: [5]} if leg_row else {})
    writer.finish("interrupted", "z")
    run = open_run(path)
    assert run.legs == []
    assert [(cell.cell, cell.relaunched) for cell in run.cells] == [("ladder/c=1", True)]
