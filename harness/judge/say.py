"""What a verdict says in words: claims no wider than the measurement, what would widen them."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.difference import width
from evenhand.judge.equality import Comparison
from evenhand.judge.gpu import GpuSummary
from evenhand.judge.ladder import LadderRow
from evenhand.judge.pressure import PairedPressure
from evenhand.judge.rules import Rule, pairs_needed
from evenhand.judge.timing import TimingResult
from evenhand.judge.verdict import RuleVerdict
from evenhand.judge.view import RunView
from evenhand.records import LegRow


def configuration(run: RunView, legs: Sequence[LegRow]) -> str:
    """One line that names what ran: engine, version, model, depth, seats and pool as the engine resolved them."""
    if not legs:
        return "nothing ran"
    leg = legs[0]
    model = str(run.manifest.scenario.get("model", "?")).rstrip("/").rpartition("/")[2]
    parts = [f"{leg.engine} {leg.version or '(version unknown)'}", f"model {model}"]
    if leg.drafted_depth:
        parts.append(f"{leg.drafted_depth} drafted tokens")
    if leg.seats_resolved is not None:
        parts.append(f"{leg.seats_resolved} seats")
    if leg.pool and leg.pool.blocks is not None:
        size = f" of {leg.pool.block_tokens} tokens" if leg.pool.block_tokens else ""
        parts.append(f"pool {leg.pool.blocks} blocks{size}")
    return ", ".join(parts)


def claims(
    run: RunView,
    baseline: str,
    candidate: str,
    verdicts: Sequence[RuleVerdict],
    a_legs: Sequence[LegRow],
    b_legs: Sequence[LegRow],
) -> list[str]:
    """One sentence per rule that passed or failed, each with configuration, count and what differed; none for what is void."""
    where = configuration(run, b_legs)
    boots = f"{len(a_legs)} and {len(b_legs)} boots"
    wide = width(run.manifest.scenario, a_legs, b_legs)
    about = f"{candidate} against {baseline} on {where}, {boots}{'; ' if wide else ''}{wide}"
    said = []
    for verdict in verdicts:
        if verdict.status in ("pass", "fail"):
            said.append(f"{about}: {verdict.text}: {verdict.status}, {verdict.reason}")
    if run.manifest.simulated:
        said = [f"reference model, not a measurement: {text}" for text in said]
    return said


def notes(
    run: RunView,
    cells: Sequence[LadderRow],
    comparisons: Sequence[Comparison],
    summaries: Sequence[Sequence[GpuSummary]],
) -> list[str]:
    """What a reader must know beside the verdict."""
    found = []
    if run.manifest.simulated:
        found.append("reference model, not a measurement")
    found += [f"{r.arm} {r.cell}, leg {r.legs[0]}: {r.outcome}: {r.reason}" for r in cells if r.outcome != "ok"]
    found += [f"{r.arm} {r.cell}: {note}" for r in cells for note in r.notes]
    warnings = [f"{leg.arm}: the engine warns: {text}" for leg in run.legs for text in leg.log_warnings]
    missing = [f"{leg.arm}: cannot express: {text}" for leg in run.legs for text in leg.inexpressible]
    differing = sum(c.cached_differ for c in comparisons)
    if differing:
        found.append(f"cached tokens differ on {differing} of {sum(c.cached_known for c in comparisons)} request pairs")
    if not any(summaries):
        found.append("GPU clocks: not observed (no device was watched)")
    return list(dict.fromkeys([*found, *warnings, *missing]))


def widen(
    run: RunView, rules: Sequence[Rule], paired: Sequence[PairedPressure], timing: Sequence[TimingResult], boots: int
) -> list[str]:
    """What would make the claim wider or the inconclusive decided."""
    count = sum(r.kind == "timing" for r in rules)
    found = []
    need = pairs_needed(count)
    if count and boots < need:
        found.append(f"{need} boot pairs would let {count} timing rule{'s' * (count != 1)} be decided")
    for result in timing:
        margin = result.decision.smallest_margin if result.decision else None
        if result.status == "inconclusive" and margin is not None and boots >= need:
            found.append(f"{result.rule}: more boot pairs, or a margin of {100 * margin:.1f} %")
    if any(not p.exact for p in paired):
        found.append("watch.probe = true would give exact pool peaks")
    if not run.manifest.scenario.get("reuse"):
        found.append("a [reuse] section would compare replayed and extended prefixes")
    return found
