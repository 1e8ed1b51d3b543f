"""Reports: one page that needs nothing, partial runs marked, engines' words escaped, tables and pictures beside it."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import HOSTILE, ladder_run, rich_gate, store

from evenhand.show.history import history
from evenhand.show.inline import inline_svg
from evenhand.show.report import report
from evenhand.show.table import SIMULATED
from evenhand.store import StoreError, open_run


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ladder")
    run = store(ladder_run("interrupted"), folder / "run", {0: f"\x1b[31mred\x1b[0m {HOSTILE}\n"})
    (page,) = report([run], folder / "reports")
    return page


@pytest.fixture(scope="module")
def gated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gate")
    (page,) = report([store(rich_gate(), folder / "run")], folder / "reports")
    return page


def test_one_file_that_needs_nothing_else(ladder: Path, gated: Path) -> None:
    for page in (ladder, gated):
        text = page.read_text()
        assert page.stat().st_size < 3_000_000
        assert not re.search(r'(?:src|href)="(?!#|data:)', text.replace('xlink:href="#', 'xlink:href="#'))
        assert "@import" not in text
        assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text


def test_an_interrupted_run_is_marked_partial(ladder: Path) -> None:
    assert "Partial: the run is marked interrupted; 6 of 6 planned cells have a row." in ladder.read_text()
    assert "Partial: the run is marked interrupted" in ladder.with_name("report.md").read_text()


def test_words_of_engines_are_escaped(ladder: Path) -> None:
    text = ladder.read_text()
    assert "<img src=x" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "red &lt;script&gt;" in text  # the log, without its colours
    markdown = ladder.with_name("report.md").read_text()
    assert "<img" not in markdown.replace("\\<img", "")
    assert "@everyone" not in markdown


def test_every_table_and_picture_of_a_simulated_run_says_so(ladder: Path) -> None:
    text = ladder.read_text()
    assert text.count('<p class="caption">') == text.count(f'<em class="reference">{SIMULATED}</em></p>')
    assert text.count("<figcaption>") == text.count(f'<em class="reference">{SIMULATED}</em></figcaption>')
    for file in ladder.parent.glob("*.csv"):
        rows = list(csv.reader(file.read_text().splitlines()))
        assert {row[-1] for row in rows[1:]} == {SIMULATED}
    assert all(label.endswith(f" {SIMULATED}.") for label in re.findall(r'<svg role="img" aria-label="([^"]*)"', text))


def test_a_measured_run_never_says_it_is_a_model(gated: Path) -> None:
    assert SIMULATED not in gated.read_text()


def test_files_beside_the_page(gated: Path) -> None:
    names = {file.name for file in gated.parent.iterdir()}
    for stem in ("pool", "divergence", "paired-differences", "retained-states", "gpu"):
        assert {f"{stem}.svg", f"{stem}.png"} <= names
    assert {"report.md", "rules.csv", "outputs.csv", "timing.csv", "fairness-ledger.csv", "client-lag-and-cost.csv"} <= names
    assert "![First divergence over requests](divergence.svg)" in gated.with_name("report.md").read_text()


def test_a_gate_begins_with_its_verdict(gated: Path) -> None:
    text = gated.read_text()
    assert text.index("fail: new against base, 6 boots each (exit code 1)") < text.index("<table")
    assert "evenhand gate rich.toml" in text
    assert gated.with_name("report.md").read_text().startswith("## evenhand: rich\n\n**fail: new against base")


def test_changed_evidence_is_said_first(tmp_path: Path) -> None:
    run = store(ladder_run("finished"), tmp_path / "run")
    with (run / "cells.jsonl").open("a") as file:
        file.write("\n")
    (page,) = report([run], tmp_path / "reports")
    assert "The evidence changed since it was sealed: cells.jsonl (changed)." in page.read_text()


def test_a_report_leaves_the_run_as_it_is(tmp_path: Path) -> None:
    run = store(ladder_run("finished"), tmp_path / "run")
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    report([run], tmp_path / "reports")
    assert {file: file.read_bytes() for file in run.rglob("*") if file.is_file()} == before
    with pytest.raises(StoreError, match="is the run itself"):
        report([run], tmp_path)


def test_a_run_in_which_nothing_started(tmp_path: Path) -> None:
    made = ladder_run("failed")
    made.legs.clear()
    made.cells.clear()
    (page,) = report([store(made, tmp_path / "run")], tmp_path / "reports")
    text = page.read_text()
    assert "partial: 0 of 6 cells have figures" in text
    assert "No leg was started." in text


def test_a_run_that_was_killed_has_cells_without_their_leg(tmp_path: Path) -> None:
    made = rich_gate(2)
    made.legs.pop()
    run = store(made, tmp_path / "run")
    (page,) = report([run], tmp_path / "reports")
    assert "base has 1 of 2 boots" in page.read_text()
    assert len(history(tmp_path, "peak_pool", arm="base").entries[0].figures) == 1


def test_logs_are_bounded(tmp_path: Path) -> None:
    run = store(ladder_run("finished"), tmp_path / "run", {0: "\n".join(f"line {n} " + "x" * 200 for n in range(20_000))})
    (page,) = report([run], tmp_path / "reports")
    text = page.read_text()
    assert "line 19999" in text
    assert "line 100 " not in text
    assert len(open_run(run).log(0)) > 500_000
    assert page.stat().st_size < 500_000


def test_inline_svg_has_ids_of_its_own_and_no_style() -> None:
    text = (
        '<?xml version="1.0"?><!DOCTYPE svg><svg xmlns="x" width="1pt"><metadata>m</metadata><defs><style>*{a}</style></defs>'
        '<path id="m1" d="M 1.23456789 2" clip-path="url(#c)"/><use xlink:href="#m1"/></svg>'
    )
    markup = inline_svg(text, "pool", 'a "name"')
    assert markup.startswith('<svg role="img" aria-label="a &quot;name&quot;" ')
    for words in ('id="pool-m1"', 'href="#pool-m1"', "url(#pool-c)", "1.234 2"):
        assert words in markup
    assert "style" not in markup
    assert "metadata" not in markup
