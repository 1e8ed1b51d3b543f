"""What a user writes: a TOML scenario as frozen structs.

The loader (`load`) turns every mistake into one sentence that names the file, the key, what was found and what would do.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: unknown keys are mistakes."""


class Draft(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speculation: what drafts, and how deep."""

    method: str
    """ "draft_model", "ngram", "mtp", "eagle", "eagle3", "dflash" """
    model: str | None = None
    depth: int
    """Drafted tokens per step (engines that count the verify block get depth + 1)."""


class PoolSection(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cache pool; at most one of the first four."""

    blocks: int | None = None
    bytes: int | str | None = None
    """Bytes, or a string such as "14.625 GiB"."""
    fraction: float | None = None
    tokens: int | None = None
    state_bytes: int | str | None = None
    block_tokens: int | None = None


class Arm(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a comparison."""

    name: str
    engine: str
    executable: str | None = None
    environment: str | None = None
    url: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    patch: str | None = None
    """A unified diff against the engine's package, applied in an overlay."""
    patches: str | None = None
    """Folder with patches and an ordered list named `series`."""
    source: str | None = None
    """Folder of a git checkout, with `commit`: the package at that commit becomes the overlay."""
    commit: str | None = None
    build: str | None = None
    """Command that builds compiled sources, run in a copy of `source` at `commit`; makes `executable`, named from there."""
    model: str | None = None
    """A recorded conversion of the scenario's model (GGUF); allowed in ladders, never in gates."""
    pool: PoolSection | None = None
    """Overrides the scenario's pool for this arm (then a gate's comparison is void)."""
    draft: Draft | None = None
    seats: int | None = None
    null_gap_fix: bool | None = None
    """For prediction alone: whether this arm retires recurrent states across null gaps. A patched arm that does not say has
    no prediction."""


class Prompts(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where prompts come from."""

    source: Literal["random", "file"] = "random"
    file: str | None = None
    """Text, or JSONL with a "prompt" or "text" field."""
    send: Literal["ids", "text"] = "ids"
    """How prompts of a file travel: as token ids, or as text repaired until it has exactly the asked number of tokens."""
    shared_prefix: int = 0
    """Tokens that all prompts of a cell share (0: none)."""


class Ladder(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Concurrency ladder, closed loop unless `arrivals` says otherwise."""

    concurrency: list[int]
    prompt_tokens: int = 512
    output_tokens: int = 64
    requests: int | None = None
    """Requests per rung; None: max(20, 5c)."""
    seats: Literal["scenario", "rung"] = "scenario"
    """ "rung": one boot per rung, seats following the rung; not in a gate."""
    arrivals: Literal["closed", "constant", "poisson", "burst"] = "closed"
    rate: float | None = None
    """Requests per second, for open arrivals."""
    burst: int = 1


class Pressure(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Long prompts, one at a time, while the pool is watched."""

    prompt_tokens: list[int]
    output_tokens: int | None = None
    """None: as many as keep decoding on for at least 4 sample intervals, found by the warm-up."""
    requests: int = 1


class Reuse(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reuse ladder: a prefix is asked, replayed and extended; cached tokens and outputs are compared."""

    prefix_tokens: list[int]
    output_tokens: int = 16


class Watch(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sampled beside the requests."""

    interval_s: float = 0.25
    gpu: Literal["auto", "off"] = "auto"
    probe: bool = False
    metrics: bool = True
    require_metrics: bool = False


class Deadlines(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds; every one of them ends in a row with its name, never in a dropped request."""

    ready_s: float = 600.0
    connect_s: float = 10.0
    first_byte_s: float = 600.0
    silence_s: float = 120.0
    total_s: float = 3600.0
    stop_s: float = 20.0
    settle_s: float = 30.0
    release_s: float = 60.0


class Gate(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A paired comparison of two arms and the rules it is judged by."""

    baseline: str
    candidate: str
    compare: Literal["differ", "same"] = "differ"
    """ "same" declares an A/A gate."""
    pairs: int = 2
    """Boots per arm, in ABBA order."""
    control: bool = True
    """The baseline against itself: its first counted boot measures every cell twice, and a single pair gets one more boot."""
    warm_boot: bool = True
    rules: dict[str, Any] = {}
    """outputs = "identical" | "identical text" | "no worse than control"; peak_pool = "not worse" | {blocks = 1};
    ttft_p50 / ttft_p95 / tpot_p50 / throughput = {not_worse_by = 0.05}; errors = 0; engine_errors = 0"""


class Scenario(_Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole scenario."""

    name: str
    description: str = ""
    model: str
    served_name: str = "model"
    tokenizer: str | None = None
    arm: list[Arm]
    draft: Draft | None = None
    pool: PoolSection = PoolSection()
    seats: int | None = None
    context: int | None = None
    prefix_caching: bool | None = None
    chunk_tokens: int | None = None
    cache_dtype: str | None = None
    state_dtype: str | None = None
    dtype: str | None = None
    seed: int = 0
    ignore_eos: bool = True
    prompts: Prompts = Prompts()
    ladder: Ladder | None = None
    pressure: Pressure | None = None
    reuse: Reuse | None = None
    watch: Watch = Watch()
    deadlines: Deadlines = Deadlines()
    gate: Gate | None = None
    client_lag_share: float = 0.1
    """A rung without kernel stamps is void above this share of its median TPOT; so is a turn-around above 10 % of it."""
    expect: dict[str, str] = {}
    """ "ARM@CONCURRENCY" or "ARM@pressure/LENGTH" -> outcome that is expected, such as "refused"."""
