"""Each finding found where it is, and not where it is not."""

from __future__ import annotations

import pytest

from evenhand.predict.findings import (
    ceiling_above_room,
    peak_against_prediction,
    pool_not_idle,
    refusal_figure,
    retention_grows,
    seats_below_asked,
    some,
    state_dtype_doubles,
)
from evenhand.predict.shape import ModelShape


def test_peak_against_prediction() -> None:
    above = peak_against_prediction("patched, 14,000 tokens", 79, 61, exact=False)
    assert above is not None
    assert above.name == "peak-above-prediction"
    assert "79 blocks is 18 above the 61 predicted" in above.text
    assert peak_against_prediction("x", 62, 61, exact=True) is None
    assert peak_against_prediction("x", 55, 61, exact=False) is None
    below = peak_against_prediction("x", 55, 61, exact=True)
    assert below is not None
    assert below.figures["off_blocks"] == -6


def test_retention_that_grows_with_the_prompt() -> None:
    grows = retention_grows("base", [(step * 1664, 4 + step) for step in range(13)], needed=5)
    assert grows is not None
    assert "from 4 to 16 per group by 19,968 tokens, one per 1,664 tokens; 5 are needed" in grows.text
    assert retention_grows("patched", [(step * 1664, min(4 + step, 5)) for step in range(13)], needed=5) is None
    assert retention_grows("high but flat", [(step, 16) for step in range(13)], needed=5) is None
    assert retention_grows("too few", [(0, 4), (1, 9)], needed=5) is None


def test_pool_that_does_not_return_to_idle() -> None:
    assert pool_not_idle("leg 1", 0.0) is None
    assert pool_not_idle("leg 1", 0.4) is None
    found = pool_not_idle("leg 1", 7)
    assert found is not None
    assert found.text == "leg 1: 7 blocks are still in use when idle again."
    assert found.figures == {"settled_blocks": 7}


def test_seats() -> None:
    found = seats_below_asked("SGLang", 32, 18, "capped by the mamba state cache.")
    assert found is not None
    assert found.text == "SGLang: 18 seats of the 32 asked: capped by the mamba state cache."
    assert seats_below_asked("SGLang", 32, 32) is None
    assert ceiling_above_room("vllm.cpp", 10, 10) is None
    room = ceiling_above_room("vllm.cpp", 32, 10)
    assert room is not None
    assert room.figures == {"ceiling_seats": 32, "fit_seats": 10}


def test_state_dtype_that_doubles_the_need(seed: ModelShape, small: ModelShape) -> None:
    found = state_dtype_doubles(seed, 8, 32, "float32")
    assert found is not None
    assert "43.40 GiB for 32 seats at depth 8; a 16-bit state would need 23.15 GiB (factor 1.87)" in found.text
    assert state_dtype_doubles(small, 8, 32, "bfloat16") is None


@pytest.mark.parametrize(
    ("printed", "factor", "words"),
    [
        (0.90, 48, "off by 48, the number of state layers"),
        (2.71, 16, "off by 16, the number of attention layers"),
        (14.47, 3, "off by 3, the number of state groups"),
        (41.3, None, "no layer or group count explains"),
    ],
)
def test_refusal_figure_that_arithmetic_does_not_give(seed: ModelShape, printed: float, factor: int | None, words: str) -> None:
    found = refusal_figure(seed, 8, 32, printed)
    assert found is not None
    assert words in found.text
    assert "43.40 GiB" in found.text
    assert found.figures.get("factor") == factor


def test_refusal_figure_that_is_right(seed: ModelShape) -> None:
    assert refusal_figure(seed, 8, 32, 43.40) is None
    assert some([None, refusal_figure(seed, 8, 32, 43.40)]) == ()
