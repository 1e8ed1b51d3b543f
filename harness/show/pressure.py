"""The pressure table: peak pool usage of long prompts, sampled and exact."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from evenhand.judge.pressure import PressureRow
from evenhand.show.meaning import BLOCKS, PoolUnit, stamp_notes
from evenhand.show.table import Column, Table, milli, number, percent, whole

COLUMNS = (
    Column("arm", "", "left"),
    Column("leg"),
    Column("prompt", "tokens"),
    Column("output", "tokens", spare=1),
    Column("peak", "%", spare=1),
    Column("sampled", "blocks"),
    Column("exact", "blocks"),
    Column("at step", spare=1),
    Column("missed", "blocks", spare=1),
    Column("samples", spare=1),
    Column("gap", "ms", spare=1),
    Column("settle", "%", spare=1),
    Column("TTFT", "ms"),
    Column("retained states", "", "left"),
    Column("outcome", "", "left"),
)


def pressure_table(rows: Sequence[PressureRow], simulated: bool, unit: PoolUnit = BLOCKS) -> Table:
    """One line per prompt length, arm and boot."""
    order = {arm: n for n, arm in enumerate(dict.fromkeys(row.arm for row in rows))}
    several = len({(row.arm, row.cell) for row in rows}) < len(rows)
    ordered = sorted(rows, key=lambda row: (row.prompt_tokens, order[row.arm], row.leg, row.repeat))
    return Table(
        title="Peak pool pressure of long prompts",
        columns=[msgspec.structs.replace(c, unit=unit.name) if c.unit == "blocks" else c for c in COLUMNS],
        rows=[_line(row, _leg(row) if several else "-", unit) for row in ordered],
        notes=[*_notes(ordered), *unit.notes, *stamp_notes(ordered)],
        simulated=simulated,
    )


def retained_text(row: PressureRow) -> str:
    """Retained state blocks of the request that held most: "4, 5, ..., 16"."""
    most = max(row.retained, key=lambda r: r.most, default=None)
    return most.text if most else "-"


def _leg(row: PressureRow) -> str:
    """The boot behind a row; a second pass within it is marked."""
    return f"{row.leg}" + ("" if not row.repeat else f" pass {row.repeat + 1}")


def _line(row: PressureRow, leg: str, unit: PoolUnit) -> list[str]:
    head = [row.arm, leg, whole(row.prompt_tokens), whole(row.output_tokens)]
    if not row.has_figures:
        return [*head, *["-"] * (len(COLUMNS) - 5), row.outcome]
    return [
        *head,
        percent(row.peak_share),
        whole(unit.of(row.leg, row.peak_blocks)),
        whole(unit.of(row.leg, row.exact_blocks)),
        whole(row.exact_step),
        whole(unit.of(row.leg, row.missed_blocks)),
        whole(row.samples),
        milli(row.largest_gap_s),
        percent(row.settle_share),
        number(None if row.ttft_s is None else row.ttft_s * 1e3, 4),
        retained_text(row),
        row.outcome,
    ]


def _notes(rows: Sequence[PressureRow]) -> list[str]:
    notes = []
    if any(row.peak_blocks is not None and row.exact_blocks is None for row in rows):
        quanta = sorted({row.quantum_share for row in rows if row.quantum_share})
        one = f"; one block is {percent(quanta[0], 2)} % of the pool" if len(quanta) == 1 else ""
        notes.append(
            f"sampled peaks are lower bounds: the largest of the samples taken, a prefill's own peak can hide between two{one}"
        )
    if any(row.exact_blocks is not None for row in rows):
        notes.append(
            "exact: every step counted inside the engine; missed: what the largest sample of /metrics fell short of it"
        )
    if any(row.samples for row in rows):
        notes.append("gap: longest time without a sample; settle: use of the pool once idle again")
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for what, reason in (("peak", row.peak_reason), ("settle", row.settle_reason), ("TTFT", row.ttft_reason)):
            if reason and row.has_figures:
                reasons.setdefault(f"{what}: {reason}", []).append(f"{row.arm}@{row.prompt_tokens}")
        for note in row.notes if row.has_figures else ():
            reasons.setdefault(note, []).append(f"{row.arm}@{row.prompt_tokens}")
    for reason, cells in reasons.items():
        notes.append(f"{reason} ({', '.join(cells) if len(cells) < 5 else f'{len(cells)} cells'})")
    return notes
