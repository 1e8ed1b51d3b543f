"""The smaller tables of a run: refusals in the engines' own words, the client's own lag, the fairness ledger."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.ledger import LedgerRow
from evenhand.predict.from_run import Comparison
from evenhand.records import CellRow, LegRow
from evenhand.show.table import Column, Table, milli, number, whole
from evenhand.units import gib


def refusal_table(legs: Sequence[LegRow], simulated: bool) -> Table | None:
    """Legs that an engine refused, with the figures parsed from its words; the words themselves stand below."""
    refused = [leg for leg in legs if leg.outcome in ("refused", "launch_failed")]
    if not refused:
        return None
    rows, notes = [], []
    for leg in refused:
        said = leg.refusal
        rows.append(
            [
                leg.arm,
                whole(leg.seats_requested),
                leg.outcome,
                gib(said.needed_bytes) if said else "-",
                gib(said.available_bytes) if said else "-",
                whole(said.slots_per_seat) if said else "-",
                whole(said.seats) if said else "-",
                whole(said.depth) if said else "-",
                whole(said.max_context_tokens) if said else "-",
                whole(leg.exit_code),
            ]
        )
        words = said.text if said else leg.reason or "it said nothing"
        notes.append(f'{leg.arm} (seats {leg.seats_requested}): "{words}"')
    return Table(
        title="Refusals",
        columns=(
            Column("arm", "", "left"),
            Column("seats", "asked"),
            Column("outcome", "", "left"),
            Column("needed", "GiB"),
            Column("available", "GiB"),
            Column("slots", "per seat"),
            Column("seats", "it counted"),
            Column("depth"),
            Column("context", "possible"),
            Column("exit"),
        ),
        rows=rows,
        notes=list(dict.fromkeys(notes)),
        simulated=simulated,
    )


def client_table(cells: Sequence[CellRow], simulated: bool) -> Table | None:
    """What the client itself cost and how late it was, per cell."""
    rows = []
    for cell in cells:
        lag = cell.lag
        if lag is None or cell.kind == "warmup":
            continue
        rows.append(
            [
                cell.arm,
                cell.cell + (f" (pass {cell.repeat + 1})" if cell.repeat else ""),
                lag.stamp,
                whole(lag.events),
                whole(lag.coalesced),
                milli(lag.lag_p50_s),
                milli(lag.lag_p99_s),
                milli(lag.lag_max_s),
                "-" if lag.cpu_per_event_s is None else number(lag.cpu_per_event_s * 1e6),
                milli(lag.turnaround_p50_s),
                milli(lag.send_lag_max_s),
                whole(lag.processes),
            ]
        )
    if not rows:
        return None
    return Table(
        title="Client lag and cost",
        columns=(
            Column("arm", "", "left"),
            Column("cell", "", "left"),
            Column("stamp", "", "left"),
            Column("events"),
            Column("coalesced"),
            Column("lag p50", "ms"),
            Column("p99", "ms"),
            Column("max", "ms"),
            Column("CPU", "us/event"),
            Column("turn-around", "ms"),
            Column("send lag", "ms"),
            Column("processes"),
        ),
        rows=rows,
        notes=[
            "lag is own stamp - kernel stamp; figures use the kernel's, so it delays nothing that is reported",
            "CPU per event includes the requests' encoding and the end of messages, not the decoding after the rung",
        ],
        simulated=simulated,
    )


DETAIL = ("config ", "env ")
"""Facts that only the long form of the ledger lists."""


DETAIL = ("config ", "env ")
"""Facts that only the long form of the ledger lists."""


def ledger_table(rows: Sequence[LedgerRow], simulated: bool, brief: bool = False) -> Table | None:
    """What each arm's engine resolved, read back from it; rows that differ are marked. `brief`: without DETAIL."""
    if not rows:
        return None
    arms = list(dict.fromkeys(arm for row in rows for arm in row.values))
    known = [row for row in rows if any(value is not None for value in row.values.values())]
    shown = [row for row in known if not (brief and row.name.startswith(DETAIL))]
    notes = (
        ["!= marks facts in which the arms differ; - is not reported, which is not the same as equal"] if len(arms) > 1 else []
    )
    if len(known) > len(shown):
        hidden = len(known) - len(shown)
        notes.append(f"{hidden} more facts (effective configuration, environment) are in the Markdown form of this table")
    limit = 36 if brief else 400
    return Table(
        title="Fairness ledger",
        columns=(Column("", "", "left"), Column("fact", "", "left"), *(Column(arm, "", "left") for arm in arms)),
        rows=[
            [
                "!=" if row.differs and len(arms) > 1 else "",
                row.name,
                *(_short(row.values.get(arm), limit) for arm in arms),
            ]
            for row in shown
        ],
        notes=notes,
        simulated=simulated,
    )


def _short(value: str | None, limit: int) -> str:
    if value is None:
        return "-"
    return value if len(value) <= limit else value[: limit - 3] + "..."


def prediction_table(found: Comparison | None, simulated: bool) -> Table | None:
    """Peaks that the arithmetic expects beside those that were measured; findings stand below."""
    if found is None or not any(row.predicted_blocks is not None for row in found.rows):
        return None
    rows = []
    for row in found.rows:
        measured = row.exact_blocks if row.exact_blocks is not None else row.sampled_blocks
        expected = row.predicted_blocks
        rows.append(
            [
                row.arm,
                whole(row.leg),
                whole(row.prompt_tokens),
                whole(expected),
                whole(row.exact_blocks),
                whole(row.sampled_blocks),
                "-" if measured is None or expected is None else f"{measured - expected:+d}",
                "with" if row.fixed else "without",
                row.reason or "-",
            ]
        )
    return Table(
        title="Prediction beside measurement",
        columns=(
            Column("arm", "", "left"),
            Column("leg"),
            Column("prompt", "tokens"),
            Column("predicted", "blocks"),
            Column("exact", "blocks"),
            Column("sampled", "blocks"),
            Column("measured - predicted", "blocks"),
            Column("null-gap fix", "", "left"),
            Column("not predicted because", "", "left"),
        ),
        rows=rows,
        notes=[f"{finding.name}: {finding.text}" for finding in found.findings],
        simulated=simulated,
    )
