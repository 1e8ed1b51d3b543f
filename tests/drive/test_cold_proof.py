"""Whether a cell ran on a cold cache: proved by its requests, else by a counter, else not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "judge"))

from judge_runs import failed, request

from evenhand.measure import cold_proof

KEY = "ladder/c=1#0"


@pytest.mark.parametrize(
    ("cached", "counters", "cold", "words"),
    [
        ([0, 0], {"cached_prompt_tokens": 9.0}, True, None),
        ([0, 3], {}, False, "3 prompt tokens came from the prefix cache"),
        ([0, None], {"cached_prompt_tokens": 0.0, "prefix_hits": 5.0}, True, "by the engine's counter"),
        ([None], {"cached_prompt_tokens": None, "prefix_hits": 0.0}, True, "by the engine's counter"),
        ([None], {"cached_prompt_tokens": None, "prefix_hits": 32.0}, False, "the engine's counter rose by 32 cached tokens"),
        ([None], {"cached_prompt_tokens": None, "prefix_hits": None}, None, "reports no cached tokens"),
        ([], {"prefix_hits": 0.0}, None, "reports no cached tokens"),
    ],
)
def test_a_cold_cache_is_proved(
    cached: list[int | None], counters: dict[str, float | None], cold: bool | None, words: str | None
) -> None:
    rows = [request(KEY, cached_tokens=count) for count in cached]
    got, reason = cold_proof([*rows, failed(KEY)], counters)
    assert got is cold
    assert reason is None if words is None else words in str(reason)
