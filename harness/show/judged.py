"""One stored run judged once, for everything that is then shown of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from evenhand.judge.arms import by_arm
from evenhand.judge.columns import Reader
from evenhand.judge.devices import DeviceRow, device_rows
from evenhand.judge.equality import Comparison as Outputs
from evenhand.judge.gate import KINDS, across_arms, judge_gate
from evenhand.judge.ladder import LadderRow, ladder_rows
from evenhand.judge.ledger import LedgerRow, ledger
from evenhand.judge.pressure import PressureRow, pressure_rows
from evenhand.judge.reuse import ReuseRow, reuse_rows
from evenhand.judge.unmeasured import not_measured
from evenhand.judge.verdict import Verdict
from evenhand.predict.config import Model, read_model
from evenhand.predict.from_run import Comparison, compare_run
from evenhand.predict.pages import PredictError
from evenhand.show.seal import broken_seal
from evenhand.store import MODEL_CONFIG, Run, open_run


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of every kind, and the verdict where the run is a gate."""

    run: Run
    reader: Reader
    ladder: list[LadderRow]
    """One row per leg and rung."""
    rungs: list[LadderRow]
    """One row per arm and rung, over all its legs: what the curves are made of."""
    pressure: list[PressureRow]
    reuse: list[PressureRow]
    reused: list[ReuseRow]
    devices: list[DeviceRow]
    across: list[Outputs]
    """Outputs of a plain run's arms against each other."""
    ledger: list[LedgerRow]
    not_measured: list[str]
    broken: list[str]
    """What is wrong with the run's seal, one sentence each."""
    verdict: Verdict | None = None
    predicted: Comparison | None = None
    """None where the model's configuration is not on this machine, or there is nothing to predict."""

    @property
    def rows(self) -> list[LadderRow | PressureRow]:
        """Every cell's row."""
        return [*self.ladder, *self.pressure, *self.reuse]

    @property
    def planned(self) -> int:
        """Cells that the plan has, or where it is not told those with a row."""
        planned = sum(len(leg.get("cells", ())) for leg in self.run.manifest.plan.get("legs", ()))
        return planned or sum(cell.kind != "warmup" for cell in self.run.cells)

    @property
    def simulated(self) -> bool:
        """An arm is the embedded engine."""
        return self.run.manifest.simulated

    @property
    def arms(self) -> list[str]:
        """Arms in the order of the scenario, so that each keeps its colour in every picture."""
        named = [str(arm.get("name")) for arm in self.run.manifest.scenario.get("arm", ())]
        return list(dict.fromkeys([*named, *(leg.arm for leg in self.run.legs)]))


def judge_folder(path: Path, fixed_arms: Sequence[str] = ()) -> Judged:
    """Judge a run folder, its seal included. Of the same run only `judged_utc` of a verdict differs from one time to another.

    Raises StoreError, JudgeError or RuleError in one sentence.
    """
    run = open_run(path)
    return judge_run(run, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), fixed_arms, broken_seal(run))


def judge_run(run: Run, now_utc: str, fixed_arms: Sequence[str] = (), broken: Sequence[str] = ()) -> Judged:
    """Judge a stored run. Reads every file of it once. `fixed_arms`: see predict.from_run.compare_run; `broken`: what is wrong
    with its seal.
    """
    reader = Reader(run)
    cells = ladder_rows(run, reader, KINDS)
    ladder = [row for row in cells if row.kind == "ladder"]
    gate = run.manifest.kind == "gate" and bool(run.manifest.scenario.get("gate"))
    verdict = judge_gate(run, now_utc, reader, broken, cells) if gate else None
    if verdict is not None and any(cell.kind == "pressure" for cell in run.cells):
        pressure = verdict.pressure_rows
    else:
        pressure = pressure_rows(run, reader, judged=cells)
    across = across_arms(run, reader) if verdict is None else []
    watched = any(reader.gpu(leg.leg) for leg in run.legs)
    return Judged(
        run=run,
        reader=reader,
        ladder=ladder,
        rungs=_rungs(run, reader, ladder),
        pressure=pressure,
        reuse=pressure_rows(run, reader, ("reuse",), cells),
        reused=reuse_rows(run, reader),
        devices=device_rows(run, ladder, reader),
        across=across,
        ledger=ledger(run, ladder) if verdict is None else verdict.ledger,
        not_measured=verdict.not_measured if verdict else not_measured(run, cells, pressure, watched, across=across),
        broken=list(broken),
        verdict=verdict,
        predicted=_predicted(run, pressure, fixed_arms),
    )


def _rungs(run: Run, reader: Reader, ladder: Sequence[LadderRow]) -> list[LadderRow]:
    first = [row for row in ladder if row.repeat == 0]
    alone = len({(row.arm, row.cell) for row in first}) == len(first)
    return first if alone else by_arm(run, reader, ladder)


def kept_model(run: Run, cache_dtype: str | None = None, state_dtype: str | None = None) -> Model:
    """The model's config as the run kept it, with the types that its scenario asked for unless others are given.

    Raises PredictError in one sentence where it was not kept or cannot be used.
    """
    kept = run.path / MODEL_CONFIG
    if not kept.is_file() or kept.is_symlink():
        raise PredictError(f"{run.path} kept no {MODEL_CONFIG} (its model's folder had no config.json); name a MODEL")
    asked = run.manifest.scenario
    return read_model(
        kept,
        cache_dtype=cache_dtype or asked.get("cache_dtype"),
        state_dtype=state_dtype or asked.get("state_dtype"),
        dtype=asked.get("dtype"),
    )


def _predicted(run: Run, rows: Sequence[PressureRow], fixed_arms: Sequence[str]) -> Comparison | None:
    """None where there is nothing to predict, or no model to do it with."""
    try:
        return compare_run(run, kept_model(run), rows=rows, fixed_arms=fixed_arms) if rows else None
    except PredictError:
        return None
