"""A stored gate run -> its verdict. Pure: the same run gives the same verdict on any machine."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import msgspec

from evenhand.judge.columns import Columns, Reader
from evenhand.judge.equality import Comparison, compare, margins_of
from evenhand.judge.fairness import Reason, cache_state, measured, not_read_back, pairing, proof
from evenhand.judge.figures import timing_legs
from evenhand.judge.gaps import Gap, gaps, told, without_metrics
from evenhand.judge.gpu import GpuSummary, summarise, timing_voids
from evenhand.judge.ladder import LadderRow, ladder_rows
from evenhand.judge.ledger import ledger, memory
from evenhand.judge.outputs import Control, OutputsResult, judge_outputs
from evenhand.judge.planted import Planted, plant_token
from evenhand.judge.pool import judge_pool
from evenhand.judge.pressure import PairedPressure, paired_pressure, pressure_rows
from evenhand.judge.rules import MIN_BOOTS, Rule, parse_rules, plan_power
from evenhand.judge.say import claims, notes, widen
from evenhand.judge.timing import Status, TimingResult, interleaving, judge_timing
from evenhand.judge.unmeasured import not_measured
from evenhand.judge.verdict import RuleVerdict, Verdict, overall
from evenhand.judge.view import JudgeError, RunView
from evenhand.records import CellRow, LegRow

KINDS = ("ladder", "pressure", "reuse")
"""Cells that are judged."""
COMPARED_KINDS = frozenset({"ladder", "pressure", "reuse", "control"})


def judge_gate(
    run: RunView,
    judged_utc: str,
    reader: Reader | None = None,
    changed: Sequence[str] = (),
    cells: Sequence[LadderRow] | None = None,
) -> Verdict:
    """Judge every rule of a gate run under its own preconditions. `reader`: what has read this run already; `changed`: what is
    wrong with its sealed evidence (`broken_seal`), which voids every rule; `cells`: its judged rows, where they are at hand.

    Raises JudgeError when the run has no gate, RuleError when its rules cannot be read.
    """
    scenario = run.manifest.scenario
    gate: dict[str, Any] = scenario.get("gate") or {}
    if not gate:
        raise JudgeError(f"{run.path} is no gate: its scenario has no [gate] section")
    rules = parse_rules(gate.get("rules", {}))
    baseline, candidate, pairs = gate["baseline"], gate["candidate"], int(gate.get("pairs", 2))
    compare_as = gate.get("compare", "differ")
    reader = reader or Reader(run)
    a_legs, b_legs = measured(run, baseline), measured(run, candidate)
    control_legs = [leg for leg in run.legs if leg.arm == baseline and leg.role == "control"]
    matched = pairs_of(a_legs, b_legs)

    comparisons = compared(run, reader, matched)
    control = controls(run, reader, a_legs, control_legs)
    cells = ladder_rows(run, reader, KINDS) if cells is None else cells
    watched = pressure_rows(run, reader, _watched_kinds(run, rules), cells)
    paired = paired_pressure([r for r in watched if r.pair is not None], run.legs, baseline, candidate)
    gpu = {leg.leg: reader.gpu(leg.leg) for leg in run.legs}
    summaries = [summarise(arm, run.cells, gpu) for arm in (baseline, candidate)]
    reasons = [Reason(scope="all", text=text) for text in (*changed, *without_metrics(run, reader))]
    reasons += _reasons(run, baseline, candidate, compare_as, pairs, comparisons, summaries, cells)
    missing = gaps(run, reader)
    reasons += unmeasured(run, rules, missing)

    seed = zlib.crc32(run.manifest.scenario_sha256.encode())
    boots = len(matched)
    outputs = None
    timing_rules = [r for r in rules if r.kind == "timing"]
    timing: list[TimingResult] = []
    if timing_rules:
        a, b = [a for a, _ in matched], [b for _, b in matched]
        timing = judge_timing(timing_rules, timing_legs(timing_rules, reader, cells, a, b, comparisons), seed)
    mode = next((r.mode for r in rules if r.kind == "outputs"), None)
    if mode or comparisons:
        planted = _planted(run, reader, a_legs, control_legs)
        outputs = judge_outputs(mode or "identical text", comparisons, control, planted, boots)
    verdicts = [_rule(rule, reasons, outputs, timing, paired, comparisons, a_legs, b_legs, boots) for rule in rules]
    status, code = overall(v.status for v in verdicts)
    return Verdict(
        evenhand=run.manifest.evenhand,
        run=run.manifest.run,
        scenario=str(scenario.get("name", "")),
        scenario_sha256=run.manifest.scenario_sha256,
        judged_utc=judged_utc,
        simulated=run.manifest.simulated,
        partial=run.partial,
        baseline=baseline,
        candidate=candidate,
        compare=compare_as,
        pairs=pairs,
        order=[leg.arm for leg in sorted((*a_legs, *b_legs), key=lambda leg: leg.leg)],
        status=status,
        exit_code=code,
        rules=verdicts,
        reasons=reasons,
        claims=claims(run, baseline, candidate, verdicts, a_legs, b_legs),
        notes=[*notes(run, cells, comparisons, summaries), *not_read_back([*a_legs, *b_legs])],
        not_measured=not_measured(run, cells, watched, any(summaries), rules=rules, gaps=missing, outputs=outputs),
        widen=widen(run, rules, paired, timing, boots),
        power=plan_power(gate.get("rules", {}), pairs),
        outputs=outputs,
        comparisons=[_short(c) for c in comparisons],
        controls=[_short(c) for c in (*control.within, *control.across)],
        timing=timing,
        pressure=paired,
        pressure_rows=watched,
        ladder=[r for r in cells if r.kind == "ladder"],
        ledger=ledger(run, cells, reader),
        memory=memory(run, reader, [r for r in cells if r.kind == "ladder"]),
        gpu=[s for each in summaries for s in each],
    )


def pairs_of(a: Sequence[LegRow], b: Sequence[LegRow]) -> list[tuple[LegRow, LegRow]]:
    """Legs of both arms that share a pair."""
    other = {leg.pair: leg for leg in b if leg.pair is not None}
    return [(leg, other[leg.pair]) for leg in a if leg.pair in other]


def _watched_kinds(run: RunView, rules: Sequence[Rule]) -> tuple[str, ...]:
    """Pressure cells where there are any; else, for a rule on the pool, the rungs of the ladder."""
    if any(c.kind == "pressure" for c in run.cells):
        return ("pressure",)
    return ("ladder",) if any(r.kind == "pool" for r in rules) else ()


def across_arms(run: RunView, reader: Reader | None = None) -> list[Comparison]:
    """Outputs of a plain run's arms against each other, cell by cell: reported, never gated."""
    reader = reader or Reader(run)
    place: dict[str, dict[str, int]] = {}
    for cell in run.cells:
        if cell.kind in COMPARED_KINDS and cell.repeat == 0:
            place.setdefault(cell.cell, {}).setdefault(cell.arm, cell.leg)
    found = []
    for name, legs in place.items():
        for a, b in combinations(legs, 2):
            left, right = reader.columns(legs[a]), reader.columns(legs[b])
            label = f"{name}: {b} against {a}"
            rows = left.where(name), right.where(name)
            found.append(_short(compare(left, rows[0], right, rows[1], label=label, legs=(legs[a], legs[b]))))
    return found


# --- comparisons -----------------------------------------------------------------------------------------------------------


def _rows(columns: Columns, cells: Sequence[CellRow], leg: int, repeat: int = 0) -> list[int]:
    """Rows of a leg that count as evidence: all but warm-up."""
    warm = {c.cell for c in cells if c.leg == leg and c.kind not in COMPARED_KINDS}
    return [
        i
        for (cell, again), at in columns.groups.items()
        if again == repeat and cell not in warm and not cell.startswith("warmup")
        for i in at
    ]


def compared(run: RunView, reader: Reader, matched: Sequence[tuple[LegRow, LegRow]]) -> list[Comparison]:
    """Candidate against baseline, pair by pair."""
    found = []
    replays = list(run.replays())
    for a, b in matched:
        left, right = reader.columns(a.leg), reader.columns(b.leg)
        rows = _rows(left, run.cells, a.leg)
        margins = None
        if replays:
            wanted = {row.key for row in replays}
            emitted = {left.key[i]: left.token_ids(i) or [] for i in rows if left.key[i] in wanted}
            margins = margins_of([row for row in replays if row.arm == a.arm], emitted)
        label = f"pair {a.pair}: {b.arm} against {a.arm}"
        found.append(
            compare(left, rows, right, _rows(right, run.cells, b.leg), label=label, legs=(a.leg, b.leg), margins=margins)
        )
    return found


def controls(run: RunView, reader: Reader, a_legs: Sequence[LegRow], control_legs: Sequence[LegRow]) -> Control:
    """The baseline against itself: second passes within a boot, and each boot against the one before it."""
    within, across = [], []
    for leg in a_legs:
        columns = reader.columns(leg.leg)
        again = _rows(columns, run.cells, leg.leg, repeat=1)
        if again:
            repeated = {columns.cell[i] for i in again}
            once = [i for i in _rows(columns, run.cells, leg.leg) if columns.cell[i] in repeated]
            label = f"within boot {leg.leg} of {leg.arm}"
            within.append(compare(columns, once, columns, again, label=label, legs=(leg.leg, leg.leg)))
    boots = sorted([*a_legs, *control_legs], key=lambda leg: leg.leg)
    for a, b in pairwise(boots):
        left, right = reader.columns(a.leg), reader.columns(b.leg)
        if len(left) and len(right):
            label = f"boot {b.leg} against boot {a.leg} of {a.arm}"
            rows = _rows(left, run.cells, a.leg), _rows(right, run.cells, b.leg)
            across.append(compare(left, rows[0], right, rows[1], label=label, legs=(a.leg, b.leg)))
    return Control(within=within, across=across)


def _planted(run: RunView, reader: Reader, a_legs: Sequence[LegRow], control_legs: Sequence[LegRow]) -> Planted | None:
    boots = [*a_legs, *control_legs]
    if len(boots) < MIN_BOOTS:
        return None
    a, b = boots[0].leg, boots[1].leg
    left, right = reader.columns(a), reader.columns(b)
    return plant_token(left, _rows(left, run.cells, a), right, _rows(right, run.cells, b))


def _short(comparison: Comparison, limit: int = 50) -> Comparison:
    return msgspec.structs.replace(comparison, pairs=comparison.pairs[:limit])


# --- rules ------------------------------------------------------------------------------------------------------------------


def _reasons(
    run: RunView,
    baseline: str,
    candidate: str,
    compare_as: str,
    pairs: int,
    comparisons: Sequence[Comparison],
    summaries: Sequence[list[GpuSummary]],
    cells: Sequence[LadderRow],
) -> list[Reason]:
    reasons = proof(run, baseline, candidate, compare_as, pairs)
    reasons += pairing(comparisons)
    spoilt = [r for r in cells if r.tainted and r.arm in (baseline, candidate)]
    reasons += [Reason(scope="all", text=f"{r.arm} {r.cell} on leg {r.legs[0]}: {r.reason}") for r in spoilt]
    order = [(leg.arm, leg.leg) for leg in run.legs if leg.role == "measure" and leg.pair is not None]
    shuffled = interleaving(order, baseline, candidate)
    if shuffled:
        reasons.append(Reason(scope="timing", text=shuffled))
    reasons += [Reason(scope="timing", text=text) for text in timing_voids(*summaries)]
    return reasons + cache_state(cells, measured(run, baseline), measured(run, candidate))


def unmeasured(run: RunView, rules: Sequence[Rule], missing: Sequence[Gap]) -> list[Reason]:
    """Voids of the rules that needed a planned cell which was not measured, unless the scenario expected that.

    Outputs and errors need every cell, a rule on the pool those that are watched for it. Timing rules find cells without
    figures by themselves; only of one without any row they cannot know.
    """
    needed = [gap for gap in missing if not gap.expected and not gap.control]
    kinds = {rule.kind for rule in rules}
    watched = _watched_kinds(run, rules)
    reasons = []
    if kinds & {"outputs", "errors"}:
        reasons += [Reason(scope="outputs", text=text) for text in told(needed)]
    if "pool" in kinds:
        reasons += [Reason(scope="pool", text=text) for text in told([gap for gap in needed if gap.kind in watched])]
    if "timing" in kinds:
        reasons += [Reason(scope="timing", text=text) for text in told([gap for gap in needed if gap.absent])]
    return reasons


def _rule(
    rule: Rule,
    reasons: Sequence[Reason],
    outputs: OutputsResult | None,
    timing: Sequence[TimingResult],
    paired: Sequence[PairedPressure],
    comparisons: Sequence[Comparison],
    a_legs: Sequence[LegRow],
    b_legs: Sequence[LegRow],
    boots: int,
) -> RuleVerdict:
    scopes = {"all", "outputs" if rule.kind == "errors" else rule.kind}
    voids = [r.text for r in reasons if r.scope in scopes]
    if voids:
        return RuleVerdict(rule=rule.name, text=rule.text, status="void", reason="; ".join(voids))
    status: Status
    if rule.kind == "outputs":
        status, reason = (outputs.status, outputs.reason) if outputs else ("void", "no evidence: nothing was compared")
    elif rule.kind == "pool":
        status, reason = judge_pool(rule, paired, boots)
    elif rule.kind == "timing":
        result = next(t for t in timing if t.rule == rule.name)
        status, reason = result.status, result.reason
    elif rule.kind == "errors":
        status, reason = _errors(rule, comparisons, boots)
    else:
        status, reason = _engine_errors(rule, a_legs, b_legs, boots)
    return RuleVerdict(rule=rule.name, text=rule.text, status=status, reason=reason)


def _errors(rule: Rule, comparisons: Sequence[Comparison], boots: int) -> tuple[Status, str]:
    failed = [p for c in comparisons for p in c.pairs if p.kind == "not comparable"]
    mine = [p for p in failed if "B" in p.failed]
    base = sum("A" in p.failed for p in failed)
    total = sum(c.planned for c in comparisons)
    said = f"{len(mine)} of {total} requests of the candidate failed, {base} of the baseline"
    if len(mine) > rule.limit:
        return "fail", f"{said}; first {mine[0].key}: {mine[0].detail}"
    if boots < MIN_BOOTS:
        return "inconclusive", f"{said}; {boots} boot per arm, {MIN_BOOTS} are needed"
    return "pass", said


def _engine_errors(rule: Rule, a_legs: Sequence[LegRow], b_legs: Sequence[LegRow], boots: int) -> tuple[Status, str]:
    unread = [leg.leg for leg in b_legs if leg.log_errors is None]
    if unread:
        return "void", f"no data: the log of leg {', '.join(map(str, unread))} was not read for errors"
    mine = sum(leg.log_errors or 0 for leg in b_legs)
    base = "unread" if any(leg.log_errors is None for leg in a_legs) else sum(leg.log_errors or 0 for leg in a_legs)
    said = f"{mine} ERROR lines on the candidate, {base} on the baseline"
    if mine > rule.limit:
        return "fail", said
    if boots < MIN_BOOTS:
        return "inconclusive", f"{said}; {boots} boot per arm, {MIN_BOOTS} are needed"
    return "pass", said
