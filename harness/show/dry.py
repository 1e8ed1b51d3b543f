"""What a run would do: every leg, its cells and its exact command line."""

from __future__ import annotations

import shlex

from evenhand import scenario as sc
from evenhand.engines import engine_for
from evenhand.plan import CellPlan, LegPlan, Plan, arm_named, settings_for

PORT = 59999
"""Stands for the port that is picked at start; printed as $PORT."""


def dry_run_text(scenario: sc.Scenario, plan: Plan) -> str:
    """All legs. Raises EngineError when an executable does not exist or a setting cannot be expressed at all."""
    lines = [f"{scenario.name}: {scenario.description}".rstrip(": "), *(f"  {note}" for note in plan.notes), ""]
    for leg in plan.legs:
        lines += _leg(scenario, leg)
    return "\n".join(lines)


def _leg(scenario: sc.Scenario, leg: LegPlan) -> list[str]:
    arm = arm_named(scenario, leg.arm)
    settings = settings_for(scenario, arm, leg.seats)
    adapter = engine_for(arm.engine, settings)
    adapter.launcher.locate(settings)
    command = adapter.launcher.command(settings, PORT, adapter.launcher.capabilities(settings))
    role = {"warm_boot": ", uncounted warm boot", "control": ", control"}.get(leg.role, "")
    pair = "" if leg.pair is None else f", pair {leg.pair}"
    lines = [f"leg {leg.leg}: {leg.arm} ({arm.engine}), seats {leg.seats if leg.seats is not None else 'default'}{pair}{role}"]
    if command.argv:
        env = [f"{key}={shlex.quote(value)}" for key, value in sorted(command.env.items())]
        lines.append("  $ " + " ".join([*env, shlex.join(command.argv)]).replace(str(PORT), "$PORT"))
    else:
        lines.append(f"  attached to {settings.url}; nothing is started")
    if arm.patch or arm.patches or arm.commit:
        lines.append(f"  overlay: {arm.patch or arm.patches or f'{arm.source} at {arm.commit}'}")
    lines += [f"  cannot express: {sentence}" for sentence in command.inexpressible]
    lines += [f"  warm-up  {_cell(cell)}" for cell in leg.warmup]
    lines += [f"  measure  {_cell(cell)}" for cell in leg.cells]
    return [*lines, ""]


def _cell(cell: CellPlan) -> str:
    output = "output found by warm-up" if cell.output_tokens is None else f"{cell.output_tokens} output tokens"
    again = " (within-boot control)" if cell.repeat else ""
    return f"{cell.cell}: {cell.requests} requests, {cell.concurrency} at once, {cell.prompt_tokens} prompt and {output}{again}"
