"""How many sequences a cache can hold: what they need, the ceiling an engine may state, and how many really fit.

Slots are state snapshots of one sequence in every state layer. Pure; bytes are bytes.
"""

from __future__ import annotations

from evenhand.predict.pages import PredictError, attention_groups, state_groups, state_page_bytes
from evenhand.predict.shape import ModelShape


def slots_per_seat(depth: int, *, align: bool = False) -> int:
    """State slots of one sequence: 1 + depth; in vLLM's align mode 2 + depth (the previous block's state is kept beside it)."""
    return (2 if align else 1) + depth


def state_bytes_needed(shape: ModelShape, depth: int, seats: int, slots: int | None = None) -> int:
    """Bytes of state for `seats` sequences: state_page * state_layers * slots * seats; slots defaults to 1 + depth.

    3,371,008 B * 48 layers * 9 slots * 32 sequences = 46,600,814,592 B = 43.40 GiB: the figure of vllm.cpp's refusal.
    """
    return state_page_bytes(shape, depth) * shape.state_layers * (slots_per_seat(depth) if slots is None else slots) * seats


def seat_ceiling(pages: int, depth: int) -> int:
    """Seats as pages // (1 + depth): what vllm.cpp states. It leaves out attention, and that each state group takes pages.

    288 pages at depth 8 give 32, although they hold 10.
    """
    return pages // slots_per_seat(depth)


def blocks_per_seat(shape: ModelShape, slots: int, block: int, tokens: int = 0) -> int:
    """Blocks of one sequence in a unified pool: attention groups * ceil(tokens / block) + state groups * slots."""
    if block < 1:
        raise PredictError(f"a block must hold at least 1 token, not {block}.")
    attention = attention_groups(shape) * -(-tokens // block) if shape.attention_layers else 0
    return attention + state_groups(shape) * slots


def seats_that_fit(shape: ModelShape, depth: int, pages: int, block: int, tokens: int = 0, slots: int | None = None) -> int:
    """Sequences of `tokens` tokens that `pages` blocks hold at once: pages // blocks_per_seat; slots defaults to 1 + depth.

    With tokens = 0 only state counts: 288 pages // (3 groups * 9 slots) = 10.
    """
    return pages // max(1, blocks_per_seat(shape, slots_per_seat(depth) if slots is None else slots, block, tokens))
