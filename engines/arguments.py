"""Building a command line against a build whose flags are known: what the build lacks becomes a sentence, not an argument."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import msgspec

from evenhand.engines.base import EngineError, PoolRequest, Settings

_FLAG = re.compile(r"--\[?(no-)?\]?[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")


def flags_of(usage: str) -> frozenset[str]:
    """Flags named in a usage text; "--[no-]x" gives --x and --no-x."""
    found: set[str] = set()
    for match in _FLAG.finditer(usage):
        flag = match[0]
        if "[no-]" in flag:
            bare = flag.replace("[no-]", "")
            found.update((bare, bare.replace("--", "--no-", 1)))
        else:
            found.add(flag)
    return frozenset(found)


class Arguments:
    """An argument list under construction. `known` empty means that the build could not be asked: everything is passed."""

    def __init__(self, engine: str, known: Collection[str]) -> None:
        self.argv: list[str] = []
        self.inexpressible: list[str] = []
        self._engine = engine
        self._known = known

    def has(self, flag: str) -> bool:
        """Whether the build takes the flag (assumed when it could not be asked)."""
        return not self._known or flag in self._known

    def add(self, flag: str, value: object, setting: str) -> None:
        """`flag value` for a setting that was given (not None); a build without the flag cannot express it."""
        if value is None:
            return
        if self.has(flag):
            self.argv += [flag, str(value)]
        else:
            self.cannot(f"{setting} = {value}", f"has no {flag}")

    def switch(self, flag: str, setting: str) -> None:
        """A flag without a value."""
        if self.has(flag):
            self.argv.append(flag)
        else:
            self.cannot(setting, f"has no {flag}")

    def cannot(self, setting: str, why: str) -> None:
        """Record that a setting is not expressed."""
        self.inexpressible.append(f"{setting} is not expressed: this build of {self._engine} {why}.")


def check(settings: Settings) -> None:
    """Contradictions within the settings themselves. Raises EngineError."""
    for name in ("seats", "context", "block_tokens", "chunk_tokens"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise EngineError(f"{name} is {value}: it must be at least 1.")
    for word in settings.args:
        if word.partition("=")[0] in ("--port", "--host"):
            raise EngineError(
                f"args hold {word!r}: evenhand listens on a free port of 127.0.0.1 that it takes itself; leave it out."
            )
    if settings.depth < 0:
        raise EngineError(f"drafted depth is {settings.depth}: it must be 0 or more.")
    if settings.method and settings.depth < 1:
        raise EngineError(f"draft method {settings.method!r} has depth {settings.depth}: give 1 or more, or no draft.")
    if settings.depth and not settings.method:
        raise EngineError(f"drafted depth is {settings.depth} but no draft method is named: give draft.method.")
    if settings.method == "draft_model" and not settings.draft:
        raise EngineError("draft method 'draft_model' needs draft.model, the folder of the draft model.")
    asked = asked_pools(settings.pool)
    if len(asked) > 1:
        raise EngineError(f"the pool is given as {' and as '.join(asked)}: give one of them.")
    fraction = settings.pool.fraction
    if fraction is not None and not 0 < fraction <= 1:
        raise EngineError(f"pool.fraction is {fraction}: it must be above 0 and at most 1.")


def asked_pools(pool: PoolRequest) -> list[str]:
    """Which of blocks, bytes, fraction and tokens were given."""
    return [name for name in ("blocks", "bytes", "fraction", "tokens") if getattr(pool, name) is not None]


_HYBRID_KEYS = ("linear_num_value_heads", "mamba_d_state", "mamba_n_heads", "ssm_cfg", "mamba_num_heads", "layers_block_type")


def is_hybrid(model: str) -> bool:
    """Whether the checkpoint's config.json has recurrent-state layers beside attention; False when there is none to read."""
    try:
        config = msgspec.json.decode((Path(model) / "config.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return False
    if not isinstance(config, dict):
        return False
    config = config.get("text_config") or config
    kinds = config.get("layer_types") or []
    return any("linear" in str(kind) or "mamba" in str(kind) for kind in kinds) or any(config.get(key) for key in _HYBRID_KEYS)
