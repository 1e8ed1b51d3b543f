"""Whole gates on the embedded engine: real boots, real allocator, the verdict's exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_cli import Cli, text

pytestmark = pytest.mark.e2e

SEED = {14_000: (53, 35), 21_000: (74, 44), 30_000: (103, 55), 45_000: (148, 73), 58_000: (184, 88)}
"""Prompt -> exact peaks in blocks, without and with retirement across null gaps: the box of the report this started from."""


def verdict(folder: Path) -> dict[str, Any]:
    """verdict.json of the only run below `folder`."""
    (file,) = (folder / "results").glob("*/verdict.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def gated(
    a: dict[str, Any], b: dict[str, Any], rules: str, *, compare: str = "differ", concurrency: tuple[int, ...] = (4,)
) -> str:
    """A small gate of two arms of the embedded engine."""
    gate = (
        f'[gate]\nbaseline = "a"\ncandidate = "b"\ncompare = "{compare}"\npairs = 2\nwarm_boot = false\n[gate.rules]\n{rules}\n'
    )
    return text(arms={"a": a, "b": b}, concurrency=concurrency, more=gate)


def test_the_null_gap_fix_halves_the_peak_of_the_reports_box(cli: Cli) -> None:
    """Every peak comes out of the running scheduler and allocator, as does the retention of 4, 5, ... against 4, 5."""
    ended = cli.run("gate", "null-gap")
    assert ended.code == 0, ended
    found = verdict(cli.folder)
    peaks = {row["prompt_tokens"]: (row["baseline_blocks"], row["candidate_blocks"]) for row in found["pressure"]}
    assert peaks == SEED
    assert all(row["exact"] for row in found["pressure"])
    assert found["simulated"]
    (markdown,) = (cli.folder / "results").glob("*/verdict.md")
    assert "reference model, not a measurement" in markdown.read_text()


def test_judging_a_copy_gives_the_same_verdict_but_for_its_time(cli: Cli) -> None:
    ended = cli.run("gate", cli.scenario(gated({}, {}, 'outputs = "identical"\nerrors = 0', compare="same")))
    assert ended.code == 0, ended
    (run,) = (cli.folder / "results").iterdir()
    first = (run / "verdict.json").read_text().splitlines()
    moved = run.rename(cli.folder / "copied")
    assert cli.run("judge", moved).code == 0
    again = (moved / "verdict.json").read_text().splitlines()
    assert [line for line in first if "judged_utc" not in line] == [line for line in again if "judged_utc" not in line]


def test_a_planted_token_fails_with_its_index_and_both_tokens(cli: Cli) -> None:
    ended = cli.run("gate", cli.scenario(gated({}, {"plant_token": 3}, 'outputs = "identical"')))
    assert ended.code == 1, ended
    pair = verdict(cli.folder)["comparisons"][0]["pairs"][0]
    assert pair["index"] == 3
    assert len(set(pair["tokens"])) == 2


def test_tokens_that_depend_on_the_batch_fail_the_control_and_blame_nobody(cli: Cli) -> None:
    faults = {"batch_dependent": 0.5}
    ended = cli.run("gate", cli.scenario(gated(faults, faults, 'outputs = "identical"', compare="same", concurrency=(8,))))
    assert ended.code == 3, ended
    assert verdict(cli.folder)["status"] == "control failed"


def test_nothing_but_failures_is_no_evidence(cli: Cli) -> None:
    faults = {"error_at_request": 0, "after_tokens": 1}
    ended = cli.run("gate", cli.scenario(gated(faults, faults, 'outputs = "identical"', compare="same")))
    assert ended.code == 2, ended
    assert "no evidence" in ended.all


def test_two_boots_leave_a_timing_rule_open_and_the_plan_says_so(cli: Cli) -> None:
    scenario = cli.scenario(gated({}, {}, "ttft_p50 = { not_worse_by = 0.05 }", compare="same"))
    plan = cli.run("gate", scenario, "--dry-run")
    assert plan.code == 0, plan
    assert "inconclusive" in plan.out
    ended = cli.run("gate", scenario)
    assert ended.code == 4, ended
