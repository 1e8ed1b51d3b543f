"""The embedded engine as an adapter: it starts `python -m evenhand.engines.reference` and is read by the real engines' code.

`options.dialect` says whose manners it has; `bind(settings)` gives the adapter whose facts belong to that dialect.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from evenhand.engines.base import Capabilities, Command, Engine, EngineError, Exit, Gauge, Settings
from evenhand.engines.openai import OpenAIDialect
from evenhand.engines.reference import commands
from evenhand.engines.reference.options import OptionError, Options, convert
from evenhand.records import Pool

if TYPE_CHECKING:
    import httpx

    from evenhand.engines.base import Dialect, Facts
    from evenhand.predict.shape import Allocation, Budget, ModelShape

REAL: dict[str, str] = {
    "vllm": "evenhand.engines.vllm",
    "sglang": "evenhand.engines.sglang",
    "vllm.cpp": "evenhand.engines.vllmcpp",
}
"""dialect -> module of the engine that it imitates"""
MODULE = "evenhand.engines.reference"


def options_of(settings: Settings) -> Options:
    """`[arm.options]`, checked. Raises EngineError."""
    try:
        return convert(dict(settings.options))
    except OptionError as err:
        raise EngineError(f"{err}.") from err


def real(dialect: str) -> Engine:
    """The adapter of the engine whose dialect this is."""
    found: Engine = importlib.import_module(REAL[dialect]).ENGINE
    return found


def returns_ids(options: Options) -> bool:
    """Whether answers carry token ids: all do but those of an old vllm.cpp."""
    return not (options.dialect == "vllm.cpp" and options.build == "2026-07")


class ReferenceLauncher:
    """Starting the embedded engine."""

    def locate(self, settings: Settings) -> str:
        """The interpreter that runs it."""
        if settings.executable is not None:
            found = shutil.which(settings.executable)
            if found is None:
                raise EngineError(f"executable {settings.executable!r} does not exist or cannot be run.")
            return found
        if settings.environment is not None:
            python = Path(settings.environment) / "bin" / "python"
            if not python.exists():
                raise EngineError(f"environment {settings.environment!r} has no bin/python.")
            return str(python)
        return sys.executable

    def capabilities(self, settings: Settings) -> Capabilities:
        """The dialect's flags; the build is this package itself, so nothing has to be asked."""
        from evenhand.engines.reference.dialects import dialect as find

        self.locate(settings)
        options = options_of(settings)
        dialect = find(options.dialect)
        flags = dialect.flags(options)
        version = options.version or dialect.version
        return Capabilities(flags=frozenset(flags), version=version, returns_ids=returns_ids(options))

    def command(self, settings: Settings, port: int, capabilities: Capabilities) -> Command:
        """Settings -> command line. Raises EngineError."""
        options = options_of(settings)
        commands.check(settings)
        argv, cannot, implied = commands.flags_for(settings, options)
        told = {**implied, **settings.options}
        own = ["--reference", msgspec.json.encode(told, order="sorted").decode()] if told else []
        head = [self.locate(settings), "-m", MODULE, "--host", "127.0.0.1", "--port", str(port)]
        env = {"VLLM_SERVER_DEV_MODE": "1", **_importable(), **settings.env}
        return Command(argv=[*head, *argv, *own, *settings.args], env=env, inexpressible=cannot)

    def package_folder(self, settings: Settings) -> str | None:
        """Nothing to overlay: its arms differ by options."""
        return None

    def probe(self, settings: Settings) -> str | None:
        """It writes the probe's rows itself where EVENHAND_PROBE_LOG says; nothing is imported from the folder given."""
        return str(Path(__file__).parent.parent / "probes")

    def files(self, settings: Settings) -> list[str]:
        """Its own sources."""
        return [str(path) for path in sorted(Path(__file__).parent.rglob("*.py"))]


def _importable() -> dict[str, str]:
    """PYTHONPATH as it is here, where the package was found through it."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if os.environ.get("PYTHONPATH") else {}


class ReferenceFacts:
    """The real engine's facts, and the reference model's own effective configuration beside them."""

    def __init__(self, facts: Facts, options: Options) -> None:
        self._facts = facts
        self._options = options
        self.gauges: tuple[Gauge, ...] = facts.gauges
        old = options.dialect == "vllm.cpp" and options.build == "2026-07"
        self.metrics_path: str | None = None if old else facts.metrics_path

    def config(self, http: httpx.Client, log: str) -> dict[str, Any]:
        """The real engine's keys, and `reference.*`."""
        from evenhand.engines import control

        own = control.get_json(http, "/evenhand/config") or {}
        return self._facts.config(http, log) | {f"reference.{key}": value for key, value in sorted(own.items())}

    def max_prompt_tokens(self, settings: Settings) -> int | None:
        return commands.longest_prompt(settings, options_of(settings))

    def alive(self, http: httpx.Client) -> bool:
        return self._facts.alive(http)

    def served(self, http: httpx.Client) -> list[str]:
        return self._facts.served(http)

    def pool(self, http: httpx.Client, log: str, metrics: str | None) -> Pool | None:
        return self._facts.pool(http, log, metrics)

    def seats(self, http: httpx.Client, log: str) -> int | None:
        return self._facts.seats(http, log)

    def version(self, http: httpx.Client, log: str) -> str | None:
        return self._facts.version(http, log)

    def exit(self, code: int | None, log: str) -> Exit:
        return self._facts.exit(code, log)

    def fatal(self, log_tail: str) -> str | None:
        return self._facts.fatal(log_tail)

    def figures(self, log: str) -> dict[str, float]:
        return self._facts.figures(log)

    def log_errors(self, log: str) -> int:
        return self._facts.log_errors(log)

    def reset_cache(self, http: httpx.Client) -> str | None:
        return self._facts.reset_cache(http)


class ReferenceEngine:
    """The embedded engine in one dialect."""

    name = "reference"
    simulated = True

    def __init__(self, options: Options) -> None:
        self._options = options
        self._real = real(options.dialect)
        self.launcher = ReferenceLauncher()
        self.facts: Facts = ReferenceFacts(self._real.facts, options)

    def bind(self, settings: Settings) -> ReferenceEngine:
        """The adapter for these settings' dialect."""
        return ReferenceEngine(options_of(settings))

    def dialect(self, settings: Settings, capabilities: Capabilities) -> Dialect:
        """The real engine's way of asking and decoding; ids are taken in every dialect, since its models need no tokenizer."""
        options = options_of(settings)
        if options.dialect == "vllm.cpp":  # real builds end at a prompt of ids; here an old one only lacks ids in its answers
            return OpenAIDialect(returns_ids=returns_ids(options))
        return real(options.dialect).dialect(settings, msgspec.structs.replace(capabilities, returns_ids=True))

    def allocate(self, shape: ModelShape, budget: Budget) -> Allocation:
        """The allocation rule of the dialect's real engine."""
        return self._real.allocate(shape, budget)


ENGINE = ReferenceEngine(Options())
