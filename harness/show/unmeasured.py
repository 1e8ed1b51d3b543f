"""What a plain run says nothing about, so that nobody reads more into its tables than was measured."""

from __future__ import annotations

from evenhand.records import HAS_FIGURES
from evenhand.show.judged import Judged


def unmeasured(judged: Judged) -> list[str]:
    """One sentence each; a gate's verdict has its own list."""
    run = judged.run
    scenario = run.manifest.scenario
    found = ["equality of outputs: arms are compared bit for bit by a gate, not by a run"]
    boots = {arm: sum(leg.arm == arm and leg.role == "measure" for leg in run.legs) for arm in judged.arms}
    if boots and max(boots.values()) == 1:
        found.append("spread between boots: each arm was booted once, so differences between arms carry no interval")
    rungs = [row.concurrency for row in judged.ladder if row.has_figures]
    found.append(f"concurrency above {max(rungs)}" if rungs else "concurrency: no rung has figures")
    prompts = [row.prompt_tokens for row in judged.rows if row.has_figures and row.prompt_tokens]
    if prompts:
        found.append(f"prompts longer than {max(prompts):,} tokens")
    shown = [row for row in judged.pressure if row.has_figures]
    if not shown:
        found.append("peak pool pressure of long prompts")
    elif any(row.exact_blocks is None for row in shown):
        arms = ", ".join(dict.fromkeys(row.arm for row in shown if row.exact_blocks is None))
        found.append(f"exact pool peaks of {arms}: there was no probe, sampled peaks are lower bounds")
    if not scenario.get("reuse"):
        found.append("prefix reuse: every prompt was cold")
    if not any(judged.reader.gpu(leg.leg) for leg in run.legs):
        found.append("clocks, power and memory of a device: none was watched")
    lost = sum(cell.outcome not in HAS_FIGURES for cell in run.cells)
    if lost:
        found.append(f"{lost} cells without figures, listed above")
    found.append("sampling above temperature 0, other models, other machines")
    return found
