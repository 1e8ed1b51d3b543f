"""Scenario -> ordered legs. Pure: nothing is started, and the plan can be printed before anything runs.

A leg is one fresh boot of one arm with the cells measured on it. A plain run boots each arm once (or once per rung where seats
follow the rung); a gate boots arms in ABBA order, after one uncounted boot per arm.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from evenhand import scenario as sc
from evenhand.engines.base import PoolRequest, Settings
from evenhand.judge.difference import declared, void_as_declared
from evenhand.judge.rules import plan_power
from evenhand.units import parse_bytes

Kind = Literal["ladder", "pressure", "reuse", "warmup"]


class CellPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One rung, one prompt length or one reuse step, as asked."""

    cell: str
    kind: Kind
    concurrency: int = 1
    requests: int
    prompt_tokens: int
    output_tokens: int | None = None
    """None: found by the warm-up (decoding on for at least 4 sample intervals)."""
    repeat: int = 0


class LegPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One boot."""

    leg: int
    arm: str
    role: Literal["warm_boot", "measure", "control"] = "measure"
    pair: int | None = None
    seats: int | None = None
    warmup: list[CellPlan] = []
    cells: list[CellPlan]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All legs in order."""

    kind: Literal["run", "gate"]
    seed: int
    legs: list[LegPlan]
    notes: list[str] = []
    """What the plan can and cannot decide, said before anything boots."""


def arm_named(scenario: sc.Scenario, name: str) -> sc.Arm:
    """The arm called `name`."""
    return next(arm for arm in scenario.arm if arm.name == name)


def settings_for(scenario: sc.Scenario, arm: sc.Arm, seats: int | None) -> Settings:
    """Neutral settings of one leg: the scenario's, with what the arm overrides."""
    draft = arm.draft or scenario.draft
    pool = arm.pool or scenario.pool
    return Settings(
        model=arm.model or scenario.model,
        served_name=scenario.served_name,
        draft=draft.model if draft else None,
        method=draft.method if draft else None,
        depth=draft.depth if draft else 0,
        seats=seats,
        context=scenario.context,
        pool=PoolRequest(
            blocks=pool.blocks,
            bytes=None if pool.bytes is None else parse_bytes(pool.bytes),
            fraction=pool.fraction,
            tokens=pool.tokens,
            state_bytes=None if pool.state_bytes is None else parse_bytes(pool.state_bytes),
        ),
        block_tokens=pool.block_tokens,
        prefix_caching=scenario.prefix_caching,
        chunk_tokens=scenario.chunk_tokens,
        cache_dtype=scenario.cache_dtype,
        state_dtype=scenario.state_dtype,
        dtype=scenario.dtype,
        seed=scenario.seed,
        executable=arm.executable,
        environment=arm.environment,
        args=tuple(arm.args),
        env=dict(arm.env),
        url=arm.url,
        options=dict(arm.options),
    )


def ladder_requests(ladder: sc.Ladder, concurrency: int) -> int:
    """Requests of a rung: max(20, 5c) unless the scenario says otherwise."""
    return ladder.requests if ladder.requests is not None else max(20, 5 * concurrency)


def _ladder_cells(scenario: sc.Scenario, rungs: list[int], repeat: int = 0) -> list[CellPlan]:
    ladder = scenario.ladder
    if ladder is None:
        return []
    return [
        CellPlan(
            cell=f"ladder/c={c}",
            kind="ladder",
            concurrency=c,
            requests=ladder_requests(ladder, c),
            prompt_tokens=ladder.prompt_tokens,
            output_tokens=ladder.output_tokens,
            repeat=repeat,
        )
        for c in rungs
    ]


def _long_cells(scenario: sc.Scenario, repeat: int = 0) -> list[CellPlan]:
    """Pressure and reuse cells: one prompt at a time."""
    cells = []
    if scenario.pressure:
        cells += [
            CellPlan(
                cell=f"pressure/{n}",
                kind="pressure",
                requests=scenario.pressure.requests,
                prompt_tokens=n,
                output_tokens=scenario.pressure.output_tokens,
                repeat=repeat,
            )
            for n in scenario.pressure.prompt_tokens
        ]
    if scenario.reuse:
        cells += [
            CellPlan(
                cell=f"reuse/{n}",
                kind="reuse",
                requests=3,  # asked, replayed, extended
                prompt_tokens=n,
                output_tokens=scenario.reuse.output_tokens,
                repeat=repeat,
            )
            for n in scenario.reuse.prefix_tokens
        ]
    return cells


def warmup_cells(scenario: sc.Scenario, cells: list[CellPlan]) -> list[CellPlan]:
    """Uncounted requests: each prompt shape at its highest concurrency, sharing nothing with what is measured."""
    shapes: dict[int, CellPlan] = {}
    for cell in cells:
        known = shapes.get(cell.prompt_tokens)
        if known is None or cell.concurrency > known.concurrency:
            shapes[cell.prompt_tokens] = cell
    warm = []
    for tokens, cell in sorted(shapes.items()):
        output = min(cell.output_tokens or 16, 16)
        warm.append(
            CellPlan(
                cell=f"warmup/{tokens}",
                kind="warmup",
                concurrency=cell.concurrency,
                requests=cell.concurrency,
                prompt_tokens=tokens,
                output_tokens=output,
            )
        )
    return warm


def make_plan(scenario: sc.Scenario, kind: Literal["run", "gate"] = "run") -> Plan:
    """The legs of a run, or of a gate. Raises ValueError in one sentence when a gate is asked that could decide nothing (there
    is no [gate] section, or the arms are not declared to differ as its comparison needs) or whose seats would follow the rung.
    """
    if kind == "run":
        return Plan(kind=kind, seed=scenario.seed, legs=_run_legs(scenario))
    gate = scenario.gate
    if gate is None:
        raise ValueError("the scenario has no [gate] section: add one with baseline, candidate and rules")
    arms = [msgspec.to_builtins(arm_named(scenario, name)) for name in (gate.baseline, gate.candidate)]
    if (void := void_as_declared(declared(*arms), gate.compare)) is not None:
        raise ValueError(f"this gate would be void, so nothing is booted: {void}")
    if scenario.ladder and scenario.ladder.seats == "rung":
        raise ValueError(
            'ladder.seats = "rung" needs a boot for every rung, and a gate measures all rungs on each boot: leave it out and '
            "give `seats` the number that both arms get, or use `evenhand run`"
        )
    legs, notes = _gate_legs(scenario, gate)
    return Plan(kind=kind, seed=scenario.seed, legs=legs, notes=notes)


def _run_legs(scenario: sc.Scenario) -> list[LegPlan]:
    ladder = scenario.ladder
    parts: list[dict[str, Any]] = []
    if ladder and ladder.seats == "rung":
        # rungs outside, arms inside: what drifts with time touches every arm alike
        parts += [
            {"arm": arm.name, "seats": c, "cells": _ladder_cells(scenario, [c])}
            for c in ladder.concurrency
            for arm in scenario.arm
        ]
        if long := _long_cells(scenario):
            parts += [{"arm": arm.name, "seats": arm.seats or scenario.seats, "cells": long} for arm in scenario.arm]
    else:
        rungs = ladder.concurrency if ladder else []
        parts += [
            {
                "arm": arm.name,
                "seats": arm.seats or scenario.seats,
                "cells": [*_ladder_cells(scenario, rungs), *_long_cells(scenario)],
            }
            for arm in scenario.arm
        ]
    return [LegPlan(leg=number, warmup=warmup_cells(scenario, part["cells"]), **part) for number, part in enumerate(parts)]


def abba(pairs: int) -> list[tuple[int, str]]:
    """(pair, "A" or "B") in ABBA order: every pair is adjacent and the first place alternates, so drift cancels."""
    order: list[tuple[int, str]] = []
    for pair in range(pairs):
        order += [(pair, side) for side in ("AB" if pair % 2 == 0 else "BA")]
    return order


def _gate_legs(scenario: sc.Scenario, gate: sc.Gate) -> tuple[list[LegPlan], list[str]]:
    rungs = scenario.ladder.concurrency if scenario.ladder else []
    cells = [*_ladder_cells(scenario, rungs), *_long_cells(scenario)]
    again = [msgspec.structs.replace(cell, repeat=1) for cell in cells]
    name = {"A": gate.baseline, "B": gate.candidate}
    seats = {side: arm_named(scenario, arm).seats or scenario.seats for side, arm in name.items()}
    legs: list[LegPlan] = []

    def add(side: str, **kw: Any) -> None:
        legs.append(LegPlan(leg=len(legs), arm=name[side], seats=seats[side], warmup=warmup_cells(scenario, cells), **kw))

    if gate.warm_boot:
        for side in ("A", "B"):
            add(side, role="warm_boot", cells=[])
    first = True
    for pair, side in abba(gate.pairs):
        # the within-boot A/A control repeats every cell once, on the first counted boot of the baseline
        extra = again if gate.control and side == "A" and first else []
        first = first and side != "A"
        add(side, pair=pair, cells=[*cells, *extra])
    if gate.control and gate.pairs < 2:
        add("A", role="control", cells=cells)
    order = " ".join("B" if leg.arm == gate.candidate else "A" for leg in legs if leg.role == "measure")
    notes = [f"order: {order} (A = {gate.baseline}, B = {gate.candidate})"]
    if gate.warm_boot:
        notes.append("one uncounted boot per arm first, to fill its compile caches")
    else:
        notes.append("warm_boot = false: compile caches are not warmed, first boots may differ")
    return legs, [*notes, *plan_power(gate.rules, gate.pairs)]
