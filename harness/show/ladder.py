"""The ladder table."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.ladder import LadderRow
from evenhand.show.meaning import BLOCKS, PoolUnit, stamp_notes
from evenhand.show.table import Column, Table, milli, number, percent, whole

COLUMNS = (
    Column("arm", "", "left"),
    Column("c"),
    Column("leg"),
    Column("ok/failed"),
    Column("tokens/s"),
    Column("TTFT p50", "ms"),
    Column("TTFT p95", "ms", spare=2),
    Column("TPOT p50", "ms"),
    Column("run", spare=1),
    Column("wait", spare=2),
    Column("preempt", spare=2),
    Column("pool", "%"),
    Column("blocks", spare=2),
    Column("cached", "%", spare=2),
    Column("accept", "%", spare=2),
    Column("lag p99", "ms", spare=2),
    Column("outcome", "", "left"),
)

LEGEND = "run, wait, pool: the most that any sample of /metrics showed (requests running, waiting; use of the cache pool)"


def ladder_table(rows: Sequence[LadderRow], simulated: bool, unit: PoolUnit = BLOCKS) -> Table:
    """One line per arm and rung, in the order of concurrency, then of arms. Cells without figures show none."""
    order = {arm: n for n, arm in enumerate(dict.fromkeys(row.arm for row in rows))}
    ordered = sorted(rows, key=lambda row: (row.concurrency, order[row.arm], row.legs, row.repeat))
    several = len({(row.arm, row.cell) for row in rows}) < len(rows)
    return Table(
        title="Concurrency ladder",
        columns=[Column("pool", "tokens", spare=2) if c.name == "blocks" and unit.block_tokens else c for c in COLUMNS],
        rows=[_line(row, _leg(row) if several else "-", unit) for row in ordered],
        notes=[
            *([LEGEND] if any(row.peak_running is not None for row in rows) else []),
            *(unit.notes if any(row.peak_pool_share is not None for row in rows) else []),
            *stamp_notes(ordered),
            *_row_notes(ordered),
        ],
        simulated=simulated,
    )


def _leg(row: LadderRow) -> str:
    """Boots behind a row, told apart where an arm has several; a second pass within a boot is marked."""
    return ", ".join(map(str, row.legs)) + ("" if not row.repeat else f" pass {row.repeat + 1}")


def _line(row: LadderRow, leg: str, unit: PoolUnit) -> list[str]:
    shown = row.has_figures
    asked = row.ok + row.failed + row.interrupted
    figures = [
        number(row.tokens_per_s, 4),
        milli(row.ttft_p50_s),
        milli(row.ttft_p95_s),
        milli(row.tpot_p50_s),
        whole(row.peak_running),
        whole(row.peak_waiting),
        whole(row.preemptions),
        percent(row.peak_pool_share),
        whole(unit.of(row.legs[0], row.peak_pool_blocks)),
        percent(row.cached_share),
        percent(row.acceptance),
        milli(row.lag_p99_s),
    ]
    return [
        row.arm,
        str(row.concurrency),
        leg,
        f"{row.ok}/{row.failed}" if asked else "-",
        *(figures if shown else ["-"] * len(figures)),
        row.outcome,
    ]


def _row_notes(rows: Sequence[LadderRow]) -> list[str]:
    """Why figures are missing, once per reason."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if not row.has_figures:
            continue
        for what, value, reason in (
            ("tokens/s", row.tokens_per_s, row.tokens_per_s_reason),
            ("TTFT p95", row.ttft_p95_s, row.ttft_p95_reason),
            ("TPOT", row.tpot_p50_s, row.tpot_reason),
            ("run", row.peak_running, row.peak_running_reason),
            ("pool", row.peak_pool_share, row.peak_pool_reason),
            ("cached", row.cached_share, row.cached_reason),
        ):
            if value is None and reason:
                reasons.setdefault(f"{what}: {reason}", []).append(f"{row.arm}@{row.concurrency}")
        if row.outcome != "ok" and row.reason:
            reasons.setdefault(f"{row.outcome}: {row.reason}", []).append(f"{row.arm}@{row.concurrency}")
        for note in row.notes:
            reasons.setdefault(note, []).append(f"{row.arm}@{row.concurrency}")
    return [f"{reason} ({', '.join(cells) if len(cells) < 5 else f'{len(cells)} cells'})" for reason, cells in reasons.items()]
