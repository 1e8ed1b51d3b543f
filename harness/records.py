"""Every row that reaches disk, with its unit in its name.

Units: `_s` seconds (float), `_ns` nanoseconds on the harness's monotonic clock (int), `_bytes`, `_blocks`, `_tokens`.
`None` is null: a figure that was not measured is never 0 and never NaN; where a reader could wonder, a `*_reason`
field beside it says why. Files are strict JSON (no NaN, no Infinity), one row a line. `SCHEMA` is stored in the manifest and
raised by one whenever a field changes its meaning; readers accept rows that lack newer fields.

A run directory holds:

    manifest.json        Manifest: written before the first request, replaced by rename when the run ends
    scenario.toml        the scenario file as it was
    model-config.json    the model's config.json
    cells.jsonl          CellRow: one per (leg, cell), appended when the cell ends
    legs.jsonl           LegRow: one per boot, appended when the leg ends
    replays.jsonl        RequestRow: untimed replays (with margins) of requests that diverged in a gate
    events.jsonl         EventRow: what the harness itself did and saw, for people
    NNN-ARM/             one folder per leg
        engine.log       stdout and stderr of the engine, as they came (redacted when the leg ends)
        requests.jsonl   RequestRow, flushed as they are decoded after each rung
        rung-*.spill     raw reads with their stamps, appended as each request ends; removed once decoded
        samples.jsonl    SampleRow from the sampler's own process
        scrapes.jsonl.gz raw /metrics bodies, redacted
        gpu.jsonl        GpuRow
        probe.jsonl      rows of the in-engine probe, where there is one
        loadproof.jsonl  what the engine's processes loaded of the patched modules
    build-ARM.log        what an arm's build command said
    overlay/             the arms' overlays (links) while the run is on; their proof is in the LegRows
    before-resume-N/     what an interrupted start left of legs that were measured again: kept, never judged
    requests.parquet, samples.parquet   columnar copies made at the end
    sha256.json          path -> sha256 of every file above, written last
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = 1

Outcome = Literal["ok", "queued", "clamped", "refused", "launch_failed", "died", "interrupted", "void", "not_run"]
"""Closed list of what can become of a cell (or of a leg)."""

HAS_FIGURES: frozenset[str] = frozenset({"ok", "queued", "clamped"})
"""Outcomes whose figures may be shown and ranked."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Base of every stored row."""


class Pool(Row, frozen=True, kw_only=True):
    """An engine's cache pool as the running engine reports it.

    `blocks` counts every block the engine created (vLLM's usage divides by `usable_blocks` = blocks - 1: one is the null
    block). On a hybrid model blocks x block_tokens is not the pool in tokens: `tokens` is only what the engine itself says.
    """

    blocks: int | None = None
    usable_blocks: int | None = None
    block_tokens: int | None = None
    tokens: int | None = None
    bytes: int | None = None
    state_slots: int | None = None
    max_concurrency: float | None = None
    by_engine: dict[str, float] = {}
    """Tokens of each data-parallel engine, by its label in /metrics: what weighs their shares of use. Empty with one engine."""
    source: str = ""
    """Where the figures were read, e.g. "vllm:cache_config_info" or "log: max_total_num_tokens"."""


class Refusal(Row, frozen=True, kw_only=True):
    """Why an engine would not start, in its own words, and the figures parsed from them."""

    text: str
    """The engine's words, verbatim (control characters removed)."""
    needed_bytes: int | None = None
    available_bytes: int | None = None
    slots_per_seat: int | None = None
    seats: int | None = None
    depth: int | None = None
    max_context_tokens: int | None = None
    """Longest context the engine says it could serve instead."""


class FileHash(Row, frozen=True, kw_only=True):
    """One file of an executable, a model, a draft or a patch."""

    path: str
    sha256: str
    size_bytes: int


class PatchedFile(Row, frozen=True, kw_only=True):
    """Proof for one file that a patch touches: the installation is never edited, the process ran the overlay's copy."""

    path: str
    """Relative to the package folder, e.g. "v1/core/single_type_kv_cache_manager.py"."""
    action: Literal["modify", "create", "delete"]
    installed_sha256_before: str | None = None
    installed_sha256_after: str | None = None
    overlay_sha256: str | None = None
    loaded_from: str | None = None
    """Path that the running process imported, relative to the run directory where it lies inside."""
    loaded_sha256: str | None = None


class SamplerReport(Row, frozen=True, kw_only=True):
    """How well the sampler did, and what it cost. Times in seconds; None where there was nothing to measure."""

    status: str
    """ "ok", "unavailable (404)", "off", "died (-9)", ... """
    samples: int = 0
    """Scrapes whose figures can be used."""
    failed: int = 0
    skipped: int = 0
    """Deadlines that passed while a scrape was in flight."""
    interval_s: float = 0.0
    effective_interval_s: float | None = None
    gap_max_s: float | None = None
    """Longest time between two usable scrapes: what a peak could hide in."""
    jitter_p50_s: float | None = None
    jitter_p99_s: float | None = None
    jitter_max_s: float | None = None
    """start - due"""
    scrape_p50_s: float | None = None
    scrape_p99_s: float | None = None
    scrape_max_s: float | None = None
    scrape_mean_s: float | None = None
    """end - start: what a scrape takes from the server, at most"""
    scrape_share: float | None = None
    """Share of the time during which a scrape was in flight: the cost to the server, at most."""
    cpu_s: float | None = None
    rss_bytes: int | None = None
    realtime: bool = False
    """The kernel let the sampler run as soon as it was due; without it a busy machine shows in the jitter."""
    raw_bodies: int = 0
    absent: list[str] = []
    """Neutral names that no scrape had."""
    gpus: list[str] = []
    gpu_reasons: dict[str, str] = {}
    """GpuRow field -> why it is null"""
    warnings: list[str] = []


class LegRow(Row, frozen=True, kw_only=True):
    """One fresh boot of one arm."""

    leg: int
    arm: str
    engine: str
    role: Literal["warm_boot", "measure", "control"] = "measure"
    pair: int | None = None
    """Index of the boot pair this leg belongs to in a gate; None in a plain run."""
    outcome: Outcome
    reason: str | None = None
    seats_requested: int | None = None
    seats_resolved: int | None = None
    drafted_depth: int = 0
    argv: list[str] = []
    env: dict[str, str] = {}
    """Only what the harness set or passed by allow-list, secrets redacted."""
    inexpressible: list[str] = []
    """Neutral settings that this engine or build cannot express, one sentence each."""
    port: int | None = None
    start_ns: int | None = None
    ready_ns: int | None = None
    end_ns: int | None = None
    exit_code: int | None = None
    """Negative for a signal, as in subprocess."""
    refusal: Refusal | None = None
    pool: Pool | None = None
    config: dict[str, Any] = {}
    """Effective configuration read back from the running engine: the adapter's allow-list of result-bearing keys."""
    version: str | None = None
    files: list[FileHash] = []
    patched: list[PatchedFile] = []
    log_errors: int | None = None
    """ERROR lines in the engine's log."""
    log_warnings: list[str] = []
    device_bytes_before: int | None = None
    device_bytes_idle: int | None = None
    released_s: float | None = None
    """How long the device took to return to where it was; None where there is no device."""
    survivors: list[int] = []
    """Pids that outlived the stop (must be empty)."""
    sampler: SamplerReport | None = None
    """How well the pool was watched, and what that cost the engine; None where the engine was never ready."""
    figures: dict[str, float | None] = {}
    """Figures the adapter reads from the log (model load, graph capture, KV memory), name ends in its unit."""
    earlier: list[LegRow] = []
    """Interrupted boots of this leg whose cells were kept when the run was resumed, as far as they left a row."""


class Lag(Row, frozen=True, kw_only=True):
    """The client's own lag and cost in one cell: how far its figures can be trusted."""

    stamp: Literal["kernel", "user"]
    events: int = 0
    reads: int = 0
    coalesced: int = 0
    """Events that were not the last of their read (they leave the gap statistics)."""
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None
    lag_max_s: float | None = None
    """own stamp - kernel stamp, over reads"""
    loop_lag_p99_s: float | None = None
    """how long the client was away from its sockets: no read is later than that"""
    cpu_per_event_s: float | None = None
    send_lag_max_s: float | None = None
    """open loop: send - scheduled"""
    turnaround_p50_s: float | None = None
    turnaround_max_s: float | None = None
    """closed loop: next send - stamp of the previous request's last byte on that slot"""
    processes: int = 1
    realtime: bool = False
    """The kernel let the client run as soon as it woke; without it a busy machine shows in the turn-around."""
    clock_steps: int = 0
    max_in_flight: int | None = None


class CellRow(Row, frozen=True, kw_only=True):
    """One thing measured on one leg: a rung of the ladder or one prompt length of the pressure run."""

    leg: int
    arm: str
    cell: str
    """ "ladder/c=8", "pressure/14000", "reuse/4096" """
    kind: Literal["ladder", "pressure", "reuse", "warmup", "control"]
    repeat: int = 0
    """0 for the first pass; the within-boot A/A control repeats a cell with repeat = 1"""
    concurrency: int
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    outcome: Outcome
    reason: str | None = None
    planned: int = 0
    start_ns: int | None = None
    end_ns: int | None = None
    """First send and last byte: rates and peaks use this window only."""
    settle_ns: int | None = None
    """When the engine was idle again; None with `settle_reason` when its gauges never said so."""
    settle_reason: str | None = None
    cold: bool | None = None
    """True: cached tokens were reported and are 0; False: something was cached; None: not proved."""
    cold_reason: str | None = None
    cache_reset: str | None = None
    """How the cache was emptied before the cell, or why it was not."""
    counters: dict[str, float | None] = {}
    """neutral counter name -> increase over the cell; None where absent or where it went backwards"""
    counters_reason: str | None = None
    restarted: bool = False
    """A counter went backwards: the server restarted, the cell is void."""
    lag: Lag | None = None
    deadlines_s: dict[str, float] = {}
    relaunched: bool = False
    """The run was resumed and its leg booted again after this cell: the leg's row tells of a later boot."""


class RequestRow(Row, frozen=True, kw_only=True):
    """One request, decoded after its cell ended. Times are stamps of arrival (kernel's where `stamp` says so)."""

    leg: int
    arm: str
    cell: str
    repeat: int = 0
    index: int
    key: str
    """`cell#index`: what pairs requests between arms and boots. Never empty."""
    prompt_sha256: str
    prompt_tokens_asked: int
    outcome: Literal["ok", "failed", "interrupted"]
    reason: str | None = None
    error_code: int | None = None
    error_text: str | None = None
    http_status: int | None = None
    stamp: Literal["kernel", "user"]
    slot: int = 0
    scheduled_ns: int | None = None
    send_ns: int | None = None
    first_token_ns: int | None = None
    first_answer_ns: int | None = None
    last_token_ns: int | None = None
    end_ns: int | None = None
    ttft_s: float | None = None
    ttft_kind: Literal["first token", "first text"] | None = None
    tpot_s: float | None = None
    tpot_reason: str | None = None
    tpot_marked: bool = False
    """True where tokens after the first event had to be taken as tokens - 1 (no ids)."""
    gaps_kind: Literal["itl", "icl"] | None = None
    event_ns: list[int] = []
    """Arrival of each token event, ns after send."""
    event_tokens: list[int] = []
    """Tokens in each of them (1 each where there are no ids: then it counts texts, not tokens)."""
    event_coalesced: list[int] = []
    """Indices into event_ns of events that were not the last of their read."""
    token_ids: list[int] | None = None
    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    output_tokens: int | None = None
    token_source: Literal["ids", "usage", "none"] = "none"
    prompt_tokens: int | None = None
    """As the server reported."""
    cached_tokens: int | None = None
    accepted_tokens: int | None = None
    chunks: int = 0
    keepalive_comments: int = 0
    lag_max_s: float | None = None
    sampling: dict[str, Any] = {}
    """The sampling parameters exactly as they stood in the request body."""
    top2_margin_nats: list[float | None] | None = None
    """Per token, best minus second log-probability; only in untimed replays that asked for them."""


class SampleRow(Row, frozen=True, kw_only=True):
    """One scrape of /metrics. `values` holds neutral gauge and counter names of engines/base.py."""

    leg: int
    due_ns: int
    start_ns: int
    first_byte_ns: int | None = None
    end_ns: int
    status: str
    """ "ok", "unavailable (404)", "timeout", "truncated", ... """
    values: dict[str, float | None] = {}
    by_engine: dict[str, dict[str, float | None]] = {}
    """neutral name -> engine label -> value, only where there are several (data parallel)"""
    flags: list[str] = []
    """ "duplicate_series=3", "out_of_range:usage", "nonfinite:usage" """


class GpuRow(Row, frozen=True, kw_only=True):
    """One NVML reading of one device; null where the device or driver lacks it."""

    leg: int
    t_ns: int
    uuid: str
    index: int
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation_pct: float | None = None
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    energy_mj: int | None = None
    clock_reasons: int | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None
    foreign_pids: list[int] | None = None
    reasons: dict[str, str] = {}
    """Field -> why it is null; in the first row of each device of a leg (they do not change)."""


class EventRow(Row, frozen=True, kw_only=True):
    """What the harness did or noticed, one line for people."""

    t_ns: int
    what: str
    leg: int | None = None
    detail: str = ""


class Manifest(Row, frozen=True, kw_only=True):
    """What was asked, where, with what. Written before the first request; status and end change when the run ends."""

    schema: int = SCHEMA
    evenhand: str
    run: str
    """Folder name."""
    kind: Literal["run", "gate"]
    status: Literal["running", "finished", "interrupted", "failed"]
    started_utc: str
    ended_utc: str | None = None
    anchor_monotonic_ns: int
    """Monotonic clock at `started_utc`: every other time in the run counts on this clock."""
    scenario: dict[str, Any]
    """The resolved scenario (msgspec.to_builtins of scenario.Scenario)."""
    scenario_sha256: str
    scenario_file: str | None = None
    overrides: list[str] = []
    plan: dict[str, Any]
    machine: dict[str, Any]
    versions: dict[str, str]
    command: list[str]
    seed: int
    simulated: bool
    """True when any arm is the embedded engine: every table then says "reference model, not a measurement"."""
    previous: list[dict[str, Any]] = []
    """Earlier manifests' (started_utc, ended_utc, status) when the run was resumed."""
