"""The probe in a real vLLM, through whole runs: exact beside sampled, against prediction, and against runs without it."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest
from real_runs import Ended

from evenhand.judge.pressure import pressure_rows
from evenhand.predict.config import read_model
from evenhand.predict.from_run import compare_run
from evenhand.records import RequestRow
from evenhand.show.prediction import comparison_text

pytestmark = pytest.mark.vllm


def test_exact_peaks_are_above_samples_and_equal_in_every_boot(same_gate: Ended) -> None:
    peaks: dict[str, set[int | None]] = {}
    for row in pressure_rows(same_gate.run):
        print(row.arm, row.leg, row.cell, "exact", row.exact_blocks, "at step", row.exact_step, "sampled", row.peak_blocks)
        assert row.exact_blocks is not None
        assert row.peak_blocks is not None
        assert row.exact_blocks >= row.peak_blocks
        assert row.missed_blocks == row.exact_blocks - row.peak_blocks
        peaks.setdefault(row.cell, set()).add(row.exact_blocks)
    assert len(peaks) == 4
    assert all(len(found) == 1 for found in peaks.values())


def test_exact_peaks_are_within_a_block_of_prediction(same_gate: Ended) -> None:
    model = read_model(same_gate.run.manifest.scenario["model"])
    compared = compare_run(same_gate.run, model, fixed_arms={"baseline", "candidate"})
    print(comparison_text(compared, False, 140))
    assert compared.rows
    for row in compared.rows:
        assert row.predicted_blocks is not None, row.reason
        assert row.exact_blocks is not None
        assert abs(row.exact_blocks - row.predicted_blocks) <= 1
    assert compared.findings == ()


def answers(ended: Ended, leg: int) -> dict[str, RequestRow]:
    """First passes of a leg by key, of the cells that both runs have."""
    return {row.key: row for row in ended.run.requests(leg) if row.repeat == 0 and not row.cell.startswith("warmup")}


def test_the_probe_changes_no_output(tiny_run: Ended, same_gate: Ended) -> None:
    """The shipped run has no probe; its prompts are the gate's. Times are printed, not judged: the machine may be shared."""
    without = answers(tiny_run, 0)
    for leg in same_gate.run.legs:
        having = answers(same_gate, leg.leg)
        common = sorted(without.keys() & having.keys())
        assert len(common) == 44
        for key in common:
            ours, theirs = without[key].token_ids, having[key].token_ids
            assert ours
            assert theirs
            shared = min(len(ours), len(theirs))  # pressure answers are as long as each run's warm-up found right
            assert shared >= 8
            assert ours[:shared] == theirs[:shared]
    for name, ended, legs in (("off", tiny_run, [0]), ("on", same_gate, [leg.leg for leg in same_gate.run.legs])):
        for cell in ("ladder/c=1", "ladder/c=4", "pressure/3000", "pressure/15000"):
            rows = [row for leg in legs for row in answers(ended, leg).values() if row.cell == cell]
            ttft = median(row.ttft_s for row in rows if row.ttft_s is not None)
            tpot = median(row.tpot_s for row in rows if row.tpot_s is not None)
            print(f"probe {name}, {cell}: TTFT p50 {ttft * 1e3:.1f} ms, TPOT p50 {tpot * 1e3:.2f} ms, {len(rows)} requests")


def logs(ended: Ended) -> list[list[dict[str, Any]]]:
    """What the probe wrote, boot by boot."""
    return [ended.run.probe(leg.leg) for leg in ended.run.legs]


def test_every_block_has_a_kind_and_the_pool_returns_to_idle(same_gate: Ended) -> None:
    for log in logs(same_gate):
        said = [row for row in log if row.get("probe") != "cost"]
        steps = [row for row in log if "step" in row]
        assert [(row["probe"], row["missing"]) for row in said if "probe" in row] == [("on", [])]
        assert [(group["kind"], group["block_tokens"]) for group in said[0]["groups"]].count(("state", 256)) == 3
        assert all(row["used"] == row["attention"] + row["state"] for row in steps)
        assert steps[-1]["used"] == 0
        assert max(max(row["state"]) for row in log if "request" in row) == 2


def test_it_costs_at_most_a_hundredth_of_the_steps(same_gate: Ended) -> None:
    """By its own count, over every boot."""
    costs = [[row for row in log if row.get("probe") == "cost"][-1] for log in logs(same_gate)]
    shares = [cost["own_ns"] / cost["step_ns"] for cost in costs]
    print("share of step time:", shares)
    assert len(shares) == 4
    assert all(share <= 0.01 for share in shares)
