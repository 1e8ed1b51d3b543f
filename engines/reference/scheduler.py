"""Continuous batching as functions of state: `schedule` picks a step's work and takes its blocks, `commit` ends the step.

No clock and no server here: tests step it by hand. With one step in flight (`in_flight=1`) the caller schedules step n+1
before it commits step n, so blocks are judged by what is computed *and* committed, and the pool's gauge, refreshed at
commit, already holds the next step's blocks.
"""

from __future__ import annotations

from evenhand.engines.reference.groups import AlignedStateGroup, AttentionGroup, FixedStateGroup, Group, Table
from evenhand.engines.reference.pool import BlockPool
from evenhand.engines.reference.prefix import found_blocks, look_up, register
from evenhand.engines.reference.sequences import Item, Output, Rules, Seq, State, Step, Totals
from evenhand.engines.reference.tokens import accepted


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
            found = look_up(state, seq)
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
    shared = found_blocks(state, seq, found)
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
            register(state, seq)
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
