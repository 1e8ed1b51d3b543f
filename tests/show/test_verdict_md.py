"""A verdict in words: the comment, the console, JUnit, the job summary."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import HOSTILE, gate, rich_gate, store

from evenhand.judge.fairness import Reason
from evenhand.judge.gate import judge_gate
from evenhand.judge.verdict import Verdict, decode
from evenhand.show.junit import junit_xml
from evenhand.show.table import SIMULATED, escape
from evenhand.show.verdict_md import COMMENT_LIMIT, claimed, placeless, verdict_markdown, verdict_text, write_verdict_files
from evenhand.show.verdict_tables import device_table


@pytest.fixture(scope="module")
def rich() -> Verdict:
    return judge_gate(rich_gate(), "now")


def rows(markdown: str, title: str) -> list[dict[str, str]]:
    """The pipe table under a heading, by column."""
    lines = markdown.partition(f"### {title}\n")[2].strip().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("|"))
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start:] if line.startswith("|")]
    end = next((n for n, line in enumerate(lines[start:]) if not line.startswith("|")), len(table))
    return [dict(zip(table[0], cells, strict=True)) for cells in table[2:end]]


def test_the_comment_has_every_part(rich: Verdict) -> None:
    made = rich_gate()
    text = verdict_markdown(rich, made.manifest, made.legs)
    assert "**fail: new against base, 6 boots each (exit code 1)**" in text
    rules = {row["rule"]: row["status"] for row in rows(text, "Rules")}
    assert rules == {
        "outputs identical": "fail",
        "peak pool not worse": "fail",
        "ttft\\_p50 not worse by 5 %": "fail",
        "tpot\\_p50 not worse by 5 %": "pass",
        "failed requests \\<= 0": "pass",
    }
    for rule in rich.rules:
        assert text.count(escape(rule.reason)) == 1, "what was found is said once"
    for title in ("Configuration", "Peak pool pressure, paired", "Outputs", "First divergences", "Timing",
                  "What was not measured", "What would widen the claim", "How to repeat"):  # fmt: skip
        assert f"### {title}\n" in text
    assert "evenhand gate rich.toml" in text
    assert "<details><summary>Box</summary>" in text


def test_paired_pressure_is_given_in_blocks(rich: Verdict) -> None:
    (row,) = rows(verdict_markdown(rich), "Peak pool pressure, paired")
    assert row["baseline (peak blocks)"] == "62"
    assert row["candidate (peak blocks)"] == "80"
    assert row["difference (blocks)"] == "+18"
    assert row["change (%)"] == "+29.0"
    assert row["ratio"] == "1.290"
    assert row["peak is"] == "exact"


def test_divergences_have_index_and_both_tokens(rich: Verdict) -> None:
    first = rows(verdict_markdown(rich), "First divergences")[0]
    assert first["request"] == "ladder/c=1#3"
    assert first["boot pairs (in which)"] == "6 of 6"
    assert (first["token (index)"], first["baseline (token id)"], first["candidate (token id)"]) == ("11", "10", "11")


def test_timing_shows_interval_noise_and_power(rich: Verdict) -> None:
    slow, same = rows(verdict_markdown(rich), "Timing")
    assert slow["status"] == "fail"
    assert float(slow["from (%)"]) < 9 < float(slow["to (%)"])
    assert slow["pairs (had / needed)"] == "6 / 6"
    assert same["change (%)"] == "0.0"
    assert slow["A/A spread (%)"] == "4.1"


def test_what_no_device_told_is_not_observed(rich: Verdict) -> None:
    hidden, clean, slow = (
        msgspec.structs.replace(rich.gpu[0], slowdowns=slowdowns, foreign_pids=pids)
        for slowdowns, pids in ((None, None), ({}, []), ({"hardware slowdown": 3}, [7, 8]))
    )
    table = device_table(msgspec.structs.replace(rich, gpu=[hidden, clean, slow]))
    assert table is not None
    assert [row[-2:] for row in table.rows] == [
        ["not observed", "not observed"],
        ["none", "none"],
        ["hardware slowdown in 3", "7, 8"],
    ]


def test_a_large_cached_prefix_stands_apart(rich: Verdict) -> None:
    cold = rich.pressure[0]
    warm = msgspec.structs.replace(
        cold, cell="pressure/14000w", prefix="large", baseline_cached=12_000, candidate_cached=12_000
    )
    text = verdict_markdown(msgspec.structs.replace(rich, pressure=[cold, warm]))
    assert len(rows(text, "Peak pool pressure, paired")) == 1
    (row,) = rows(text, "Peak pool pressure, paired, large cached prefix")
    assert row["cached prefix (tokens)"] == "12,000 / 12,000"


def test_a_null_result_is_a_row_like_any_other(rich: Verdict) -> None:
    equal = msgspec.structs.replace(rich.pressure[0], candidate_blocks=62, blocks=0, change=0.0, ratio=1.0)
    (row,) = rows(verdict_markdown(msgspec.structs.replace(rich, pressure=[equal])), "Peak pool pressure, paired")
    assert (row["difference (blocks)"], row["change (%)"], row["ratio"]) == ("0", "0.0", "1.000")


def test_reasons_of_a_void_gate_are_listed_once() -> None:
    def differing(number: int, arm: str) -> dict[str, Any]:
        return {"seats_resolved": 7, "drafted_depth": 3} if arm == "new" else {}

    verdict = judge_gate(gate(legs=differing, rules={"outputs": "identical", "errors": 0}), "now")
    text = verdict_markdown(verdict)
    assert {row["why"] for row in rows(text, "Rules")} == {"2 preconditions are broken, listed below"}
    assert text.count("drafted depth differ") == 1
    assert "why rules are void" in verdict_text(verdict)


def test_what_voids_no_rule_is_a_remark(rich: Verdict) -> None:
    unequal = Reason(scope="timing", text="unequal power capping")
    plain = msgspec.structs.replace(rich, reasons=[unequal])
    text = verdict_markdown(plain)
    assert "Why rules are void" not in text
    assert "- unequal power capping (would void timing rules only; none was asked)" in text
    assert "remarks:\n  unequal power capping" in verdict_text(plain)
    void = [msgspec.structs.replace(rule, status="void", reason=unequal.text) for rule in rich.rules]
    asked = verdict_markdown(msgspec.structs.replace(plain, rules=void))
    assert "### Why rules are void\n\n- unequal power capping (timing rules only)" in asked
    assert "would void" not in asked


def test_claims_share_what_they_begin_with(rich: Verdict) -> None:
    begin, said = claimed(rich)
    assert begin.startswith("new against base on vllm 0.32.0, model m, 8 seats, pool 900 blocks of 272 tokens, 6 and 6 boots")
    assert [line.partition(":")[0] for line in said] == [rule.text for rule in rich.rules]
    assert verdict_markdown(rich).count(f"\n{escape(begin)}.\n") == 1
    assert claimed(msgspec.structs.replace(rich, claims=["other words"])) == ("", ["other words"])
    assert claimed(msgspec.structs.replace(rich, claims=[], rules=[])) == ("", [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model | /tmp/h200/m/my\\_model |", "model | .../m/my\\_model |"),
        ("PYTHONPATH=/a/b/overlay/new:/c/d/e python", "PYTHONPATH=.../overlay/new:.../d/e python"),
        ("http://127.0.0.1:8000/v1/a/b/c and /metrics and /v1/models", None),
        ("v1/core/x/y.py, 1/2/3/4, ~/a/b/c/d, </details>", None),
        ("of '/a/b/c/'", "of '.../b/c'"),
    ],
)
def test_paths_of_the_machine_are_cut(text: str, shown: str | None) -> None:
    assert placeless(text) == (shown or text)


def test_a_comment_names_no_place_of_the_machine(rich: Verdict) -> None:
    made = rich_gate(1)
    command = ["evenhand", "gate", "/home/me/perf/gate.toml", "--out", "/data/runs/"]
    text = verdict_markdown(rich, msgspec.structs.replace(made.manifest, command=command), made.legs)
    assert "evenhand gate .../perf/gate.toml --out RUNS\nevenhand judge RUNS/" in text
    assert "/home" not in text


def test_the_folded_ledger_repeats_nothing(rich: Verdict) -> None:
    text = verdict_markdown(rich)
    assert text.count("| seats resolved |") == text.count("| seats requested |") == 1


def test_words_of_engines_do_no_harm_in_a_comment(rich: Verdict) -> None:
    rule = msgspec.structs.replace(rich.rules[0], reason=HOSTILE)
    text = verdict_markdown(msgspec.structs.replace(rich, rules=[rule], notes=[HOSTILE], claims=[HOSTILE]))
    assert "\\<script\\>" in text
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "@everyone" not in text
    assert "\\| \\`x\\`" in text


def test_a_comment_fits_where_comments_go(rich: Verdict) -> None:
    notes = [f"note {n} " + "x" * 200 for n in range(600)]
    text = verdict_markdown(msgspec.structs.replace(rich, notes=notes))
    assert len(text) <= COMMENT_LIMIT
    assert "Too long for a comment" in text
    assert "### First divergences" in text
    found = [f"claim {n} " + "x" * 500 for n in range(600)]
    assert len(verdict_markdown(msgspec.structs.replace(rich, claims=found))) <= COMMENT_LIMIT


def test_a_reference_model_says_so_everywhere() -> None:
    verdict = judge_gate(rich_gate(simulated=True), "now")
    text = verdict_markdown(verdict)
    for title in ("Rules", "Configuration", "Peak pool pressure, paired", "Outputs", "First divergences", "Timing"):
        assert f"### {title}\n\n*{SIMULATED}*" in text
    assert SIMULATED in verdict_text(verdict).splitlines()[1]


def test_junit_has_one_case_per_rule(rich: Verdict) -> None:
    statuses = ["pass", "fail", "void", "control failed", "inconclusive"]
    rules = [msgspec.structs.replace(rich.rules[0], status=s, text=f"rule {n}", reason=f"why \x00\ud800{n}") for n, s in
             enumerate(statuses)]  # fmt: skip
    root = ElementTree.fromstring(junit_xml(msgspec.structs.replace(rich, rules=rules)))
    (suite,) = root
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "1", "3")
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [f"rule {n}" for n in range(5)]
    assert [case.find("failure") is not None for case in cases] == [False, True, False, False, False]
    assert [case.find("error") is not None for case in cases] == [False, False, True, True, True]


def test_junit_of_a_gate_without_rules_is_no_pass(rich: Verdict) -> None:
    root = ElementTree.fromstring(junit_xml(msgspec.structs.replace(rich, rules=[])))
    assert (root.get("tests"), root.get("errors")) == ("1", "1")


def test_files_of_a_verdict_and_the_job_summary(rich: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store(rich_gate(2), tmp_path / "run")
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    said = write_verdict_files(run, rich)
    assert decode((run / "verdict.json").read_bytes()).exit_code == 1
    comment = (run / "verdict.md").read_text()
    assert summary.read_text() == f"before\n{comment}\n"
    assert ElementTree.parse(run / "junit.xml").getroot().get("failures") == "3"
    assert any("job summary" in sentence for sentence in said)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "no" / "such.md"))
    assert "could not be added" in write_verdict_files(run, rich)[-1]
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert len(write_verdict_files(run, rich)) == 1
