"""What became of a cell: the campaign's word for it, unless its figures turn out void, clamped or queued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from evenhand.judge.columns import Columns
from evenhand.judge.gauges import inside
from evenhand.judge.reconcile import Reconciled
from evenhand.judge.stats import median
from evenhand.judge.view import JudgeRow
from evenhand.records import HAS_FIGURES, CellRow, LegRow, SampleRow

TURNAROUND_SHARE = 0.1
"""Share of the median TPOT that a closed loop's turn-around may take."""
IDLE_SHARE = 0.01
"""... unless a seat waited for less than this share of its time: at a TPOT below a millisecond the kernel's own wake-up is a
tenth of it, and takes next to nothing from the engine."""


class Facts(JudgeRow, frozen=True, kw_only=True):
    """What the outcome of a cell is decided from."""

    cell: CellRow
    leg: LegRow | None
    columns: Columns
    at: list[int]
    good: list[int]
    reconciled: Reconciled
    closed: bool
    tpot_s: float | None
    ttft_s: float | None
    lag_share: float
    rate: float


def decide(facts: Facts, running: float | None, samples: Sequence[SampleRow]) -> tuple[str, str | None]:
    cell, leg = facts.cell, facts.leg
    if cell.outcome not in HAS_FIGURES:
        return cell.outcome, cell.reason
    reasons = void_reasons(facts)
    if reasons:
        return "void", "; ".join(reasons)
    if cell.outcome != "ok":
        return cell.outcome, cell.reason
    if leg and leg.seats_resolved is not None and leg.seats_resolved < min(cell.concurrency, leg.seats_requested or 0):
        return "clamped", f"{leg.seats_requested} seats asked, {leg.seats_resolved} resolved"
    if running is not None and running < cell.concurrency and _mostly_waiting(cell, samples):
        return "queued", f"at most {running:g} of {cell.concurrency} ran at once, the others waited"
    return "ok", cell.reason


def void_reasons(facts: Facts) -> list[str]:
    """Everything that makes a cell's figures unusable, all at once."""
    cell, columns, at, lag = facts.cell, facts.columns, facts.at, facts.cell.lag
    reasons = []
    if cell.restarted:
        reasons.append("a counter went backwards: the server restarted")
    if not at:
        reasons.append("no request was recorded")
    elif len(at) < cell.planned:
        reasons.append(f"{len(at)} of {cell.planned} requests were recorded")
    elif not facts.good:
        common = Counter(str(columns.reason[i] or "unknown") for i in at).most_common(1)[0][0]
        reasons.append(f"all {len(at)} requests failed: {common}")
    if facts.reconciled.unexplained:
        reasons.append(facts.reconciled.text)
    wrong = [i for i in facts.good if columns.prompt_tokens[i] not in (None, columns.prompt_tokens_asked[i])]
    if wrong:
        i = wrong[0]
        reasons.append(
            f"prompt length: asked {columns.prompt_tokens_asked[i]} tokens, the server counted {columns.prompt_tokens[i]} "
            f"({len(wrong)} of {len(facts.good)} requests)"
        )
    if lag is None:
        return reasons
    if lag.clock_steps:
        reasons.append(f"the wall clock stepped {lag.clock_steps} times while kernel stamps were taken")
    limit = facts.lag_share * facts.tpot_s if facts.tpot_s is not None else None
    if lag.stamp != "kernel" and limit is not None and lag.loop_lag_p99_s is not None and lag.loop_lag_p99_s > limit:
        reasons.append(
            f"the client lagged {lag.loop_lag_p99_s * 1e3:.3g} ms (p99) without kernel stamps, "
            f"above {facts.lag_share:.0%} of the median TPOT"
        )
    if facts.closed and cell.kind == "ladder" and facts.tpot_s and lag.turnaround_p50_s is not None:
        share = lag.turnaround_p50_s / facts.tpot_s
        idle = idle_share(lag.turnaround_p50_s, columns, facts.good)
        if share > TURNAROUND_SHARE and idle > IDLE_SHARE:
            reasons.append(
                f"the client starved the engine: turn-around {lag.turnaround_p50_s * 1e3:.3g} ms "
                f"is {share:.0%} of the median TPOT (above {TURNAROUND_SHARE:.0%}) "
                f"and a seat waited {idle:.1%} of its time (above {IDLE_SHARE:.0%})"
            )
    if facts.closed and lag.max_in_flight is not None and lag.max_in_flight < min(cell.concurrency, cell.planned):
        reasons.append(f"client limit: at most {lag.max_in_flight} of {cell.concurrency} requests were in flight")
    if not facts.closed and lag.send_lag_max_s is not None:
        allowed = 0.1 * max(1 / facts.rate if facts.rate > 0 else 0.0, facts.ttft_s or 0.0)
        if lag.send_lag_max_s > allowed:
            reasons.append(f"client could not hold the rate: a request left {lag.send_lag_max_s:.3g} s late")
    return reasons


def _mostly_waiting(cell: CellRow, samples: Sequence[SampleRow]) -> bool:
    """A queue in at least half of the samples, so that the moment of filling the seats does not count as queueing."""
    values = [s.values.get("waiting") for s in inside(samples, cell.start_ns, cell.end_ns) if s.status == "ok"]
    seen = [v for v in values if v is not None]
    return bool(seen) and 2 * sum(v > 0 for v in seen) >= len(seen)


def notes_of(facts: Facts, running: float | None) -> list[str]:
    cell, leg = facts.cell, facts.leg
    notes = []
    if facts.closed and 0 < cell.planned < cell.concurrency:
        notes.append(f"only {cell.planned} requests: at most {cell.planned} at once")
    if cell.cold is False:
        notes.append(cell.cold_reason or "the cache was not cold")
    elif cell.cold is None and cell.kind in ("ladder", "pressure"):
        notes.append(cell.cold_reason or "cold cache not proved")
    if facts.reconciled.server is not None and facts.reconciled.text != "explained" and not facts.reconciled.unexplained:
        notes.append(facts.reconciled.text)
    if earlier_boot(cell, leg):
        notes.append("measured on an earlier boot of its leg, before the run was resumed")
    if leg and leg.seats_resolved is not None and running is not None and running > leg.seats_resolved:
        notes.append(f"{running:g} sequences ran in {leg.seats_resolved} seats: the gauge or the seats are wrong")
    return notes


def earlier_boot(cell: CellRow, leg: LegRow | None) -> bool:
    """Whether the cell was measured on another boot than the one its leg's row tells of."""
    before = leg is not None and None not in (cell.start_ns, leg.start_ns) and (cell.start_ns or 0) < (leg.start_ns or 0)
    return cell.relaunched or before


def idle_share(turnaround_s: float, columns: Columns, good: Sequence[int]) -> float:
    """Share of a seat's time between two requests: turn-around / (turn-around + median duration); 1.0 without a duration."""
    took = [
        (columns.end_ns[i] or 0) - (columns.send_ns[i] or 0)
        for i in good
        if columns.end_ns[i] and columns.send_ns[i] is not None
    ]
    middle = median(took)
    return 1.0 if not middle else turnaround_s / (turnaround_s + middle / 1e9)
