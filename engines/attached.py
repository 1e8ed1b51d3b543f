"""A server that something else started: measured at its URL, never booted or stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from evenhand.engines import control, exposition, llamacpp, sglang, vllm, vllmcpp
from evenhand.engines.base import (
    Capabilities,
    Command,
    Dialect,
    Engine,
    EngineError,
    Exit,
    Facts,
    Gauge,
    Launcher,
    Settings,
    api_key,
    key_header,
)

if TYPE_CHECKING:
    import httpx

    from evenhand.predict.shape import Allocation, Budget, ModelShape
    from evenhand.records import Pool

KINDS: dict[str, Engine] = {
    "vllm": vllm.ENGINE,
    "sglang": sglang.ENGINE,
    "vllm.cpp": vllmcpp.ENGINE,
    "llama.cpp": llamacpp.ENGINE,
}
PREFIXES = {"sglang:": "sglang", "llamacpp:": "llama.cpp", "vllm:": "vllm"}
DEFAULT = "vllm"
_BOOT = "seats context chunk_tokens block_tokens prefix_caching cache_dtype state_dtype dtype method draft"
BOOT_SETTINGS = tuple(_BOOT.split())
"""Settings that only who starts the server can give it, beside the drafted depth and the pool."""
_MARK = "dialect:"
T = TypeVar("T")


def _union() -> tuple[Gauge, ...]:
    """One gauge per neutral name with every engine's series: an attached server has those of one engine."""
    found: dict[str, Gauge] = {}
    for engine in KINDS.values():
        for gauge in engine.facts.gauges:
            known = found.get(gauge.name)
            if known is None:
                found[gauge.name] = gauge
                continue
            names = (*known.metrics, *(name for name in gauge.metrics if name not in known.metrics))
            found[gauge.name] = msgspec.structs.replace(known, metrics=names, meaning=f"{known.meaning}; {gauge.meaning}")
    return tuple(found.values())


def kind_of(metrics: str | None) -> str:
    """Which engine's series an exposition holds; vLLM's where that cannot be told. Pure."""
    return next((name for prefix, name in PREFIXES.items() if exposition.has(metrics or "", prefix)), DEFAULT)


class AttachedLauncher:
    """Nothing is started."""

    def locate(self, settings: Settings) -> str:
        """The base URL."""
        if not settings.url:
            raise EngineError("an attached arm needs a url, such as http://127.0.0.1:8000.")
        return control.base_url(settings.url)

    def capabilities(self, settings: Settings) -> Capabilities:
        """options.dialect, else the kind that the names in /metrics tell."""
        url, asked = self.locate(settings), settings.options.get("dialect")
        if asked is not None and asked not in KINDS:
            raise EngineError(f"options.dialect is {asked!r}: known are {', '.join(KINDS)}.")
        if asked is None:
            import httpx

            with httpx.Client(base_url=url, trust_env=False, timeout=5.0, headers=key_header(api_key(settings))) as http:
                asked = kind_of(control.get_text(http, "/metrics"))
        return Capabilities(flags=frozenset({_MARK + asked}), takes_ids=asked != "vllm.cpp")

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """An empty argv; settings of a boot cannot be expressed."""
        asked = {name: getattr(settings, name) for name in BOOT_SETTINGS}
        asked |= {"depth": settings.depth or None}
        asked |= {f"pool.{name}": value for name, value in msgspec.structs.asdict(settings.pool).items()}
        why = f"is not expressed: the server at {self.locate(settings)} was started by something else."
        return Command(argv=[], inexpressible=[f"{name} {why}" for name, value in asked.items() if value is not None])

    def package_folder(self, settings: Settings) -> str | None:
        """None: a running server cannot be patched."""
        return None

    def probe(self, settings: Settings) -> str | None:
        """None."""
        return None

    def files(self, settings: Settings) -> list[str]:
        """None: they may lie on another machine."""
        return []


class AttachedFacts:
    """Reading the server as the engine that its series name; the kind is asked once per URL."""

    gauges: tuple[Gauge, ...] = _union()
    metrics_path: str | None = "/metrics"

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}

    def _as_kind(self, http: httpx.Client, read: Callable[[Facts], T]) -> T:
        url = str(http.base_url)
        if url not in self._kinds:
            metrics = control.get_text(http, "/metrics")
            if metrics is None:
                return read(KINDS[DEFAULT].facts)
            self._kinds[url] = kind_of(metrics)
        return read(KINDS[self._kinds[url]].facts)

    def alive(self, http: httpx.Client) -> bool:
        """The server lists its models."""
        return control.healthy(http, "/v1/models")

    def served(self, http: httpx.Client) -> list[str]:
        """Names in /v1/models."""
        return control.served(http)

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """As the kind reads it."""
        return self._as_kind(http, lambda facts: facts.config(http, ""))

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        """As the kind reads it."""
        return self._as_kind(http, lambda facts: facts.pool(http, "", metrics))

    def seats(self, http: httpx.Client, log: str) -> int | None:
        """As the kind reads it."""
        return self._as_kind(http, lambda facts: facts.seats(http, ""))

    def version(self, http: httpx.Client, log: str) -> str | None:
        """As the kind reads it."""
        return self._as_kind(http, lambda facts: facts.version(http, ""))

    def exit(self, code: int | None, log: str) -> Exit:
        """A server that does not answer any more."""
        return Exit(
            outcome="launch_failed",
            reason="the attached server did not become ready: nothing was started here, look at its own log",
        )

    def fatal(self, log_tail: str) -> str | None:
        """None: its log is not here."""
        return None

    def figures(self, log: str) -> dict[str, float]:
        """None: its log is not here."""
        return {}

    def log_errors(self, log: str) -> int:
        """0: its log is not here."""
        return 0

    def reset_cache(self, http: httpx.Client) -> str | None:
        """As the kind does it."""
        return self._as_kind(http, lambda facts: facts.reset_cache(http))

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        """The scenario's context where the dialect is vllm.cpp's, which checks nothing itself."""
        return vllmcpp.ENGINE.facts.max_prompt_tokens(settings) if settings.options.get("dialect") == "vllm.cpp" else None


class AttachedEngine:
    """The adapter."""

    name = "attached"
    simulated = False
    attaches = True

    def __init__(self) -> None:
        self.launcher: Launcher = AttachedLauncher()
        self.facts: Facts = AttachedFacts()

    def dialect(self, settings: Settings, capabilities: Capabilities) -> Dialect:
        """The dialect of the kind that capabilities found."""
        kind = next((flag.removeprefix(_MARK) for flag in capabilities.flags if flag.startswith(_MARK)), DEFAULT)
        return KINDS[kind].dialect(settings, capabilities)

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """Unknown."""
        raise EngineError("an attached server's allocation rule is not known: name its engine instead.")


ENGINE = AttachedEngine()
