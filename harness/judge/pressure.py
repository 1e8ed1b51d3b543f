"""Pool pressure of long prompts: one row per arm and prompt length, and the same paired between arms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from evenhand.judge.columns import Reader
from evenhand.judge.exact import ExactPeak, Retained, exact_peak, retained
from evenhand.judge.gauges import blocks_of, pool_peak, settled
from evenhand.judge.ladder import LadderRow, judge_cell
from evenhand.judge.stats import change, median
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import HAS_FIGURES, CellRow, LegRow

LARGE_PREFIX = 0.5
"""Share of the prompt above which a cached prefix dominates the pool."""


class PressureRow(JudgeRow, frozen=True, kw_only=True):
    """One prompt length on one leg."""

    arm: str
    cell: str
    prompt_tokens: int
    output_tokens: int | None = None
    leg: int
    pair: int | None = None
    repeat: int = 0
    outcome: str
    reason: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    ok: int = 0
    failed: int = 0
    in_flight: int | None = None
    """Most requests at once, as the client saw it."""
    peak_share: float | None = None
    """Largest sample: a lower bound."""
    peak_blocks: int | None = None
    peak_reason: str | None = None
    samples: int = 0
    largest_gap_s: float | None = None
    unsampled_share: float | None = None
    quantum_share: float | None = None
    """One block as a share of the pool."""
    settle_share: float | None = None
    settle_blocks: int | None = None
    settle_reason: str | None = None
    ttft_s: float | None = None
    ttft_reason: str | None = None
    ttft_kind: str | None = None
    cached_tokens: int | None = None
    prefix: str = "none"
    """Cached part of the prompt: "none", "some" (below half), "large", or "unknown"."""
    preemptions: float | None = None
    exact_blocks: int | None = None
    exact_step: int | None = None
    exact_reason: str | None = None
    missed_blocks: int | None = None
    """Exact peak - sampled peak: what polling missed."""
    retained: list[Retained] = msgspec.field(default_factory=list)

    @property
    def has_figures(self) -> bool:
        """Whether the row may be shown with figures."""
        return self.outcome in HAS_FIGURES

    @property
    def blocks(self) -> int | None:
        """The exact peak where there is one, else the sampled one."""
        return self.exact_blocks if self.exact_blocks is not None else self.peak_blocks


def pressure_rows(
    run: RunView,
    reader: Reader | None = None,
    kinds: Iterable[str] = ("pressure",),
    judged: Iterable[LadderRow] = (),
) -> list[PressureRow]:
    """One row per leg and prompt length, in the order of the legs. `judged`: rows of these cells, where they are at hand."""
    reader = reader or Reader(run)
    known = {(row.legs[0], row.cell, row.repeat): row for row in judged}
    legs = {leg.leg: leg for leg in run.legs}
    starts: dict[int, list[int]] = {}
    for cell in run.cells:
        if cell.start_ns is not None:
            starts.setdefault(cell.leg, []).append(cell.start_ns)
    rows = []
    for cell in run.cells:
        leg = legs.get(cell.leg)
        if cell.kind not in kinds or (leg is not None and leg.role == "warm_boot"):
            continue
        later = [s for s in starts.get(cell.leg, []) if cell.end_ns is not None and s >= cell.end_ns]
        row = known.get((cell.leg, cell.cell, cell.repeat)) or judge_cell(run, reader, cell, leg)
        rows.append(_row(run, reader, cell, leg, row, min(later, default=None)))
    return rows


def _row(
    run: RunView, reader: Reader, cell: CellRow, leg: LegRow | None, judged: LadderRow, until_ns: int | None
) -> PressureRow:
    columns = reader.columns(cell.leg)
    at = columns.where(cell.cell, cell.repeat)
    good = [i for i in at if columns.outcome[i] == "ok"]
    samples = reader.samples(cell.leg)
    asked = cell.prompt_tokens or next((columns.prompt_tokens_asked[i] for i in at), 0)
    base = PressureRow(
        arm=cell.arm,
        cell=cell.cell,
        prompt_tokens=asked,
        output_tokens=cell.output_tokens,
        leg=cell.leg,
        pair=leg.pair if leg else None,
        repeat=cell.repeat,
        outcome=judged.outcome,
        reason=judged.reason,
        notes=judged.notes,
        ok=judged.ok,
        failed=judged.failed,
        in_flight=judged.peak_running_client,
    )
    if not judged.has_figures:
        return base
    pool = leg.pool if leg else None
    interval_s = float(run.manifest.scenario.get("watch", {}).get("interval_s", 0.25))
    top = pool_peak(samples, cell, pool, worked=bool(good), interval_s=interval_s)
    usable = (pool.usable_blocks or pool.blocks) if pool else None
    settle = settled(samples, cell, until_ns)
    probe = reader.probe(cell.leg)
    exact, no_exact = exact_peak(probe, cell, top.blocks)
    cached = [columns.cached_tokens[i] for i in good]
    most_cached = max((c for c in cached if c is not None), default=None)
    ttfts = [columns.ttft_s[i] for i in good]
    ttft = median(ttfts)
    return msgspec.structs.replace(
        base,
        peak_share=top.share,
        peak_blocks=top.blocks,
        peak_reason=top.reason,
        samples=top.sampled.samples,
        largest_gap_s=top.sampled.largest_gap_s,
        unsampled_share=top.sampled.unsampled_share,
        quantum_share=1 / usable if usable else None,
        settle_share=settle,
        settle_blocks=blocks_of(settle, pool),
        settle_reason=None if settle is not None else (cell.settle_reason or "no sample after the engine went idle"),
        ttft_s=ttft,
        ttft_reason=None if ttft is not None else "no request has a first token",
        ttft_kind=judged.ttft_kind,
        cached_tokens=most_cached,
        prefix=_prefix(most_cached, asked),
        preemptions=judged.preemptions,
        exact_blocks=exact.blocks if exact else None,
        exact_step=exact.step if exact else None,
        exact_reason=no_exact,
        missed_blocks=_missed(exact, top.blocks),
        retained=retained(probe, cell) if cell.kind == "pressure" else [],
    )


def _missed(exact: ExactPeak | None, sampled: int | None) -> int | None:
    return None if exact is None or sampled is None else exact.blocks - sampled


def _prefix(cached: int | None, prompt: int) -> str:
    if cached is None:
        return "unknown"
    if cached == 0 or not prompt:
        return "none"
    return "large" if cached >= LARGE_PREFIX * prompt else "some"


# --- paired ---------------------------------------------------------------------------------------------------------------


class PairedPressure(JudgeRow, frozen=True, kw_only=True):
    """One prompt length, baseline against candidate, over all their boots."""

    cell: str
    prompt_tokens: int
    prefix: str
    exact: bool
    """Both peaks come from the probe; otherwise both are sampled."""
    exact_reason: str | None = None
    """Why they are sampled although there was a probe."""
    alone: bool = False
    """One request ran at a time on every boot, so that an exact peak repeats."""
    baseline_blocks: int | None = None
    candidate_blocks: int | None = None
    baseline_each: list[int] = msgspec.field(default_factory=list)
    """Peak of every boot, in order."""
    candidate_each: list[int] = msgspec.field(default_factory=list)
    baseline_sampled: int | None = None
    candidate_sampled: int | None = None
    blocks: int | None = None
    """candidate - baseline: negative is less pressure."""
    change: float | None = None
    """candidate/baseline - 1 (-0.405 is -40.5 %)"""
    ratio: float | None = None
    reason: str | None = None
    baseline_samples: int = 0
    candidate_samples: int = 0
    baseline_settle_blocks: int | None = None
    candidate_settle_blocks: int | None = None
    baseline_cached: int | None = None
    candidate_cached: int | None = None
    extra_tokens_per_prompt_token: float | None = None
    """(baseline - candidate) blocks x tokens per block / prompt tokens: what the baseline held beyond the candidate."""
    spread_blocks: int | None = None
    """Largest minus smallest peak of the baseline: between its boots, or two passes of one boot (A/A)."""
    retained: str = ""
    """ "4, 5, ..., 16 against 5" """


def paired_pressure(rows: Sequence[PressureRow], legs: Sequence[LegRow], baseline: str, candidate: str) -> list[PairedPressure]:
    """One row per prompt length, compared in blocks only; a length that a boot of either arm lacks is a row with its reason.

    `legs`: of the run. Those of a pair are the boots that each need a figure.
    """
    found = []
    boots = [[leg.leg for leg in legs if leg.arm == arm and leg.pair is not None] for arm in (baseline, candidate)]
    block_tokens = {leg.leg: leg.pool.block_tokens for leg in legs if leg.pool}
    cells = dict.fromkeys((r.cell, r.prompt_tokens) for r in rows if r.arm in (baseline, candidate) and r.repeat == 0)
    for cell, prompt in cells:
        mine = [r for r in rows if r.cell == cell and r.arm == baseline]
        other = [r for r in rows if r.cell == cell and r.arm == candidate]
        once = [[r for r in side if r.repeat == 0] for side in (mine, other)]
        reasons = [
            f"not comparable: {name}, {why}"
            for name, side, needed in zip(("baseline", "candidate"), once, boots, strict=True)
            if (why := _lacking(side, needed))
        ]
        good = [[r for r in side if r.has_figures] for side in once]
        paired = _paired(cell, prompt, good[0], good[1], block_tokens, next(iter(reasons), None))
        spread = _spread([r for r in mine if r.has_figures], paired.exact)
        found.append(msgspec.structs.replace(paired, spread_blocks=spread))
    return found


def _lacking(rows: Sequence[PressureRow], boots: Sequence[int]) -> str | None:
    """Which boot has no peak, and why; None when all have one."""
    by_leg = {r.leg: r for r in rows}
    for leg in boots:
        row = by_leg.get(leg)
        if row is None:
            return f"leg {leg}: not measured"
        if not row.has_figures:
            return f"leg {leg}: {row.outcome}: {row.reason or 'no reason given'}"
        if row.peak_blocks is None and row.exact_blocks is None:
            return f"leg {leg}: {row.peak_reason or 'no peak'}"
    return None if boots else "no boot"


def _spread(rows: Iterable[PressureRow], exact: bool) -> int | None:
    """Largest minus smallest peak of one arm, second passes included; None where there is one peak."""
    peaks = _peaks(rows, exact)
    return max(peaks) - min(peaks) if len(peaks) > 1 else None


def _paired(
    cell: str,
    prompt: int,
    a: list[PressureRow],
    b: list[PressureRow],
    block_tokens: dict[int, int | None],
    reason: str | None,
) -> PairedPressure:
    """`a` and `b`: the boots that have figures. `reason`: why these are not all."""
    both = [*a, *b]
    exact = bool(a and b) and all(r.exact_blocks is not None for r in both)
    mine = _peaks(a, exact)
    other = _peaks(b, exact)
    kinds = {r.prefix for r in both}
    row = PairedPressure(
        cell=cell,
        prompt_tokens=prompt,
        prefix=kinds.pop() if len(kinds) == 1 else ("mixed" if kinds else "unknown"),
        exact=exact,
        exact_reason=next((f"leg {r.leg}: {r.exact_reason}" for r in both if r.exact_reason not in (None, "no probe")), None),
        alone=all(r.in_flight == 1 for r in both),
        reason=reason,
        baseline_each=mine,
        candidate_each=other,
        baseline_sampled=max(_peaks(a, False), default=None),
        candidate_sampled=max(_peaks(b, False), default=None),
        baseline_samples=sum(r.samples for r in a),
        candidate_samples=sum(r.samples for r in b),
        baseline_settle_blocks=_last(r.settle_blocks for r in a),
        candidate_settle_blocks=_last(r.settle_blocks for r in b),
        baseline_cached=max((r.cached_tokens for r in a if r.cached_tokens is not None), default=None),
        candidate_cached=max((r.cached_tokens for r in b if r.cached_tokens is not None), default=None),
        retained=_against(a, b),
    )
    if reason:
        return row
    if len(mine) < len(a) or len(other) < len(b):
        return msgspec.structs.replace(
            row, reason="not comparable: some boots have only an exact peak, others only a sampled one"
        )
    sizes = dict.fromkeys(block_tokens.get(r.leg) for r in both)
    if len(sizes) > 1:
        each = " and ".join("an unknown number of" if size is None else str(size) for size in sizes)
        return msgspec.structs.replace(row, reason=f"not comparable: blocks of {each} tokens")
    base, cand = max(mine), max(other)
    (tokens,) = sizes
    return msgspec.structs.replace(
        row,
        baseline_blocks=base,
        candidate_blocks=cand,
        blocks=cand - base,
        change=change(base, cand).value,
        ratio=cand / base if base else None,
        extra_tokens_per_prompt_token=(base - cand) * tokens / prompt if tokens and prompt else None,
    )


def _peaks(rows: Iterable[PressureRow], exact: bool) -> list[int]:
    each = [r.exact_blocks if exact else r.peak_blocks for r in rows]
    return [blocks for blocks in each if blocks is not None]


def _last(values: Iterable[int | None]) -> int | None:
    """The worst settle: what stayed behind in any boot."""
    return max((v for v in values if v is not None), default=None)


def _against(a: list[PressureRow], b: list[PressureRow]) -> str:
    mine = max((s for r in a for s in r.retained), key=lambda s: s.most, default=None)
    other = max((s for r in b for s in r.retained), key=lambda s: s.most, default=None)
    return f"{mine.text} against {other.text}" if mine and other else ""
