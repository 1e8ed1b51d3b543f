"""The whole prediction, with allocation rules made for the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evenhand.engines.base import EngineError
from evenhand.predict.config import model_of
from evenhand.predict.forecast import forecast_prompt, predict
from evenhand.predict.pages import attention_pool_bytes, padding, pages_of_bytes, unified_block_tokens
from evenhand.predict.seats import seat_ceiling, seats_that_fit, state_bytes_needed
from evenhand.predict.shape import Allocation, Budget, ModelShape
from evenhand.show.prediction import prediction_text


class TwoPools:
    """Attention in its own pool; state must fit beside it."""

    name = "two-pools"

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        need = state_bytes_needed(shape, budget.depth, budget.seats)
        block = unified_block_tokens(shape, budget.depth)
        pages = pages_of_bytes(shape, attention_pool_bytes(shape, budget.pool_blocks or 0, 32), block)
        refused = budget.state_bytes is not None and need > budget.state_bytes
        return Allocation(
            block_tokens=32,
            page_bytes=0,
            padding=0.0,
            pool_blocks=budget.pool_blocks,
            state_slots_per_seat=budget.depth + 1,
            state_bytes_needed=need,
            state_bytes_available=budget.state_bytes,
            seat_ceiling=seat_ceiling(pages, budget.depth),
            seats_that_fit=seats_that_fit(shape, budget.depth, pages, block),
            outcome="refused" if refused else "ok",
            reason="43.40 GiB is needed" if refused else "",
        )


class Unified:
    """One pool."""

    name = "unified"

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        block = unified_block_tokens(shape, budget.depth)
        return Allocation(block_tokens=block, page_bytes=1, padding=padding(shape, budget.depth, block), pool_blocks=900)


class Fails:
    name = "fails"

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        raise EngineError("this engine has no rule for that model.")


@pytest.fixture
def seed_config(tmp_path: Path, next_config: dict[str, Any]) -> Path:
    """config.json of the 27B hybrid."""
    big = {"num_hidden_layers": 64, "num_attention_heads": 24, "linear_num_value_heads": 48, "mamba_ssm_dtype": "float32"}
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 16
    (tmp_path / "config.json").write_text(json.dumps({**next_config, **big, "layer_types": kinds}))
    return tmp_path


def test_the_seeds_refusal_and_room(seed_config: Path) -> None:
    budget = Budget(seats=32, depth=8, pool_blocks=7488, state_bytes=round(38.70 * 2**30))
    prediction = predict(seed_config, [TwoPools()], budget)
    text = prediction_text(prediction, 160)
    assert "3,371,008 B" in text
    assert "46,600,814,592 B = 43.40 GiB" in text
    assert "832 tokens, padding 1.09%" in text
    row = next(line for line in text.splitlines() if line.startswith("two-pools"))
    assert row.split()[1:] == ["refused", "32", "7,488", "9", "43.40", "38.70", "32", "32", "10"]
    assert "state-dtype-doubles-need" in text


def test_ceiling_without_room_is_a_finding(seed_config: Path) -> None:
    prediction = predict(seed_config, [TwoPools()], Budget(seats=32, depth=8, pool_blocks=3072))
    found = {finding.name: finding for finding in prediction.findings}
    assert found["ceiling-above-room"].figures == {"ceiling_seats": 13, "fit_seats": 4}


def test_peaks_with_and_without_the_fix(tmp_path: Path, next_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(next_config))
    prediction = predict(tmp_path, [Unified()], Budget(seats=1), [14_000, 21_000, 30_000, 45_000])
    prompts = prediction.engines[0].prompts
    assert [prompt.unpatched.blocks for prompt in prompts] == [79, 114, 162, 241]
    assert [prompt.patched.blocks for prompt in prompts] == [61, 87, 120, 175]
    assert [prompt.follow_up_cached_tokens for prompt in prompts] == [50 * 272, 76 * 272, 109 * 272, 164 * 272]
    assert all(prompt.fits for prompt in prompts)
    text = prediction_text(prediction, 160)
    for change in ("  -22.8  ", "  -23.7  ", "  -25.9  ", "  -27.4  "):
        assert change in text
    assert prediction.findings == ()
    assert text.endswith("\nfindings: none")


def test_the_counter_in_the_seeds_form(tmp_path: Path, next_config: dict[str, Any], seed: ModelShape) -> None:
    (tmp_path / "config.json").write_text(json.dumps(next_config))
    budget = Budget(seats=1, depth=3, drafter=True)
    prompt = forecast_prompt(seed, budget, 832, 21_000, 16)
    assert max(states for _, states in prompt.retained_unpatched) == 16
    assert "4, 5, 6, ..., " in prediction_text(predict(tmp_path, [Unified()], budget, [21_000]), 160)
    assert "against 4, 5 patched" in prediction_text(predict(tmp_path, [Unified()], budget, [21_000]), 160)


def test_separate_pools_have_no_state_blocks(tmp_path: Path, next_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(next_config))
    budget = Budget(seats=1, pool_blocks=1000, state_bytes=2**34)
    prompt = predict(tmp_path, [TwoPools()], budget, [14_000]).engines[0].prompts[0]
    assert prompt.unpatched.blocks == prompt.patched.blocks == -(-14_016 // 32)
    assert prompt.retained_unpatched == ()


def test_a_pool_too_small_for_the_peak(tmp_path: Path, next_config: dict[str, Any]) -> None:
    small = model_of(next_config).shape
    assert forecast_prompt(small, Budget(seats=1), 272, 14_000, 16, pool_blocks=80).fits
    assert not forecast_prompt(small, Budget(seats=1), 272, 14_000, 16, pool_blocks=79).fits
    assert forecast_prompt(small, Budget(seats=1, null_gap_fix=True), 272, 14_000, 16, pool_blocks=62).fits


def test_an_engine_that_cannot_predict_is_a_row(tmp_path: Path, next_config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(next_config))
    text = prediction_text(predict(tmp_path, [Fails(), Unified()], Budget(seats=4, batch_tokens=128), [1000]), 160)
    assert "fails: this engine has no rule for that model." in text
    assert "unified: one step batches 128 tokens and a block has 272" in text
    assert text.count("not predicted") == 2
