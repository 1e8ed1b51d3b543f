"""`evenhand predict`: a model, a budget and engines' allocation rules -> what each engine should need, before it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from evenhand.engines.base import EngineError
from evenhand.predict.config import Model, read_model
from evenhand.predict.findings import Finding, ceiling_above_room, seats_below_asked, some, state_dtype_doubles
from evenhand.predict.pages import (
    attention_groups,
    block_bytes,
    cached_follow_up_tokens,
    padding,
    state_groups,
    state_page_bytes,
    unified_block_tokens,
)
from evenhand.predict.peaks import Peak, Rule, peak, prefill_ends, retained_series
from evenhand.predict.seats import state_bytes_needed
from evenhand.predict.shape import Allocation, Budget, ModelShape


class Allocator(Protocol):
    """The part of an engine adapter that prediction needs."""

    @property
    def name(self) -> str: ...

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation: ...


class PromptForecast(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt length alone in an engine's pool, without and with the null-gap fix."""

    prompt_tokens: int
    output_tokens: int
    steps: int
    """Prefill steps."""
    unpatched: Peak
    patched: Peak
    retained_unpatched: tuple[tuple[int, int], ...]
    """(computed tokens, retained states per group), before a step allocates."""
    retained_patched: tuple[tuple[int, int], ...]
    follow_up_cached_tokens: int | None = None
    """Prompt tokens that a follow-up with this prompt as its prefix finds cached in align mode; None outside it."""
    fits: bool | None = None
    """Whether the peak (as the budget's null_gap_fix has it) stays inside the pool; None without a pool."""


class EngineForecast(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine's rule makes of the budget."""

    engine: str
    allocation: Allocation | None = None
    unified: bool = True
    """One pool for attention and state: then `prompts` hold state blocks as well."""
    prompts: tuple[PromptForecast, ...] = ()
    error: str | None = None
    """Why nothing could be predicted, in one sentence."""


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a model needs of every engine, and what a reader must know of it."""

    model: Model
    budget: Budget
    state_page_bytes: int
    attn_bytes_per_token: int
    block_tokens: int
    """Tokens of a unified block at the budget's depth."""
    block_bytes: int
    padding: float
    """0..1"""
    state_groups: int
    state_need_bytes: int
    """For the budget's seats, with 1 + depth slots each."""
    engines: tuple[EngineForecast, ...]
    findings: tuple[Finding, ...]


def predict(
    config_path: str | Path,
    engines: Sequence[Allocator],
    budget: Budget,
    prompts: Sequence[int] = (),
    *,
    output_tokens: int = 16,
    cache_dtype: str | None = None,
    state_dtype: str | None = None,
    dtype: str | None = None,
) -> Prediction:
    """Pages, seats, refusals and peaks. Raises PredictError for a config it cannot use; what an engine cannot do is its row."""
    model = read_model(config_path, cache_dtype=cache_dtype, state_dtype=state_dtype, dtype=dtype)
    shape = model.shape
    block = unified_block_tokens(shape, budget.depth, max(16, budget.block_tokens or 16))
    forecasts = tuple(_forecast(engine, shape, budget, prompts, output_tokens) for engine in engines)
    return Prediction(
        model=model,
        budget=budget,
        state_page_bytes=state_page_bytes(shape, budget.depth),
        attn_bytes_per_token=shape.attn_bytes_per_token or 0,
        block_tokens=block,
        block_bytes=block_bytes(shape, block),
        padding=padding(shape, budget.depth, block),
        state_groups=state_groups(shape),
        state_need_bytes=state_bytes_needed(shape, budget.depth, budget.seats),
        engines=forecasts,
        findings=_findings(model, budget, forecasts),
    )


def rule_for(shape: ModelShape, budget: Budget, block: int, *, unified: bool, fix: bool) -> Rule:
    """How an engine with this budget walks through a prompt; with separate pools only attention takes blocks."""
    return Rule(
        block=block,
        batch=budget.batch_tokens,
        depth=budget.depth,
        attention_groups=attention_groups(shape) if unified else min(1, shape.attention_layers),
        state_groups=state_groups(shape) if unified else 0,
        in_flight=budget.in_flight,
        drafter=budget.drafter,
        fix=fix,
        align=budget.prefix_caching,
    )


def forecast_prompt(
    shape: ModelShape,
    budget: Budget,
    block: int,
    prompt: int,
    output: int,
    *,
    unified: bool = True,
    pool_blocks: int | None = None,
    cached: int = 0,
) -> PromptForecast:
    """One prompt that runs alone, `cached` of its tokens found in the cache. Raises PredictError when a step holds no block."""
    plain = rule_for(shape, budget, block, unified=unified, fix=False)
    fixed = rule_for(shape, budget, block, unified=unified, fix=True)
    unpatched, patched = peak(prompt, output, plain, cached), peak(prompt, output, fixed, cached)
    ours = patched if budget.null_gap_fix else unpatched
    return PromptForecast(
        prompt_tokens=prompt,
        output_tokens=output,
        steps=len(prefill_ends(prompt, plain, cached)),
        unpatched=unpatched,
        patched=patched,
        retained_unpatched=tuple(retained_series(prompt, output, plain, cached)) if plain.state_groups else (),
        retained_patched=tuple(retained_series(prompt, output, fixed, cached)) if fixed.state_groups else (),
        follow_up_cached_tokens=cached_follow_up_tokens(prompt, block) if plain.state_groups and plain.align else None,
        # a unified pool keeps one block as the null block
        fits=None if pool_blocks is None else ours.blocks <= pool_blocks - unified,
    )


def _forecast(engine: Allocator, shape: ModelShape, budget: Budget, prompts: Sequence[int], output: int) -> EngineForecast:
    try:
        allocation = engine.allocate(shape, budget)
        separate = allocation.state_bytes_available is not None
        unified = allocation.unified if allocation.unified is not None else not separate
        rows = tuple(
            forecast_prompt(
                shape, budget, allocation.block_tokens, prompt, output, unified=unified, pool_blocks=allocation.pool_blocks
            )
            for prompt in prompts
        )
    except (EngineError, ValueError) as error:
        return EngineForecast(engine=engine.name, error=str(error))
    return EngineForecast(engine=engine.name, allocation=allocation, unified=unified, prompts=rows)


def _findings(model: Model, budget: Budget, forecasts: Sequence[EngineForecast]) -> tuple[Finding, ...]:
    found: list[Finding | None] = [state_dtype_doubles(model.shape, budget.depth, budget.seats, model.state_dtype)]
    for row in forecasts:
        got = row.allocation
        if got is None:
            continue
        if got.outcome == "clamped" and got.seat_ceiling is not None:
            found.append(seats_below_asked(row.engine, budget.seats, got.seat_ceiling, got.reason))
        if got.seat_ceiling is not None and got.seats_that_fit is not None:
            found.append(ceiling_above_room(row.engine, got.seat_ceiling, got.seats_that_fit))
    return some(found)
