"""SGLang: versions 0.5.15 (GPU) and 0.5.23 (CPU) are the ones that were read."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.engines import allocate, control, exposition, log_text, python_env
from evenhand.engines.arguments import Arguments, check, is_hybrid
from evenhand.engines.base import Capabilities, Command, EngineError, Exit, Facts, Gauge, Launcher, Settings
from evenhand.engines.gauges import counter, gauge, share
from evenhand.engines.openai import OpenAIDialect
from evenhand.engines.outcome import Pattern, judge_exit
from evenhand.predict.config import read_model
from evenhand.predict.pages import PredictError, attn_bytes_per_token
from evenhand.records import Pool

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape

GIB = 2**30

GAUGES = (
    share(
        "usage",
        "SGLang: share of the attention pool's tokens in use; evictable radix tokens are not counted, state has its own pool",
        "sglang:full_token_usage",
        "sglang:token_usage",
    ),
    gauge("running", "SGLang: requests in the running batch", "sglang:num_running_reqs"),
    gauge("waiting", "SGLang: requests queued", "sglang:num_queue_reqs"),
    gauge("used_tokens", "SGLang: tokens of the attention pool in use", "sglang:kv_used_tokens", "sglang:num_used_tokens"),
    share("state_usage", "SGLang: share of the recurrent-state slots in use", "sglang:mamba_usage"),
    gauge("state_used_slots", "SGLang: recurrent-state slots in use", "sglang:mamba_used_tokens"),
    counter("preemptions", "SGLang: requests retracted", "sglang:num_retracted_requests_total"),
    counter("prompt_tokens", "SGLang: prompt tokens processed", "sglang:prompt_tokens_total"),
    counter("generation_tokens", "SGLang: tokens generated", "sglang:generation_tokens_total"),
    counter("cached_prompt_tokens", "SGLang: prompt tokens served from the radix cache", "sglang:cached_tokens_total"),
    counter("drafts", "SGLang: verify steps", "sglang:spec_verify_calls_total"),
    gauge("accept_length", "SGLang: mean tokens per verify step, the verified one included", "sglang:spec_accept_length"),
    counter("requests_finished", "SGLang: requests finished", "sglang:num_requests_total"),
)

_KEYS = """
context_length dtype kv_cache_dtype quantization load_format random_seed mem_fraction_static max_total_tokens
max_running_requests chunked_prefill_size max_prefill_tokens schedule_policy page_size disable_radix_cache
disable_overlap_schedule enable_mixed_chunk attention_backend decode_attention_backend prefill_attention_backend
sampling_backend linear_attn_backend mamba_ssm_dtype mamba_full_memory_ratio mamba_radix_cache_strategy
max_mamba_cache_size tp_size dp_size pp_size ep_size device disable_cuda_graph enable_torch_compile moe_runner_backend
enable_deterministic_inference speculative_algorithm speculative_num_steps speculative_eagle_topk
speculative_num_draft_tokens swa_full_tokens_ratio num_continuous_decode_steps enable_unified_memory
"""
CONFIG_KEYS = tuple(_KEYS.split())
"""Result-bearing keys of /server_info."""

ALGORITHMS = {
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "dflash": "DFLASH",
}
CHAINED = {"STANDALONE", "EAGLE", "EAGLE3", "NEXTN"}
"""Algorithms that draft a tree: one branch of `depth` steps is what the other engines do."""

REFUSALS = (
    Pattern(
        r"Hybrid \(mamba/linear-attention\) state cache is too small to serve any requests(?:.*?mamba_ratio=(?P<slots>\d+))?"
    ),
    Pattern(
        r"Not enough GPU memory for hybrid \(mamba/linear-attention\) state cache"
        r"(?:.*?total_rest_memory=(?P<available>[\d.]+) GB)?"
    ),
    Pattern(r"Not enough memory\. Please try to increase --mem-fraction-static"),
)
READY = "The server is fired up and ready to roll!"
SIGQUIT = "Received sigquit from a child process"
NOT_OUT_OF_MEMORY = "SGLang killed itself after a child process failed; the exit code is not an out-of-memory kill"


class SglangLauncher:
    """Starting `python -m sglang.launch_server`."""

    def locate(self, settings: Settings) -> str:
        """The environment's interpreter, or the script `sglang` on PATH."""
        given = settings.executable or settings.environment
        return python_env.find_in_environment(settings, None if given else "sglang", "SGLang", "sglang")

    def capabilities(self, settings: Settings) -> Capabilities:
        """Version from METADATA, flags and token ids from the installed sources, the device from this machine's /dev."""
        folder = self.package_folder(settings)
        if folder is None:
            raise EngineError(
                f"SGLang was not found: {self.locate(settings)} has no package sglang; give the arm its environment."
            )
        found = python_env.version_of(folder, ("sglang",))
        flags, ids = _sources(folder)
        gpu = any(Path("/dev").glob("nvidia[0-9]*"))
        return Capabilities(flags=flags, version=found[1] if found else None, returns_ids=ids, device="gpu" if gpu else "cpu")

    def package_folder(self, settings: Settings) -> str | None:
        """Folder of the installed package, found without importing it."""
        return python_env.engine_package(settings, self.locate(settings), "sglang")

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Neutral settings -> launch_server. The verify block is drafted + 1. Raises EngineError."""
        check(settings)
        located = self.locate(settings)
        args = Arguments("SGLang", capabilities.flags)
        args.argv += [located, "-m", "sglang.launch_server"] if python_env.is_python(located) else [located, "serve"]
        args.argv += ["--model-path", settings.model, "--served-model-name", settings.served_name]
        args.argv += ["--host", "127.0.0.1", "--port", str(port), "--enable-metrics", "--decode-log-interval", "1"]
        args.switch("--enable-cache-report", "cached tokens per request")
        args.add("--max-running-requests", settings.seats, "seats")
        args.add("--context-length", settings.context, "context")
        args.add("--chunked-prefill-size", settings.chunk_tokens, "chunk_tokens")
        args.add("--page-size", settings.block_tokens, "block_tokens")
        args.add("--dtype", settings.dtype, "dtype")
        args.add("--kv-cache-dtype", settings.cache_dtype, "cache_dtype")
        args.add("--mamba-ssm-dtype", settings.state_dtype, "state_dtype")
        args.add("--random-seed", settings.seed, "seed")
        if settings.prefix_caching is False:
            args.switch("--disable-radix-cache", "prefix_caching = false")
        _pool(settings, args)
        if settings.method:
            _speculation(settings, args)
        env = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        if settings.options.get("device", capabilities.device) == "cpu":
            env["SGLANG_USE_CPU_ENGINE"] = "1"
            for flag, value in (("--device", "cpu"), ("--attention-backend", "torch_native"), ("--grammar-backend", "none")):
                args.argv += [] if flag in settings.args else [flag, value]
            args.argv.append("--disable-overlap-schedule")
        env |= python_env.with_packages(settings, "sglang")
        return Command(argv=[*args.argv, *settings.args], env=env, inexpressible=args.inexpressible)

    def probe(self, settings: Settings) -> str | None:
        """None: there is no plug-in for SGLang; its gauges are exact per step."""
        return None

    def files(self, settings: Settings) -> list[str]:
        """The interpreter or script, and the file that names the version."""
        folder = self.package_folder(settings)
        found = python_env.version_of(folder, ("sglang",)) if folder else None
        return [self.locate(settings), *([found[2]] if found else [])]


@lru_cache(maxsize=16)
def _sources(folder: str) -> tuple[frozenset[str], bool]:
    """(flags that the installed sources define, whether completions return token ids)."""
    srt = Path(folder) / "srt"
    flags: set[str] = set()
    for source in [srt / "server_args.py", *sorted((srt / "arg_groups" / "fields").glob("*.py"))]:
        if source.is_file():
            text = source.read_text("utf-8", "replace")
            flags.update(re.findall(r'"(--[a-z][a-z0-9-]*)"', text))
            flags.update("--" + name.replace("_", "-") for name in re.findall(r"^    ([a-z][a-z0-9_]*): ", text, re.MULTILINE))
    protocol = srt / "entrypoints" / "openai" / "protocol.py"
    return frozenset(flags), protocol.is_file() and "return_token_ids" in protocol.read_text("utf-8", "replace")


def _pool(settings: Settings, args: Arguments) -> None:
    """SGLang counts its attention pool in tokens; on hybrids state is split off before (--mamba-full-memory-ratio)."""
    pool = settings.pool
    tokens = pool.tokens
    if pool.state_bytes is not None:
        args.cannot("pool.state_bytes", "splits state off by a ratio, not by bytes")
    if pool.blocks is not None:
        if settings.block_tokens:
            tokens = pool.blocks * settings.block_tokens
        else:
            args.cannot(f"pool.blocks = {pool.blocks}", "counts its pool in tokens; give block_tokens as well")
    if pool.bytes is not None:
        per_token = _bytes_per_token(settings)
        if per_token is None:
            args.cannot(
                f"pool.bytes = {pool.bytes}", "counts its pool in tokens, and their bytes are known for dense models only"
            )
        else:
            tokens = pool.bytes // per_token
    args.add("--max-total-tokens", tokens, "the pool")
    args.add("--mem-fraction-static", pool.fraction, "pool.fraction")


def _bytes_per_token(settings: Settings) -> int | None:
    if is_hybrid(settings.model):
        return None
    try:
        shape = read_model(settings.model, cache_dtype=settings.cache_dtype, dtype=settings.dtype).shape
    except (PredictError, OSError):
        return None
    return attn_bytes_per_token(shape) * shape.attention_layers


def _speculation(settings: Settings, args: Arguments) -> None:
    algorithm = ALGORITHMS.get(settings.method or "")
    if algorithm is None:
        raise EngineError(f"SGLang knows no draft method {settings.method!r}: known are {', '.join(ALGORITHMS)}.")
    args.add("--speculative-algorithm", algorithm, "draft.method")
    args.add("--speculative-draft-model-path", settings.draft, "draft.model")
    args.add("--speculative-num-draft-tokens", settings.depth + 1, "draft.depth")
    if algorithm in CHAINED:
        args.add("--speculative-num-steps", settings.depth, "draft.depth")
        args.add("--speculative-eagle-topk", 1, "a single chain of drafts")


class SglangFacts:
    """Reading SGLang."""

    gauges: tuple[Gauge, ...] = GAUGES
    metrics_path: str | None = "/metrics"

    def alive(self, http: httpx.Client) -> bool:
        """/v1/models answers; its health endpoints would run a request."""
        return control.healthy(http, "/v1/models")

    def served(self, http: httpx.Client) -> list[str]:
        """Names in /v1/models (requests with any other name are served all the same)."""
        return control.served(http)

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """/server_info projected to CONFIG_KEYS, what the scheduler resolved over what was asked."""
        info, state = _info(http)
        config = {**control.project(info, CONFIG_KEYS), **control.project(state, CONFIG_KEYS)}
        graphs = info.get("cuda_graph_config")
        if isinstance(graphs, dict):
            config |= {f"graphs.{kind}": part.get("backend") for kind, part in graphs.items() if isinstance(part, dict)}
        return config

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """Tokens and pages of the attention pool, state slots beside it; bytes as the log rounds them (0.01 GiB).

        Over data-parallel ranks these are sums: of the ranks' series, else of the one figure that is told, once a rank. That is
        as the sources have it; it was never run on several ranks.
        """
        text = metrics if metrics is not None else control.get_text(http, "/metrics")
        series = exposition.by_label(text or "", "sglang:max_total_num_tokens", "dp_rank")
        tokens, source = list(series.values()), "sglang:max_total_num_tokens"
        page = exposition.values(text or "", "sglang:page_size")[:1]
        info, state = _info(http)
        slots = state.get("max_mamba_cache_size") or log_text.number(r"max_mamba_cache_size: (\d+)", log)
        if not tokens and isinstance(info.get("max_total_num_tokens"), int):
            tokens, source = [float(info["max_total_num_tokens"])], "/server_info"
        if not tokens and (figure := log_text.number(r"max_total_num_tokens=(\d+)", log)) is not None:
            tokens, source = [figure], "log: max_total_num_tokens"
        if not tokens:
            return None
        ranks = max(len(tokens), int(info.get("dp_size") or 1))
        tokens += tokens[:1] * (ranks - len(tokens))
        size = int(page[0]) if page else int(info.get("page_size") or 1)
        blocks = sum(int(count) // size for count in tokens)
        sizes = re.findall(r"K size: ([\d.]+) GB, V size: ([\d.]+) GB", log)
        return Pool(
            blocks=blocks,
            usable_blocks=blocks,
            block_tokens=size,
            tokens=int(sum(tokens)),
            bytes=(ranks * sum(log_text.gib(figure) for figure in sizes[-1]) or None) if sizes else None,
            state_slots=ranks * int(slots) if slots else None,
            by_engine=series if len(series) > 1 else {},
            source=source,
        )

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """What the scheduler resolved, clamped by tokens or state slots."""
        _, state = _info(http)
        found = state.get("effective_max_running_requests_per_dp")
        figure = (
            found if isinstance(found, int) else log_text.number(r"max_total_num_tokens=.*?max_running_requests=(\d+)", log)
        )
        return None if figure is None else int(figure)

    def version(self, http: httpx.Client, log: str) -> str | None:
        """Of /server_info."""
        info, _ = _info(http)
        found = info.get("version")
        return found if isinstance(found, str) else None

    def exit(self, code: int | None, log: str) -> Exit:
        """Refusals with their figures; exit 137 after a child failed is told apart from an out-of-memory kill."""
        notes = [NOT_OUT_OF_MEMORY] if SIGQUIT in log and code in (137, -9) else []
        return judge_exit(code, log, refusals=REFUSALS, ready=READY, notes=notes)

    def fatal(self, log_tail: str) -> str | None:
        """None: SGLang kills its whole process tree when a child fails, so its exit tells."""
        return None

    def figures(self, log: str) -> dict[str, float]:
        """Memory and times of the start, state slots and what clamped the seats."""
        gib_figures = {
            "weight_memory_bytes": r"Load weight end\..*?mem usage=([\d.]+) GB",
            "state_conv_bytes": r"conv_state size: ([\d.]+)GB",
            "state_ssm_bytes": r"ssm_state size: ([\d.]+)GB",
            "device_available_bytes": r"available_gpu_mem=([\d.]+) GB",
        }
        plain_figures = {
            "weight_load_s": r"Load weight end\. elapsed=([\d.]+) s",
            "graph_capture_s": r"[Cc]apture (?:cuda|CUDA) graph end\. .*?elapsed=([\d.]+) s",
            "kv_cache_tokens": r"KV Cache is allocated\..*?#tokens: (\d+)",
            "state_slots": r"max_mamba_cache_size: (\d+)",
            "seats_capped_requests": r"max_running_requests (?:is capped to|was reduced from the requested \d+ to) (\d+)",
            "state_slots_per_request": r"max_mamba_cache_size=\d+, (\d+) state slots per",
        }
        found = {name: value * GIB for name, value in log_text.numbers(gib_figures, log).items()}
        return found | log_text.numbers(plain_figures, log)

    def log_errors(self, log: str) -> int:
        """Tracebacks, exceptions of a process and lines at level ERROR."""
        words = ("Traceback (most recent call last)", "hit an exception", " ERROR ", "ERROR:")
        return len(log_text.lines_with(log_text.clean(log), words))

    def reset_cache(self, http: httpx.Client) -> str | None:
        """POST /flush_cache; it is skipped while requests run."""
        response = control.post(http, "/flush_cache")
        if response is None:
            return "the server did not answer /flush_cache."
        if response.status_code != 200 or "not flushed" in response.text:
            return f"/flush_cache answered {response.status_code}: {response.text.strip()[:200]}"
        return None

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """SGLang rejects prompts that are too long by itself."""
        return None


def _info(http: httpx.Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """(/server_info, the first scheduler's state in it)."""
    info = control.get_json(http, "/server_info") or control.get_json(http, "/get_server_info") or {}
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states and isinstance(states[0], dict) else {}
    return info, state


class SglangEngine:
    """The adapter."""

    name = "sglang"
    simulated = False

    def __init__(self) -> None:
        self.launcher: Launcher = SglangLauncher()
        self.facts: Facts = SglangFacts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> OpenAIDialect:
        """Completions; ids where the build streams them."""
        return OpenAIDialect(returns_ids=capabilities.returns_ids is not False)

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """A static split of the bytes between state and tokens."""
        return allocate.sglang(shape, budget)


ENGINE = SglangEngine()
