"""A run held against its prediction, with findings where they differ."""

from __future__ import annotations

from typing import Any

import pytest

from evenhand.judge.view import MemoryRun
from evenhand.predict.config import Model, model_of
from evenhand.predict.from_run import compare_run, leg_budget
from evenhand.predict.pages import PredictError
from evenhand.records import CellRow, LegRow, Manifest, Pool, Refusal, RequestRow, SampleRow
from evenhand.show.prediction import comparison_text

S = 1_000_000_000
CONFIG = {
    "scheduler_config.max_num_batched_tokens": 2048,
    "scheduler_config.async_scheduling": True,
    "cache_config.mamba_cache_mode": "align",
}


@pytest.fixture
def model(next_config: dict[str, Any]) -> Model:
    return model_of(next_config)


def leg(number: int, arm: str, **more: Any) -> LegRow:
    pool = Pool(blocks=900, usable_blocks=899, block_tokens=272)
    given: dict[str, Any] = {"outcome": "ok", "seats_requested": 4, "seats_resolved": 4, "pool": pool, "config": CONFIG, **more}
    return LegRow(leg=number, arm=arm, engine="vllm", **given)


def run_of(*parts: tuple[LegRow, int, int], arms: list[dict[str, Any]] | None = None) -> MemoryRun:
    """One 14,000-token prompt per leg: (leg, peak in blocks, blocks left when idle)."""
    manifest = Manifest(
        evenhand="0", run="r", kind="run", status="finished", started_utc="", anchor_monotonic_ns=0,
        scenario={"arm": arms or [], "watch": {"interval_s": 0.25}}, scenario_sha256="", plan={}, machine={}, versions={},
        command=[], seed=0, simulated=False,
    )  # fmt: skip
    cells, requests, samples = [], [], []
    for row, peak, left in parts:
        cells.append(
            CellRow(
                leg=row.leg,
                arm=row.arm,
                cell="pressure/14000",
                kind="pressure",
                concurrency=1,
                prompt_tokens=14_000,
                output_tokens=16,
                outcome="ok",
                planned=1,
                start_ns=0,
                end_ns=2 * S,
                settle_ns=3 * S,
            )
        )
        requests.append(
            RequestRow(
                leg=row.leg,
                arm=row.arm,
                cell="pressure/14000",
                index=0,
                key="pressure/14000#0",
                prompt_sha256="x",
                prompt_tokens_asked=14_000,
                outcome="ok",
                stamp="kernel",
                send_ns=0,
                first_token_ns=S,
                last_token_ns=2 * S,
                end_ns=2 * S,
                ttft_s=1.0,
                output_tokens=16,
                cached_tokens=0,
                token_source="ids",
                finish_reason="length",
            )
        )
        for at, blocks in ((S // 2, 20), (S, peak), (3 * S // 2, peak), (4 * S, left)):
            samples.append(
                SampleRow(
                    leg=row.leg,
                    due_ns=at,
                    start_ns=at,
                    first_byte_ns=at,
                    end_ns=at,
                    status="ok",
                    values={"usage": blocks / 899},
                )
            )
    return MemoryRun(manifest=manifest, legs=[row for row, _, _ in parts], cells=cells, requests=requests, samples=samples)


def test_a_run_as_predicted_has_no_finding(model: Model) -> None:
    got = compare_run(run_of((leg(0, "base"), 79, 0), (leg(1, "patched"), 61, 0)), model, fixed_arms=["patched"])
    assert [(row.arm, row.sampled_blocks, row.predicted_blocks) for row in got.rows] == [("base", 79, 79), ("patched", 61, 61)]
    assert got.findings == ()
    text = comparison_text(got, False, 100)
    assert [line.split() for line in text.splitlines() if "14,000" in line] == [
        ["base", "14,000", "79", "79", "0", "1", "without"],
        ["patched", "14,000", "61", "61", "0", "1", "with"],
    ]


def test_an_arm_that_should_be_fixed_and_is_not(model: Model) -> None:
    arms = [{"name": "patched", "options": {"null_gap_fix": True}}]
    got = compare_run(run_of((leg(0, "patched"), 79, 7), arms=arms), model)
    assert [finding.name for finding in got.findings] == ["peak-above-prediction", "pool-does-not-return-to-idle"]
    assert "79 blocks is 18 above the 61 predicted" in got.findings[0].text


def test_what_an_engine_did_not_say_is_a_reason(model: Model) -> None:
    silent, blockless = leg(0, "a", config={}), leg(1, "b", pool=Pool(blocks=900))
    got = compare_run(run_of((silent, 79, 0), (blockless, 79, 0)), model)
    assert [row.reason for row in got.rows] == [
        "the engine did not say how many tokens a step may batch",
        "the engine did not say its block size",
    ]
    assert got.findings == ()
    assert comparison_text(got, False, 100).splitlines() == [
        "a: not predicted, the engine did not say how many tokens a step may batch",
        "b: not predicted, the engine did not say its block size",
    ]


def test_separate_state_slots_take_no_pool_blocks(model: Model) -> None:
    split = leg(0, "a", pool=Pool(blocks=900, usable_blocks=899, block_tokens=272, state_slots=60))
    assert compare_run(run_of((split, 52, 0)), model).rows[0].predicted_blocks == 52


def test_refusals_and_seats_of_legs(model: Model) -> None:
    refusal = Refusal(text="0.90 GiB is needed", needed_bytes=round(0.90 * 2**30), slots_per_seat=9, seats=32)
    refused = leg(0, "a", outcome="refused", refusal=refusal)
    clamped = leg(1, "b", seats_requested=32, seats_resolved=18)
    names = [finding.name for finding in compare_run(run_of((refused, 0, 0), (clamped, 79, 0)), model).findings]
    assert "refusal-figure-not-derivable" in names
    assert "seats-below-asked" in names


def test_budget_is_read_back_not_asked() -> None:
    config = {**CONFIG, "scheduler_config.async_scheduling": "False", "speculative_config.method": "mtp"}
    budget = leg_budget(leg(0, "a", config=config, drafted_depth=3), {"chunk_tokens": 512}, fixed=True)
    assert (budget.batch_tokens, budget.depth, budget.in_flight, budget.drafter, budget.null_gap_fix) == (
        2048,
        3,
        False,
        True,
        True,
    )
    assert not leg_budget(
        leg(0, "a", config={**CONFIG, "cache_config.mamba_cache_mode": "none"}), {}, fixed=False
    ).prefix_caching
    with pytest.raises(PredictError, match="a step is in flight"):
        leg_budget(leg(0, "a", config={"max_num_batched_tokens": 2048}), {}, fixed=False)
