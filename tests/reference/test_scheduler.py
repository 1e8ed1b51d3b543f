"""The scheduler without a clock: batching, prefix cache, preemption, speculation, aborts."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenhand.engines.reference import scheduler
from evenhand.engines.reference.pool import BlockPool, PoolExhausted
from evenhand.engines.reference.sequences import Rules

from .helpers import Bench, hybrid, prompt, request


def dense(**more: object) -> Rules:
    told: dict[str, object] = {"seats": 8, "batch_tokens": 512, "block_tokens": 16, "in_flight": 1, "caching": True, **more}
    return Rules(**told)  # type: ignore[arg-type]


def alone(tokens: int, limit: int, key: int = 0, rules: Rules | None = None) -> list[int]:
    bench = Bench(rules or dense(), 4096, state_groups=0)
    seq = bench.add(request(prompt(tokens, key), limit))
    bench.run()
    return seq.output


def test_outputs_depend_on_the_prompt_only() -> None:
    expected = {key: alone(200 + key, 40, key) for key in range(20)}
    assert len({tuple(ids) for ids in expected.values()}) == 20
    for rules in (dense(in_flight=0), dense(depth=3, acceptance=0.6), dense(batch_tokens=64), dense(caching=False)):
        bench = Bench(rules, 4096, state_groups=0)
        seqs = {key: bench.add(request(prompt(200 + key, key), 40, f"r{key}")) for key in range(20)}
        bench.run()
        assert {key: seq.output for key, seq in seqs.items()} == expected


def test_seats_bound_the_batch_and_the_rest_queues() -> None:
    bench = Bench(dense(seats=3), 4096, state_groups=0)
    for key in range(10):
        bench.add(request(prompt(64, key), 8))
    bench.step()
    assert len(bench.state.running) == 3
    assert len(bench.state.waiting) == 7
    bench.run()
    assert bench.state.totals.peak_running == 3
    assert bench.state.totals.finished["length"] == 10


def test_a_step_never_exceeds_its_budget() -> None:
    bench = Bench(dense(batch_tokens=100), 4096, state_groups=0)
    for key in range(6):
        bench.add(request(prompt(130, key), 20))
    while bench.step():
        for step in bench.flights:
            assert sum(item.tokens for item in step.items) <= 100


def test_preemption_recomputes_and_changes_nothing() -> None:
    bench = Bench(dense(seats=8), 60, state_groups=0)
    seqs = [bench.add(request(prompt(100, key), 120, f"r{key}")) for key in range(8)]
    bench.run()
    assert bench.state.totals.preemptions > 0
    assert all(seq.output == alone(100, 120, key) for key, seq in enumerate(seqs))
    assert bench.state.pool.used == 0
    assert bench.state.totals.generated == 8 * 120


def test_dense_prefix_is_found_and_counted() -> None:
    bench = Bench(dense(), 4096, state_groups=0)
    first = bench.add(request(prompt(100), 8))
    bench.run()
    again = bench.add(request(prompt(100), 8, "again"))
    bench.run()
    assert (first.cached_first, again.cached_first) == (0, 96)
    assert again.output == first.output
    assert bench.state.totals.cached == 96
    exact = bench.add(request(prompt(96), 8, "exact"))
    bench.run()
    assert exact.cached_first == 80  # one token at least is computed


def test_what_was_generated_can_be_found_too() -> None:
    bench = Bench(dense(), 4096, state_groups=0)
    first = bench.add(request(prompt(64), 64))
    bench.run()
    longer = prompt(64)
    longer.extend(first.output)
    follow = bench.add(request(longer, 8, "follow"))
    bench.run()
    assert follow.cached_first == 112  # 127 of 128 tokens were computed: the last one has no cache


@pytest.mark.parametrize("prefix", [512, 1024, 2048, 4096, 8192, 16_384, 32_768])
@pytest.mark.parametrize("fix", [False, True])
def test_cached_tokens_of_a_follow_up_in_align_mode(prefix: int, fix: bool) -> None:
    """max(0, floor(prefix/block) - 1) * block for whole blocks, replayed and extended, with the fix and without."""
    for rules in (hybrid(256, 1024, in_flight=0), hybrid(256, 2048)):
        bench = Bench(rules, 2000, null_gap_fix=fix)
        bench.add(request(prompt(prefix), 16))
        bench.run()
        replay = bench.add(request(prompt(prefix), 16, "replay"))
        bench.run()
        extended = bench.add(request(prompt(prefix + 700), 16, "extended"))
        bench.run()
        assert replay.cached_first == extended.cached_first == max(0, prefix // 256 - 1) * 256


@pytest.mark.parametrize(
    ("prefix", "extended", "again"),
    [
        (500, 256, 256),
        (512, 256, 512),
        (600, 512, 512),
        (1000, 768, 768),
        (1024, 768, 1024),
        (2048, 1792, 2048),
        (3000, 2816, 2816),
        (4096, 3840, 4096),
        (5000, 4864, 4864),
    ],
)
def test_cached_tokens_as_measured_on_vllm_cpu(prefix: int, extended: int, again: int) -> None:
    """vLLM 0.32.0, tiny hybrid model, block 256, budget 1024: a prompt, then two that extend it differently."""
    bench = Bench(hybrid(256, 1024, in_flight=0), 2000)
    seen = []
    for key, more in enumerate((0, 700, 700)):
        ids = prompt(prefix)
        ids.extend(prompt(more, key=90 + key))
        seq = bench.add(request(ids, 8, f"r{key}"))
        bench.run()
        seen.append(seq.cached_first)
    assert seen == [0, extended, again]


@pytest.mark.parametrize("prefix", [500, 832, 1700, 14_000, 20_001, 31_000])
def test_a_drafter_costs_one_more_cached_block(prefix: int) -> None:
    bench = Bench(hybrid(832, 1664, k=3, drafter=True), 900)
    bench.add(request(prompt(prefix), 16))
    bench.run()
    replay = bench.add(request(prompt(prefix), 16, "replay"))
    bench.run()
    assert replay.cached_first == max(0, prefix // 832 - 1) * 832


def test_a_shared_prefix_is_kept_from_the_second_time() -> None:
    """Nobody ends a chunk where a shared prefix ends until one finds its pages there without a state (as on vLLM 0.32)."""
    bench = Bench(hybrid(256, 2048, in_flight=0), 900)
    seen = []
    for key in range(3):
        ids = prompt(2048)
        ids.extend(prompt(900, key=50 + key))
        seq = bench.add(request(ids, 4, f"r{key}"))
        bench.run()
        seen.append(seq.cached_first)
    assert seen == [0, 0, 2048]


def test_acceptance_is_as_stated() -> None:
    bench = Bench(dense(depth=4, acceptance=1.0, caching=False), 4096, state_groups=0)
    bench.add(request(prompt(64), 101))
    bench.run()
    totals = bench.state.totals
    assert (totals.drafted, totals.accepted) == (80, 80)
    bench = Bench(dense(depth=4, acceptance=0.5, caching=False), 8192, state_groups=0)
    for key in range(40):
        bench.add(request(prompt(64, key), 200))
    bench.run()
    chain = 0.5 + 0.25 + 0.125 + 0.0625
    totals = bench.state.totals
    assert totals.accepted / totals.drafts == pytest.approx(chain, rel=0.1)


def test_abort_gives_everything_back() -> None:
    bench = Bench(hybrid(272, 2048), 900)
    seqs = [bench.add(request(prompt(5_000, key), 50, f"r{key}")) for key in range(3)]
    for _ in range(6):
        bench.step()
    for seq in seqs:
        scheduler.abort(bench.state, seq)
    bench.run()
    assert bench.state.pool.used == 0
    assert bench.state.totals.finished["abort"] == 3
    assert not scheduler.busy(bench.state)


def test_pool_counts_shares_and_evicts_the_oldest() -> None:
    pool = BlockPool(4)
    a, b, c = pool.take(3)
    assert (pool.free, pool.usage, pool.peak) == (0, 1.0, 3)
    with pytest.raises(PoolExhausted):
        pool.take(1)
    for name, block in ((b"a", a), (b"b", b), (b"c", c)):
        pool.register(block, (name, 0))
    pool.release([b, a, c])
    assert (pool.used, pool.findable) == (0, 3)
    pool.share([a])
    assert pool.take(1) == [b]
    assert pool.find((b"b", 0)) is None
    assert pool.find((b"a", 0)) is a
    assert pool.evictions == 1
    assert pool.forget_all() is False


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 900), st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=12),
    blocks=st.integers(60, 200),
    k=st.integers(0, 3),
    in_flight=st.integers(0, 1),
    fix=st.booleans(),
)
def test_every_mix_ends_with_an_idle_pool(
    lengths: list[tuple[int, int, int]], blocks: int, k: int, in_flight: int, fix: bool
) -> None:
    rules = Rules(
        seats=5,
        batch_tokens=256,
        block_tokens=32,
        depth=k,
        acceptance=0.5,
        drafter=k > 0,
        in_flight=in_flight,
        aligned=True,
        caching=True,
    )
    bench = Bench(rules, blocks, null_gap_fix=fix)
    seqs = [bench.add(request(prompt(n, key), limit, f"r{i}")) for i, (n, limit, key) in enumerate(lengths)]
    bench.run()
    assert [len(seq.output) for seq in seqs] == [limit for _, limit, _ in lengths]
    assert bench.state.pool.used == 0
    assert bench.state.pool.peak <= blocks - 1
