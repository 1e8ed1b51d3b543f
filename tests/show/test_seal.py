"""Evidence that changed after it was sealed, and files that change only when a verdict does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from show_runs import rich_gate, store

from evenhand.show import console
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


def test_judged_again_files_change_only_with_the_verdict(passing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later:
        @staticmethod
        def now(_: object) -> Later:
            return Later()

        def strftime(self, _: str) -> str:
            return "2099-01-01T00:00:00Z"

    summarise(passing)
    before = {name: (passing / name).read_bytes() for name in FILES}
    monkeypatch.setattr(console, "datetime", Later)
    summarise(passing)
    assert {name: (passing / name).read_bytes() for name in FILES} == before
    (passing / "verdict.json").write_bytes(before["verdict.json"].replace(b'"pass"', b'"fail"'))
    summarise(passing)
    assert b"2099" in (passing / "verdict.json").read_bytes()
    (passing / "verdict.json").write_text("no verdict")
    summarise(passing)
    assert json.loads((passing / "verdict.json").read_text())["status"] == "pass"
