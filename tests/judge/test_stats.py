"""Percentiles, means and matched comparisons."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_runs import cell, failed, request, run

from evenhand.judge.ladder import ladder_rows
from evenhand.judge.stats import change, enough, extent, percentile, percentile_adjusted
from evenhand.quantile import quantile


@settings(max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95]))
def test_percentiles_are_numpys_and_within_the_values(values, q):
    got = percentile(values, q)
    if not enough(len(values), q):
        assert got.value is None
        assert "needs" in got.reason
        return
    assert got.value == pytest.approx(float(np.quantile(values, q)), rel=1e-9, abs=1e-6)
    assert min(values) <= got.value <= max(values)


@pytest.mark.parametrize(("q", "need"), [(0.5, 2), (0.9, 10), (0.95, 20), (0.99, 100)])
def test_a_percentile_needs_one_over_its_tail(q, need):
    assert percentile([1.0] * (need - 1), q).value is None
    assert percentile([1.0] * need, q).value == 1.0


@pytest.mark.parametrize(
    ("values", "q", "expected"), [([], 0.5, None), ([4.0], 0.99, 4.0), ([1.0, 2.0], 0.5, 1.5), ([1.0, 2.0, 3.0], 1.0, 3.0)]
)
def test_quantiles_of_few(values, q, expected):
    assert quantile(values, q) == expected


def test_nulls_and_nan_are_not_values():
    assert percentile([None, math.nan, math.inf], 0.5).reason == "no values"
    assert percentile([None, 1.0, math.nan, 3.0], 0.5).value == 2.0


def test_b15_answers_of_one_token_have_no_tpot():
    """B15: null, never 0, and an arm with only such answers has none at all."""
    rows = [
        request("ladder/c=1#0", ttft_s=0.5, tpot_s=None, tpot_reason="one token", ids=[1]),
        request("ladder/c=1#1", ttft_s=0.4, tpot_s=0.10, ids=[1, 2, 3, 4, 5]),
        request("ladder/c=1#2", ttft_s=0.3, tpot_s=None, tpot_reason="one token", ids=[1]),
    ]
    made = run(cells=[cell(planned=3, output_tokens=None)], requests=rows)
    row = ladder_rows(made)[0]
    assert row.ttft_n == 3
    assert row.ttft_p50_s == 0.4
    assert row.tpot_n == 1
    assert row.tpot_p50_s is None  # one value carries no median
    only = run(cells=[cell(planned=1, output_tokens=None)], requests=rows[:1])
    assert ladder_rows(only)[0].tpot_p50_s is None
    assert ladder_rows(only)[0].tpot_reason == "one token"


def test_b20_a_rate_over_part_of_the_work_is_null():
    """B20: neither 6.67 nor 40.0."""
    rows = [request(f"ladder/c=1#{i}", ids=list(range(50)), end_ns=10 * 10**9) for i in range(8)]
    rows += [failed(f"ladder/c=1#{i}", "timeout", end_ns=60 * 10**9) for i in (8, 9)]
    row = ladder_rows(run(cells=[cell(planned=10, output_tokens=50, end_ns=60 * 10**9)], requests=rows))[0]
    assert (row.ok, row.failed) == (8, 2)
    assert row.tokens_per_s is None
    assert row.tokens_per_s_reason == "2 of 10 requests failed"
    assert row.errors == {"timeout": 2}


def test_b21_failures_are_infinitely_slow():
    """B21: p95 of successes beside the adjusted one, which is null for failures and never NaN."""
    values = [1.0] * 18
    assert percentile(values * 2, 0.95).value == 1.0
    adjusted = percentile_adjusted(values, 2, 0.95)
    assert (adjusted.value, adjusted.reason) == (None, "failures")
    assert percentile_adjusted(values, 2, 0.9).value == 1.0
    assert percentile_adjusted(values, 0, 0.9).value == 1.0


def test_b46_one_nan_does_not_poison_a_peak():
    """B46: the same for every order."""
    values = [math.nan, 0.2, math.inf, 0.6]
    for seed in range(24):
        random.Random(seed).shuffle(values)
        got = extent(values)
        assert (got.peak, got.n, got.nonfinite) == (0.6, 2, 2)


def test_b73_no_comparison_with_nan_or_zero():
    """B73: a change is a number or a reason."""
    assert change(0.40, math.nan).reason == "no data"
    assert change(0.40, None).reason == "no data"
    assert change(0.40, 0.48).value == pytest.approx(0.2)
    assert change(0.0, 0.48).reason == "bad baseline"
