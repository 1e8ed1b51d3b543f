"""Peaks of long prefills come out of the allocator: the figures measured on real engines, block for block."""

from __future__ import annotations

import pytest

from evenhand.engines.reference import scheduler
from evenhand.engines.reference.groups import AlignedStateGroup
from evenhand.engines.reference.sequences import Rules, State

from .helpers import Bench, hybrid, prompt, request

SEED = [(14_000, 53, 35), (21_000, 74, 44), (30_000, 103, 55), (45_000, 148, 73), (58_000, 184, 88)]
H200 = [(14_000, 79, 61), (21_000, 114, 87), (30_000, 162, 120), (45_000, 241, 175)]
CPU = [(3_000, 18), (6_000, 30), (12_000, 53), (15_000, 65)]
CAPTURED = {
    # distinct values of usage x 899 in the order they were polled on an H200, vLLM 0.26.0 with the null-gap fix
    14_000: [20, 30, 37, 44, 51, 58, 60, 61, 58, 55, 0],
    21_000: [20, 30, 37, 44, 51, 58, 65, 72, 79, 86, 87, 84, 81, 0],
    30_000: [20, 30, 37, 44, 51, 58, 65, 72, 79, 86, 93, 100, 107, 114, 119, 120, 117, 114, 0],
    45_000: [20, *range(30, 171, 7), 174, 175, 172, 169, 0],
}


def run(rules: Rules, tokens: int, output: int, fix: bool, blocks: int = 900) -> Bench:
    bench = Bench(rules, blocks, null_gap_fix=fix)
    bench.add(request(prompt(tokens), output))
    return bench.run()


def seed_rules(**more: object) -> Rules:
    return hybrid(832, 1664, k=3, drafter=True, **more)


@pytest.mark.parametrize(("tokens", "unpatched", "patched"), SEED)
def test_seed_shape(tokens: int, unpatched: int, patched: int) -> None:
    assert run(seed_rules(), tokens, 16, fix=False).state.pool.peak == unpatched
    assert run(seed_rules(), tokens, 16, fix=True).state.pool.peak == patched


@pytest.mark.parametrize(("tokens", "unpatched", "patched"), H200)
def test_h200_shape(tokens: int, unpatched: int, patched: int) -> None:
    assert run(hybrid(272, 2048), tokens, 16, fix=False).state.pool.peak == unpatched
    bench = run(hybrid(272, 2048), tokens, 16, fix=True)
    assert bench.state.pool.peak == patched
    assert bench.gauge == CAPTURED[tokens]


@pytest.mark.parametrize("fix", [False, True])
@pytest.mark.parametrize(("tokens", "peak"), CPU)
def test_nothing_in_flight_is_a_null_result(tokens: int, peak: int, fix: bool) -> None:
    bench = run(hybrid(256, 1024, in_flight=0), tokens, 8, fix)
    assert bench.state.pool.peak == peak
    assert bench.gauge[-2:] == [peak - 3, 0]  # the decode plateau, then idle


def test_retained_states_are_16_against_5() -> None:
    """Counted where blocks are retired, before the step takes one more."""
    seen = {}
    for fix in (False, True):
        bench = Bench(seed_rules(), 900, null_gap_fix=fix)
        bench.state.trace = []
        bench.add(request(prompt(21_000), 16))
        bench.run()
        seen[fix] = [kept[0] for _, kept in bench.state.trace][1:]  # the first step had nothing to retire
    assert seen[False][:12] == list(range(4, 16))
    assert max(seen[False]) == 16
    assert max(seen[True]) == 5


def test_pool_is_idle_at_the_end() -> None:
    bench = run(hybrid(272, 2048), 21_000, 40, fix=False)
    assert bench.state.pool.used == 0
    assert bench.state.pool.findable > 0  # what was cached can still be found


def test_leaking_one_block_breaks_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures above would notice a manager that keeps one block: after one request the second peak is one too high."""
    bench = Bench(seed_rules(leak_blocks=1), 900, null_gap_fix=True)
    bench.add(request(prompt(14_000), 16))
    bench.run()
    assert bench.state.pool.used == 1
    bench.add(request(prompt(14_000, key=1), 16))
    assert bench.run().state.pool.peak == 35 + 1


def test_retiring_one_block_too_few_breaks_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AlignedStateGroup._drop
    kept: list[object] = []

    def forgetful(self: AlignedStateGroup, table: object, index: int) -> None:
        if not kept and table.blocks[index] is not self.pool.null:  # type: ignore[attr-defined]
            kept.append(table.blocks[index])  # type: ignore[attr-defined]
            table.blocks[index] = self.pool.null  # type: ignore[attr-defined]
            return
        whole(self, table, index)  # type: ignore[arg-type]

    monkeypatch.setattr(AlignedStateGroup, "_drop", forgetful)
    bench = run(hybrid(272, 2048), 14_000, 16, fix=True)
    assert bench.state.pool.peak == 61 + 1
    assert bench.gauge[-1] == 1


def test_never_retiring_costs_what_the_steps_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manager that keeps every state until the request ends, with nothing in flight: 13 prefill steps, 13 states a group."""
    monkeypatch.setattr(AlignedStateGroup, "retire", lambda self, table, processed: None)
    bench = run(hybrid(256, 1024, in_flight=0), 12_000, 8, fix=False)
    assert bench.state.pool.peak == 47 + 3 * 13


def test_states_are_copies_of_no_formula() -> None:
    """Two prompts at once share the budget, so their chunks are others than alone; the pool still comes back to nothing."""
    bench = Bench(hybrid(272, 2048), 900, null_gap_fix=False)
    first = bench.add(request(prompt(9_000), 16))
    second = bench.add(request(prompt(7_000, key=5), 16))
    bench.run()
    assert (first.finish, second.finish) == ("length", "length")
    assert bench.state.pool.used == 0
    state: State = bench.state
    assert not scheduler.busy(state)
