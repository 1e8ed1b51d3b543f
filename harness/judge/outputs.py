"""The rule on outputs: what two arms' texts and ids are worth beside a control."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evenhand.judge.equality import Comparison, Pair
from evenhand.judge.planted import Planted
from evenhand.judge.rules import ALPHA, MIN_BOOTS
from evenhand.judge.student import fisher_greater
from evenhand.judge.timing import Status
from evenhand.judge.view import JudgeRow

SHOWN = 50
"""Mismatches that a verdict lists; all are counted."""


class Control(JudgeRow, frozen=True, kw_only=True):
    """The baseline against itself."""

    within: list[Comparison] = msgspec.field(default_factory=list)
    """Two passes of one boot."""
    across: list[Comparison] = msgspec.field(default_factory=list)
    """Boots that follow each other."""

    def counts(self, mode: str) -> tuple[int, int]:
        """(mismatches, compared). Equality is asked of every control; a share of mismatches is measured against boots like the
        arms' own, and against passes of one boot only where there is one boot.
        """
        text = mode == "identical text"
        used = (self.across or self.within) if mode == "no worse than control" else [*self.within, *self.across]
        return sum(mismatches(c, text) for c in used), sum(c.compared for c in used)


class OutputsResult(JudgeRow, frozen=True, kw_only=True):
    """What became of the rule, and the figures behind it."""

    status: Status
    reason: str
    compared: int = 0
    identical: int = 0
    mismatches: int = 0
    control_mismatches: int | None = None
    control_compared: int | None = None
    p: float | None = None
    """One-sided exact p against the control."""
    first: list[Pair] = msgspec.field(default_factory=list)
    """Mismatches, each with its first divergence, up to a limit."""
    planted: Planted | None = None


def mismatches(comparison: Comparison, text: bool) -> int:
    """Mismatches of a comparison, ids left aside where only text counts."""
    return comparison.text_mismatches if text else comparison.mismatches


def judge_outputs(
    mode: str, pairs: Sequence[Comparison], control: Control, planted: Planted | None, boots: int
) -> OutputsResult:
    """`identical`, `identical text` or `no worse than control`.

    With a control that differs from itself, equality can be asked of nobody: control failed. Without a control nobody is
    blamed. Two arms that both produced nothing are no evidence.
    """
    text = mode == "identical text"
    compared = sum(c.compared for c in pairs)
    differ = sum(mismatches(c, text) for c in pairs)
    differing = [p for c in pairs for p in c.pairs if (p.text_mismatch if text else p.mismatch)]
    k, n = control.counts(mode)
    counts = OutputsResult(
        status="void",
        reason="",
        compared=compared,
        identical=compared - differ,
        mismatches=differ,
        control_mismatches=k if n else None,
        control_compared=n if n else None,
        p=fisher_greater(differ, compared, k, n) if n and compared else None,
        first=differing[:SHOWN],
        planted=planted,
    )
    status, reason = _decide(mode, pairs, counts, boots)
    return msgspec.structs.replace(counts, status=status, reason=reason)


def _decide(mode: str, pairs: Sequence[Comparison], counts: OutputsResult, boots: int) -> tuple[Status, str]:
    compared, differ = counts.compared, counts.mismatches
    k, n = counts.control_mismatches, counts.control_compared
    planned = sum(c.planned for c in pairs)
    if not compared:
        return "void", f"no evidence: 0 of {planned} pairs could be compared"
    not_greedy = sum(c.not_greedy for c in pairs)
    if not_greedy:
        return "void", f"sampled, not greedy: {not_greedy} of {compared} recorded bodies lack temperature 0"
    unknown = compared - sum(c.ids_known for c in pairs)
    if mode == "identical" and unknown:
        return "void", f"token ids are unknown for {unknown} of {compared} pairs; ask for identical text"
    if boots < MIN_BOOTS:
        return "inconclusive", f"{boots} boot per arm, {MIN_BOOTS} are needed"
    if counts.planted is not None and not counts.planted.seen:
        return "control failed", f"a planted fault went unseen: {counts.planted.what}"
    if mode != "no worse than control" and k:
        return "control failed", f"the baseline differs from itself on {k} of {n}; the candidate on {differ} of {compared}"
    no_worse = f"no worse than the control ({differ} of {compared}, control {k} of {n})"
    if differ:
        what = f"{differ} of {compared} differ"
        first = f"first {counts.first[0].key}: {counts.first[0].detail}"
        if k is None:
            return "inconclusive", f"{what}, but without a control nobody is blamed; {first}"
        if mode != "no worse than control":
            return "fail", f"{what}, the control 0 of {n}; {first}"
        if counts.p is not None and counts.p <= ALPHA:
            return "fail", f"{what}, the control {k} of {n}, exact one-sided p = {counts.p:.3g}; {first}"
        return "pass", no_worse
    broken = sum(c.failed for c in pairs)
    if broken:
        return "void", f"{broken} of {planned} pairs could not be compared because requests failed"
    if mode == "no worse than control" and k is not None:
        return "pass", no_worse
    if mode == "identical text":
        return "pass", f"text-identical on {compared} of {compared}{'; the engine returns no ids' if unknown else ''}"
    return "pass", f"identical on {compared} of {compared}"
