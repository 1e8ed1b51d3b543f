"""The scheduler's state as plain structs: rules, sequences, steps, counters."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from evenhand.engines.reference.groups import Group, Table
from evenhand.engines.reference.pool import Block, BlockPool
from evenhand.engines.reference.tokens import Stream


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
