"""What must be equal before two arms are compared."""

import msgspec
import pytest
from judge_runs import POOL, gate, sample

from evenhand.judge.gate import judge_gate


def judge(made):
    return judge_gate(made, "2026-01-01T00:00:00Z")


def test_pools_of_equally_many_blocks_of_another_size_are_unequal():
    """Half as many blocks of twice the size hold the same tokens: no pass by -50 %."""
    large = msgspec.structs.replace(POOL, block_tokens=2 * POOL.block_tokens)
    made = gate(
        rules={"peak_pool": "not worse"},
        cell_names=("pressure/14000",),
        count=1,
        legs=lambda number, arm: {"pool": large} if arm == "new" else {},
    )
    made._samples = [
        sample(leg.leg * 1000 + 0.5, leg.leg, usage=(60 if leg.arm == "base" else 30) / 899, running=1) for leg in made.legs
    ]
    got = judge(made)
    assert (got.rules[0].status, got.exit_code) == ("void", 2)
    assert got.rules[0].reason == "pools differ: base 900 blocks of 272 tokens, new 900 blocks of 544 tokens"
    (row,) = got.pressure
    assert (row.blocks, row.change) == (None, None)
    assert row.reason == "not comparable: blocks of 272 and 544 tokens"


@pytest.mark.parametrize("counted", [False, True])
def test_one_warm_rung_does_not_hide_among_cold_ones(counted):
    """Its prompts are a thousandth of all, yet its own times say nothing."""

    def requests(number, arm, cell, i, again):
        tokens = 8 if cell == "ladder/c=1" else 8000
        cached = tokens if (cell, arm) == ("ladder/c=1", "new") else 0
        return {"prompt_tokens": tokens, "prompt_tokens_asked": tokens, "cached_tokens": None if counted else cached}

    def cells(number, arm, cell):
        asked, hits = (160, 160 * (arm == "new")) if cell == "ladder/c=1" else (160_000, 0)
        return {"counters": {"prefix_queries": asked, "prefix_hits": hits}}

    rules = {"outputs": "identical", "ttft_p50": {"not_worse_by": 0.05}}
    names = ("ladder/c=1", "ladder/c=8")
    got = judge(gate(6, rules, requests, cells=cells if counted else None, cell_names=names))
    outputs, ttft = got.rules
    assert (outputs.status, ttft.status) == ("pass", "void")
    assert ttft.reason == "unequal prefix-cache state: ladder/c=1 0.0 % and 100.0 % of prompt tokens cached"


@pytest.mark.parametrize(
    ("read", "words"),
    [
        ({}, None),
        ({"config": {}}, "not read back from either arm's engine, so not proved equal: configuration"),
        (
            {"config": {}, "seats_resolved": None},
            "not read back from either arm's engine, so not proved equal: configuration, seats",
        ),
    ],
)
def test_what_neither_engine_told_is_a_note_and_no_void(read, words):
    """An attached server may tell nothing: that is no reason to compare nothing, and no equality either."""
    got = judge(gate(legs=lambda number, arm: read))
    assert (got.status, got.reasons) == ("pass", [])
    assert [note for note in got.notes if "read back" in note] == ([words] if words else [])


def test_an_unread_log_of_the_baseline_is_not_free_of_errors():
    got = judge(gate(rules={"engine_errors": 0}, legs=lambda number, arm: {"log_errors": None if number == 3 else 0}))
    assert (got.rules[0].status, got.rules[0].reason) == ("pass", "0 ERROR lines on the candidate, unread on the baseline")
