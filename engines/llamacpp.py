"""llama.cpp: llama-server, or the same server inside the Python package xllamacpp; small enough for any machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evenhand.engines import allocate, control, log_text, python_env
from evenhand.engines.arguments import Arguments, check, flags_of
from evenhand.engines.base import Capabilities, Command, EngineError, Exit, Facts, Gauge, Launcher, Settings
from evenhand.engines.gauges import counter, gauge
from evenhand.engines.openai import OpenAIDialect
from evenhand.engines.outcome import Pattern, judge_exit
from evenhand.records import Pool

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape

SERVER = Path(__file__).with_name("llamacpp_server.py")

GAUGES = (
    gauge("running", "llama.cpp: slots that process a request", "llamacpp:requests_processing"),
    gauge("waiting", "llama.cpp: requests that wait for a slot", "llamacpp:requests_deferred"),
    counter("prompt_tokens", "llama.cpp: prompt tokens processed, cached ones left out", "llamacpp:prompt_tokens_total"),
    counter(
        "cached_prompt_tokens", "llama.cpp: prompt tokens reused from a slot's cache", "llamacpp:prompt_tokens_cached_total"
    ),
    counter("generation_tokens", "llama.cpp: tokens generated", "llamacpp:tokens_predicted_total"),
    counter("drafts", "llama.cpp: verify steps", "llamacpp:spec_decode_num_drafts_total"),
    counter("drafted_tokens", "llama.cpp: tokens drafted", "llamacpp:spec_decode_num_draft_tokens_total"),
    counter("accepted_tokens", "llama.cpp: drafted tokens accepted", "llamacpp:spec_decode_num_accepted_tokens_total"),
)
NEUTRAL = {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0, "typical_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0.0}
"""Its own sampling parameters at the values that change nothing (it would take 40, 0.05, ... otherwise)."""

REFUSALS = (
    Pattern(r"failed to allocate (?:\S+ )?buffer(?: of size \d+)?.*"),
    Pattern(r"failed to (?:create|initialize) (?:context|the context|KV cache).*"),
)
LISTENING = "listening on http"
CAUSES = (
    "llamacpp-server: fatal:",
    "error while handling argument",
    "error loading model",
    "couldn't bind",
    "main: exiting due to",
)
_ERROR_LINE = re.compile(r"^[\d.]+ E |\bfatal:|^error")


class LlamacppLauncher:
    """Starting llama-server, or llamacpp_server.py with an environment's Python."""

    def locate(self, settings: Settings) -> str:
        """The arm's executable, its environment's interpreter, or this interpreter."""
        return python_env.find_in_environment(settings, None, "llama.cpp", "xllamacpp")

    def capabilities(self, settings: Settings) -> Capabilities:
        """llama-server's usage text; for Python, xllamacpp's version and the flags of llamacpp_server.py."""
        located = self.locate(settings)
        if not python_env.is_python(located):
            usage = python_env.usage_text([located, "--help"], settings.env, 30, "llama.cpp")
            return Capabilities(flags=flags_of(usage), returns_ids=False)
        folder = python_env.engine_package(settings, located, "xllamacpp")
        if folder is None:
            raise EngineError(
                f"llama.cpp was not found: {located} has no package xllamacpp; install it or give an environment."
            )
        version = python_env.version_of(folder, ("xllamacpp",))
        flags = flags_of(SERVER.read_text("utf-8"))
        return Capabilities(flags=flags, version=version[1] if version else None, returns_ids=False)

    def package_folder(self, settings: Settings) -> str | None:
        """None: compiled."""
        return None

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Neutral settings -> llama-server's flags. Its pool is counted in cells: context times slots. Raises EngineError."""
        check(settings)
        model = Path(settings.model)
        if model.is_dir():
            found = sorted(model.glob("*.gguf"))
            if len(found) != 1:
                raise EngineError(f"llama.cpp needs one GGUF file: {settings.model} holds {len(found)} of them; name the file.")
            model = found[0]
        located = self.locate(settings)
        args = Arguments("llama.cpp", capabilities.flags)
        args.argv += [located, str(SERVER)] if python_env.is_python(located) else [located]
        args.argv += ["--model", str(model), "--alias", settings.served_name, "--host", "127.0.0.1", "--port", str(port)]
        args.add("--parallel", settings.seats, "seats")
        cells = settings.pool.tokens
        if cells is None and settings.context is not None:
            cells = settings.context * (settings.seats or 1)
        args.add("--ctx-size", cells, "context")
        args.add("--batch-size", settings.chunk_tokens, "chunk_tokens")
        args.add("--cache-type-k", settings.cache_dtype, "cache_dtype")
        args.add("--cache-type-v", settings.cache_dtype, "cache_dtype")
        if settings.prefix_caching is False:
            args.switch("--no-cache-prompt", "prefix_caching = false")
        for name in ("blocks", "bytes", "fraction", "state_bytes"):
            value = getattr(settings.pool, name)
            if value is not None:
                args.cannot(f"pool.{name} = {value}", "counts its pool in cells: context times seats, or pool.tokens")
        for name in ("block_tokens", "state_dtype", "dtype", "method"):
            value = getattr(settings, name)
            if value is not None:
                args.cannot(f"{name} = {value}", "has no such setting here")
        args.argv += [flag for flag in ("--metrics", "--slots", "--props") if args.has(flag)]
        env = python_env.with_packages(settings, "xllamacpp")
        return Command(argv=[*args.argv, *settings.args], env=env, inexpressible=args.inexpressible)

    def probe(self, settings: Settings) -> str | None:
        """None: compiled."""
        return None

    def files(self, settings: Settings) -> list[str]:
        """The executable, or the package's compiled module."""
        located = self.locate(settings)
        folder = python_env.engine_package(settings, located, "xllamacpp") if python_env.is_python(located) else None
        return [located, *(str(path) for path in sorted(Path(folder).glob("*.so")))] if folder else [located]


class LlamacppFacts:
    """Reading llama.cpp."""

    gauges: tuple[Gauge, ...] = GAUGES
    metrics_path: str | None = "/metrics"

    def alive(self, http: httpx.Client) -> bool:
        """/health, 503 while loading."""
        return control.healthy(http)

    def served(self, http: httpx.Client) -> list[str]:
        """Names in /v1/models (requests with any other name are served all the same)."""
        return control.served(http) if control.healthy(http) else []

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """Context of a slot, slots and weight type of /props."""
        props = control.get_json(http, "/props") or {}
        return control.project(props, ("default_generation_settings.n_ctx", "total_slots", "model_ftype"))

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """Cells: slots times the context of a slot; they are set aside for good, and no gauge tells their use."""
        config = self.config(http, log)
        slots, context = config.get("total_slots"), config.get("default_generation_settings.n_ctx")
        if not isinstance(slots, int) or not isinstance(context, int):
            return None
        size = re.findall(r"KV buffer size = +([\d.]+) MiB", log)
        return Pool(
            blocks=slots * context,
            usable_blocks=slots * context,
            block_tokens=1,
            tokens=slots * context,
            bytes=round(sum(map(float, size)) * 2**20) if size else None,
            source="/props: total_slots x n_ctx",
        )

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """total_slots."""
        found = self.config(http, log).get("total_slots")
        return found if isinstance(found, int) else None

    def version(self, http: httpx.Client, log: str) -> str | None:
        """build_info of /props."""
        found = (control.get_json(http, "/props") or {}).get("build_info")
        return found if isinstance(found, str) else None

    def exit(self, code: int | None, log: str) -> Exit:
        """A cache that cannot be allocated is a refusal."""
        return judge_exit(code, log, refusals=REFUSALS, ready=LISTENING, causes=CAUSES)

    def fatal(self, log_tail: str) -> str | None:
        """Assertions of ggml end the process; nothing lives on after them."""
        return next(iter(log_text.lines_with(log_text.clean(log_tail), ("GGML_ASSERT(", "fatal error"))), None)

    def figures(self, log: str) -> dict[str, float]:
        """Slots and context of a slot."""
        patterns = {"slots": r"n_slots = (\d+)", "slot_context_tokens": r"n_ctx_slot = (\d+)"}
        return log_text.numbers(patterns, log)

    def log_errors(self, log: str) -> int:
        """Lines at level E."""
        return sum(1 for line in log_text.clean(log).splitlines() if _ERROR_LINE.search(line))

    def reset_cache(self, http: httpx.Client) -> str | None:
        """There is no call for it."""
        return "llama.cpp has no call that empties its prompt cache: prefix_caching = false leaves it unused."

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """llama.cpp rejects prompts that are too long by itself."""
        return None


class LlamacppEngine:
    """The adapter."""

    name = "llama.cpp"
    simulated = False

    def __init__(self) -> None:
        self.launcher: Launcher = LlamacppLauncher()
        self.facts: Facts = LlamacppFacts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> OpenAIDialect:
        """Completions with ids in and text out; the prompt cache is said with every request."""
        return OpenAIDialect(returns_ids=False, extras={**NEUTRAL, "cache_prompt": settings.prefix_caching is not False})

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """Cells for every seat's whole context."""
        return allocate.llamacpp(shape, budget)


ENGINE = LlamacppEngine()
