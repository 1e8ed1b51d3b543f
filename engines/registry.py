"""Find an engine adapter by name: the built-in ones, then third parties' through the entry-point group `evenhand.engines`."""

from __future__ import annotations

import importlib
from functools import cache
from importlib.metadata import entry_points

from evenhand.engines.base import Engine, Settings

BUILT_IN: dict[str, str] = {
    "vllm": "evenhand.engines.vllm",
    "sglang": "evenhand.engines.sglang",
    "vllm.cpp": "evenhand.engines.vllmcpp",
    "llama.cpp": "evenhand.engines.llamacpp",
    "attached": "evenhand.engines.attached",
    "reference": "evenhand.engines.reference.adapter",
}
"""name -> module that holds `ENGINE`"""


def engine_names() -> list[str]:
    """Names a scenario may use, built-in first."""
    found = [entry.name for entry in entry_points(group="evenhand.engines")]
    return [*BUILT_IN, *(name for name in sorted(found) if name not in BUILT_IN)]


@cache
def engine(name: str) -> Engine:
    """The adapter called `name`. Raises KeyError with the known names when there is none."""
    if name in BUILT_IN:
        return importlib.import_module(BUILT_IN[name]).ENGINE  # type: ignore[no-any-return]
    for entry in entry_points(group="evenhand.engines"):
        if entry.name == name:
            return entry.load()  # type: ignore[no-any-return]
    raise KeyError(f"no engine is called {name!r}; known are {', '.join(engine_names())}")


def attaches(name: str) -> bool:
    """Whether the engine is a server that something else started: it has `attaches = True`, and its arms name a url."""
    return bool(getattr(engine(name), "attaches", False))


def engine_for(name: str, settings: Settings) -> Engine:
    """The adapter called `name` for one arm's settings. Raises KeyError, and EngineError for options that cannot be used.

    An adapter with a `bind` (the embedded engine speaks several dialects) is asked for the one that these settings mean.
    """
    adapter = engine(name)
    bind = getattr(adapter, "bind", None)
    return bind(settings) if bind is not None else adapter
