"""The client's tokens against the server's: nobody else may have used the engine."""

from __future__ import annotations

from evenhand.judge.columns import Columns
from evenhand.judge.view import JudgeRow
from evenhand.records import CellRow


class Reconciled(JudgeRow, frozen=True, kw_only=True):
    """Prompt tokens of one cell, seen from both sides."""

    client_ok: int
    client_aborted: int
    server: int | None = None
    unexplained: int = 0
    text: str = ""


def reconcile(cell: CellRow, columns: Columns, rows: list[int]) -> Reconciled:
    """Explain the server's increase of prompt tokens by the requests of this client.

    Servers count the prefill of aborted requests, wholly, partly or not at all; and some count only what was not cached. More
    than all of ours together is another client's.
    """
    ok = aborted = cached = broken = 0
    for i in rows:
        reported = columns.prompt_tokens[i]
        tokens = reported if reported is not None else columns.prompt_tokens_asked[i]
        if columns.outcome[i] == "ok":
            ok += tokens
            cached += columns.cached_tokens[i] or 0
        else:
            aborted += tokens
            broken += 1
    counted = cell.counters.get("prompt_tokens")
    if counted is None:
        return Reconciled(
            client_ok=ok, client_aborted=aborted, text=cell.counters_reason or "the server counts no prompt tokens"
        )
    server = round(counted)
    most = ok + aborted + broken  # a failed request may have got a leading token from the server's tokenizer
    if server > most:
        extra = server - ok - aborted
        return Reconciled(
            client_ok=ok,
            client_aborted=aborted,
            server=server,
            unexplained=extra,
            text=f"unexplained {extra} tokens: another client?",
        )
    if server < ok - cached:
        missing = ok - cached - server
        text = f"the server counted {missing} prompt tokens fewer than it reported per request"
        return Reconciled(client_ok=ok, client_aborted=aborted, server=server, text=text)
    return Reconciled(client_ok=ok, client_aborted=aborted, server=server, text="explained")
