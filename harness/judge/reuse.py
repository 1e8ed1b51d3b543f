"""The reuse ladder: a prefix asked, replayed and extended; what came from the cache, and whether the replay says the same."""

from __future__ import annotations

from evenhand.judge.columns import Reader
from evenhand.judge.view import JudgeRow, RunView

ASKED, REPLAYED, EXTENDED = 0, 1, 2
"""Indices of a reuse cell's requests."""


class ReuseRow(JudgeRow, frozen=True, kw_only=True):
    """One prefix length on one leg. Tuples are (asked, replayed, extended); null where a request gave no figure."""

    arm: str
    leg: int
    prefix_tokens: int
    outcome: str
    cached_tokens: tuple[int | None, int | None, int | None] = (None, None, None)
    ttft_s: tuple[float | None, float | None, float | None] = (None, None, None)
    replay_identical: bool | None = None
    """Token ids (else the text) of the replay equal those of the first asking; None where either failed."""


def reuse_rows(run: RunView, reader: Reader | None = None) -> list[ReuseRow]:
    """One row per reuse cell, in the order of the legs."""
    reader = reader or Reader(run)
    found = []
    for cell in run.cells:
        if cell.kind != "reuse" or cell.repeat:
            continue
        columns = reader.columns(cell.leg)
        at = {columns.index[i]: i for i in columns.where(cell.cell, cell.repeat) if columns.outcome[i] == "ok"}
        first, again = at.get(ASKED), at.get(REPLAYED)
        same = None
        if first is not None and again is not None:
            a, b = columns.token_ids(first), columns.token_ids(again)
            same = a == b if a is not None and b is not None else columns.text[first] == columns.text[again]
        order = (ASKED, REPLAYED, EXTENDED)
        cached = tuple(columns.cached_tokens[at[i]] if i in at else None for i in order)
        ttft = tuple(columns.ttft_s[at[i]] if i in at else None for i in order)
        found.append(
            ReuseRow(
                arm=cell.arm,
                leg=cell.leg,
                prefix_tokens=cell.prompt_tokens or 0,
                outcome=cell.outcome,
                cached_tokens=(cached[0], cached[1], cached[2]),
                ttft_s=(ttft[0], ttft[1], ttft[2]),
                replay_identical=same,
            )
        )
    return found
