"""The smaller tables of a run: refusals in the engines' own words, the client's own lag, the fairness ledger."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge import equality
from evenhand.judge.devices import DeviceRow
from evenhand.judge.ladder import LadderRow
from evenhand.judge.ledger import OBSERVED, LedgerRow
from evenhand.judge.reuse import ReuseRow
from evenhand.records import CellRow, Lag, LegRow
from evenhand.show.meaning import state_note
from evenhand.show.table import Column, Table, milli, number, percent, whole
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
        seats = "" if leg.seats_requested is None else f" (seats {leg.seats_requested})"
        notes.append(f'{leg.arm}{seats}: "{words}"')
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


def client_table(
    cells: Sequence[CellRow], simulated: bool, brief: bool = False, rows: Sequence[LadderRow] = ()
) -> Table | None:
    """What the client itself cost and how late it was, per cell. `brief`: of each arm the cell with the largest lag.

    `rows`: judged rungs, whose turn-around is then told as a share of their median TPOT, too.
    """
    shares = {(row.legs[0], row.cell, row.repeat): row.turnaround_share for row in rows}
    every = [cell for cell in cells if cell.lag is not None and cell.kind != "warmup"]
    if not every:
        return None
    shown = every
    if brief:
        arms = dict.fromkeys(cell.arm for cell in every)
        shown = [max((cell for cell in every if cell.arm == arm), key=_lag) for arm in arms]
    notes = [
        "lag is own stamp - kernel stamp; figures use the kernel's, so it delays nothing that is reported",
        "CPU per event includes the requests' encoding and the end of messages, not the decoding after the rung",
    ]
    if len(shown) < len(every):
        turn = max((cell.lag.turnaround_p50_s or 0, cell.arm, cell.cell) for cell in every if cell.lag)
        longest = f"; the longest turn-around is {milli(turn[0])} ms ({turn[1]} {turn[2]})" if turn[0] else ""
        notes[1:] = [
            f"the cell with the largest p99 of each arm; all {len(every)} are in the Markdown form of this table{longest}"
        ]
    return Table(
        title="Client lag and cost",
        columns=(
            Column("arm", "", "left"),
            Column("cell", "", "left"),
            Column("stamp", "", "left", spare=1),
            Column("events"),
            Column("coalesced", spare=1),
            Column("lag p50", "ms"),
            Column("p99", "ms"),
            Column("max", "ms"),
            Column("CPU", "us/event"),
            Column("turn-around", "ms", spare=1),
            Column("of TPOT", "%", spare=1),
            Column("send lag", "ms", spare=1),
            Column("processes", spare=1),
        ),
        rows=[_client_line(cell, cell.lag, shares.get((cell.leg, cell.cell, cell.repeat))) for cell in shown if cell.lag],
        notes=notes,
        simulated=simulated,
    )


def _lag(cell: CellRow) -> float:
    return (cell.lag.lag_p99_s if cell.lag else None) or 0.0


def _client_line(cell: CellRow, lag: Lag, share: float | None) -> list[str]:
    return [
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
        percent(share),
        milli(lag.send_lag_max_s),
        whole(lag.processes),
    ]


def device_cells_table(rows: Sequence[DeviceRow], simulated: bool) -> Table | None:
    """Clock, power, memory and energy per cell and device."""
    if not rows:
        return None
    several = len({row.uuid for row in rows}) > 1
    reasons = dict.fromkeys(f"energy: {row.energy_reason}" for row in rows if row.energy_reason)
    return Table(
        title="Devices",
        columns=(
            Column("arm", "", "left"),
            Column("cell", "", "left"),
            Column("device", "", "left"),
            Column("readings"),
            Column("SM clock", "MHz"),
            Column("power", "W"),
            Column("memory", "GiB"),
            Column("energy", "J"),
            Column("output", "tokens"),
            Column("energy", "J/token"),
        ),
        rows=[
            [
                row.arm,
                row.cell + (f" (pass {row.repeat + 1})" if row.repeat else ""),
                row.uuid if several else "-",
                whole(row.readings),
                whole(row.clock_mhz),
                whole(row.power_w),
                gib(row.memory_peak_bytes),
                number(row.energy_j, 4),
                whole(row.tokens),
                number(row.energy_per_token_j),
            ]
            for row in rows
        ],
        notes=[
            "clock and power: medians of readings at work; energy: its counter over the cell, give or take one interval",
            *reasons,
        ],
        simulated=simulated,
    )


def reuse_table(rows: Sequence[ReuseRow], simulated: bool) -> Table | None:
    """A prefix asked, replayed and extended: cached tokens, TTFT, and whether the replay gave the same output."""
    if not rows:
        return None
    said = {True: "identical", False: "differs", None: "-"}
    return Table(
        title="Reuse of a prefix",
        columns=(
            Column("arm", "", "left"),
            Column("prefix", "tokens"),
            Column("cached, asked"),
            Column("replayed"),
            Column("extended"),
            Column("TTFT, asked", "ms"),
            Column("replayed", "ms"),
            Column("extended", "ms"),
            Column("replay's output", "", "left"),
            Column("outcome", "", "left"),
        ),
        rows=[
            [
                row.arm,
                whole(row.prefix_tokens),
                *(whole(cached) for cached in row.cached_tokens),
                *(milli(ttft) for ttft in row.ttft_s),
                said[row.replay_identical],
                row.outcome,
            ]
            for row in rows
        ],
        simulated=simulated,
    )


def across_table(comparisons: Sequence[equality.Comparison], simulated: bool) -> Table | None:
    """Outputs of different arms on the same prompts: as ids where both send them, and as text. Reported, never gated."""
    totals: dict[str, list[int]] = {}
    for one in comparisons:
        counts = (one.compared, one.compared - one.text_mismatches, one.ids_known, one.identical if one.ids_known else 0)
        sums = totals.setdefault(one.label.partition(": ")[2], [0] * len(counts))
        sums[:] = [a + b for a, b in zip(sums, counts, strict=True)]
    rows = [[label, *(whole(n) for n in counts)] for label, counts in totals.items() if counts[0]]
    if not rows:
        return None
    return Table(
        title="Outputs across arms",
        columns=(
            Column("arms", "", "left"),
            Column("compared", "requests"),
            Column("same text"),
            Column("both sent ids"),
            Column("same ids"),
        ),
        rows=rows,
        notes=["engines round differently, so greedy outputs may part: this is reported, a run never judges it"],
        simulated=simulated,
    )


DETAIL = ("config ", "env ")
"""Facts that only the long form of the ledger lists."""


def ledger_table(rows: Sequence[LedgerRow], simulated: bool, width: int = 0) -> Table | None:
    """What each arm's engine resolved, read back from it; rows that differ are marked. With `width` it is cut for a screen of
    so many columns: of DETAIL only configuration that differs, and long values shortened.
    """
    if not rows:
        return None
    arms = list(dict.fromkeys(arm for row in rows for arm in row.values))
    known = [row for row in rows if any(value is not None for value in row.values.values())]
    shown = [row for row in known if not width or not row.name.startswith(DETAIL) or (len(arms) > 1 and _told_apart(row))]
    notes = []
    if len(arms) > 1:
        notes.append("!= marks facts in which the arms differ; - is not reported, which is not the same as equal")
        seen = [row.name for row in shown if row.name in OBSERVED]
        notes += [f"observed, so never marked: {', '.join(seen)}"] if seen else []
    notes += state_note(next((row.values for row in shown if row.name == "pool state slots"), {}))
    if len(known) > len(shown):
        hidden = len(known) - len(shown)
        notes.append(f"{hidden} more facts (effective configuration, environment) are in the Markdown form of this table")
    names = max((len(row.name) for row in shown), default=0)
    limit = min(36, max(12, (width - 4 - names) // len(arms) - 2)) if width else 400
    return Table(
        title="Fairness ledger",
        columns=(Column("", "", "left"), Column("fact", "", "left"), *(Column(arm, "", "left") for arm in arms)),
        rows=[
            [
                "!=" if row.differs and len(arms) > 1 else "",
                row.name,
                *_short([row.values.get(arm) for arm in arms], limit),
            ]
            for row in shown
        ],
        notes=notes,
        simulated=simulated,
    )


def _told_apart(row: LedgerRow) -> bool:
    """Configuration that arms of one engine have and differ in: what an A/B is about."""
    values = list(row.values.values())
    return row.differs and row.name.startswith("config ") and None not in values and len(values) > 1


def _short(values: Sequence[str | None], limit: int) -> list[str]:
    """Cut to `limit` characters: at the end, but at the beginning where that says more, of paths and of what differs later."""
    texts = ["-" if value is None else value for value in values]
    heads = [text if len(text) <= limit else text[: limit - 3] + "..." for text in texts]
    tails = [text if len(text) <= limit else "..." + text[3 - limit :] for text in texts]
    if len(set(heads)) < len(set(texts)):
        return tails
    return [
        tail if text.startswith("/") and " " not in text else head for text, head, tail in zip(texts, heads, tails, strict=True)
    ]
