"""Evidence that changed after it was sealed, and files that change only when a verdict does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from show_runs import rich_gate, store

from evenhand.show.console import summarise
from evenhand.show.report import report

FILES = ("verdict.json", "verdict.md", "junit.xml")


@pytest.fixture
def passing(tmp_path: Path) -> Path:
    made = rich_gate(pairs=2)
    made.manifest.scenario["gate"]["rules"] = {"errors": 0}
    return store(made, tmp_path / "run")


@pytest.mark.parametrize("how", ["changed", "unsealed"])
def test_a_verdict_on_changed_evidence_is_void_wherever_it_stands(passing: Path, how: str) -> None:
    text, code = summarise(passing)
    assert (code, text.splitlines()[-1].partition(":")[0]) == (0, "pass")
    if how == "changed":
        with (passing / "001-new" / "requests.jsonl").open("ab") as file:
            file.write(b"\n")
        words = "evidence changed since it was sealed: 001-new/requests.jsonl (changed)"
    else:
        (passing / "sha256.json").unlink()
        words = "sha256 is gone"
    text, code = summarise(passing)
    assert code == 2
    assert text.splitlines()[-1].startswith("void: ")
    assert text.splitlines()[-1].endswith("(exit code 2)")
    assert text.count(words) <= 2  # the reason, and the rule's own
    verdict = json.loads((passing / "verdict.json").read_text())
    assert (verdict["status"], verdict["exit_code"]) == ("void", 2)
    assert words in verdict["reasons"][0]["text"]
    assert "**void: " in (passing / "verdict.md").read_text()
    assert 'errors="1"' in (passing / "junit.xml").read_text()
    (page,) = report([passing], passing.parent / "reports")
    assert "void: new against base" in page.read_text()


def test_judged_again_files_change_only_with_the_verdict(passing: Path) -> None:
    summarise(passing)
    stored = json.loads((passing / "verdict.json").read_text())["judged_utc"].encode()
    for name in ("verdict.json", "junit.xml"):  # as if it had been judged long ago
        data = (passing / name).read_bytes()
        assert stored in data
        (passing / name).write_bytes(data.replace(stored, b"2001-01-01T00:00:00Z"))
    before = {name: (passing / name).read_bytes() for name in FILES}
    summarise(passing)
    assert {name: (passing / name).read_bytes() for name in FILES} == before
    (passing / "verdict.json").write_bytes(before["verdict.json"].replace(b'"pass"', b'"fail"'))
    summarise(passing)
    assert b"2001" not in (passing / "verdict.json").read_bytes()
    (passing / "verdict.json").write_text("no verdict")
    summarise(passing)
    assert json.loads((passing / "verdict.json").read_text())["status"] == "pass"
