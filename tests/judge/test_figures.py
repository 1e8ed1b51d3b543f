"""Figures of timing rules, taken from the cells of each leg."""

import pytest
from judge_runs import gate

from evenhand.judge.gate import judge_gate


@pytest.mark.parametrize(
    ("rule", "status", "reason"),
    [("ttft_p50", "pass", "the 90 % interval ends below 5 %"), ("ttft_p95", "void", "p95 needs 20 values, has 1")],
)
def test_one_long_prompt_has_a_median_and_no_high_percentile(rule, status, reason):
    def requests(number, arm, cell, i, again):
        return {"ttft_s": 0.4 * (1 + 0.001 * (number % 5))}

    made = gate(6, {rule: {"not_worse_by": 0.05}}, requests, cell_names=("pressure/14000",), count=1)
    (got,) = judge_gate(made, "2026-01-01T00:00:00Z").rules
    assert (got.status, reason in got.reason) == (status, True)
