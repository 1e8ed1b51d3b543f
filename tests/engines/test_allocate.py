"""The engines' allocation rules on the 27B shape and on the boots that were recorded."""

from __future__ import annotations

import pytest

from evenhand.engines import allocate
from evenhand.engines.base import EngineError
from evenhand.predict.shape import Budget, ModelShape

GIB = 2**30
SEED = ModelShape(
    attention_layers=16,
    state_layers=48,
    kv_heads=4,
    head_dim=256,
    state_key_heads=16,
    state_value_heads=48,
    state_key_dim=128,
    state_value_dim=128,
    conv_width=4,
)
H200 = ModelShape(
    attention_layers=8,
    state_layers=24,
    kv_heads=4,
    head_dim=256,
    state_key_heads=16,
    state_value_heads=32,
    state_key_dim=128,
    state_value_dim=128,
    conv_width=4,
)
DENSE = ModelShape(attention_layers=16, kv_heads=4, head_dim=256)


def test_two_pools_refuse_the_seeds_box() -> None:
    """7488 blocks of 32, 32 seats at depth 8, 38.70 GiB left: 43.40 GiB are needed."""
    found = allocate.vllmcpp(SEED, Budget(seats=32, depth=8, pool_blocks=7488, state_bytes=round(38.70 * GIB), block_tokens=32))
    assert found.outcome == "refused"
    assert found.state_bytes_needed == 46_600_814_592
    assert (found.seat_ceiling, found.seats_that_fit, found.state_slots_per_seat) == (32, 10, 9)
    assert "43.40 GiB" in found.reason
    assert "38.70 GiB" in found.reason
    assert found.unified is False


def test_a_smaller_pool_has_a_lower_ceiling() -> None:
    """3072 blocks of 32 are 118 pages, ceiling 13."""
    found = allocate.vllmcpp(SEED, Budget(seats=32, depth=8, pool_blocks=3072, state_bytes=round(38.70 * GIB), block_tokens=32))
    assert (found.seat_ceiling, found.outcome) == (13, "clamped")
    tiny = allocate.vllmcpp(SEED, Budget(seats=32, depth=8, pool_blocks=200, block_tokens=32))
    assert tiny.outcome == "refused"


@pytest.mark.parametrize("seats", [1, 2, 4, 8, 16])
def test_lower_rungs_are_served(seats: int) -> None:
    found = allocate.vllmcpp(
        SEED, Budget(seats=seats, depth=8, pool_blocks=7488, state_bytes=round(38.70 * GIB), block_tokens=32)
    )
    assert found.outcome == "ok"


def test_bytes_give_the_same_blocks() -> None:
    found = allocate.vllmcpp(SEED, Budget(seats=1, pool_bytes=round(14.625 * GIB), block_tokens=32))
    assert found.pool_blocks == 7488


def test_a_block_must_be_a_multiple_of_16() -> None:
    with pytest.raises(EngineError, match="multiple of 16"):
        allocate.vllmcpp(SEED, Budget(seats=1, pool_blocks=10, block_tokens=24))


def test_dense_models_have_no_state() -> None:
    found = allocate.vllmcpp(DENSE, Budget(seats=32, pool_blocks=100))
    assert (found.outcome, found.state_bytes_needed, found.state_slots_per_seat, found.block_tokens) == ("ok", 0, 0, 32)
    assert allocate.vllm(DENSE, Budget(seats=4, pool_blocks=100, context_tokens=1000)).outcome == "ok"


def test_the_same_bytes_in_one_pool_serve_all() -> None:
    """14.625 + 38.70 GiB are 1050 pages of 832 tokens."""
    whole = round(14.625 * GIB) + round(38.70 * GIB)
    found = allocate.vllm(SEED, Budget(seats=32, depth=8, pool_bytes=whole, context_tokens=8192))
    assert (found.block_tokens, found.pool_blocks, found.seats_that_fit, found.outcome) == (832, 1050, 32, "ok")
    assert found.padding == pytest.approx(0.0109, abs=5e-5)
    assert found.unified is True


def test_a_small_unified_pool_boots_and_queues() -> None:
    """288 pages hold 10 sequences of 27 state pages where no previous state is kept."""
    found = allocate.vllm(SEED, Budget(seats=32, depth=8, pool_blocks=288, context_tokens=8192, prefix_caching=False))
    assert (found.outcome, found.seat_ceiling, found.seats_that_fit) == ("ok", 32, 10)


def test_a_pool_below_one_request_is_refused() -> None:
    found = allocate.vllm(SEED, Budget(seats=32, depth=8, pool_blocks=30, context_tokens=8192))
    assert found.outcome == "refused"
    assert "8192 tokens" in found.reason


def test_the_h200_pages() -> None:
    """vLLM 0.26.0, bf16 state: block 272, padding 1.49 %."""
    shape = ModelShape(**{field: getattr(H200, field) for field in H200.__struct_fields__} | {"ssm_bytes": 2})
    found = allocate.vllm(shape, Budget(seats=32, pool_blocks=900, context_tokens=65536))
    assert found.block_tokens == 272
    assert found.padding == pytest.approx(0.0149, abs=5e-5)


def test_sglangs_split_on_the_h200() -> None:
    """0.5.15 on the H200: 640 slots, 1,117,925 tokens, 30.75 GiB of state, 32 seats; 0.5.23 takes one padding slot off."""
    per_request = (32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2) * 24
    rest = 1_117_925 * 8 * 4096 + 640 * per_request
    found = allocate.sglang(H200, Budget(seats=32, pool_bytes=rest))
    assert found.outcome == "ok"
    assert found.pool_blocks == pytest.approx(1_117_925, rel=2e-3)
    assert found.state_bytes_needed == pytest.approx(30.75 * GIB, rel=2e-3)
    assert found.seat_ceiling == 639 // 5


def test_sglang_clamps_the_seeds_box_unless_the_radix_cache_is_off() -> None:
    whole = round(14.625 * GIB) + round(38.70 * GIB)
    cached = allocate.sglang(SEED, Budget(seats=32, depth=8, pool_bytes=whole))
    assert cached.outcome == "clamped"
    assert cached.seats_that_fit == cached.seat_ceiling
    assert 1 <= (cached.seat_ceiling or 0) < 32
    bare = allocate.sglang(SEED, Budget(seats=32, depth=8, pool_bytes=whole, prefix_caching=False))
    assert (bare.outcome, bare.seats_that_fit) == ("ok", 32)
    assert (bare.pool_blocks or 0) > 0


def test_sglang_refuses_what_holds_no_state() -> None:
    found = allocate.sglang(SEED, Budget(seats=32, pool_bytes=GIB // 4))
    assert (found.outcome, found.seats_that_fit) == ("refused", 0)
    with pytest.raises(EngineError, match="divides bytes"):
        allocate.sglang(SEED, Budget(seats=1))
    dense = allocate.sglang(DENSE, Budget(seats=4, pool_blocks=100, block_tokens=16))
    assert (dense.pool_blocks, dense.outcome) == (100, "ok")


def test_llamacpp_sets_cells_aside() -> None:
    found = allocate.llamacpp(DENSE, Budget(seats=4, context_tokens=1000))
    assert (found.pool_blocks, found.block_tokens, found.outcome) == (4000, 1, "ok")
    assert allocate.llamacpp(DENSE, Budget(seats=4, context_tokens=1000, pool_bytes=1000)).outcome == "refused"
