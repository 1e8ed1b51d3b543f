"""From what was asked to what runs: page sizes, pools, seats; or a refusal in figures. The rules are the real engines' own.

The figures of a refusal are what the pools that would be built need; nothing is looked up.
"""

from __future__ import annotations

import msgspec

from evenhand.engines.reference import model
from evenhand.engines.reference.config import EngineConfig
from evenhand.engines.reference.groups import blocks_for
from evenhand.engines.reference.model import Shape
from evenhand.engines.reference.options import bytes_of
from evenhand.engines.reference.pool import BlockPool
from evenhand.engines.reference.scheduler import make_state
from evenhand.engines.reference.sequences import Rules, State

STATE_SLOTS_PER_SEAT_CACHED = 3
"""SGLang keeps this many state slots a running request when its radix cache holds states, and tracking slots beside them."""


class Refused(Exception):
    """Why the engine would not start; figures in bytes."""

    def __init__(
        self, kind: str, needed: int = 0, available: int = 0, longest: int = 0, slots: int = 1, seats: int = 0, context: int = 0
    ) -> None:
        super().__init__(kind)
        self.kind = kind
        self.needed = needed
        self.available = available
        self.longest = longest
        self.slots = slots
        self.seats = seats
        self.context = context


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A start that works."""

    config: EngineConfig
    shape: Shape
    rules: Rules
    unified: bool
    null_gap_fix: bool
    pool_blocks: int
    block_bytes: int
    state_groups: int
    state_slots: int
    """Slots of a separate state pool."""
    slots_each: int
    """Slots that one request takes there."""
    state_row_bytes: int
    """One layer's state."""
    state_dtype: str
    attention_bytes: int
    """Per token and attention layer."""
    padding: float
    seats_asked: int | None
    pool_tokens: int
    concurrency: float
    """Sequences of the whole context that the pool holds."""

    def state(self) -> State:
        """A fresh engine."""
        slots = None if self.unified or not self.state_slots else BlockPool(self.state_slots, null=False)
        groups = 0 if slots else self.state_groups
        return make_state(self.rules, self.pool_blocks, groups, self.null_gap_fix, slots, self.slots_each)


def resolve(config: EngineConfig, *, defaults: Defaults) -> Setup:
    """Pools and seats for `config` under a dialect's defaults. Raises Refused, or model.ModelError."""
    shape = model.read(config.model)
    options = config.options
    hybrid = shape.state_layers > 0
    unified = not hybrid or (options.pools or defaults.pools) == "unified"
    state_dtype = config.state_dtype or "auto"
    if state_dtype == "auto":
        state_dtype = defaults.state_dtype or (shape.dtype if shape.dtype in model.STATE_BYTES else "bfloat16")
    cache_dtype = config.cache_dtype or "auto"
    caching = config.caching if config.caching is not None else not hybrid
    aligned = unified and hybrid and caching and (config.state_mode or "align") == "align" and defaults.aligned
    if hybrid and not aligned:
        caching = False  # states written in place cannot be found again
    row = model.state_bytes(shape, config.depth, state_dtype)
    per_token = model.attention_bytes(shape, cache_dtype)
    asked_block = config.block_tokens or defaults.block_tokens
    block = asked_block
    padding = 0.0
    if unified and hybrid:
        block = model.block_tokens(shape, config.depth, state_dtype, cache_dtype, asked_block)
        padding = (block * per_token - row) / row
    block_bytes = block * per_token * shape.attention_layers
    seats = config.seats or defaults.seats
    context = config.context or shape.context
    slots_each = (2 if aligned else 1) + config.depth
    pool_bytes = _pool_bytes(config, defaults, asked_block * per_token * shape.attention_layers)
    state_slots = 0
    groups = shape.state_groups if unified else 0
    if not unified:
        seats, state_slots, pool_bytes = defaults.split(config, shape, row, per_token, seats, pool_bytes)
    elif options.state_bytes is not None:
        pool_bytes += bytes_of(options.state_bytes)  # what a second pool would have had is common property
    blocks = pool_bytes // block_bytes
    if config.pool_blocks is not None and unified and (not hybrid or defaults.counts_pages):
        blocks = config.pool_blocks
    if config.pool_tokens is not None:
        blocks = min(blocks, config.pool_tokens // block)
    one = blocks_for(context, block) + groups * slots_each
    if defaults.checks_one_request and one > blocks:
        raise Refused(
            "one request",
            needed=one * block_bytes,
            available=blocks * block_bytes,
            longest=max(0, (blocks - groups * slots_each) * block),
            context=context,
        )
    if seats < 1 or (not unified and blocks < 1):
        raise Refused("state")
    rules = Rules(
        seats=seats,
        batch_tokens=max(config.batch_tokens or defaults.batch_tokens, 1),
        block_tokens=block,
        depth=config.depth,
        acceptance=options.acceptance,
        drafter=config.depth > 0 and config.method in ("mtp", "eagle", "eagle3", "dflash"),
        in_flight=options.in_flight if config.async_scheduling else 0,
        aligned=aligned,
        caching=caching,
        context=context,
        leak_blocks=options.faults.leak_blocks,
    )
    concurrency = blocks / one
    return Setup(
        config=config,
        shape=shape,
        rules=rules,
        unified=unified,
        null_gap_fix=options.null_gap_fix,
        pool_blocks=blocks,
        block_bytes=block_bytes,
        state_groups=groups,
        state_slots=state_slots,
        slots_each=defaults.slots_each(config.depth),
        state_row_bytes=row,
        state_dtype=state_dtype,
        attention_bytes=per_token,
        padding=padding,
        seats_asked=config.seats,
        pool_tokens=int(concurrency * context) if groups else blocks * block,
        concurrency=concurrency,
    )


def _pool_bytes(config: EngineConfig, defaults: Defaults, asked_block_bytes: int) -> int:
    """Bytes for the pool before any split."""
    if config.pool_blocks is not None:
        return config.pool_blocks * asked_block_bytes
    if config.pool_bytes is not None:
        return config.pool_bytes
    share = config.pool_fraction if config.pool_fraction is not None else defaults.fraction
    return int(bytes_of(config.options.memory_bytes) * share)


class Defaults:
    """What a dialect's engine does where it is told nothing; subclasses say what differs."""

    pools = "unified"
    seats = 256
    block_tokens = 16
    batch_tokens = 2048
    fraction = 0.9
    state_dtype: str | None = None
    aligned = True
    """Knows the aligned state mode (prefix caching of recurrent state)."""
    counts_pages = True
    """The number of blocks asked for counts blocks as the engine resolves them, not blocks of the size asked for."""
    checks_one_request = True

    def slots_each(self, depth: int) -> int:
        """Slots of a separate state pool that one request takes."""
        return 1 + depth

    def split(
        self, config: EngineConfig, shape: Shape, row: int, per_token: int, seats: int, pool_bytes: int
    ) -> tuple[int, int, int]:
        """Two pools: (seats, state slots, bytes for attention). Raises Refused."""
        slots = self.slots_each(config.depth)
        needed = row * shape.state_layers * slots * seats
        free = bytes_of(config.options.state_bytes) if config.options.state_bytes is not None else None
        if free is not None and needed > free:
            raise Refused("state", needed=needed, available=free, slots=slots, seats=seats)
        return seats, slots * seats, pool_bytes


class VllmDefaults(Defaults):
    """One pool; refuses when one request of the whole context does not fit."""


class VllmCppDefaults(Defaults):
    """Two pools: blocks as asked, and 1 + drafted state slots a seat out of what is left. No check of the pool's size."""

    pools = "separate"
    seats = 32
    block_tokens = 32
    state_dtype = "float32"
    aligned = False
    counts_pages = False
    checks_one_request = False

    def split(
        self, config: EngineConfig, shape: Shape, row: int, per_token: int, seats: int, pool_bytes: int
    ) -> tuple[int, int, int]:
        """Seats are cut to the pool's pages over the slots of a sequence, then the state of those seats has to fit."""
        page = model.block_tokens(shape, config.depth, config.state_dtype or "float32", config.cache_dtype or "auto")
        pages = pool_bytes // (page * per_token * shape.attention_layers)
        seats = max(0, min(seats, pages // (1 + config.depth)))
        return super().split(config, shape, row, per_token, seats, pool_bytes)


class SglangDefaults(Defaults):
    """A split before anything runs: a share of the bytes for state slots, seats cut to the slots, the rest for tokens."""

    pools = "separate"
    seats = 256
    block_tokens = 1
    batch_tokens = 8192
    state_dtype = "float32"
    aligned = False
    checks_one_request = False

    def slots_each(self, depth: int) -> int:
        """The states of drafted tokens stand apart."""
        return 1

    def split(
        self, config: EngineConfig, shape: Shape, row: int, per_token: int, seats: int, pool_bytes: int
    ) -> tuple[int, int, int]:
        each = model.state_bytes(shape, 0, config.state_dtype or "float32") * shape.state_layers
        verify = config.depth + 1 if config.depth else 0
        extra = bytes_of(config.options.state_bytes) if config.options.state_bytes is not None else 0
        rest = pool_bytes + extra
        ratio = 1
        if config.caching is not False:
            ratio = STATE_SLOTS_PER_SEAT_CACHED + (2 if config.options.in_flight and config.async_scheduling else 1)
        if config.state_slots is not None:
            slots = config.state_slots
        elif config.caching is False:
            slots = seats
        else:
            share = rest * config.state_ratio / (1 + config.state_ratio)
            slots = int((share - each * (1 + verify)) // (each * (1 + verify / ratio)))
        seats = min(seats, slots // ratio)
        taken = each * (slots + 1 + verify * (seats + 1))
        if seats < 1 or taken >= rest:
            raise Refused("state", needed=taken, available=rest, slots=ratio, seats=slots)
        return seats, slots, rest - taken
