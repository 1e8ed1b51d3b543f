"""Ladder rows over all legs of an arm, and which of them may be ranked against each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from evenhand.judge.columns import Reader
from evenhand.judge.ladder import LadderRow, ladder_rows
from evenhand.judge.stats import median, percentile, percentile_adjusted
from evenhand.judge.view import RunView

SEVERITY = ("ok", "queued", "clamped", "interrupted", "void", "not_run", "refused", "launch_failed", "died")
"""Outcomes from best to worst, for rows that sum up several legs."""


def by_arm(run: RunView, reader: Reader | None = None, rows: Iterable[LadderRow] | None = None) -> list[LadderRow]:
    """One row per arm and cell over all its measured legs: counts summed, percentiles over all requests, the highest peaks,
    the median rate. Legs without figures give no figures; the row's outcome is the worst of them. `rows`: per leg, where they
    are at hand; else those of the ladder.
    """
    reader = reader or Reader(run)
    groups: dict[tuple[str, str], list[LadderRow]] = {}
    for row in ladder_rows(run, reader) if rows is None else rows:
        if row.repeat == 0:
            groups.setdefault((row.arm, row.cell), []).append(row)
    return [rows[0] if len(rows) == 1 else _merged(rows, reader) for rows in groups.values()]


def _merged(rows: list[LadderRow], reader: Reader) -> LadderRow:
    usable = [r for r in rows if r.has_figures]
    worst = max(rows, key=lambda r: SEVERITY.index(r.outcome))
    ttfts: list[float | None] = []
    tpots: list[float | None] = []
    failures = 0
    for row in usable:
        columns = reader.columns(row.legs[0])
        at = columns.where(row.cell)
        ttfts += [columns.ttft_s[i] for i in at if columns.outcome[i] == "ok"]
        tpots += [columns.tpot_s[i] for i in at if columns.outcome[i] == "ok"]
        failures += row.failed + row.interrupted
    ttft50, ttft95, tpot = percentile(ttfts, 0.5), percentile(ttfts, 0.95), percentile(tpots, 0.5)
    adjusted = percentile_adjusted(ttfts, failures, 0.95)
    reason = worst.reason
    if len(usable) < len(rows):
        reason = f"{len(rows) - len(usable)} of {len(rows)} legs without figures: {worst.reason or worst.outcome}"
    errors: Counter[str] = Counter()
    for row in rows:
        errors.update(row.errors)
    head = usable[0] if usable else worst
    works = {r.work for r in usable}
    return msgspec.structs.replace(
        head,
        legs=[n for r in rows for n in r.legs],
        outcome=worst.outcome,
        reason=reason,
        notes=list(dict.fromkeys(note for r in rows for note in r.notes)),
        planned=sum(r.planned for r in rows),
        ok=sum(r.ok for r in rows),
        failed=sum(r.failed for r in rows),
        interrupted=sum(r.interrupted for r in rows),
        errors=dict(sorted(errors.items())),
        work=works.pop() if len(works) == 1 else None,
        short_outputs=_sum(r.short_outputs for r in usable),
        **_all_or_none(usable, "tokens_per_s", "tokens_per_s_reason"),
        **_all_or_none(usable, "steady_tokens_per_s", "steady_reason"),
        ttft_p50_s=ttft50.value,
        ttft_reason=ttft50.reason,
        ttft_p95_s=ttft95.value,
        ttft_p95_reason=ttft95.reason,
        ttft_p95_adjusted_s=adjusted.value,
        ttft_p95_adjusted_reason=adjusted.reason,
        ttft_n=ttft50.n,
        tpot_p50_s=tpot.value,
        tpot_reason=None if tpot.value is not None else (head.tpot_reason or tpot.reason),
        tpot_n=tpot.n,
        **{name: _most(getattr(r, name) for r in usable) for name in _PEAKS},
        preemptions=_sum(r.preemptions for r in usable),
        **{name: median(getattr(r, name) for r in usable) for name in ("cached_share", "acceptance", "tokens_per_step")},
        reconciled="; ".join(dict.fromkeys(r.reconciled for r in rows if r.reconciled)),
        tainted=any(r.tainted for r in rows),
        seats_resolved=min((r.seats_resolved for r in rows if r.seats_resolved is not None), default=None),
    )


_PEAKS = (
    "gap_p50_s", "gap_p99_s", "peak_running", "peak_running_client", "peak_waiting", "peak_pool_share", "peak_pool_blocks",
    "peak_pool_worst_engine", "unsampled_share", "lag_p99_s", "turnaround_share",
)  # fmt: skip


def _all_or_none(rows: list[LadderRow], name: str, reason: str) -> dict[str, object]:
    """The median over legs, or null with the reason of the first leg that has none."""
    missing = next((r for r in rows if getattr(r, name) is None), None)
    if missing is not None:
        return {name: None, reason: getattr(missing, reason)}
    return {name: median(getattr(r, name) for r in rows), reason: None if rows else "no leg has figures"}


def _most(values: Iterable[float | None]) -> float | None:
    return max((v for v in values if v is not None), default=None)


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    return None if not found or any(v is None for v in found) else sum(v for v in found if v is not None)


def ranking(rows: Sequence[LadderRow]) -> dict[str, list[LadderRow]]:
    """cell -> rows with a rate, fastest first; only cells whose arms all did the same work are there, and nothing void is."""
    groups: dict[str, list[LadderRow]] = {}
    for row in rows:
        if row.has_figures and row.tokens_per_s is not None and row.work is not None:
            groups.setdefault(row.cell, []).append(row)
    return {
        cell: sorted(found, key=lambda r: -(r.tokens_per_s or 0.0))
        for cell, found in groups.items()
        if len(found) > 1 and len({r.work for r in found}) == 1
    }


def different_work(rows: Sequence[LadderRow]) -> dict[str, str]:
    """cell -> why its arms are not ranked against each other."""
    groups: dict[str, list[LadderRow]] = {}
    for row in rows:
        if row.has_figures:
            groups.setdefault(row.cell, []).append(row)
    found = {}
    for cell, members in groups.items():
        if len(members) > 1 and len({r.work for r in members}) > 1:
            each = ", ".join(f"{r.arm} {r.work[2] if r.work else '?'}" for r in members)
            found[cell] = f"different work: output tokens {each}"
    return found
