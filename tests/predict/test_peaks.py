"""Peaks of one prompt: the H200, the seed's box, the CPU null result, and the closed forms."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from evenhand.predict.pages import PredictError
from evenhand.predict.peaks import Rule, peak, prefill_ends, retained_series, walk

H200 = Rule(block=272, batch=2048, state_groups=3)
SEED = Rule(block=832, batch=2048, depth=3, state_groups=3, drafter=True)
CPU = Rule(block=256, batch=1024, state_groups=3, in_flight=False)


@pytest.mark.parametrize(
    ("prompt", "steps", "attention", "unpatched", "patched"),
    [
        (14_000, 9, 52, 79, 61),
        (21_000, 12, 78, 114, 87),
        (30_000, 17, 111, 162, 120),
        (45_000, 25, 166, 241, 175),
        (58_000, 32, 214, 310, 223),
    ],
)
def test_h200(prompt: int, steps: int, attention: int, unpatched: int, patched: int) -> None:
    assert len(prefill_ends(prompt, H200)) == steps
    without, fixed = peak(prompt, 16, H200), peak(prompt, 16, replace(H200, fix=True))
    assert (without.blocks, fixed.blocks) == (unpatched, patched)
    assert without.attention_blocks == fixed.attention_blocks == attention
    assert (without.held, fixed.held) == (steps, 3)


@pytest.mark.parametrize(
    ("prompt", "ramp_end", "tail"),
    [
        (14_000, 58, [60, 61, 58, 55]),
        (21_000, 86, [87, 84, 81]),
        (30_000, 114, [119, 120, 117, 114]),
        (45_000, 170, [174, 175, 172, 169]),
    ],
)
def test_h200_usage_over_time(prompt: int, ramp_end: int, tail: list[int]) -> None:
    """Distinct usage of the patched arm as polled on the H200 at 0.02 s, value by value (a first 10 was too short to see)."""
    measured = [20, 30, *range(37, ramp_end + 1, 7), *tail]
    blocks = [point.blocks for point in walk(prompt, 16, replace(H200, fix=True))]
    assert [after for before, after in pairwise(blocks) if after != before] == measured


@pytest.mark.parametrize(
    ("prompt", "unpatched", "patched"),
    [(14_000, 53, 35), (21_000, 74, 44), (30_000, 103, 55), (45_000, 148, 73), (58_000, 184, 88)],
)
def test_the_seeds_box(prompt: int, unpatched: int, patched: int) -> None:
    assert peak(prompt, 16, SEED).blocks == unpatched
    assert peak(prompt, 16, replace(SEED, fix=True)).blocks == patched


def test_retained_states_as_the_seed_counted_them() -> None:
    without = [(at, states) for at, states in retained_series(21_000, 16, SEED) if at <= 19_968]
    assert without == [(step * 1664, 4 + step) for step in range(13)]
    assert [states for _, states in retained_series(21_000, 16, replace(SEED, fix=True))][:13] == [4] + [5] * 12


@pytest.mark.parametrize(("prompt", "blocks"), [(3_000, 18), (6_000, 30), (12_000, 53), (15_000, 65)])
def test_cpu_is_a_true_null_result(prompt: int, blocks: int) -> None:
    for rule in (CPU, replace(CPU, fix=True)):
        got = peak(prompt, 8, rule)
        assert got.blocks == blocks
        assert got.plateau_blocks == blocks - 3
        assert got.held == 2


def test_chunks_of_one_block_leave_no_gap() -> None:
    one = replace(H200, batch=272)
    assert peak(14_000, 16, one) == peak(14_000, 16, replace(one, fix=True))


def test_a_long_output_can_outgrow_the_prefill() -> None:
    got = peak(14_000, 3_000, replace(H200, fix=True))
    assert got.attention_blocks == -(-17_000 // 272) == 63
    assert got.blocks == 63 + 3 * 2


def test_a_cached_prefix_shortens_the_leak() -> None:
    cold, warm = peak(21_000, 16, SEED), peak(21_000, 16, SEED, cached=16 * 832)
    assert warm.attention_blocks == cold.attention_blocks
    assert warm.held == 3 + len(prefill_ends(21_000, SEED, 16 * 832)) + 1
    assert warm.blocks < cold.blocks


def test_dense_and_uncached_keep_no_snapshots() -> None:
    dense = Rule(block=16, batch=512, state_groups=0)
    assert peak(1000, 8, dense).blocks == 63
    assert len(prefill_ends(1000, dense)) == 2
    plain = replace(SEED, align=False)
    assert {point.held for point in walk(21_000, 16, plain)} == {4}
    assert prefill_ends(21_000, plain)[0] == 2048


def test_a_step_below_a_block_is_said() -> None:
    with pytest.raises(PredictError, match="batches 512 tokens and a block has 832"):
        prefill_ends(1000, replace(SEED, batch=512))
    with pytest.raises(PredictError, match="at least 1 token that is not cached"):
        prefill_ends(832, SEED, cached=832)


@settings(max_examples=200, deadline=None)
@given(
    block=st.sampled_from([16, 256, 272, 832]),
    blocks=st.integers(1, 9),
    prompt=st.integers(1, 60_000),
    depth=st.integers(0, 8),
    in_flight=st.booleans(),
    drafter=st.booleans(),
    fix=st.booleans(),
)
def test_closed_forms(block: int, blocks: int, prompt: int, depth: int, in_flight: bool, drafter: bool, fix: bool) -> None:
    """Prefill: k + steps without the fix, k + 3 with it, k + 2 with nothing in flight; fewer where there are fewer steps."""
    prompt = min(prompt, 40 * block * blocks)
    rule = Rule(block=block, batch=block * blocks, depth=depth, state_groups=3, in_flight=in_flight, drafter=drafter, fix=fix)
    ends = prefill_ends(prompt, rule)
    held = max(point.held for point in walk(prompt, 1, rule) if point.prefill)
    steps = sum(1 for end, before in zip(ends, [0, *ends], strict=False) if -(-end // block) > -(-before // block))
    assert ends[-1] == prompt
    assert all(after > before for before, after in zip([0, *ends], ends, strict=False))
    if not in_flight:
        assert held == depth + min(steps, 2)
    elif fix or blocks == 1:
        assert held == depth + min(steps, 3)
    else:
        assert held == depth + steps
