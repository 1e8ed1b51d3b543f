"""Prediction beside measurement: what a stored run read back from its engines, put through the same arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from evenhand.judge.pressure import PressureRow, pressure_rows
from evenhand.judge.view import RunView
from evenhand.predict.config import Model
from evenhand.predict.findings import (
    Finding,
    peak_against_prediction,
    pool_not_idle,
    refusal_figure,
    retention_grows,
    seats_below_asked,
    some,
    state_dtype_doubles,
)
from evenhand.predict.forecast import PromptForecast, forecast_prompt
from evenhand.predict.pages import GIB, PredictError
from evenhand.predict.shape import Budget, ModelShape
from evenhand.records import LegRow

DRAFTERS = frozenset({"mtp", "eagle", "eagle3"})
"""Speculation methods that give up one cacheable block."""


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt length on one leg."""

    arm: str
    leg: int
    cell: str
    prompt_tokens: int
    fixed: bool
    """Held against the prediction with the null-gap fix."""
    sampled_blocks: int | None = None
    exact_blocks: int | None = None
    forecast: PromptForecast | None = None
    reason: str | None = None
    """Why there is nothing to compare."""

    @property
    def predicted_blocks(self) -> int | None:
        """Peak that this arm should show."""
        if self.forecast is None:
            return None
        return (self.forecast.patched if self.fixed else self.forecast.unpatched).blocks


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A run beside its prediction."""

    rows: tuple[Compared, ...]
    findings: tuple[Finding, ...]


def compare_run(
    run: RunView, model: Model, *, fixed_arms: Collection[str] = (), rows: Sequence[PressureRow] | None = None
) -> Comparison:
    """Hold every pressure row against prediction; `fixed_arms` have the null-gap fix, as have arms whose scenario says so. What
    a patch does to the pool is not known from its text: a patched arm of which nobody says it has no prediction.
    `rows`: pressure rows where they were judged before.

    Block size, batch, depth, caching and scheduling are what each running engine reported, never what was asked; where an
    engine did not say them the row has a reason instead of a prediction.
    """
    legs = {leg.leg: leg for leg in run.legs}
    scenario = run.manifest.scenario
    said = {str(arm.get("name")): _declared_fix(arm) for arm in scenario.get("arm", [])} | dict.fromkeys(fixed_arms, True)
    compared_rows: list[Compared] = []
    found: list[Finding | None] = [_from_leg(leg, model) for leg in run.legs]
    found += [
        seats_below_asked(f"{leg.arm}, leg {leg.leg}", leg.seats_requested, leg.seats_resolved)
        for leg in run.legs
        if leg.seats_requested is not None and leg.seats_resolved is not None
    ]
    for row in pressure_rows(run) if rows is None else rows:
        if not row.has_figures or row.leg not in legs:  # the leg of a killed run has no row
            continue
        compared = _compare(row, legs[row.leg], model.shape, scenario, said.get(row.arm, False))
        compared_rows.append(compared)
        found += _findings(row, compared)
    seats = max((leg.seats_resolved or leg.seats_requested or 0 for leg in run.legs), default=0)
    depth = max((leg.drafted_depth for leg in run.legs), default=0)
    found.append(state_dtype_doubles(model.shape, depth, seats, model.state_dtype) if seats else None)
    return Comparison(rows=tuple(compared_rows), findings=_once(some(found)))


def leg_budget(leg: LegRow, scenario: Mapping[str, Any], *, fixed: bool) -> Budget:
    """The budget that a leg really ran with. Raises PredictError naming what the engine did not say."""
    batch = _config(leg, "max_num_batched_tokens")
    if batch is None:
        raise PredictError("the engine did not say how many tokens a step may batch")
    flight = _config(leg, "async_scheduling")
    if flight is None:
        raise PredictError("the engine did not say whether a step is in flight while the next is scheduled")
    mode, caching = _config(leg, "mamba_cache_mode"), _config(leg, "enable_prefix_caching")
    method = _config(leg, "method") or (scenario.get("draft") or {}).get("method")
    return Budget(
        seats=leg.seats_resolved or leg.seats_requested or 1,
        depth=leg.drafted_depth,
        batch_tokens=int(batch),
        in_flight=_true(flight),
        drafter=leg.drafted_depth > 0 and method in DRAFTERS,
        null_gap_fix=fixed,
        prefix_caching=mode == "align" if mode is not None else _true(caching),
    )


def _compare(row: PressureRow, leg: LegRow, shape: ModelShape, scenario: Mapping[str, Any], fixed: bool | None) -> Compared:
    base = Compared(
        arm=row.arm,
        leg=row.leg,
        cell=row.cell,
        prompt_tokens=row.prompt_tokens,
        fixed=bool(fixed),
        sampled_blocks=row.peak_blocks,
        exact_blocks=row.exact_blocks,
    )
    if fixed is None:
        return msgspec.structs.replace(base, reason="a patched arm: say null_gap_fix = true or false in its [[arm]]")
    pool = leg.pool
    if pool is None or not pool.block_tokens:
        return msgspec.structs.replace(base, reason="the engine did not say its block size")
    block = pool.block_tokens
    cached = min(row.cached_tokens or 0, row.prompt_tokens - 1) // block * block
    try:
        forecast = forecast_prompt(
            shape,
            leg_budget(leg, scenario, fixed=fixed),
            block,
            row.prompt_tokens,
            row.output_tokens or 1,
            unified=pool.state_slots is None,
            pool_blocks=pool.blocks,
            cached=cached,
        )
    except PredictError as error:
        return msgspec.structs.replace(base, reason=str(error))
    return msgspec.structs.replace(base, forecast=forecast)


def _findings(row: PressureRow, compared: Compared) -> list[Finding | None]:
    where = f"{row.arm}, leg {row.leg}, {row.prompt_tokens:,} tokens"
    found: list[Finding | None] = []
    measured, predicted = row.blocks, compared.predicted_blocks
    if measured is not None and predicted is not None:
        found.append(peak_against_prediction(where, measured, predicted, exact=row.exact_blocks is not None))
    if row.settle_blocks is not None:
        found.append(pool_not_idle(where, row.settle_blocks))
    if compared.forecast is not None:
        needed = compared.forecast.patched.retained_max
        found += [retention_grows(where, series.series, needed) for series in row.retained]
    return found


def _from_leg(leg: LegRow, model: Model) -> Finding | None:
    """The figure of a refusal against the arithmetic, where the refusal counts state slots."""
    refusal = leg.refusal
    if refusal is None or refusal.needed_bytes is None or refusal.seats is None or refusal.slots_per_seat is None:
        return None
    return refusal_figure(model.shape, refusal.slots_per_seat - 1, refusal.seats, refusal.needed_bytes / GIB)


def _declared_fix(arm: Mapping[str, Any]) -> bool | None:
    """What the scenario says of an arm's null-gap fix; None: it is patched, and nobody says."""
    options = arm.get("options")
    if isinstance(options, dict) and "null_gap_fix" in options:
        return _true(options["null_gap_fix"])
    said = arm.get("null_gap_fix")
    if isinstance(said, bool):
        return said
    return None if arm.get("patch") or arm.get("patches") or arm.get("commit") else False


def _config(leg: LegRow, key: str) -> Any:
    """A value of the effective configuration by the last part of its name."""
    return next((value for name, value in leg.config.items() if name.rpartition(".")[2] == key and value is not None), None)


def _true(value: Any) -> bool:
    return str(value).lower() in ("true", "1", "on") if value is not None else False


def _once(findings: Collection[Finding]) -> tuple[Finding, ...]:
    return tuple({finding.text: finding for finding in findings}.values())
