"""Bytes of a cache page, the block size that unifies attention and state pages, and what blocks mean in other units.

One unified pool (vLLM's arrangement for hybrid models): attention layers and recurrent-state (GDN/Mamba) layers are cut into
groups of equally many layers, every group's page has the same size, and a block of the pool is one page per layer of a group.
All functions are pure; bytes are bytes, GiB is 2**30 bytes.
"""

from __future__ import annotations

from evenhand.predict.shape import ModelShape

GIB = 2**30
"""Bytes in a GiB."""


class PredictError(ValueError):
    """One sentence for the user: what is missing or impossible, and where."""


def _ceil(value: int, by: int) -> int:
    return -(-value // by)


def state_page_bytes(shape: ModelShape, depth: int) -> int:
    """Bytes of one state slot of one state layer, at `depth` drafted tokens; 0 for a model without state layers.

    ssm row = value_heads * value_dim * key_dim * ssm_bytes; conv row = (2 * key_heads * key_dim + value_heads * value_dim) *
    (conv_width - 1 + depth) * conv_bytes. Source: vLLM's gated-delta-net state shape; a verify step of k drafted tokens keeps k
    more columns of the convolution.
    """
    if not shape.state_layers:
        return 0
    values = shape.state_value_heads * shape.state_value_dim
    ssm_row = values * shape.state_key_dim * shape.ssm_bytes
    channels = 2 * shape.state_key_heads * shape.state_key_dim + values
    return ssm_row + channels * (shape.conv_width - 1 + depth) * shape.conv_bytes


def attn_bytes_per_token(shape: ModelShape) -> int:
    """Bytes of one token in one attention layer, K and V together: 2 * kv_heads * head_dim * element bytes (default bf16)."""
    if shape.attn_bytes_per_token is not None:
        return shape.attn_bytes_per_token
    return 2 * shape.kv_heads * shape.head_dim * 2


def unified_block_tokens(shape: ModelShape, depth: int, align: int = 16) -> int:
    """Tokens of one block when attention pages are stretched to a state page: align * ceil(state_page / (align * per_token)).

    `align` is max(16, --block-size), tokens. A model without state layers keeps `align`. Source: vLLM's page unification for
    hybrid models.
    """
    return align * max(1, _ceil(state_page_bytes(shape, depth), align * attn_bytes_per_token(shape)))


def padding(shape: ModelShape, depth: int, block: int) -> float:
    """Share of the state page that is added to fill a block of `block` tokens, 0..1 (0.0109 is 1.09 %); 0 without state layers.

    (block * attn_per_token - state_page) / state_page. Source: vLLM's boot line "Padding mamba page size by".
    """
    page = state_page_bytes(shape, depth)
    return (block * attn_bytes_per_token(shape) - page) / page if page else 0.0


def group_layers(shape: ModelShape) -> int:
    """Layers that one block covers: the smaller of the attention and state layer counts, or all layers when one kind is absent.

    Source: vLLM's grouping of layers with a uniform page size.
    """
    if not shape.state_layers or not shape.attention_layers:
        return shape.attention_layers or shape.state_layers
    return min(shape.attention_layers, shape.state_layers)


def attention_groups(shape: ModelShape) -> int:
    """Groups of attention layers; each of them takes its own blocks for a request's tokens."""
    return _ceil(shape.attention_layers, group_layers(shape))


def state_groups(shape: ModelShape) -> int:
    """Groups of state layers: 48 GDN layers over 16 attention layers are 3."""
    return _ceil(shape.state_layers, group_layers(shape))


def block_bytes(shape: ModelShape, block: int) -> int:
    """Bytes of one pool block of `block` tokens, over all layers of a group: group_layers * block * attn_per_token."""
    return group_layers(shape) * block * attn_bytes_per_token(shape)


def attention_pool_bytes(shape: ModelShape, blocks: int, block_tokens: int) -> int:
    """Bytes of a pool that holds attention only: blocks * block_tokens * attn_per_token * attention_layers.

    7488 blocks of 32 tokens over 16 bf16 layers are 14.625 GiB.
    """
    return blocks * block_tokens * attn_bytes_per_token(shape) * shape.attention_layers


def pages_of_bytes(shape: ModelShape, pool_bytes: int, block: int) -> int:
    """Whole blocks of `block` tokens that `pool_bytes` hold."""
    return pool_bytes // block_bytes(shape, block)


def pool_tokens(shape: ModelShape, depth: int, blocks: int, block: int, context: int) -> int:
    """What the engine prints as the pool's size in tokens: blocks / (ceil(L/block) + groups * (2 + depth)) * L; L = context.

    It grows with max_model_len although the blocks stay the same: compare blocks, never these. Source: vLLM's max-concurrency
    figure in align mode times max_model_len.
    """
    return blocks * context // _blocks_at_context(shape, depth, block, context)


def _blocks_at_context(shape: ModelShape, depth: int, block: int, context: int) -> int:
    if context < 1 or block < 1:
        raise PredictError(f"pool tokens need a context and a block of at least 1 token, not {context} and {block}.")
    return attention_groups(shape) * _ceil(context, block) + state_groups(shape) * (2 + depth)


def cached_follow_up_tokens(prefix: int, block: int) -> int:
    """Prompt tokens that a follow-up finds cached of a prefix of `prefix` tokens: max(0, floor(prefix/block) - 1) * block.

    The last full block is recomputed. Source: measured on vLLM in align mode.
    """
    return max(0, prefix // block - 1) * block
