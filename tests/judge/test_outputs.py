"""The rule on outputs: what a mismatch may not hide."""

import pytest
from judge_runs import gate

from evenhand.judge.gate import judge_gate


@pytest.mark.parametrize(("base", "new", "failing"), [(3, 3, 0), (24, 26, 79)])
def test_a_mismatch_hides_no_failed_request(base, new, failing):
    """No worse than the control, whether by its share or by a test that would have seen a doubling."""

    def requests(number, arm, cell, i, again):
        if arm == "new" and i == failing:
            return {"outcome": "failed"}
        return {"ids": [10, 11, 90 + number, 13]} if i < (base if arm == "base" else new) else {}

    made = gate(rules={"outputs": "no worse than control"}, requests=requests, count=80, repeat=False)
    got = judge_gate(made, "2026-01-01T00:00:00Z")
    assert got.rules[0].reason == "2 of 160 pairs could not be compared because requests failed"
    assert (got.rules[0].status, got.exit_code) == ("void", 2)
