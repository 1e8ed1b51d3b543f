"""What a run says on its way, a line per cell in a log, a line redrawn on a terminal; and a long table, cut for a screen."""

from __future__ import annotations

import re

import pytest

from evenhand.progress import Event
from evenhand.records import CellRow, Lag
from evenhand.show import progress
from evenhand.show.progress import Plain, Terminal
from evenhand.show.tables import client_table


def events(outcome: str = "ok") -> list[Event]:
    where = {"leg": 0, "legs": 2, "arm": "a", "cell": "ladder/c=4"}
    return [
        Event(what="cell", done=0, total=20, **where),
        Event(what="requests", done=3, total=20, running=4.0, **where),
        Event(what="requests", done=20, total=20, **where),
        Event(what="cell_end", outcome=outcome, ok=20, failed=0, **where),
        Event(what="leg_end", outcome="ok", **where),
    ]


def said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"^\[ *[\d.]+ s\] ", "", line) for line in capsys.readouterr().err.splitlines()]


def test_a_log_has_one_line_per_cell_which_begins_when_the_cell_does(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Plain()
    begin, *rest = events()
    plain(begin)
    assert said(capsys) == ["leg 1/2 a: ladder/c=4 starts (20 requests)"]
    for event in rest:
        plain(event)
    assert said(capsys) == [": ok, 20 ok, 0 failed"]


def test_a_long_cell_gives_a_sign_of_life_and_then_its_end_has_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    plain = Plain()
    for event in [*events(), Event(what="end", outcome="finished", text="there")]:
        plain(event)
    assert said(capsys) == [
        "leg 1/2 a: ladder/c=4 starts (20 requests)",
        "ladder/c=4: 3/20 requests, 4 running",
        "ladder/c=4: 20/20 requests",
        "leg 1/2 a: ladder/c=4 ok, 20 ok, 0 failed",
        "finished: there",
    ]


def test_what_cuts_a_cell_has_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    plain = Plain()
    plain(events()[0])
    plain(Event(what="end", outcome="failed", text="there"))
    assert said(capsys) == ["leg 1/2 a: ladder/c=4 starts (20 requests)", "failed: there"]


def test_a_terminal_redraws_the_cell_and_keeps_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Terminal()
    for event in events():
        screen(event)
    drawn = capsys.readouterr().err
    assert drawn.count("\n") == 1
    assert drawn.endswith("leg 1/2 a: ladder/c=4 ok, 20 ok, 0 failed\n")
    assert "0/20 requests" in drawn


def test_a_screen_gets_each_arms_worst_cell_and_files_get_all() -> None:
    made = [("a", 1, 0.001, 0.0001), ("a", 2, 0.003, 0.0002), ("b", 1, 0.002, 0.0004), ("b", 2, 0.001, None)]
    cells = [
        CellRow(
            leg=0, arm=arm, cell=f"ladder/c={c}", kind="ladder", concurrency=c, outcome="ok",
            lag=Lag(stamp="kernel", lag_p99_s=lag, turnaround_p50_s=turn),
        )
        for arm, c, lag, turn in made
    ]  # fmt: skip
    whole, brief = client_table(cells, False), client_table(cells, False, brief=True)
    assert whole is not None
    assert brief is not None
    assert len(whole.rows) == 4
    assert [row[:2] for row in brief.rows] == [["a", "ladder/c=2"], ["b", "ladder/c=1"]]
    assert "all 4 are in the Markdown form" in brief.notes[1]
    assert "the longest turn-around is 0.400 ms (b ladder/c=1)" in brief.notes[1]
