"""Bring a run that was killed to a judgeable end: decode what its last rung had spilled, and mark it interrupted."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import msgspec

from evenhand import scenario as sc
from evenhand.drive.cell import recover as recover_spill
from evenhand.drive.spill import read_head
from evenhand.engines import engine_for
from evenhand.engines.base import Capabilities
from evenhand.plan import Plan, settings_for
from evenhand.records import CellRow
from evenhand.show.seal import broken_seal
from evenhand.store import RunWriter, StoreError, lock_run, mend, open_run


def recover(path: Path) -> int:
    """Decode leftover spills into rows; returns how many requests came back. Starts nothing. A sealed run is left as it is,
    unless its harness failed and it is still what was sealed then.
    """
    run = open_run(path)
    status = run.manifest.status
    if status not in ("running", "failed") or (status == "failed" and broken_seal(run)):
        return 0
    try:
        scenario = msgspec.convert(run.manifest.scenario, sc.Scenario)
        plan = msgspec.convert(run.manifest.plan, Plan)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path / 'manifest.json'} does not hold a scenario and a plan of this version: {error}") from error
    lock = lock_run(path)
    if lock is None:
        return 0  # its harness is still at work: what has ended so far can be judged, nothing may be touched
    os.close(lock)
    if not os.access(path, os.W_OK):
        return 0  # a read-only disk: what is there is judged as it is
    stored = {(row.leg, row.cell, row.repeat, row.index) for row in run.requests()}
    ended = {(row.leg, row.cell, row.repeat) for row in run.cells}
    # first of all: a kill from here on finds a run that goes on, not one whose sealed files have changed
    writer = RunWriter(path, msgspec.structs.replace(run.manifest, status="running"))
    for file in [*path.glob("*.jsonl"), *(f for n in run.leg_numbers() for f in path.glob(f"{n:03d}-*/*.jsonl"))]:
        if not file.is_symlink() and not file.parent.is_symlink():
            mend(file)
    back = 0
    for number in run.leg_numbers():
        folder = run.leg_folder(number)
        leg = next((leg for leg in plan.legs if leg.leg == number), None)
        if folder is None or leg is None:
            continue
        arm = next((arm for arm in scenario.arm if arm.name == leg.arm), None)
        if arm is None:
            raise StoreError(f"{path / 'manifest.json'}: its plan names the arm {leg.arm!r}, which its scenario lacks")
        settings = settings_for(scenario, arm, leg.seats)
        dialect = engine_for(arm.engine, settings).dialect(settings, Capabilities())
        for spill in sorted(p for p in folder.glob("rung-*.spill") if not p.is_symlink()):
            try:
                head = read_head(spill)
                rows = recover_spill(spill, dialect) if head else []
            except (msgspec.DecodeError, OSError, OverflowError, struct.error, ValueError) as error:
                raise StoreError(f"{spill} holds no spilled requests: {error}; move it away to judge the rest") from error
            cell = next((c for c in leg.cells if head and (c.cell, c.repeat) == (head.cell, head.repeat)), None)
            if head is None or cell is None:
                spill.unlink()  # a warm-up
                continue
            rows = [r for r in rows if (r.leg, r.cell, r.repeat, r.index) not in stored]
            writer.requests(folder, rows)
            back += len(rows)
            if (number, cell.cell, cell.repeat) not in ended:
                writer.cell(
                    CellRow(
                        leg=number,
                        arm=leg.arm,
                        cell=cell.cell,
                        kind=cell.kind,
                        repeat=cell.repeat,
                        concurrency=cell.concurrency,
                        prompt_tokens=cell.prompt_tokens,
                        output_tokens=cell.output_tokens,
                        outcome="interrupted",
                        reason="the harness was killed during this cell",
                        planned=cell.requests,
                    )
                )
            spill.unlink()
    writer.finish("interrupted", run.manifest.ended_utc or "")
    return back
