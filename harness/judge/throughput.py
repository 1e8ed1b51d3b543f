"""Tokens per second of a rung, by the wall and inside the steady window."""

from __future__ import annotations

import numpy as np

from evenhand.judge.columns import Columns
from evenhand.judge.stats import Figure
from evenhand.judge.view import JudgeRow
from evenhand.records import CellRow


class Throughput(JudgeRow, frozen=True, kw_only=True):
    """Both rates in tokens/s, each null with its reason."""

    wall: Figure
    steady: Figure
    steady_s: float | None = None
    """Length of the steady window."""


def throughput(cell: CellRow, columns: Columns, rows: list[int], *, closed: bool) -> Throughput:
    """Tokens of successful requests over the rung's wall time, and tokens stamped while all slots were busy over that time.

    Null when any request failed: a rate over part of the work would reward failing.
    """
    n = len(rows)
    failed = sum(columns.outcome[i] != "ok" for i in rows)
    if failed or not n:
        none = Figure(n=n, reason=f"{failed} of {n} requests failed" if n else "no requests")
        return Throughput(wall=none, steady=none)
    unknown = sum(columns.output_tokens[i] is None for i in rows)
    if unknown:
        none = Figure(n=n, reason=f"{unknown} of {n} requests report no token count")
        return Throughput(wall=none, steady=none)
    tokens = sum(columns.output_tokens[i] or 0 for i in rows)
    if cell.start_ns is None or cell.end_ns is None or cell.end_ns <= cell.start_ns:
        wall = Figure(n=n, reason="the rung has no length")
    else:
        wall = Figure(value=tokens / ((cell.end_ns - cell.start_ns) / 1e9), n=n)
    steady, length = _steady(cell, columns, rows, closed=closed)
    return Throughput(wall=wall, steady=steady, steady_s=length)


def _steady(cell: CellRow, columns: Columns, rows: list[int], *, closed: bool) -> tuple[Figure, float | None]:
    if not closed:
        return Figure(reason="open loop: there are no slots to be busy"), None
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i in rows:
        sent, ended = columns.send_ns[i], columns.end_ns[i]
        if sent is None or ended is None:
            return Figure(reason="some requests have no times"), None
        slot = columns.slot[i]
        first[slot] = min(first.get(slot, sent), sent)
        last[slot] = max(last.get(slot, ended), ended)
    if len(first) < cell.concurrency:
        return Figure(n=len(rows), reason=f"only {len(first)} of {cell.concurrency} slots were used"), None
    start, end = max(first.values()), min(last.values())
    if end <= start:
        return Figure(n=len(rows), reason="the slots were never all busy"), None
    events, owner = columns.flat(rows)
    counts = columns.event_tokens[events]
    told = np.bincount(owner, weights=counts, minlength=len(rows))
    if told.tolist() != [columns.output_tokens[i] for i in rows]:
        return Figure(n=len(rows), reason="events do not tell how many tokens they carry"), None
    stamps = columns.event_ns[events] + np.array([columns.send_ns[i] for i in rows], dtype=np.int64)[owner]
    inside = int(counts[(stamps > start) & (stamps <= end)].sum())
    length = (end - start) / 1e9
    return Figure(value=inside / length, n=len(rows)), length
