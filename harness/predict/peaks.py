"""Blocks of one long prompt in one unified pool, step by step: prefill in align mode, retained states, peaks and plateaus.

In align mode (vLLM, prefix caching on a hybrid model) a prefill step ends on a block boundary and writes its state into a block
of its own; blocks that a step jumps over stay null. States no longer needed are retired before a step allocates. Without the
null-gap fix that goes backward from the newest computed state and stops at the first null block, so a step over two blocks or
more hides everything older; with a step in flight the one state retired by its index is looked at too early as well.

Closed forms, which `walk` reproduces (k = drafted tokens, per state group):
    unpatched = k + steps      with chunks of at least 2 blocks and a step in flight
    patched   = k + 3          with one step in flight
    both      = k + 2          with none in flight
Source: measured on an H200 and on CPU to the block; read from vLLM's state manager.
"""

from __future__ import annotations

import msgspec

from evenhand.predict.pages import PredictError


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine with one unified pool prefills and retires."""

    block: int
    """Tokens of one block."""
    batch: int
    """Tokens one step may batch (max_num_batched_tokens)."""
    depth: int = 0
    attention_groups: int = 1
    state_groups: int = 1
    in_flight: bool = True
    """A step runs while the next one is scheduled: retirement sees one step less."""
    drafter: bool = False
    """An EAGLE or MTP drafter: the last cacheable boundary is one block earlier."""
    fix: bool = False
    """With the null-gap fix: retirement skips null blocks."""
    align: bool = True
    """False (prefix caching off): one running state, updated in place, and steps of any length."""

    @property
    def chunk(self) -> int:
        """Tokens of a whole prefill step: floor(batch / block) * block in align mode, else the batch."""
        return self.batch // self.block * self.block if self.align and self.state_groups else self.batch


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One scheduled step of one request."""

    computed_tokens: int
    """Tokens whose results are in when the step is scheduled (the step in flight not counted)."""
    end_tokens: int
    """Tokens covered once the step has run."""
    retained: int
    """States per group held where states are retired, before this step allocates: what a counter placed there reads."""
    held: int
    """States per group held once this step has allocated."""
    attention_blocks: int
    blocks: int
    """All blocks of the request: attention_blocks + state groups * held."""
    prefill: bool


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """What one prompt takes, in blocks."""

    blocks: int
    attention_blocks: int
    """Attention blocks at the peak."""
    held: int
    """States per group at the peak."""
    plateau_blocks: int
    """Blocks while decoding on, at the end of the request."""
    retained_max: int
    """Largest count of retained states, before a step allocates."""


def prefill_ends(prompt: int, rule: Rule, cached: int = 0) -> list[int]:
    """Token counts at which the prefill steps of a prompt end, `cached` of its tokens being found in the cache.

    Whole chunks, then one step that ends at the last cacheable boundary, floor(prompt / block) * block (one block less with a
    drafter), then the rest. Its length is the number of steps. Raises PredictError when a step cannot hold a block.
    """
    if prompt < 1 or not 0 <= cached < prompt:
        raise PredictError(f"a prompt needs at least 1 token that is not cached; asked for {prompt} with {cached} cached.")
    if rule.chunk < 1:
        raise PredictError(
            f"one step batches {rule.batch} tokens and a block has {rule.block}: in align mode nothing could be scheduled; "
            "raise the batch size."
        )
    aligned = rule.align and rule.state_groups > 0
    boundary = max(0, prompt // rule.block - rule.drafter) * rule.block if aligned else 0
    ends, at = [], cached
    while at < prompt:
        limit = rule.chunk if at < boundary else rule.batch
        at = min(at + limit, boundary if at < boundary else prompt)
        ends.append(at)
    return ends


def walk(prompt: int, output: int, rule: Rule, cached: int = 0) -> list[Point]:
    """Every step of one request that runs alone: prefill, then decode with one token a step.

    States are tracked by the index of the block they were written to; k drafted tokens add k states that move with the newest.
    """
    ends = prefill_ends(prompt, rule, cached)
    steps = len(ends)
    ends += range(prompt + 1, prompt + output + 1)
    lag = 2 if rule.in_flight else 1
    states = {cached // rule.block - 1} if cached >= rule.block else set()
    newest = max(states, default=-1)
    previous = newest if states else None
    allocated = False
    points = []
    for index, end in enumerate(ends):
        computed = ends[index - lag] if index >= lag else cached
        _retire(states, computed, previous, rule)
        before = len(states) + (rule.depth if allocated else 0)
        target = -(-end // rule.block) - 1 if rule.align else 0
        if target > newest or not allocated:
            previous = newest if newest >= 0 else None
            states.add(target)
            newest, allocated = target, True
        attention = rule.attention_groups * -(-end // rule.block)
        held = len(states) + rule.depth
        points.append(
            Point(
                computed_tokens=computed,
                end_tokens=end,
                retained=before,
                held=held,
                attention_blocks=attention,
                blocks=attention + rule.state_groups * held,
                prefill=index < steps,
            )
        )
    return points


def _retire(states: set[int], computed: int, previous: int | None, rule: Rule) -> None:
    """Drop the states that `computed` tokens make needless; without the fix, stop at the first null block."""
    needed = (computed - 1) // rule.block if computed else -1
    if rule.fix:
        states -= {state for state in states if state < needed}
        return
    state = needed - 1
    while state in states:
        states.remove(state)
        state -= 1
    if previous is not None and previous < needed:
        states.discard(previous)


def peak(prompt: int, output: int, rule: Rule, cached: int = 0) -> Peak:
    """Largest count of blocks over `walk`, where it is reached first, and the plateau that decoding ends on."""
    points = walk(prompt, output, rule, cached)
    top = max(points, key=lambda point: point.blocks)
    last = points[-1]
    return Peak(
        blocks=top.blocks,
        attention_blocks=top.attention_blocks,
        held=top.held,
        plateau_blocks=last.blocks,
        retained_max=max(point.retained for point in points),
    )


def retained_series(prompt: int, output: int, rule: Rule, cached: int = 0) -> list[tuple[int, int]]:
    """(computed tokens, retained states per group) where states are retired, one per distinct count of computed tokens.

    The first scheduled step is left out: nothing has been allocated before it. Seed figures: 4, 5, ..., 16 without the fix and
    4, 5, 5, ... with it at depth 3.
    """
    series: dict[int, int] = {}
    for point in walk(prompt, output, rule, cached)[1:]:
        series.setdefault(point.computed_tokens, point.retained)
    return list(series.items())
