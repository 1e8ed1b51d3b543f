"""What a run says nothing about, a gate or not, told from its rows: so that nobody reads more into it than was measured."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.equality import Comparison
from evenhand.judge.gaps import Gap, told
from evenhand.judge.ladder import LadderRow
from evenhand.judge.outputs import OutputsResult
from evenhand.judge.pressure import PressureRow
from evenhand.judge.rules import Rule
from evenhand.judge.view import RunView


def not_measured(
    run: RunView,
    cells: Sequence[LadderRow],
    pressure: Sequence[PressureRow],
    watched: bool,
    *,
    rules: Sequence[Rule] | None = None,
    gaps: Sequence[Gap] = (),
    outputs: OutputsResult | None = None,
    across: Sequence[Comparison] = (),
) -> list[str]:
    """One sentence each. `cells`: judged rows of every kind; `pressure`: those whose peaks were looked at; `watched`: whether a
    device was. A gate has `rules`, `gaps` (planned cells without figures) and `outputs`; a plain run compares `across` arms.
    """
    shown = [row for row in cells if row.has_figures]
    found = _of_run(run, cells, across) if rules is None else _of_gate(rules, {row.kind for row in cells}, gaps)
    kinds = None if rules is None else {rule.kind for rule in rules}
    if kinds is None or "pool" in kinds:
        found += _pool([row for row in pressure if row.has_figures])
    rungs = [row.at_once for row in shown if row.kind == "ladder"]
    if rungs:
        found.append(f"concurrency above {max(rungs)}")
    else:
        asked = run.manifest.scenario.get("ladder")
        found.append("concurrency: no rung has figures" if asked else "concurrency: requests ran one at a time")
    prompts = [row.prompt_tokens for row in shown if row.prompt_tokens]
    if prompts:
        found.append(f"prompts longer than {max(prompts):,} tokens")
    if not run.manifest.scenario.get("reuse"):
        found.append(_reuse(shown))
    if not watched:
        found.append("clocks, power and memory of a device: none was watched")
    if outputs and outputs.control_compared is None:
        found.append("a control: the baseline was not compared with itself")
    return [*found, "sampling above temperature 0, other models, other machines"]


def _of_gate(rules: Sequence[Rule], kinds: set[str], gaps: Sequence[Gap]) -> list[str]:
    asked = {rule.kind for rule in rules}
    found = [f"{text} (as expected)" for text in told([gap for gap in gaps if gap.expected])]
    found += told([gap for gap in gaps if not gap.expected])
    if "outputs" not in asked:
        found.append("outputs: no rule asked for them to be equal")
    if "timing" not in asked:
        found.append("speed: no timing rule was asked")
    if "pool" not in asked:
        found.append("pool pressure: no rule was asked")
    if {"ladder", "pressure"} <= kinds:
        if "timing" in asked:
            found.append("times of the long prompts: the timing rules looked at the ladder")
        if "pool" in asked:
            found.append("the pool under concurrency: the pool rule looked at the long prompts")
    return found


def _of_run(run: RunView, cells: Sequence[LadderRow], across: Sequence[Comparison]) -> list[str]:
    found = []
    if not any(one.compared for one in across):
        found.append("equality of outputs: no two arms answered the same prompts")
    boots: dict[str, int] = {}
    for leg in run.legs:
        if leg.role == "measure":
            boots[leg.arm] = boots.get(leg.arm, 0) + 1
    if boots and max(boots.values()) == 1:
        found.append("spread between boots: each arm was booted once, so differences between arms carry no interval")
    lost = sum(not row.has_figures for row in cells)
    if lost:
        found.append(f"{lost} cell{'s' * (lost != 1)} without figures, listed above")
    return found


def _pool(rows: Sequence[PressureRow]) -> list[str]:
    if not rows:
        return ["peak pool pressure of long prompts"]
    sampled = [row for row in rows if row.exact_blocks is None]
    if not sampled:
        return []
    arms = ", ".join(dict.fromkeys(row.arm for row in sampled))
    why = next((row.exact_reason for row in sampled if row.exact_reason not in (None, "no probe")), "there was no probe")
    return [f"exact pool peaks of {arms}: {why}, sampled peaks are lower bounds"]


def _reuse(rows: Sequence[LadderRow]) -> str:
    """Whether the prompts were cold, as far as the engines say."""
    unknown = [row for row in rows if row.cached_share is None]
    warm = [row for row in rows if row.cached_share]
    said = []
    if warm:
        said.append(f"{len(warm)} of {len(rows)} cells were served from a cache in part")
    if unknown:
        arms = ", ".join(dict.fromkeys(row.arm for row in unknown))
        said.append(f"that the prompts of {arms} were cold is not proved ({len(unknown)} of {len(rows)} cells)")
    return f"prefix reuse: {'; '.join(said) or 'every prompt was cold'}"
