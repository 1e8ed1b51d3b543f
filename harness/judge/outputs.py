"""The rule on outputs: what two arms' texts and ids are worth beside a control."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from evenhand.judge.equality import UNUSABLE, Comparison, Pair
from evenhand.judge.planted import Planted
from evenhand.judge.rules import ALPHA, MIN_BOOTS
from evenhand.judge.student import binomial_tail
from evenhand.judge.timing import Status
from evenhand.judge.view import JudgeRow

SHOWN = 50
"""Mismatches that a verdict lists; all are counted."""
POWER = 0.8
"""Chance of seeing twice the control's share of mismatches, from which on a test that saw nothing means something."""


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
        used, text = self.used(mode), mode == "identical text"
        return sum(mismatches(c, text) for c in used), sum(c.compared for c in used)

    def used(self, mode: str) -> list[Comparison]:
        """The comparisons that count in a mode."""
        return (self.across or self.within) if mode == "no worse than control" else [*self.within, *self.across]


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
    """One-sided exact p against the control, a prompt being one observation."""
    prompts_more: int = 0
    """Prompts on which the candidate differs more often than the control."""
    prompts_less: int = 0
    first: list[Pair] = msgspec.field(default_factory=list)
    """Mismatches, each with its first divergence, up to a limit."""
    planted: Planted | None = None


def mismatches(comparison: Comparison, text: bool) -> int:
    """Mismatches of a comparison, ids left aside where only text counts."""
    return comparison.text_mismatches if text else comparison.mismatches


def by_prompt(pairs: Sequence[Comparison], control: Sequence[Comparison], text: bool) -> tuple[int, int]:
    """Prompts on which the candidate's share of mismatches is above the control's, and on which it is below.

    A prompt recurs in every boot, so its requests are one observation. If the arms are alike, the boot whose output is the odd
    one is as likely the candidate's as the baseline's, whatever makes some prompts unstable: each of these prompts is a fair
    coin, which the exact one-sided binomial test counts.
    """
    ours, control_share = _shares(pairs, text), _shares(control, text)
    differences = [ours.get(key, 0.0) - control_share.get(key, 0.0) for key in ours.keys() | control_share.keys()]
    return sum(d > 0 for d in differences), sum(d < 0 for d in differences)


def _shares(comparisons: Sequence[Comparison], text: bool) -> dict[str, float]:
    """key -> mismatches over the comparisons in which that prompt was usable, for prompts that ever differ."""
    differ: Counter[str] = Counter()
    unusable: Counter[str] = Counter()
    for pair in (p for c in comparisons for p in c.pairs):
        differ[pair.key] += pair.text_mismatch if text else pair.mismatch
        unusable[pair.key] += pair.kind in UNUSABLE
    return {key: count / (len(comparisons) - unusable[key]) for key, count in differ.items() if count}


def power_to_see_double(k: int, n: int, prompts: int) -> float:
    """Chance that the test rejects a candidate whose prompts differ twice as often as the control's k of n.

    Prompts taken as independent between the arms and compared once; of those on which just one of the two differs (their
    expected number), the candidate's are binomial. 0 where nothing differs in the control.
    """
    if not k:
        return 0.0
    base = k / n
    candidate = min(1.0, 2 * base)
    ours, control = candidate * (1 - base), base * (1 - candidate)
    discordant = round(prompts * (ours + control))
    need = next((b for b in range(discordant + 1) if binomial_tail(b, discordant, 0.5) <= ALPHA), None)
    return 0.0 if need is None else binomial_tail(need, discordant, ours / (ours + control))


def judge_outputs(
    mode: str, pairs: Sequence[Comparison], control: Control, planted: Planted | None, boots: int
) -> OutputsResult:
    """`identical`, `identical text` or `no worse than control`.

    With a control that differs from itself, equality can be asked of nobody: control failed. Without a control nobody is
    blamed. Two arms that both produced nothing are no evidence, and nothing passes while requests failed.

    `no worse than control` fails when the test rejects and every boot pair is above the control: one odd boot, which batches
    otherwise, changes many prompts at once. A share above the control's that the test does not reject is no worse only where
    the test could have seen twice the control's; else it is inconclusive.

    Of 1,500 simulated gates of equal arms (2 and 6 boots, 40 and 340 prompts, 2 to 100 % of them unstable, each by itself) the
    test alone rejects at most 5.4 %; 95 to 99 % pass where a doubling would be seen, half where it would not. Where whole boots
    are odd, 1 to 12 % of 2,000 still fail with 2 boots per arm (most when half of all boots are odd), at most 3 % with 6.
    """
    text = mode == "identical text"
    compared = sum(c.compared for c in pairs)
    differ = sum(mismatches(c, text) for c in pairs)
    differing = [p for c in pairs for p in c.pairs if (p.text_mismatch if text else p.mismatch)]
    k, n = control.counts(mode)
    more, less = by_prompt(pairs, control.used(mode), text)
    counts = OutputsResult(
        status="void",
        reason="",
        compared=compared,
        identical=compared - differ,
        mismatches=differ,
        control_mismatches=k if n else None,
        control_compared=n if n else None,
        p=binomial_tail(more, more + less, 0.5) if n and compared else None,
        prompts_more=more,
        prompts_less=less,
        first=differing[:SHOWN],
        planted=planted,
    )
    status, reason = _decide(mode, pairs, counts, boots)
    broken, planned = sum(c.failed for c in pairs), sum(c.planned for c in pairs)
    if status == "pass" and broken:
        status, reason = "void", f"{broken} of {planned} pairs could not be compared because requests failed"
    return msgspec.structs.replace(counts, status=status, reason=reason)


def _decide(mode: str, pairs: Sequence[Comparison], counts: OutputsResult, boots: int) -> tuple[Status, str]:
    compared, differ = counts.compared, counts.mismatches
    k, n = counts.control_mismatches, counts.control_compared
    if not compared:
        return "void", f"no evidence: 0 of {sum(c.planned for c in pairs)} pairs could be compared"
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
        if differ * (n or 0) <= k * compared:
            return "pass", no_worse
        more, less = counts.prompts_more, counts.prompts_less
        said = f"{what}, the control {k} of {n}: more often on {more} prompts, less often on {less}"
        if counts.p is not None and counts.p <= ALPHA:
            above = sum(mismatches(c, False) * (n or 0) > k * c.compared for c in pairs)
            if above < len(pairs):
                only = f"only in {above} of {len(pairs)} boot pairs more often, so it may be the luck of a boot"
                return "inconclusive", f"{what}, the control {k} of {n}: {only}; {first}"
            return "fail", f"{said}, exact one-sided p = {counts.p:.3g}; {first}"
        if power_to_see_double(k, n or 0, max(c.compared for c in pairs)) >= POWER:
            return "pass", no_worse
        need = next(b for b in range(more, more + less + 100) if binomial_tail(b, b + less, 0.5) <= ALPHA)
        return "inconclusive", f"{said}; {need} would tell; {first}"
    if mode == "no worse than control" and k is not None:
        return "pass", no_worse
    empty = sum(c.empty for c in pairs)
    also = f", in {empty} more neither side generated anything" if empty else ""
    if mode == "identical text":
        return "pass", f"text-identical on {compared} of {compared}{also}{'; the engine returns no ids' if unknown else ''}"
    return "pass", f"identical on {compared} of {compared}{also}"
