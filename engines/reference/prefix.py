"""Prefix cache: which blocks a prompt finds, which of its own can be found later.

Attention pages are found one by one. A recurrent state is found only where one was kept: at the last boundary that a repeat can
use, and where a shared prefix was seen to end; the shorter of the two counts.
"""

from __future__ import annotations

import hashlib
from array import array

from evenhand.engines.reference.pool import Block
from evenhand.engines.reference.sequences import Rules, Seq, State


def _hashes(rules: Rules, seq: Seq, count: int) -> list[bytes]:
    """Hashes of the first `count` full blocks' prefixes."""
    block = rules.block_tokens
    chain = seq.chain
    size = len(seq.prompt)
    while len(chain) < count:
        begin = len(chain) * block
        if begin + block <= size:
            part = seq.prompt[begin : begin + block]
        else:
            part = array("I", [*seq.prompt[begin:], *seq.output[max(0, begin - size) : begin + block - size]])
        chain.append(hashlib.blake2b(part.tobytes(), digest_size=16, key=chain[-1] if chain else b"").digest())
    return chain


def look_up(state: State, seq: Seq) -> int:
    """Tokens found in the prefix cache, and the boundaries at which this request's own states are to be registered."""
    rules = state.rules
    block = rules.block_tokens
    if rules.aligned:
        # the last boundary that a repeat can use: it has to compute one token itself, and a drafter one block more
        last = seq.fill // block - 1 if rules.drafter else (seq.fill - 1) // block
        seq.boundaries = (last * block,) if last > 0 else ()
    if not rules.caching:
        return 0
    full = (seq.fill - 1) // block
    chain = _hashes(rules, seq, full)
    pages = 0
    while pages < full and state.pool.find((chain[pages], 0)) is not None:
        pages += 1
    if rules.drafter and pages:
        pages -= 1
    if not rules.aligned:
        return pages * block
    states = pages
    while states and any(state.pool.find((chain[states - 1], group.number)) is None for group in state.groups[1:]):
        states -= 1
    if pages > states:
        seq.boundaries = (*seq.boundaries, pages * block)  # a shared prefix whose state nobody kept: keep it this time
    return states * block


def found_blocks(state: State, seq: Seq, found: int) -> list[list[Block]]:
    """The blocks of a prefix of `found` tokens, per group."""
    count = found // state.rules.block_tokens
    if not count:
        return [[] for _ in state.groups]
    pages = [state.pool.find((key, 0)) for key in seq.chain[:count]]
    result: list[list[Block]] = [[block for block in pages if block is not None]]
    for group in state.groups[1:]:
        kept = state.pool.find((seq.chain[count - 1], group.number))
        result.append([state.pool.null] * (count - 1) + [kept] if kept is not None else [])
    return result


def register(state: State, seq: Seq) -> None:
    """Let blocks that are full and committed be found."""
    rules = state.rules
    block = rules.block_tokens
    known = len(seq.prompt) + len(seq.output)
    full = min(seq.computed - seq.flying, known) // block
    if full <= seq.registered:
        return
    chain = _hashes(rules, seq, full)
    pages = seq.tables[0].blocks
    for index in range(seq.registered, full):
        state.pool.register(pages[index], (chain[index], 0))
    if rules.aligned:
        for boundary in seq.boundaries:
            at = boundary // block - 1
            if seq.registered <= at < full:
                for group, table in zip(state.groups[1:], seq.tables[1:], strict=True):
                    if at < len(table.blocks):
                        state.pool.register(table.blocks[at], (chain[at], group.number))
    seq.registered = full
