"""Console, Markdown and page are made of one list of tables, fit their screen, and come of one reading of the run."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import ladder_run, rich_gate, store

from evenhand.show.console import summarise
from evenhand.show.judged import judge_folder
from evenhand.show.page import page_of
from evenhand.show.report import report
from evenhand.show.sections import FOLDED, run_sections, verdict_sections
from evenhand.show.table import Column, Table, as_text, escape
from evenhand.store import Run

EVIDENCE = Path(__file__).parents[2] / "results" / "evidence"


@pytest.mark.parametrize("make", [rich_gate, ladder_run])
def test_every_table_stands_everywhere(make: object, tmp_path: Path) -> None:
    path = store(make(), tmp_path / "run")  # type: ignore[operator]
    judged = judge_folder(path)
    mine = [table for section in run_sections(judged) for table in section.tables]
    both = [
        *mine,
        *(table for section in (verdict_sections(judged.verdict) if judged.verdict else []) for table in section.tables),
    ]
    (page,) = report([path], tmp_path / "reports")
    markdown, html = page.with_name("report.md").read_text(), page.read_text()
    text, _ = summarise(path)
    kept = (path / "tables" / "tables.md").read_text()
    for table in both:
        folded = table.title == FOLDED
        assert (f"<summary>{table.title}" if folded else f"### {escape(table.title)}\n") in markdown
        assert table.title in html
        assert folded or table.title == "Configuration" or table.heading in text
    assert all(f"### {escape(table.title)}\n" in kept for table in mine)
    assert "### Client lag and cost" in markdown


@pytest.mark.parametrize("width", [80, 120, 160])
def test_tables_fit_their_screen(width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    made = rich_gate(2)
    long = {"base": "installed-without-the-change", "new": "retire-states-behind-null-gaps"}
    arms = [{**arm, "name": long[arm["name"]]} for arm in made.manifest.scenario["arm"]]
    gate = {**made.manifest.scenario["gate"], "baseline": long["base"], "candidate": long["new"]}
    made.manifest = msgspec.structs.replace(made.manifest, scenario={**made.manifest.scenario, "arm": arms, "gate": gate})
    made.legs = [msgspec.structs.replace(leg, arm=long[leg.arm]) for leg in made.legs]
    made.cells = [msgspec.structs.replace(cell, arm=long[cell.arm]) for cell in made.cells]
    text, _ = summarise(store(made, tmp_path / "run"))
    wide = [line for line in text.splitlines() if len(line) > width and str(tmp_path) not in line and "exit code" not in line]
    assert wide == []
    assert "pair 0" in text


def test_columns_of_words_are_wrapped_before_a_table_is_too_wide() -> None:
    columns = (Column("arm", "", "left"), Column("figure"), Column("why", "", "left"))
    table = Table(title="T", columns=columns, rows=[["a name of many words", "1", "said in rather more words than that"]])
    assert max(map(len, as_text(table, 40).splitlines())) <= 40
    assert "a name of many words  " in as_text(table, 80)


def test_a_run_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: Counter[tuple[str, int]] = Counter()
    for name in ("stream_requests", "samples", "gpu", "probe"):
        kept = getattr(Run, name)

        def counted(self: Run, leg: int, kept: object = kept, name: str = name) -> object:
            read[name, leg] += 1
            return kept(self, leg)  # type: ignore[operator]

        monkeypatch.setattr(Run, name, counted)
    summarise(store(rich_gate(2), tmp_path / "run"))
    assert set(read.values()) == {1}


def test_the_prediction_stands_beside_the_measurement_wherever_a_run_is_shown(tmp_path: Path) -> None:
    (path,) = EVIDENCE.glob("h200-pressure-2026*")
    judged = judge_folder(path)
    titles = [table.title for section in run_sections(judged, 80) for table in section.tables]
    assert "Prediction beside measurement" in titles
    (page,) = report([path], tmp_path)
    markdown = page.with_name("report.md").read_text()
    for title in ("Prediction beside measurement", "Peak pool pressure of long prompts", "Client lag and cost"):
        assert f"### {title}\n" in markdown


def test_a_ranking_names_what_ran_at_once(tmp_path: Path) -> None:
    """20 requests at a concurrency of 64 are 20 streams."""
    made = ladder_run()
    wide = [msgspec.structs.replace(c, concurrency=64) if c.concurrency == 4 else c for c in made.cells]
    made.cells[:] = [
        msgspec.structs.replace(c, lag=msgspec.structs.replace(c.lag, max_in_flight=20)) if c.lag else c for c in wide
    ]
    (said,) = page_of(judge_folder(store(made, tmp_path / "run"))).found
    assert "tokens/s at concurrency 20, the same work for each: " in said
