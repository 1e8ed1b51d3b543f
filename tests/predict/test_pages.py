"""Page sizes, boot lines and pool conversions, figure by figure."""

from __future__ import annotations

import msgspec
import pytest

from evenhand.predict.config import cache_bytes_per_token
from evenhand.predict.pages import (
    PredictError,
    attention_pool_bytes,
    attn_bytes_per_token,
    block_bytes,
    cached_follow_up_tokens,
    padding,
    pages_of_bytes,
    pool_tokens,
    state_groups,
    state_page_bytes,
    unified_block_tokens,
)
from evenhand.predict.shape import ModelShape


def test_page_of_the_seed(seed: ModelShape) -> None:
    assert state_page_bytes(seed, 8) == 3_371_008
    assert state_page_bytes(msgspec.structs.replace(seed, conv_width=1), 0) == 3_145_728
    assert attn_bytes_per_token(seed) == 4096
    assert state_groups(seed) == 3


@pytest.mark.parametrize(
    ("state_bytes", "cache", "depth", "block", "share"),
    [
        (2, "bfloat16", 15, 480, 0.0127),
        (2, "bfloat16", 7, 448, 0.0323),
        (2, "int8_per_token_head", 7, 864, 0.0109),
        (2, "fp8", 3, 832, 0.0048),
        (4, "bfloat16", 8, 832, 0.0109),
    ],
)
def test_boot_lines_of_the_seed(seed: ModelShape, state_bytes: int, cache: str, depth: int, block: int, share: float) -> None:
    """Block size and padding that the engine printed, state dtype said."""
    shape = msgspec.structs.replace(seed, ssm_bytes=state_bytes, attn_bytes_per_token=cache_bytes_per_token(4, 256, cache))
    assert unified_block_tokens(shape, depth) == block
    assert padding(shape, depth, block) == pytest.approx(share, abs=0.00005)


@pytest.mark.parametrize(("depth", "block", "share"), [(0, 272, 0.0149), (3, 288, 0.0286)])
def test_boot_lines_of_the_small_hybrid(small: ModelShape, depth: int, block: int, share: float) -> None:
    assert unified_block_tokens(small, depth) == block
    assert padding(small, depth, block) == pytest.approx(share, abs=0.00005)


def test_alignment_is_the_block_size_asked(seed: ModelShape) -> None:
    assert unified_block_tokens(seed, 8, align=256) == 1024


def test_a_dense_model_keeps_its_block() -> None:
    dense = ModelShape(attention_layers=4, kv_heads=2, head_dim=32)
    assert unified_block_tokens(dense, 3) == 16
    assert state_page_bytes(dense, 3) == 0
    assert padding(dense, 3, 16) == 0.0
    assert block_bytes(dense, 16) == 4 * 16 * 2 * 2 * 32 * 2


def test_two_pools_against_unified_pages(seed: ModelShape) -> None:
    attention = attention_pool_bytes(seed, 7488, 32)
    assert attention == 14.625 * 2**30
    assert pages_of_bytes(seed, attention, 832) == 288
    assert pages_of_bytes(seed, attention_pool_bytes(seed, 3072, 32), 832) == 118
    assert pages_of_bytes(seed, attention + round(38.70 * 2**30), 832) == 1050


@pytest.mark.parametrize(("tokens", "context", "blocks"), [(176_020, 150_000, 230), (161_051, 65_536, 231)])
def test_pool_tokens_are_not_the_pool(seed: ModelShape, tokens: int, context: int, blocks: int) -> None:
    assert pool_tokens(seed, 3, blocks, 832, context) == tokens


@pytest.mark.parametrize(("depth", "block", "tokens"), [(0, 272, 238_795), (3, 288, 242_725)])
def test_pool_tokens_of_the_h200(small: ModelShape, depth: int, block: int, tokens: int) -> None:
    """kv_cache_size_tokens that vLLM 0.26.0 reported for 900 blocks at a context of 65,536."""
    assert pool_tokens(small, depth, 900, block, 65_536) == tokens


def test_pool_tokens_need_a_context(seed: ModelShape) -> None:
    with pytest.raises(PredictError, match="not 0 and 832"):
        pool_tokens(seed, 3, 230, 832, 0)


@pytest.mark.parametrize(("prefix", "block", "cached"), [(14_000, 272, 13_600), (831, 832, 0), (832, 832, 0), (1664, 832, 832)])
def test_cached_tokens_of_a_follow_up(prefix: int, block: int, cached: int) -> None:
    assert cached_follow_up_tokens(prefix, block) == cached
