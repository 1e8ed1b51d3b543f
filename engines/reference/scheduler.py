"""Continuous batching as functions of state: `schedule` picks a step's work and takes its blocks, `commit` ends the step.

No clock and no server here: tests step it by hand. With one step in flight (`in_flight=1`) the caller schedules step n+1
before it commits step n, so blocks are judged by what is computed *and* committed, and the pool's gauge, refreshed at
commit, already holds the next step's blocks.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import deque
from dataclasses import dataclass, field

from evenhand.engines.reference.groups import (
    AlignedStateGroup,
    AttentionGroup,
    FixedStateGroup,
    Group,
    Table,
    blocks_for,
)
from evenhand.engines.reference.pool import Block, BlockPool
from evenhand.engines.reference.tokens import Stream, accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the scheduler may do."""

    seats: int
    batch_tokens: int
    block_tokens: int
    depth: int = 0
    acceptance: float = 0.0
    drafter: bool = False
    """A drafter that needs the last hidden states: one cacheable block less."""
    in_flight: int = 0
    aligned: bool = False
    """Recurrent state is kept at block boundaries: prefill chunks end there."""
    caching: bool = False
    context: int = 1 << 60
    leak_blocks: int = 0
    """Fault: blocks that are never given back, one per finished request."""


@dataclass(slots=True, eq=False)
class Seq:
    """A sequence: one request inside the engine."""

    name: str
    prompt: array[int]
    limit: int
    """Tokens to generate at most."""
    stream: Stream
    digest: bytes
    eos: int | None = None
    output: list[int] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    computed: int = 0
    """Tokens scheduled so far, in flight or not."""
    flying: int = 0
    """Of these, tokens of steps that are not committed."""
    promised: int = 0
    """Output tokens that steps in flight will give at least."""
    fill: int = 0
    """Tokens to compute before the next one can be sampled: the prompt, or after a preemption everything known."""
    epoch: int = 0
    """Raised when its steps in flight no longer count (preempted, aborted)."""
    cached: int = 0
    cached_first: int | None = None
    """Prompt tokens served from the cache at the first admission."""
    boundaries: tuple[int, ...] = ()
    """Token counts whose state is registered for reuse."""
    junction: int = 0
    chain: list[bytes] = field(default_factory=list)
    """Hash of every full block's prefix."""
    registered: int = 0
    quiet: int = -1
    """Last retirement's block index: nothing to do until it moves or a table grows."""
    room: int = 0
    finish: str | None = None
    drafted: int = 0
    accepted: int = 0
    preempted: int = 0
    max_attention: int = 0
    max_state: int = 0
    sink: object = None


@dataclass(slots=True)
class Item:
    """One sequence's share of a step."""

    seq: Seq
    tokens: int
    epoch: int
    samples: bool
    """The step ends with a token of this sequence."""
    drafts: int
    prefill: bool


@dataclass(slots=True)
class Step:
    """A step in flight."""

    number: int
    items: list[Item]
    prefill_tokens: int
    decode_tokens: int
    used: int
    """Most blocks in use at once while its blocks were taken."""


@dataclass(slots=True)
class Output:
    """What one step gave one sequence."""

    seq: Seq
    ids: list[int]
    finish: str | None


@dataclass(slots=True)
class Totals:
    """Counters, as an exposition shows them."""

    preemptions: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    queried: int = 0
    hit: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    steps: int = 0
    peak_running: int = 0


@dataclass(slots=True)
class State:
    """Everything the scheduler knows."""

    rules: Rules
    pool: BlockPool
    groups: list[Group]
    slots: BlockPool | None = None
    """A second pool for recurrent state, where the engine keeps two."""
    running: list[Seq] = field(default_factory=list)
    waiting: deque[Seq] = field(default_factory=deque)
    totals: Totals = field(default_factory=Totals)
    leaked: list[Block] = field(default_factory=list)
    trace: list[tuple[Seq, tuple[int, ...]]] | None = None
    """When asked for: who retired or took blocks, and its states per group after retiring and before taking."""


def make_state(
    rules: Rules,
    pool_blocks: int,
    state_groups: int,
    null_gap_fix: bool,
    slots: BlockPool | None = None,
    slots_each: int | None = None,
) -> State:
    """A fresh engine: one pool for attention and state groups, or `slots` apart for the state, `slots_each` a request."""
    pool = BlockPool(pool_blocks)
    groups: list[Group] = [AttentionGroup(pool, 0, rules.block_tokens)]
    if slots is not None:
        groups.append(FixedStateGroup(slots, 1, rules.depth if slots_each is None else slots_each - 1))
    else:
        for number in range(1, state_groups + 1):
            if rules.aligned:
                groups.append(AlignedStateGroup(pool, number, rules.block_tokens, rules.depth, null_gap_fix))
            else:
                groups.append(FixedStateGroup(pool, number, rules.depth))
    return State(rules=rules, pool=pool, groups=groups, slots=slots)


def add(state: State, seq: Seq) -> None:
    """Queue a request."""
    seq.fill = len(seq.prompt)
    seq.tables = [Table() for _ in state.groups]
    state.waiting.append(seq)


def busy(state: State) -> bool:
    return bool(state.running or state.waiting)


# --- scheduling -----------------------------------------------------------------------------------------------------


def schedule(state: State) -> Step | None:
    """Take the next step's blocks, or None when nothing can run."""
    rules = state.rules
    budget = rules.batch_tokens
    state.pool.high = 0
    items: list[Item] = []
    prefill = decode = 0
    index = 0
    preempted = False
    while index < len(state.running) and budget > 0:
        seq = state.running[index]
        count = _wanted(rules, seq, budget)
        if count <= 0:
            index += 1
            continue
        fits = _make_room(state, seq, count)
        while not fits:
            victim = state.running.pop()
            _preempt(state, victim)
            preempted = True
            if victim is seq:
                break
            fits = _make_room(state, seq, count)
        if not fits:
            break
        items.append(_assign(rules, seq, count))
        budget -= count
        index += 1
    if not preempted:
        while state.waiting and len(state.running) < rules.seats and budget > 0:
            seq = state.waiting[0]
            found = _look_up(state, seq)
            count = _split(rules, seq, found, min(seq.fill - found, budget))
            if count <= 0 or not _admit(state, seq, found, count):
                break
            state.waiting.popleft()
            state.running.append(seq)
            items.append(_assign(rules, seq, count))
            budget -= count
    if not items:
        return None
    for item in items:
        if item.prefill:
            prefill += item.tokens
        else:
            decode += item.tokens
    totals = state.totals
    totals.steps += 1
    if len(state.running) > totals.peak_running:
        totals.peak_running = len(state.running)
    return Step(totals.steps, items, prefill, decode, max(state.pool.high, state.pool.used))


def _wanted(rules: Rules, seq: Seq, budget: int) -> int:
    """Tokens of a running sequence in this step."""
    left = seq.fill - seq.computed
    if left > 0:
        return _split(rules, seq, seq.computed, min(left, budget))
    if len(seq.output) + seq.promised >= seq.limit:
        return 0  # the steps in flight will end it
    return min(1 + rules.depth, budget)


def _split(rules: Rules, seq: Seq, start: int, count: int) -> int:
    """End a prefill chunk where a state can be kept: on a block boundary, and at each boundary to be registered."""
    if not rules.aligned:
        return count
    block = rules.block_tokens
    end = start + count
    if end < seq.fill:
        aligned = end // block * block
        if aligned > start or block <= rules.batch_tokens:
            end = aligned
    stops = [stop for stop in seq.boundaries if start < stop < end]
    if start % block and start < (start // block + 1) * block < end:
        stops.append((start // block + 1) * block)
    return max(0, min(stops, default=end) - start)


def _make_room(state: State, seq: Seq, count: int) -> bool:
    """Retire what is no longer needed, then take what `count` more tokens need; False when the pool cannot give it."""
    rules = state.rules
    processed = seq.computed - seq.flying
    last_needed = (processed - 1) // rules.block_tokens
    tokens = seq.computed + count
    if last_needed == seq.quiet and tokens <= seq.room:
        return True
    for group, table in zip(state.groups, seq.tables, strict=True):
        group.retire(table, processed)
    if state.trace is not None:
        state.trace.append((seq, held(state, seq)[1:]))
    ahead = rules.depth
    if tokens > seq.room:
        if not _enough(state, seq.tables, tokens, ahead):
            return False
        for group, table in zip(state.groups, seq.tables, strict=True):
            group.grow(table, tokens, ahead)
        seq.room = min(group.capacity(table, ahead) for group, table in zip(state.groups, seq.tables, strict=True))
        seq.quiet = -2
    else:
        seq.quiet = last_needed
    _note_held(state, seq)
    return True


def _enough(state: State, tables: list[Table], tokens: int, ahead: int) -> bool:
    need = slots = 0
    for group, table in zip(state.groups, tables, strict=True):
        wanted = group.wanted(table, tokens, ahead)
        if group.pool is state.pool:
            need += wanted
        else:
            slots += wanted
    return need <= state.pool.free and (state.slots is None or slots <= state.slots.free)


def _admit(state: State, seq: Seq, found: int, count: int) -> bool:
    """Let a waiting request in if its whole prompt fits beside what runs: one that could only be preempted waits instead."""
    ahead = state.rules.depth
    trial = [Table() for _ in state.groups]
    shared = _found_blocks(state, seq, found)
    for table, blocks in zip(trial, shared, strict=True):
        table.blocks = list(blocks)
    revived = sum(block.refs == 0 and block is not state.pool.null for blocks in shared for block in blocks)
    need = slots = 0
    for group, table in zip(state.groups, trial, strict=True):
        wanted = group.wanted(table, max(seq.fill, found + count), ahead)
        if group.pool is state.pool:
            need += wanted
        else:
            slots += wanted
    if need + revived > state.pool.free or (state.slots is not None and slots > state.slots.free):
        return False
    seq.tables = [Table() for _ in state.groups]
    for group, table, blocks in zip(state.groups, seq.tables, shared, strict=True):
        if blocks:
            group.adopt(table, blocks)
    seq.computed = seq.cached = found
    if seq.cached_first is None:
        seq.cached_first = min(found, len(seq.prompt))
        state.totals.prompt += len(seq.prompt)
        state.totals.cached += seq.cached_first
    if state.rules.caching:
        state.totals.queried += seq.fill
        state.totals.hit += found
    seq.registered = found // state.rules.block_tokens
    seq.room = 0
    seq.quiet = -2
    return _make_room(state, seq, count)


def _assign(rules: Rules, seq: Seq, count: int) -> Item:
    prefill = seq.computed < seq.fill
    seq.computed += count
    seq.flying += count
    samples = seq.computed >= seq.fill
    if samples:
        seq.promised += 1
    drafts = 0 if prefill else count - 1
    return Item(seq, count, seq.epoch, samples, drafts, prefill)


def _preempt(state: State, seq: Seq) -> None:
    """Push a sequence out; it is computed again later, its tokens stay."""
    _free(state, seq)
    seq.epoch += 1
    seq.preempted += 1
    seq.computed = seq.flying = seq.promised = 0
    seq.fill = len(seq.prompt) + len(seq.output)
    state.totals.preemptions += 1
    state.waiting.appendleft(seq)


# --- the end of a step ----------------------------------------------------------------------------------------------


def commit(state: State, step: Step) -> list[Output]:
    """End `step`: tokens come out, full blocks can be found from now on, finished sequences give their blocks back."""
    rules = state.rules
    outputs: list[Output] = []
    totals = state.totals
    ended = False
    for item in step.items:
        seq = item.seq
        if item.epoch != seq.epoch:
            continue
        seq.flying -= item.tokens
        ids: list[int] = []
        if item.samples:
            seq.promised -= 1
            ids = _sample(rules, totals, seq, item)
        if rules.caching:
            _register(state, seq)
        if ids:
            output = seq.output
            finish = None
            if seq.eos is not None and seq.eos in ids:
                del ids[ids.index(seq.eos) + 1 :]
                finish = "stop"
            output += ids
            totals.generated += len(ids)
            if finish is None and len(output) >= seq.limit:
                finish = "length"
            if finish is not None:
                seq.finish = finish
                totals.finished[finish] += 1
                seq.epoch += 1
                _free(state, seq)
                ended = True
            outputs.append(Output(seq, ids, finish))
    if ended:
        state.running = [seq for seq in state.running if seq.finish is None]
    return outputs


def _sample(rules: Rules, totals: Totals, seq: Seq, item: Item) -> list[int]:
    """The tokens that the step found: one, and as many drafted ones as were accepted."""
    position = len(seq.output)
    if item.drafts:
        kept = accepted(seq.digest, position, item.drafts, rules.acceptance)
        seq.computed -= item.drafts - kept
        totals.drafts += 1
        totals.drafted += item.drafts
        totals.accepted += kept
        seq.drafted += item.drafts
        seq.accepted += kept
        return seq.stream.take(position, min(1 + kept, seq.limit - position))
    return seq.stream.take(position, 1)


def abort(state: State, seq: Seq, reason: str = "abort") -> None:
    """The client went away, or the engine gives the request up."""
    if seq.finish is not None:
        return
    seq.finish = reason
    seq.epoch += 1
    state.totals.finished[reason] += 1
    if seq in state.running:
        state.running.remove(seq)
        _free(state, seq)
    else:
        try:
            state.waiting.remove(seq)
        except ValueError:
            pass


def _free(state: State, seq: Seq) -> None:
    if len(state.leaked) < state.rules.leak_blocks and seq.tables and seq.tables[0].blocks:
        leaked = seq.tables[0].blocks.pop()
        state.leaked.append(leaked)
    for group, table in zip(state.groups, seq.tables, strict=True):
        group.free(table)
    seq.tables = [Table() for _ in state.groups]
    seq.room = 0


def held(state: State, seq: Seq) -> tuple[int, ...]:
    """Blocks that a sequence holds, per group."""
    return tuple(group.held(table) for group, table in zip(state.groups, seq.tables, strict=True))


def _note_held(state: State, seq: Seq) -> None:
    seq.max_attention = max(seq.max_attention, state.groups[0].held(seq.tables[0]))
    if len(state.groups) > 1:
        seq.max_state = max(seq.max_state, state.groups[1].held(seq.tables[1]))


# --- prefix cache ---------------------------------------------------------------------------------------------------


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


def _look_up(state: State, seq: Seq) -> int:
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


def _found_blocks(state: State, seq: Seq, found: int) -> list[list[Block]]:
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


def _register(state: State, seq: Seq) -> None:
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


def wait_blocks(state: State, tokens: int) -> int:
    """Blocks of the common pool that one sequence of `tokens` needs when it is alone and decoding."""
    total = 0
    for group in state.groups:
        if group.pool is state.pool:
            total += group.wanted(Table(), tokens, 0) if group.kind == "state" else blocks_for(tokens, state.rules.block_tokens)
    return total
