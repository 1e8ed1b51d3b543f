"""What prediction talks about: a model's cache-relevant shape, a budget, and what an engine's rule makes of them."""

from __future__ import annotations

import msgspec


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a model's config.json that decide cache memory. Layers are counts, dims are elements."""

    attention_layers: int
    state_layers: int = 0
    kv_heads: int
    head_dim: int
    state_key_heads: int = 0
    state_value_heads: int = 0
    state_key_dim: int = 0
    state_value_dim: int = 0
    conv_width: int = 0
    attn_bytes_per_token: int | None = None
    """Per attention layer, K and V together; None: 2 * kv_heads * head_dim * 2 (bf16)."""
    ssm_bytes: int = 4
    """Bytes of one element of the recurrent state (4: float32)."""
    conv_bytes: int = 2


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine is given."""

    seats: int
    depth: int = 0
    context_tokens: int = 0
    batch_tokens: int = 2048
    """max_num_batched_tokens"""
    pool_blocks: int | None = None
    pool_bytes: int | None = None
    state_bytes: int | None = None
    """Bytes free beside the pool for engines with two pools."""
    block_tokens: int | None = None
    in_flight: bool = True
    """A step is in flight while the next is scheduled (async scheduling)."""
    drafter: bool = False
    """An EAGLE or MTP drafter takes one cacheable block less."""
    null_gap_fix: bool = False
    prefix_caching: bool = True
    """False: vLLM drops align mode and keeps one running state per sequence."""
    state_ratio: float = 0.9
    """SGLang --mamba-full-memory-ratio"""


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine's rule gives: the page, the seats and whether it starts."""

    block_tokens: int
    page_bytes: int
    padding: float
    """share of a state page that is padding, 0..1 (0.0109 is 1.09 %)"""
    pool_blocks: int | None = None
    state_slots_per_seat: int = 0
    state_bytes_needed: int = 0
    state_bytes_available: int | None = None
    unified: bool | None = None
    """True: attention and state draw on one pool of `pool_blocks`. None: so where no separate state budget is named."""
    seat_ceiling: int | None = None
    """Seats the engine says it can serve."""
    seats_that_fit: int | None = None
    """Seats that the pool can really hold at once."""
    outcome: str = "ok"
    """ "ok", "clamped", "refused" """
    reason: str = ""
