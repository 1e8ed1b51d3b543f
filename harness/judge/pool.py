"""The rule on peak pool use, in blocks."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.pressure import PairedPressure
from evenhand.judge.rules import MIN_BOOTS, Rule
from evenhand.judge.timing import Status


def judge_pool(rule: Rule, rows: Sequence[PairedPressure], boots: int) -> tuple[Status, str]:
    """Not worse by more than the margin at every prompt length. Exact peaks are judged where both arms have them.

    Only an exact peak of requests that ran one at a time repeats. A sampled one is a lower bound, and requests that run
    together meet otherwise in every boot: there the margin is never below the spread of the baseline's own boots in that cell.
    What the candidate's boots differ by excuses nothing: its highest counts. But such a peak comes in some boots and not in
    others, of either arm: growth that only some boots of the candidate show is no pass and no fail.
    """
    if not rows:
        return "void", "no data: no cell in which the pool was watched"
    missing = [r for r in rows if r.blocks is None]
    if missing:
        return "void", "no data: " + "; ".join(f"{r.cell}: {r.reason or 'no peak'}" for r in missing)
    if boots < MIN_BOOTS:
        return "inconclusive", f"{boots} boot per arm, {MIN_BOOTS} are needed"
    asked = rule.margin or 0.0
    worse, unsure = [], []
    raised = 0
    for row in rows:
        repeats = row.exact and row.alone
        noise = 0 if repeats else row.spread_blocks or 0
        raised = max(raised, noise if noise > asked else 0)
        if (row.blocks or 0) > max(asked, noise):
            change = f" ({row.change:+.1%})".replace("%", " %") if row.change is not None else ""
            words = f"{row.cell} {row.baseline_blocks} -> {row.candidate_blocks} blocks{change}"
            grown = sum(peak - (row.baseline_blocks or 0) > max(asked, noise) for peak in row.candidate_each)
            if repeats or grown == len(row.candidate_each):
                worse.append(words)
            else:
                unsure.append(f"{words} in {grown} of {len(row.candidate_each)} boots")
    how = "exact peaks" if all(r.exact for r in rows) else "sampled peaks"
    if raised:
        how += f", margin raised to the baseline's A/A spread of {raised} blocks"
    silent = next((r.exact_reason for r in rows if r.exact_reason), None)
    if silent:
        how += f", no exact ones: {silent}"
    if worse:
        return "fail", f"{'; '.join(worse)} ({how})"
    if unsure:
        more = "more boots" if all(r.exact for r in rows) else "watch.probe = true"
        return "inconclusive", f"{'; '.join(unsure)} ({how}: {more} would tell)"
    largest = max(r.blocks or 0 for r in rows)
    best = min(rows, key=lambda r: r.change or 0.0)
    gain = ""
    if best.change is not None and best.change < 0:
        gain = f", {best.cell} {best.baseline_blocks} -> {best.candidate_blocks} blocks ({best.change:+.1%})".replace("%", " %")
    if largest < 0:
        words = f"at least {-largest} blocks fewer in each of {len(rows)} cells"
    else:
        words = f"at most {largest} blocks more in any of {len(rows)} cells"
    return "pass", f"{words}{gain} ({how})"
