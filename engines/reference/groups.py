"""What a request holds in a pool, per group of layers: attention pages, and recurrent states in two modes.

`align`: a state is kept where a prefill chunk ends, on a block boundary, with null blocks (gaps) between. States that are no
longer needed are retired when the next step is scheduled: a backward walk over the table that stops at the first null
block, or, with the null-gap fix, skips them. What stays allocated follows from the walk, not from a rule.
`fixed`: 1 + drafted slots per request from admission to end.
"""

from __future__ import annotations

from evenhand.engines.reference.pool import Block, BlockPool


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that `tokens` fill, the last one perhaps in part."""
    return -(-tokens // block_tokens)


class Table:
    """One request's blocks in one group."""

    __slots__ = ("blocks", "previous", "started", "walked")

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.previous: int | None = None
        """Index of the state that the step before the last one wrote."""
        self.started = False
        self.walked = 0
        """Everything before this index is retired (null-gap fix only)."""


class AttentionGroup:
    """Pages for every token, kept until the request ends."""

    kind = "attention"

    def __init__(self, pool: BlockPool, number: int, block_tokens: int) -> None:
        self.pool = pool
        self.number = number
        self.block_tokens = block_tokens

    def wanted(self, table: Table, tokens: int, ahead: int) -> int:
        """Blocks that `grow` would take."""
        return max(0, blocks_for(tokens + ahead, self.block_tokens) - len(table.blocks))

    def grow(self, table: Table, tokens: int, ahead: int) -> None:
        """Room for `tokens` and `ahead` drafted ones behind them."""
        missing = blocks_for(tokens + ahead, self.block_tokens) - len(table.blocks)
        if missing > 0:
            table.blocks += self.pool.take(missing)
        table.started = True

    def capacity(self, table: Table, ahead: int) -> int:
        """Tokens that fit without growing."""
        return len(table.blocks) * self.block_tokens - ahead

    def retire(self, table: Table, processed: int) -> None:
        """Attention needs every page."""

    def adopt(self, table: Table, blocks: list[Block]) -> None:
        """Begin with pages that were found."""
        self.pool.share(blocks)
        table.blocks = list(blocks)

    def free(self, table: Table) -> None:
        self.pool.release(reversed(table.blocks))
        table.blocks = []

    def held(self, table: Table) -> int:
        return len(table.blocks)


class AlignedStateGroup:
    """Recurrent states at block boundaries; the running state and `scratch` drafted ones stand at the table's end."""

    kind = "state"

    def __init__(self, pool: BlockPool, number: int, block_tokens: int, scratch: int, null_gap_fix: bool) -> None:
        self.pool = pool
        self.number = number
        self.block_tokens = block_tokens
        self.scratch = scratch
        self.null_gap_fix = null_gap_fix

    def wanted(self, table: Table, tokens: int, ahead: int) -> int:
        """Blocks that `grow` would take: the gaps before a state cost nothing, scratch blocks move along."""
        missing = blocks_for(tokens, self.block_tokens) + self.scratch - len(table.blocks)
        return max(0, min(missing, 1 if table.started else 1 + self.scratch))

    def grow(self, table: Table, tokens: int, ahead: int) -> None:
        """A state that will end at `tokens`. Drafted tokens behind it have no states beyond the scratch ones."""
        blocks, scratch = table.blocks, self.scratch
        length = len(blocks)
        target = blocks_for(tokens, self.block_tokens) + scratch
        if target <= length:
            table.started = True
            return
        if table.started:
            table.previous = length - 1 - scratch
        elif length:
            table.previous = length - 1  # the state that was found
        running = target - scratch - 1
        null = self.pool.null
        blocks += [null] * (running - length)
        if table.started:
            for index in range(length - scratch, min(length, running)):
                blocks.append(blocks[index])
                blocks[index] = null
        blocks += self.pool.take(target - len(blocks))
        table.started = True

    def capacity(self, table: Table, ahead: int) -> int:
        return (len(table.blocks) - self.scratch) * self.block_tokens

    def retire(self, table: Table, processed: int) -> None:
        """Release states that no later step reads; `processed` tokens are computed and no longer in flight."""
        last_needed = (processed - 1) // self.block_tokens
        self._walk(table, min(last_needed, len(table.blocks)))
        if table.previous is not None and table.previous < last_needed:
            self._drop(table, table.previous)

    def _walk(self, table: Table, end: int) -> None:
        null = self.pool.null
        for index in range(end - 1, table.walked - 1, -1):
            if table.blocks[index] is null:
                if self.null_gap_fix:
                    continue
                break
            self._drop(table, index)
        if self.null_gap_fix:
            table.walked = max(table.walked, end)

    def _drop(self, table: Table, index: int) -> None:
        if table.blocks[index] is not self.pool.null:
            self.pool.release((table.blocks[index],))
            table.blocks[index] = self.pool.null

    def adopt(self, table: Table, blocks: list[Block]) -> None:
        """Begin with the one state that was found, behind a gap."""
        self.pool.share(blocks)
        table.blocks = list(blocks)

    def free(self, table: Table) -> None:
        self.pool.release(reversed(table.blocks))
        table.blocks = []

    def held(self, table: Table) -> int:
        null = self.pool.null
        return sum(block is not null for block in table.blocks)


class FixedStateGroup:
    """1 + `scratch` states per request from its admission to its end."""

    kind = "state"

    def __init__(self, pool: BlockPool, number: int, scratch: int) -> None:
        self.pool = pool
        self.number = number
        self.block_tokens = 0
        self.scratch = scratch

    def wanted(self, table: Table, tokens: int, ahead: int) -> int:
        return 0 if table.blocks else 1 + self.scratch

    def grow(self, table: Table, tokens: int, ahead: int) -> None:
        if not table.blocks:
            table.blocks = self.pool.take(1 + self.scratch)

    def capacity(self, table: Table, ahead: int) -> int:
        return 1 << 60

    def retire(self, table: Table, processed: int) -> None:
        """States are kept."""

    def adopt(self, table: Table, blocks: list[Block]) -> None:
        """Nothing can be found in slots that are written in place."""

    def free(self, table: Table) -> None:
        self.pool.release(reversed(table.blocks))
        table.blocks = []

    def held(self, table: Table) -> int:
        return len(table.blocks)


Group = AttentionGroup | AlignedStateGroup | FixedStateGroup
