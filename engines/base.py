"""What an engine adapter is: a Launcher, a Dialect, a set of Facts, and an allocation rule.

An adapter owns everything that is particular to one engine; nothing outside `engines/` asks which engine it is. Adapters do no
process handling (that is harness/boot) and no timing (harness/drive): they translate and read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from evenhand.records import Pool, Refusal

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape


class EngineError(Exception):
    """One sentence for the user: what, where, what would do."""


COMPILE_CACHES = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
"""Variables that place the compile caches of the Python engines; a gate gives every arm folders of its own."""


# --- neutral settings ---------------------------------------------------------------------------------------------


class PoolRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The pool a scenario asks for; at most one of them is set. All None: the engine's own default."""

    blocks: int | None = None
    bytes: int | None = None
    fraction: float | None = None
    tokens: int | None = None
    state_bytes: int | None = None
    """Bytes free for recurrent state beside the pool, for engines with two pools (embedded engine only)."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One leg, said once for every engine."""

    model: str
    """Folder or file of the checkpoint."""
    served_name: str
    draft: str | None = None
    """Folder of the draft model, where the method needs one."""
    method: str | None = None
    """Speculation method: "draft_model", "ngram", "mtp", "eagle", "eagle3", "dflash"; None: no speculation."""
    depth: int = 0
    """Tokens drafted per step; engines that count the verify block get depth + 1."""
    seats: int | None = None
    """Sequences that may run at once."""
    context: int | None = None
    """Longest prompt + output, tokens."""
    pool: PoolRequest = PoolRequest()
    block_tokens: int | None = None
    prefix_caching: bool | None = None
    chunk_tokens: int | None = None
    """Tokens one scheduler step may batch (chunked prefill budget)."""
    cache_dtype: str | None = None
    state_dtype: str | None = None
    dtype: str | None = None
    seed: int = 0
    executable: str | None = None
    """Path of the engine's executable."""
    environment: str | None = None
    """Folder of a Python environment in which the engine is installed."""
    args: tuple[str, ...] = ()
    """Extra arguments of the arm, appended last."""
    env: Mapping[str, str] = {}
    url: str | None = None
    """For an attached engine."""
    options: Mapping[str, Any] = {}
    """`[arm.options]`: engine-specific switches (the embedded engine's faults and clock), and `api_key_env`."""


def api_key(settings: Settings) -> str | None:
    """The key that the server wants, from the variable that options.api_key_env names. Raises EngineError where it is unset."""
    name = settings.options.get("api_key_env")
    if not name:
        return None
    key = os.environ.get(str(name))
    if not key:
        raise EngineError(f"options.api_key_env names {name}, which is not set: export it before the run.")
    return key


def key_header(key: str | None) -> dict[str, str]:
    """The header that carries a key; empty without one."""
    return {"Authorization": f"Bearer {key}"} if key else {}


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What this build can do, asked from the build itself (its usage text or version), never assumed."""

    flags: frozenset[str] = frozenset()
    version: str | None = None
    device: str | None = None
    """ "cpu" or "gpu" where the adapter can tell."""
    takes_ids: bool = True
    """Prompts may be lists of token ids; False: text only (an id prompt can kill such an engine)."""
    returns_ids: bool | None = None
    """Whether token ids come back; None: the adapter's dialect knows by itself."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a leg. An empty argv means nothing is started (attached)."""

    argv: list[str]
    env: dict[str, str] = {}
    """Variables added to the allow-listed environment."""
    inexpressible: list[str] = []
    """Settings this engine or build cannot express, one sentence each: they go into the row."""


class Launcher(Protocol):
    """Starting the engine."""

    def locate(self, settings: Settings) -> str:
        """Path of the executable or interpreter that will run. Raises EngineError when it does not exist."""
        ...

    def capabilities(self, settings: Settings) -> Capabilities:
        """Ask the build (subprocess with a deadline); the caller caches per executable. Raises EngineError."""
        ...

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Pure: neutral settings -> command line. Raises EngineError for settings that contradict each other."""
        ...

    def package_folder(self, settings: Settings) -> str | None:
        """Folder of the installed Python package to overlay, found without importing it; None for compiled engines."""
        ...

    def probe(self, settings: Settings) -> str | None:
        """Folder with a plug-in that logs exact pool use from inside, to be put on PYTHONPATH; None where there is none."""
        ...

    def files(self, settings: Settings) -> list[str]:
        """Files whose sha256 identify the engine build itself (executable, package version file)."""
        ...


# --- dialect --------------------------------------------------------------------------------------------------------


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sent with every request, every field literally, zeros included."""

    temperature: float = 0.0
    top_p: float = 1.0
    n: int = 1
    seed: int = 0
    ignore_eos: bool = True
    max_tokens: int
    logprobs: int | None = None
    """Only in untimed replays."""


class Post(msgspec.Struct, frozen=True, kw_only=True):
    """A request ready to encode."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = {}


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One SSE data payload, decoded. A chunk that carries no token has empty ids and empty texts."""

    ids: tuple[int, ...] | None = None
    """None: this engine sent no ids with the event."""
    text: str = ""
    reasoning: str = ""
    tool: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    accepted_tokens: int | None = None
    error: str | None = None
    error_code: int | None = None
    done: bool = False
    """The payload was [DONE]."""
    top_logprobs: tuple[tuple[float, ...], ...] = ()
    """Per token of the chunk, the log-probabilities of the best candidates, best first (only when asked)."""
    malformed: str | None = None
    """Why the payload could not be decoded; the request fails with it."""


class Dialect(Protocol):
    """Speaking to the engine."""

    returns_ids: bool
    """Whether this build returns token ids (after `capabilities`)."""

    def request(self, prompt: Sequence[int] | str, sampling: Sampling, model: str, *, stream: bool = True) -> Post:
        """Pure: prompt ids or text -> POST. `stream_options.include_usage` and ids are always asked for."""
        ...

    def decode(self, payload: bytes) -> Chunk:
        """Pure: one SSE data payload (already joined) -> Chunk. Never raises: see Chunk.malformed."""
        ...


# --- facts ----------------------------------------------------------------------------------------------------------


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    """A neutral series and the names an engine has for it, newest first.

    Neutral names (the closed list lives in NEUTRAL): every table speaks these.
    """

    name: str
    metrics: tuple[str, ...]
    """Full exposition names, newest first, e.g. ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")."""
    kind: Literal["gauge", "counter"]
    meaning: str
    """One sentence, printed under tables: what this engine counts."""
    labels: Mapping[str, str] = {}
    """Only series with these label values."""
    pool: Literal["sum", "max", "pooled"] = "sum"
    """How several `engine` labels become one figure; several `pid` labels are one gauge (max)."""
    low: float | None = None
    high: float | None = None
    """Values outside are flagged and leave peaks and means."""
    scale: float = 1.0


NEUTRAL: dict[str, str] = {
    "running": "sequences in the running batch",
    "waiting": "sequences queued",
    "usage": "share of the KV pool in use, 0..1",
    "used_blocks": "blocks in use, where the engine says so itself",
    "used_tokens": "tokens held in the KV pool, where the engine says so itself",
    "state_usage": "share of a separate recurrent-state pool in use, 0..1",
    "state_used_slots": "recurrent-state slots in use",
    "preemptions": "counter: sequences pushed out of the batch",
    "prompt_tokens": "counter: prompt tokens processed",
    "generation_tokens": "counter: tokens generated",
    "cached_prompt_tokens": "counter: prompt tokens served from the prefix cache",
    "prefix_queries": "counter: tokens looked up in the prefix cache",
    "prefix_hits": "counter: tokens found there",
    "drafts": "counter: draft rounds",
    "drafted_tokens": "counter: tokens drafted",
    "accepted_tokens": "counter: drafted tokens accepted",
    "accept_length": "gauge: mean tokens per verify step",
    "requests_finished": "counter: requests finished",
}


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a start ended, read from exit code and log."""

    outcome: Literal["refused", "launch_failed", "died"]
    reason: str
    refusal: Refusal | None = None


class Facts(Protocol):
    """Reading the engine. `http` is a control client bound to the engine's base URL (trust_env off, short deadlines)."""

    gauges: tuple[Gauge, ...]
    metrics_path: str | None

    def alive(self, http: httpx.Client) -> bool:
        """Cheap liveness; True says nothing about generation."""
        ...

    def served(self, http: httpx.Client) -> list[str]:
        """Model names that the server lists; empty while it is loading."""
        ...

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """Effective configuration: an allow-list of result-bearing keys, never secrets, never per-boot values."""
        ...

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """The pool with its source."""
        ...

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """Seats as the engine resolved them (it may have clamped them)."""
        ...

    def version(self, http: httpx.Client, log: str) -> str | None: ...

    def exit(self, code: int | None, log: str) -> Exit:
        """Pure: exit code (None: still running when given up) and log -> outcome, reason, figures."""
        ...

    def fatal(self, log_tail: str) -> str | None:
        """Pure: words in the log of a living server that mean its engine is dead ("engine-fatal: ..."), or None."""
        ...

    def figures(self, log: str) -> dict[str, float]:
        """Pure: figures from the log, names end in their unit."""
        ...

    def log_errors(self, log: str) -> int:
        """Pure: lines of the log that report an error."""
        ...

    def reset_cache(self, http: httpx.Client) -> str | None:
        """Empty the prefix cache; None when done, else why not, in one sentence."""
        ...

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """Longest prompt that may be sent safely; None: the engine rejects longer ones by itself."""
        ...


class Engine(Protocol):
    """An adapter: what `engine(name)` returns. Modules expose one as `ENGINE`."""

    name: str
    simulated: bool
    """True for the embedded engine: everything it feeds is labelled."""
    launcher: Launcher
    facts: Facts

    def dialect(self, settings: Settings, capabilities: Capabilities) -> Dialect: ...

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """The engine's allocation rule, for prediction: pure."""
        ...
