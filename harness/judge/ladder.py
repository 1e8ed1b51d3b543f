"""The concurrency ladder: one row per arm and rung, and what makes a rung void."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from evenhand.judge.columns import Columns, Reader
from evenhand.judge.gauges import inside, peak, pool_peak, worst_engine
from evenhand.judge.outcome import Facts, decide, notes_of
from evenhand.judge.reconcile import reconcile
from evenhand.judge.stats import Figure, enough, median, percentile, percentile_adjusted
from evenhand.judge.throughput import throughput
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import HAS_FIGURES, CellRow, LegRow, SampleRow


class LadderRow(JudgeRow, frozen=True, kw_only=True):
    """One rung of one arm, on one leg or over all its legs."""

    arm: str
    cell: str
    kind: str = "ladder"
    concurrency: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    legs: list[int]
    repeat: int = 0
    outcome: str
    reason: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    planned: int = 0
    ok: int = 0
    failed: int = 0
    interrupted: int = 0
    errors: dict[str, int] = msgspec.field(default_factory=dict)
    """Reason of failure -> requests."""
    work: tuple[int, int, int] | None = None
    """(requests ok, prompt tokens, output tokens): cells are ranked only among equals. None where a count is not known."""
    short_outputs: int | None = None
    """Requests that ended with fewer tokens than asked."""
    tokens_per_s: float | None = None
    tokens_per_s_reason: str | None = None
    steady_tokens_per_s: float | None = None
    steady_reason: str | None = None
    steady_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p95_adjusted_s: float | None = None
    """Nearest rank, failures infinitely slow; null with the reason "failures" where it falls among them."""
    ttft_reason: str | None = None
    ttft_p95_reason: str | None = None
    ttft_p95_adjusted_reason: str | None = None
    ttft_kind: str | None = None
    ttft_n: int = 0
    tpot_p50_s: float | None = None
    tpot_reason: str | None = None
    tpot_n: int = 0
    tpot_marked: bool = False
    """Some TPOT divides by tokens - 1 because the engine returns no ids."""
    gaps_kind: str | None = None
    gap_p50_s: float | None = None
    gap_p99_s: float | None = None
    peak_running: float | None = None
    peak_running_reason: str | None = None
    peak_running_client: int | None = None
    peak_waiting: float | None = None
    peak_waiting_reason: str | None = None
    preemptions: float | None = None
    preemptions_reason: str | None = None
    peak_pool_share: float | None = None
    peak_pool_blocks: int | None = None
    peak_pool_reason: str | None = None
    peak_pool_worst_engine: float | None = None
    unsampled_share: float | None = None
    cached_share: float | None = None
    cached_reason: str | None = None
    acceptance: float | None = None
    """Accepted over drafted tokens."""
    tokens_per_step: float | None = None
    """Mean tokens per verify step: 1 + accepted/drafts."""
    acceptance_reason: str | None = None
    lag_p99_s: float | None = None
    stamp: str | None = None
    turnaround_share: float | None = None
    """Median turn-around over median TPOT."""
    reconciled: str = ""
    tainted: bool = False
    """The engine restarted or served somebody else: not even its outputs are evidence."""
    seats_requested: int | None = None
    seats_resolved: int | None = None

    @property
    def has_figures(self) -> bool:
        """Whether the row may be shown with figures and ranked."""
        return self.outcome in HAS_FIGURES

    @property
    def at_once(self) -> int:
        """Requests that can have run at once on one leg: its concurrency, unless fewer were asked."""
        return min(self.concurrency, self.planned // len(self.legs)) if self.planned else self.concurrency


def ladder_rows(run: RunView, reader: Reader | None = None, kinds: Iterable[str] = ("ladder",)) -> list[LadderRow]:
    """One row per leg and cell of the given kinds, in the order of the legs; repeats are rows of their own."""
    reader = reader or Reader(run)
    legs = {leg.leg: leg for leg in run.legs}
    rows = []
    for cell in run.cells:
        if cell.kind not in kinds:
            continue
        leg = legs.get(cell.leg)
        if leg is not None and leg.role == "warm_boot":
            continue
        rows.append(judge_cell(run, reader, cell, leg))
    return rows


def judge_cell(run: RunView, reader: Reader, cell: CellRow, leg: LegRow | None) -> LadderRow:
    """Judge one cell of a run."""
    columns = reader.columns(cell.leg)
    at = columns.where(cell.cell, cell.repeat)
    return cell_row(cell, leg, columns, at, reader.samples(cell.leg), run.manifest.scenario)


def cell_row(
    cell: CellRow,
    leg: LegRow | None,
    columns: Columns,
    at: list[int],
    samples: Sequence[SampleRow],
    scenario: Mapping[str, object],
) -> LadderRow:
    """Judge one cell of one leg."""
    ladder = scenario.get("ladder")
    ladder = ladder if isinstance(ladder, dict) else {}
    closed = cell.kind != "ladder" or ladder.get("arrivals", "closed") == "closed"
    watch = scenario.get("watch")
    interval_s = float(watch.get("interval_s", 0.25)) if isinstance(watch, dict) else 0.25
    good = [i for i in at if columns.outcome[i] == "ok"]
    failed = sum(columns.outcome[i] == "failed" for i in at)
    tokens = [columns.output_tokens[i] for i in good]
    worked = sum(t or 0 for t in tokens) > 0 or (cell.counters.get("generation_tokens") or 0) > 0
    running = peak(samples, "running", cell, worked=worked, interval_s=interval_s, low=0)
    waiting = peak(samples, "waiting", cell, worked=False, interval_s=interval_s, low=0)
    reconciled = reconcile(cell, columns, at)
    tpot = percentile((columns.tpot_s[i] for i in good), 0.5)
    ttft = percentile((columns.ttft_s[i] for i in good), 0.5)
    facts = Facts(
        cell=cell, leg=leg, columns=columns, at=at, good=good, reconciled=reconciled, closed=closed,
        tpot_s=tpot.value, ttft_s=ttft.value, lag_share=_number(scenario.get("client_lag_share"), 0.1),
        rate=_number(ladder.get("rate"), 0.0),
    )  # fmt: skip
    outcome, reason = decide(facts, running.value, samples)
    reasons = Counter(str(columns.reason[i] or "unknown") for i in at if columns.outcome[i] == "failed")
    base = LadderRow(
        arm=cell.arm,
        cell=cell.cell,
        kind=cell.kind,
        concurrency=cell.concurrency,
        prompt_tokens=cell.prompt_tokens,
        output_tokens=cell.output_tokens,
        legs=[cell.leg],
        repeat=cell.repeat,
        outcome=outcome,
        reason=reason,
        notes=notes_of(facts, running.value),
        planned=cell.planned,
        ok=len(good),
        failed=failed,
        interrupted=sum(columns.outcome[i] == "interrupted" for i in at),
        errors=dict(sorted(reasons.items())),
        peak_running_client=_in_flight(columns, at),
        reconciled=reconciled.text,
        tainted=cell.restarted or reconciled.unexplained > 0,
        lag_p99_s=cell.lag.lag_p99_s if cell.lag else None,
        stamp=cell.lag.stamp if cell.lag else None,
        turnaround_share=_share(cell.lag.turnaround_p50_s if cell.lag else None, tpot.value),
        seats_requested=leg.seats_requested if leg else None,
        seats_resolved=leg.seats_resolved if leg else None,
    )
    if outcome not in HAS_FIGURES:
        return base
    rate = throughput(cell, columns, at, closed=closed)
    ttft95 = percentile((columns.ttft_s[i] for i in good), 0.95)
    adjusted = percentile_adjusted((columns.ttft_s[i] for i in good), len(at) - len(good), 0.95)
    pool = pool_peak(samples, cell, leg.pool if leg else None, worked=worked, interval_s=interval_s)
    cached = cached_share(cell, columns, good)
    accepted, per_step, why = acceptance(cell, samples, leg.drafted_depth if leg else 0)
    kinds = {columns.gaps_kind[i] for i in good} - {None}
    gaps = columns.gaps_s(good)
    preempted = cell.counters.get("preemptions")
    short = _short(cell, tokens)
    early = [f"{short} of {len(good)} requests ended before {cell.output_tokens:,} output tokens"] if short else []
    return msgspec.structs.replace(
        base,
        work=_work(columns, good),
        short_outputs=short,
        notes=[*base.notes, *early],
        tokens_per_s=rate.wall.value,
        tokens_per_s_reason=rate.wall.reason,
        steady_tokens_per_s=rate.steady.value,
        steady_reason=rate.steady.reason,
        steady_s=rate.steady_s,
        ttft_p50_s=ttft.value,
        ttft_p95_s=ttft95.value,
        ttft_p95_adjusted_s=adjusted.value,
        ttft_reason=ttft.reason,
        ttft_p95_reason=ttft95.reason,
        ttft_p95_adjusted_reason=adjusted.reason,
        ttft_kind=_one({columns.ttft_kind[i] for i in good} - {None}),
        ttft_n=ttft.n,
        tpot_p50_s=tpot.value,
        tpot_n=tpot.n,
        tpot_reason=_tpot_reason(columns, good, tpot),
        tpot_marked=any(columns.tpot_marked[i] for i in good),
        gaps_kind="icl" if "icl" in kinds else _one(kinds),
        gap_p50_s=_gap(gaps, 0.5),
        gap_p99_s=_gap(gaps, 0.99),
        peak_running=running.value,
        peak_running_reason=running.reason,
        peak_waiting=waiting.value,
        peak_waiting_reason=waiting.reason,
        preemptions=preempted,
        preemptions_reason=None if preempted is not None else (cell.counters_reason or "absent"),
        peak_pool_share=pool.share,
        peak_pool_blocks=pool.blocks,
        peak_pool_reason=pool.reason,
        peak_pool_worst_engine=worst_engine(samples, cell),
        unsampled_share=pool.sampled.unsampled_share,
        cached_share=cached.value,
        cached_reason=cached.reason,
        acceptance=accepted,
        tokens_per_step=per_step,
        acceptance_reason=why,
    )


# --- figures -------------------------------------------------------------------------------------------------------------


def cached_share(cell: CellRow, columns: Columns, good: list[int]) -> Figure:
    """Share of prompt tokens served from the cache: per request where the engine says so, else from its counters."""
    reported = [(columns.cached_tokens[i], columns.prompt_tokens[i] or columns.prompt_tokens_asked[i]) for i in good]
    if reported and all(cached is not None for cached, _ in reported):
        total = sum(prompt for _, prompt in reported)
        return Figure(value=sum(c or 0 for c, _ in reported) / total, n=len(reported)) if total else Figure(reason="no prompts")
    queries, hits = cell.counters.get("prefix_queries"), cell.counters.get("prefix_hits")
    if queries and hits is not None:
        return Figure(value=hits / queries, n=len(good))
    prompts, cached = cell.counters.get("prompt_tokens"), cell.counters.get("cached_prompt_tokens")
    if prompts and cached is not None:
        return Figure(value=cached / prompts, n=len(good))
    return Figure(reason=cell.counters_reason or "the engine reports no cached tokens")


def acceptance(cell: CellRow, samples: Sequence[SampleRow], depth: int) -> tuple[float | None, float | None, str | None]:
    """(accepted/drafted, mean tokens per verify step, reason where null) from counter increases over the cell.

    An engine that counts no drafted tokens but states its mean accepted length (SGLang) gives (length - 1) / depth, from the
    median of its samples inside the cell.
    """
    drafted, accepted = cell.counters.get("drafted_tokens"), cell.counters.get("accepted_tokens")
    drafts = cell.counters.get("drafts")
    share = accepted / drafted if drafted and accepted is not None else None
    per_step = 1 + accepted / drafts if drafts and accepted is not None else None
    if share is None and per_step is None and depth:
        lengths = [v for s in inside(samples, cell.start_ns, cell.end_ns) if (v := s.values.get("accept_length"))]
        per_step = median(lengths)
        share = None if per_step is None else (per_step - 1) / depth
    if share is None and per_step is None:
        return None, None, "nothing was drafted" if drafted == 0 else "the engine counts no drafted tokens"
    return share, per_step, None


def _in_flight(columns: Columns, at: list[int]) -> int | None:
    """Most requests between send and end at once, as the client saw it."""
    steps = []
    for i in at:
        send, end = columns.send_ns[i], columns.end_ns[i]
        if send is not None and end is not None:
            steps += [(send, 1), (end, -1)]
    now = most = 0
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most if steps else None


def _work(columns: Columns, good: list[int]) -> tuple[int, int, int] | None:
    outputs = [columns.output_tokens[i] for i in good]
    if any(o is None for o in outputs):
        return None
    prompts = sum(columns.prompt_tokens[i] or columns.prompt_tokens_asked[i] for i in good)
    return len(good), prompts, sum(o or 0 for o in outputs)


def _short(cell: CellRow, tokens: list[int | None]) -> int | None:
    if cell.output_tokens is None or any(t is None for t in tokens):
        return None
    return sum((t or 0) < cell.output_tokens for t in tokens)


def _tpot_reason(columns: Columns, good: list[int], tpot: Figure) -> str | None:
    if tpot.value is not None:
        return None
    reasons = Counter(str(columns.tpot_reason[i]) for i in good if columns.tpot_s[i] is None and columns.tpot_reason[i])
    return reasons.most_common(1)[0][0] if reasons else tpot.reason


def _gap(gaps: object, q: float) -> float | None:
    values = np.asarray(gaps)
    return float(np.quantile(values, q)) if enough(len(values), q) else None


def _one(kinds: set[str | None]) -> str | None:
    return next(iter(kinds)) if len(kinds) == 1 else ("mixed" if kinds else None)


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default
