"""vllm.cpp: a compiled server whose builds differ; everything is decided from the usage text of the executable at hand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evenhand.engines import allocate, control, log_text, python_env, vllm
from evenhand.engines.arguments import Arguments, check, flags_of
from evenhand.engines.base import Capabilities, Command, EngineError, Exit, Facts, Gauge, Launcher, Settings
from evenhand.engines.openai import OpenAIDialect
from evenhand.engines.outcome import Pattern, judge_exit
from evenhand.records import Pool

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape

_USAGE = "vllm.cpp: share of the attention blocks in use; recurrent state lies in a pool of its own and is not counted"


def _renamed(gauge: Gauge) -> Gauge:
    """vLLM's series under vllm.cpp's name."""
    meaning = _USAGE if gauge.name == "usage" else gauge.meaning.replace("vLLM:", "vllm.cpp:", 1)
    return msgspec.structs.replace(gauge, meaning=meaning)


GAUGES = tuple(map(_renamed, vllm.GAUGES))
"""The subset of vLLM's series that builds with metrics serve; what they lack is absent."""

REFUSALS = (
    Pattern(
        r"To serve (?P<seats>\d+) concurrent sequences, (?P<needed>[\d.]+) GiB of recurrent \(Mamba/GDN\) state is needed, "
        r"which is larger than the available (?P<available>[\d.]+) GiB\."
        r"(?: Speculative decoding widens that state to (?P<slots>\d+) snapshot slots per sequence "
        r"\(num_speculative_tokens=(?P<depth>\d+) \+ 1\))?.*"
    ),
)
LISTENING = "listening on"
FAILED_BIND = "failed to bind"
CAUSES = ("unknown argument", "server: fatal:", FAILED_BIND, "vllm-server: fatal:", "must be positive")
ERRORS = ("engine-fatal:", "fatal:", "output handler saw engine death", "api-server: 5")


class VllmcppLauncher:
    """Starting the executable."""

    def locate(self, settings: Settings) -> str:
        """The arm's executable, else vllm-server on PATH."""
        return python_env.find_executable(settings.executable or "vllm-server", "vllm.cpp")

    def capabilities(self, settings: Settings) -> Capabilities:
        """The usage text, and --version where it is named. Every build read so far dies of a prompt of ids."""
        located = self.locate(settings)
        usage = python_env.usage_text([located, "--help"], settings.env, 20, "vllm.cpp")
        flags = flags_of(usage)
        if "--model" not in flags:
            raise EngineError(f"{located} does not look like vllm.cpp's server: its usage text names no --model.")
        version = None
        if "--version" in flags:
            printed = log_text.last_line(python_env.usage_text([located, "--version"], settings.env, 20, "vllm.cpp"))
            version = printed.split()[-1] if printed else None
        return Capabilities(flags=flags, version=version, takes_ids=False, returns_ids=False)

    def package_folder(self, settings: Settings) -> str | None:
        """None: two arms are two executables."""
        return None

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Neutral settings -> the server's flags. Raises EngineError."""
        check(settings)
        if settings.block_tokens is not None and settings.block_tokens % 16:
            raise EngineError(f"block_tokens is {settings.block_tokens}: vllm.cpp needs a multiple of 16.")
        args = Arguments("vllm.cpp", capabilities.flags)
        args.argv += [self.locate(settings), "--model", settings.model, "--host", "127.0.0.1", "--port", str(port)]
        args.add("--served-model-name", settings.served_name, "served_name")
        args.add("--max-model-len", settings.context, "context")
        args.add("--max-num-seqs", settings.seats, "seats")
        args.add("--max-num-batched-tokens", settings.chunk_tokens, "chunk_tokens")
        args.add("--block-size", settings.block_tokens, "block_tokens")
        args.add("--kv-cache-dtype", settings.cache_dtype, "cache_dtype")
        args.add("--mamba-ssm-cache-dtype", settings.state_dtype, "state_dtype")
        args.add("--dtype", settings.dtype, "dtype")
        if settings.prefix_caching is not None:
            flag = "--enable-prefix-caching" if settings.prefix_caching else "--no-enable-prefix-caching"
            args.switch(flag, f"prefix_caching = {str(settings.prefix_caching).lower()}")
        _pool(settings, args)
        if settings.method:
            body: dict[str, Any] = {"method": settings.method, "num_speculative_tokens": settings.depth}
            args.add(
                "--speculative-config", json.dumps(body | ({"model": settings.draft} if settings.draft else {})), "speculation"
            )
        args.argv += [flag for flag in ("--enable-metrics", "--enable-server-dev-mode") if flag in capabilities.flags]
        if "--generation-config" in capabilities.flags:
            args.argv += ["--generation-config", "vllm"]
        env = {"VT_SERVER_SSE_PING_S": "0", "VT_KV_ALLOC_LOG": "1", **settings.env}
        return Command(argv=[*args.argv, *settings.args], env=env, inexpressible=args.inexpressible)

    def probe(self, settings: Settings) -> str | None:
        """None: compiled."""
        return None

    def files(self, settings: Settings) -> list[str]:
        """The executable."""
        return [self.locate(settings)]


def _pool(settings: Settings, args: Arguments) -> None:
    pool = settings.pool
    blocks = pool.blocks
    if pool.tokens is not None:
        blocks = -(-pool.tokens // (settings.block_tokens or allocate.VLLMCPP_BLOCK))
    args.add("--num-blocks", blocks, "pool.blocks")
    args.add("--kv-cache-memory", pool.bytes, "pool.bytes")
    if pool.fraction is not None:
        args.cannot(f"pool.fraction = {pool.fraction}", "accepts --gpu-memory-utilization without effect, or not at all")
    if pool.state_bytes is not None:
        args.cannot("pool.state_bytes", "takes state out of whatever memory is left")


class VllmcppFacts:
    """Reading vllm.cpp."""

    gauges: tuple[Gauge, ...] = GAUGES
    metrics_path: str | None = "/metrics"

    def alive(self, http: httpx.Client) -> bool:
        """/health, which answers even after the engine died: only a generated token proves it."""
        return control.healthy(http)

    def served(self, http: httpx.Client) -> list[str]:
        """Names in /v1/models."""
        return control.served(http)

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """What the log tells: the server has no endpoint for it."""
        config: dict[str, Any] = {}
        if (match := re.search(r"server: prefix caching (enabled|disabled)", log)) is not None:
            config["log.prefix_caching"] = match[1] == "enabled"
        if (match := re.search(r"Asynchronous scheduling is (enabled|disabled)", log)) is not None:
            config["log.async_scheduling"] = match[1] == "enabled"
        return config

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """Blocks and page bytes that VT_KV_ALLOC_LOG prints, else vllm:cache_config_info's token count."""
        blocks = log_text.number(r"num_blocks[=:\s]+(\d+)", log)
        page = log_text.number(r"page_size_bytes[=:\s]+(\d+)", log)
        size = log_text.number(r"block_size[=:\s]+(\d+)", log)
        found = vllm.ENGINE.facts.pool(http, "", metrics)
        if blocks is None:
            return found
        return Pool(
            blocks=int(blocks),
            usable_blocks=int(blocks) - 1,
            block_tokens=None if size is None else int(size),
            tokens=found.tokens if found else None,
            max_concurrency=found.max_concurrency if found else None,
            source=f"log: num_blocks (page of one layer: {int(page)} bytes)" if page else "log: num_blocks",
        )

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """Seats where the log says that it lowered them; else unknown."""
        figure = log_text.number(r"max[-_]num[-_]seqs\b[^\n]*?(?:clamped|capped|reduced|lowered)[^\n]*?\bto (\d+)", log)
        return None if figure is None else int(figure)

    def version(self, http: httpx.Client, log: str) -> str | None:
        """/version."""
        found = (control.get_json(http, "/version") or {}).get("version")
        return found if isinstance(found, str) else None

    def exit(self, code: int | None, log: str) -> Exit:
        """The state guard's refusal with its figures; "listening" is printed before the bind: a failed bind is no death."""
        ready = "\0" if FAILED_BIND in log else LISTENING
        return judge_exit(code, log, refusals=REFUSALS, ready=ready, causes=(*CAUSES, "engine-fatal:"))

    def fatal(self, log_tail: str) -> str | None:
        """`engine-fatal:`, after which the server goes on answering with 500."""
        return next(iter(log_text.lines_with(log_text.clean(log_tail), ("engine-fatal:",))), None)

    def figures(self, log: str) -> dict[str, float]:
        """Page bytes and blocks where they are printed."""
        patterns = {"page_bytes": r"page_size_bytes[=:\s]+(\d+)", "pool_blocks": r"num_blocks[=:\s]+(\d+)"}
        return log_text.numbers(patterns, log)

    def log_errors(self, log: str) -> int:
        """Lines of the engine's death and of requests that ended in 5xx."""
        return len(log_text.lines_with(log_text.clean(log), ERRORS))

    def reset_cache(self, http: httpx.Client) -> str | None:
        """POST /reset_prefix_cache."""
        why = vllm.ENGINE.facts.reset_cache(http)
        if why is not None and "VLLM_SERVER_DEV_MODE" in why:
            return "the server has no /reset_prefix_cache: builds that have it need --enable-server-dev-mode."
        return why

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """context - 1: there is no length check, a longer prompt kills the engine."""
        if settings.context is not None:
            return settings.context - 1
        try:
            config = msgspec.json.decode((Path(settings.model) / "config.json").read_bytes())
        except (OSError, msgspec.DecodeError):
            return None
        longest = config.get("max_position_embeddings") if isinstance(config, dict) else None
        return longest - 1 if isinstance(longest, int) else None


class VllmcppEngine:
    """The adapter."""

    name = "vllm.cpp"
    simulated = False

    def __init__(self) -> None:
        self.launcher: Launcher = VllmcppLauncher()
        self.facts: Facts = VllmcppFacts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> OpenAIDialect:
        """Completions with text only, and text only comes back."""
        return OpenAIDialect(returns_ids=False, takes_ids=False)

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """Two pools, a ceiling and a guard."""
        return allocate.vllmcpp(shape, budget)


ENGINE = VllmcppEngine()
