"""Go on with a run that did not end: keep what is whole, drop what is not, refuse a changed scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from evenhand import scenario as sc
from evenhand.plan import Plan
from evenhand.records import HAS_FIGURES, CellRow, LegRow, RequestRow
from evenhand.secrecy import recorded_scenario
from evenhand.store import SUMS, Run, RunWriter, StoreError, encode, open_run, write_atomic

FINAL: frozenset[str] = HAS_FIGURES | {"refused", "launch_failed", "died", "void"}
"""Outcomes that stand: these cells are not run again."""

CellKey = tuple[int, str, int]
"""(leg, cell, repeat)"""


class ResumeError(Exception):
    """One sentence for the user."""


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier start of this run finished."""

    cells: frozenset[CellKey] = frozenset()
    legs: frozenset[int] = frozenset()
    earlier: dict[int, list[LegRow]] = {}
    """leg that will be booted again -> its interrupted boots whose cells stand"""
    output_tokens: dict[str, int] = {}
    """cell -> output tokens that the warm-up found, so that later legs do the same work"""


def difference(before: Any, after: Any, key: str = "") -> str | None:
    """The first difference between two scenarios, as "key: was X, is Y"."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys()):
            found = difference(before.get(name), after.get(name), f"{key}.{name}" if key else name)
            if found:
                return found
        return None
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (a, b) in enumerate(zip(before, after, strict=True)):
            found = difference(a, b, f"{key}[{index}]")
            if found:
                return found
        return None
    return None if before == after else f"{key}: was {before!r}, is {after!r}"


def finished(run: Run, plan: Plan) -> Done:
    """Pure: which cells and legs need not be run again."""
    ended = {row.leg: row for row in run.legs}
    cells = frozenset(
        (row.leg, row.cell, row.repeat)
        for row in run.cells
        if row.outcome in FINAL
        # what an engine that died left unmeasured stays unmeasured, as in an uninterrupted run
        or (row.outcome == "not_run" and row.leg in ended and ended[row.leg].outcome in FINAL)
    )
    legs = set()
    for leg in plan.legs:
        row = ended.get(leg.leg)
        whole = all((leg.leg, cell.cell, cell.repeat) in cells for cell in leg.cells)
        # cut after its last cell: nothing is missing, but a gate's boot must also have come to rest
        cut = ("not_run",) if plan.kind == "run" else ("interrupted", "not_run")
        if row is not None and whole and row.outcome not in cut:
            legs.add(leg.leg)
    if plan.kind == "gate":  # the boot is the unit of statistics: a leg of a gate is measured on one boot, or again
        cells = frozenset(key for key in cells if key[0] in legs)
    found = {row.cell: row.output_tokens for row in run.cells if row.output_tokens and row.kind == "pressure"}
    earlier = {
        number: [*row.earlier, replace(row, earlier=[])]
        for number, row in ended.items()
        if number not in legs and any(key[0] == number for key in cells)
    }
    tokens = {k: v for k, v in found.items() if v is not None}
    return Done(cells=cells, legs=frozenset(legs), earlier=earlier, output_tokens=tokens)


def prepare(path: Path, scenario: sc.Scenario, plan: Plan) -> tuple[RunWriter, Done]:
    """Open a run for going on. Cells that did not end will be measured again; their rows and logs move to before-resume-N.

    Raises ResumeError when the scenario changed (naming the difference) or the run is finished; StoreError when unreadable.
    """
    run = open_run(path)
    changed = difference(run.manifest.scenario, recorded_scenario(scenario)) or difference(
        run.manifest.plan, msgspec.to_builtins(plan)
    )
    if changed:
        raise ResumeError(f"{path}: the scenario is not the one this run was started with ({changed}); start a new run instead")
    if run.manifest.status == "finished":
        raise ResumeError(f"{path}: this run is finished; there is nothing to resume")
    done = finished(run, plan)
    before = {key: getattr(run.manifest, key) for key in ("started_utc", "ended_utc", "status")}
    # first of all: a kill from here on finds a run that goes on, not one whose sealed files have changed
    writer = RunWriter(
        path,
        replace(run.manifest, status="running", ended_utc=None, previous=[*run.manifest.previous, before]),
    )
    (path / SUMS).unlink(missing_ok=True)
    kept = [row for row in run.cells if (row.leg, row.cell, row.repeat) in done.cells]
    rewrite(path / "cells.jsonl", [replace(row, relaunched=row.relaunched or row.leg not in done.legs) for row in kept])
    rewrite(path / "legs.jsonl", [_ended(row) for row in run.legs if row.leg in done.legs])
    aside = path / f"before-resume-{len(writer.manifest.previous)}"
    for number in run.leg_numbers():
        folder = run.leg_folder(number)
        if folder is not None and number not in done.legs:
            _set_aside(folder, aside, run.requests(number), done.cells)
    return writer, done


def _ended(row: LegRow) -> LegRow:
    """A leg that lacks nothing has ended, though the run was interrupted on it."""
    return replace(row, outcome="ok", reason=None) if row.outcome == "interrupted" else row


def _set_aside(folder: Path, aside: Path, rows: list[RequestRow], cells: frozenset[CellKey]) -> None:
    """Make room for another boot of a leg: what the former one left and is not used any more is kept in `aside`."""
    kept = [row for row in rows if (row.leg, row.cell, row.repeat) in cells]
    try:
        if not kept:
            aside.mkdir(exist_ok=True)
            folder.rename(aside / folder.name)
            return
        rewrite(folder / "requests.jsonl", kept)
        for left in [*folder.glob("rung-*.spill"), folder / "engine.log"]:  # one log, one boot: figures are read from it
            if left.exists():
                (aside / folder.name).mkdir(parents=True, exist_ok=True)
                left.rename(aside / folder.name / left.name)
    except OSError as error:
        raise StoreError(f"cannot set {folder} aside: {error.strerror or error}") from error


def rewrite(file: Path, rows: list[CellRow] | list[LegRow] | list[RequestRow]) -> None:
    """Replace a row file by rename."""
    if rows or file.exists():
        write_atomic(file, b"".join(encode(row) + b"\n" for row in rows))
