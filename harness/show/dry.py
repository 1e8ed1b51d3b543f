"""What a run would do: what it costs, every leg, its cells and its exact command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from evenhand import scenario as sc
from evenhand.engines import engine, engine_for
from evenhand.engines.base import Command
from evenhand.plan import CellPlan, LegPlan, Plan, arm_named, settings_for
from evenhand.store import Run, StoreError

PORT = 59999
"""Stands for the port that is picked at start; printed as $PORT."""

START_S = (30, 180)
"""From quick to slow: a start of an engine that loads weights and compiles. Said as what is usual, never as a prediction."""


def dry_run_text(scenario: sc.Scenario, plan: Plan, before: str | None = None) -> str:
    """All legs. `before`: how long the same took, where known.

    Raises EngineError when an executable does not exist or a setting cannot be expressed at all.
    """
    cost = [*work(plan), before or unknown_time(scenario, plan)]
    lines = [f"{scenario.name}: {scenario.description}".rstrip(": "), *(f"  {note}" for note in (*cost, *plan.notes)), ""]
    for leg in plan.legs:
        lines += _leg(scenario, leg)
    return "\n".join(lines)


def work(plan: Plan) -> list[str]:
    """Boots, requests and tokens, measured and warming up."""
    cells = [cell for leg in plan.legs for cell in leg.cells]
    warm = [cell for leg in plan.legs for cell in leg.warmup]
    boots = len(plan.legs)
    return [f"{boots} boot{'s' * (boots != 1)}; measured: {_tokens(cells)}", f"warm-up: {_tokens(warm)}"]


def _tokens(cells: Sequence[CellPlan]) -> str:
    prompt = sum(cell.requests * cell.prompt_tokens for cell in cells)
    output = sum(cell.requests * cell.output_tokens for cell in cells if cell.output_tokens is not None)
    found = sum(cell.requests for cell in cells if cell.output_tokens is None)
    more = f", more for {found} whose length the warm-up finds" if found else ""
    return f"{sum(cell.requests for cell in cells):,} requests, {prompt:,} prompt tokens, {output:,} output tokens{more}"


def unknown_time(scenario: sc.Scenario, plan: Plan) -> str:
    """What can be said about the time before a first run: starts of engines, and the schedule of open arrivals."""
    arms = [arm_named(scenario, leg.arm) for leg in plan.legs]
    starts = sum(not (engine(arm.engine).simulated or arm.url) for arm in arms)
    said = ["time: not known before a first run, the engines' speed decides"]
    if starts:
        low, high = (f"{starts * s / 60:.0f}" for s in START_S)
        said.append(f"{starts} starts of engines alone are often {low} to {high} min ({START_S[0]} to {START_S[1]} s each)")
    ladder = scenario.ladder
    if ladder and ladder.arrivals != "closed" and ladder.rate:
        sent = sum(cell.requests for leg in plan.legs for cell in leg.cells if cell.kind == "ladder")
        said.append(f"arrivals at {ladder.rate:g} requests/s alone take {sent / ladder.rate:,.0f} s")
    return "; ".join(said)


def took_before(results: Path, scenario: str, kind: str, sha256: str) -> str | None:
    """How long the latest finished run of exactly this scenario took, among the runs of a folder."""
    found = []
    for file in results.glob(f"{scenario}-*/manifest.json"):
        try:
            made = Run(file.parent).manifest
        except StoreError:
            continue
        same = (made.kind, made.scenario_sha256, made.status) == (kind, sha256, "finished")
        if same and made.ended_utc and not made.previous:
            seconds = (datetime.fromisoformat(made.ended_utc) - datetime.fromisoformat(made.started_utc)).total_seconds()
            found.append((made.started_utc, f"time: about {seconds:,.0f} s, as {made.run} took for the same scenario"))
    return max(found)[1] if found else None


def _leg(scenario: sc.Scenario, leg: LegPlan) -> list[str]:
    arm = arm_named(scenario, leg.arm)
    settings = settings_for(scenario, arm, leg.seats)
    adapter = engine_for(arm.engine, settings)
    command = Command(argv=[])
    if built := arm.build is None or Path(arm.executable or "").is_file():
        adapter.launcher.locate(settings)
        command = adapter.launcher.command(settings, PORT, adapter.launcher.capabilities(settings))
    role = {"warm_boot": ", uncounted warm boot", "control": ", control"}.get(leg.role, "")
    pair = "" if leg.pair is None else f", pair {leg.pair}"
    lines = [f"leg {leg.leg}: {leg.arm} ({arm.engine}), seats {leg.seats if leg.seats is not None else 'default'}{pair}{role}"]
    if command.argv:
        env = [f"{key}={shlex.quote(value)}" for key, value in sorted(command.env.items())]
        lines.append("  $ " + " ".join([*env, shlex.join(command.argv)]).replace(str(PORT), "$PORT"))
    elif built:
        lines.append(f"  attached to {settings.url}; nothing is started")
    if arm.build:
        lines.append(f"  {'built' if built else 'to be built first'}: {arm.build} (in a copy of {arm.source} at {arm.commit})")
    elif arm.patch or arm.patches or arm.commit:
        lines.append(f"  overlay: {arm.patch or arm.patches or f'{arm.source} at {arm.commit}'}")
    lines += [f"  cannot express: {sentence}" for sentence in command.inexpressible]
    lines += [f"  warm-up  {_cell(cell)}" for cell in leg.warmup]
    lines += [f"  measure  {_cell(cell)}" for cell in leg.cells]
    return [*lines, ""]


def _cell(cell: CellPlan) -> str:
    output = "output found by warm-up" if cell.output_tokens is None else f"{cell.output_tokens} output tokens"
    again = " (within-boot control)" if cell.repeat else ""
    requests = f"{cell.requests} request{'s' * (cell.requests != 1)}"
    at_once = min(cell.concurrency, cell.requests)
    return f"{cell.cell}: {requests}, {at_once} at once, {cell.prompt_tokens} prompt and {output}{again}"
