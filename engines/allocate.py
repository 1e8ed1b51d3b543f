"""The engines' allocation rules, for prediction: what each makes of a model's shape and a budget. Pure; bytes are bytes.

Page arithmetic lives in evenhand.predict; here is only how an engine divides what it is given, and what it then says.
"""

from __future__ import annotations

from evenhand.engines.base import EngineError
from evenhand.predict.pages import (
    GIB,
    attention_pool_bytes,
    attn_bytes_per_token,
    block_bytes,
    padding,
    pages_of_bytes,
    state_page_bytes,
    unified_block_tokens,
)
from evenhand.predict.seats import blocks_per_seat, seat_ceiling, seats_that_fit, slots_per_seat, state_bytes_needed
from evenhand.predict.shape import Allocation, Budget, ModelShape

ALIGN = 16
"""Tokens: the smallest block of vLLM's attention kernels on GPU."""
VLLMCPP_BLOCK = 32
SGLANG_BASE_SLOTS = 3
"""State slots SGLang reserves per running request while its radix cache holds states too."""


def vllm(shape: ModelShape, budget: Budget) -> Allocation:
    """One pool of unified pages, shared by attention and state (vLLM v1, kv_cache_utils).

    A start needs room for one request of the whole context: ceil(context/block) per attention group and (2 + depth, or
    1 + depth without prefix caching) per state group; less is refused. Seats are never clamped: what does not fit waits.
    """
    align = max(ALIGN, budget.block_tokens or ALIGN)
    block = unified_block_tokens(shape, budget.depth, align)
    pages = _pages(shape, budget, block)
    slots = slots_per_seat(budget.depth, align=budget.prefix_caching) if shape.state_layers else 0
    outcome, reason = "ok", ""
    fit: int | None = None
    if pages is not None:
        fit = min(budget.seats, seats_that_fit(shape, budget.depth, pages, block, 1, slots))
        one = blocks_per_seat(shape, slots, block, budget.context_tokens)
        if one > pages:
            size = block_bytes(shape, block)
            outcome = "refused"
            reason = (
                f"one request of {budget.context_tokens} tokens needs {one * size / GIB:.2f} GiB of cache, "
                f"{pages * size / GIB:.2f} GiB are available"
            )
    return Allocation(
        block_tokens=block,
        page_bytes=block_bytes(shape, block),
        padding=padding(shape, budget.depth, block),
        pool_blocks=pages,
        state_slots_per_seat=slots,
        state_bytes_needed=state_bytes_needed(shape, budget.depth, budget.seats, slots) if slots else 0,
        unified=True,
        seat_ceiling=budget.seats,
        seats_that_fit=fit,
        outcome=outcome,
        reason=reason,
    )


def vllmcpp(shape: ModelShape, budget: Budget) -> Allocation:
    """Two pools: attention blocks as asked, state of seats * (depth + 1) slots out of the memory left (vllm.cpp, 2026).

    Its seat ceiling is the attention pool measured in unified pages // (depth + 1): 7488 blocks of 32 are 288 pages, ceiling
    32; 3072 are 118, ceiling 13. It clamps to the ceiling, then its guard refuses when those seats' state exceeds what is left.
    """
    block = budget.block_tokens or VLLMCPP_BLOCK
    if block % ALIGN:
        raise EngineError(f"vllm.cpp's block size is {block}: it must be a multiple of {ALIGN}.")
    page = block * attn_bytes_per_token(shape) * shape.attention_layers
    blocks = budget.pool_blocks
    if blocks is None and budget.pool_bytes is not None:
        blocks = budget.pool_bytes // page
    if not shape.state_layers or blocks is None:
        return Allocation(
            block_tokens=block,
            page_bytes=page,
            padding=0.0,
            pool_blocks=blocks,
            state_slots_per_seat=slots_per_seat(budget.depth) if shape.state_layers else 0,
            state_bytes_needed=state_bytes_needed(shape, budget.depth, budget.seats),
            state_bytes_available=budget.state_bytes,
            unified=False,
        )
    unified = unified_block_tokens(shape, budget.depth, max(ALIGN, block))
    pages = pages_of_bytes(shape, attention_pool_bytes(shape, blocks, block), unified)
    ceiling = seat_ceiling(pages, budget.depth)
    seats = min(budget.seats, ceiling)
    needed = state_bytes_needed(shape, budget.depth, seats)
    outcome, reason = "ok", ""
    if seats < 1:
        outcome = "refused"
        reason = f"{blocks} blocks of {block} tokens are {pages} pages, fewer than one sequence's {budget.depth + 1} slots"
    elif budget.state_bytes is not None and needed > budget.state_bytes:
        outcome = "refused"
        reason = (
            f"{seats} sequences need {needed / GIB:.2f} GiB of state ({budget.depth + 1} slots each), "
            f"{budget.state_bytes / GIB:.2f} GiB are available"
        )
    elif seats < budget.seats:
        outcome, reason = "clamped", f"{budget.seats} seats asked, {pages} pages // {budget.depth + 1} slots = {ceiling}"
    return Allocation(
        block_tokens=block,
        page_bytes=page,
        padding=padding(shape, budget.depth, unified),
        pool_blocks=blocks,
        state_slots_per_seat=slots_per_seat(budget.depth),
        state_bytes_needed=needed,
        state_bytes_available=budget.state_bytes,
        unified=False,
        seat_ceiling=ceiling,
        seats_that_fit=seats_that_fit(shape, budget.depth, pages, unified),
        outcome=outcome,
        reason=reason,
    )


def sglang(shape: ModelShape, budget: Budget) -> Allocation:
    """A split made before anything runs (SGLang 0.5.23, KVCacheConfigurator._handle_max_mamba_cache).

    rest = all bytes given (pool and state together). With the radix cache: state budget = rest * r / (1 + r), r = state_ratio;
    slots K = (budget - per_request * (1 + D)) // (per_request * (1 + D / ratio)) when speculating, D = depth + 1 (the verify
    block), else (budget - per_request) // per_request; seats are capped to K // ratio, where ratio = 3 + 2 tracking slots (1
    without overlapped scheduling). Without the cache: K = seats. One padding slot is added, and each seat's D intermediate
    states. What is left holds tokens. (0.5.15 had no padding slot: one slot more.)
    """
    page = budget.block_tokens or 1
    per_token = attn_bytes_per_token(shape) * shape.attention_layers
    rest = budget.pool_bytes if budget.pool_bytes is not None else (budget.pool_blocks or 0) * page * per_token
    rest += budget.state_bytes or 0
    if rest <= 0:
        raise EngineError("SGLang's rule divides bytes: give pool bytes, or pool blocks with block_tokens.")
    if not shape.state_layers:
        return _sglang_row(budget, page, per_token, rest, slots=0, needed=0, ceiling=budget.seats, outcome="ok", reason="")
    per_request = state_page_bytes(shape, 0) * shape.state_layers
    verify = budget.depth + 1 if budget.depth else 0
    if budget.prefix_caching:
        ratio = SGLANG_BASE_SLOTS + (2 if budget.in_flight else 1)
        share = rest * budget.state_ratio / (1 + budget.state_ratio)
        size = int((share - per_request * (1 + verify)) // (per_request * (1 + verify / ratio)))
    else:
        ratio, size = 1, budget.seats
    ceiling = max(0, size // ratio)
    seats = min(budget.seats, ceiling)
    taken = per_request * ((size + 1) + verify * (seats + 1))
    left = rest - taken
    if seats < 1 or left < per_token * page:
        outcome = "refused"
        reason = (
            f"{size} state slots at {ratio} per request and {max(0, left) // per_token} tokens are too few to serve a request"
        )
        seats = 0
    elif seats < budget.seats:
        outcome, reason = "clamped", f"{budget.seats} seats asked, {size} state slots // {ratio} per request = {ceiling}"
    else:
        outcome, reason = "ok", ""
    return _sglang_row(
        budget,
        page,
        per_token,
        max(0, left),
        slots=ratio + verify,
        needed=taken,
        ceiling=ceiling,
        outcome=outcome,
        reason=reason,
    )


def _sglang_row(
    budget: Budget, page: int, per_token: int, left: int, *, slots: int, needed: int, ceiling: int, outcome: str, reason: str
) -> Allocation:
    return Allocation(
        block_tokens=page,
        page_bytes=page * per_token,
        padding=0.0,
        pool_blocks=left // (page * per_token),
        state_slots_per_seat=slots,
        state_bytes_needed=needed,
        state_bytes_available=None,
        unified=False,
        seat_ceiling=ceiling,
        seats_that_fit=min(budget.seats, ceiling) if outcome != "refused" else 0,
        outcome=outcome,
        reason=reason,
    )


def llamacpp(shape: ModelShape, budget: Budget) -> Allocation:
    """Cells for seats * context tokens, set aside at the start; state is one slot a seat."""
    per_token = attn_bytes_per_token(shape) * shape.attention_layers
    tokens = budget.seats * budget.context_tokens
    needed = state_page_bytes(shape, 0) * shape.state_layers * budget.seats
    total = tokens * per_token + needed
    refused = budget.pool_bytes is not None and total > budget.pool_bytes
    return Allocation(
        block_tokens=1,
        page_bytes=per_token,
        padding=0.0,
        pool_blocks=tokens,
        state_slots_per_seat=1 if shape.state_layers else 0,
        state_bytes_needed=needed,
        unified=False,
        seat_ceiling=budget.seats,
        seats_that_fit=0 if refused else budget.seats,
        outcome="refused" if refused else "ok",
        reason=f"{budget.seats} sequences of {budget.context_tokens} tokens need {total / GIB:.2f} GiB" if refused else "",
    )


def _pages(shape: ModelShape, budget: Budget, block: int) -> int | None:
    if budget.pool_blocks is not None:
        return budget.pool_blocks
    return None if budget.pool_bytes is None else pages_of_bytes(shape, budget.pool_bytes, block)
