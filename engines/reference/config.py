"""Command line -> EngineConfig, by a table of flags that each dialect owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenhand.engines.reference.options import Options


class UsageError(ValueError):
    """A command line that the engine's dialect does not know; `exit_code` as that engine has it."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked, before anything is resolved. None: the dialect's default."""

    model: str
    served_name: str | None = None
    host: str = "127.0.0.1"
    port: int = 8000
    seats: int | None = None
    context: int | None = None
    batch_tokens: int | None = None
    block_tokens: int | None = None
    pool_blocks: int | None = None
    pool_bytes: int | None = None
    pool_tokens: int | None = None
    pool_fraction: float | None = None
    caching: bool | None = None
    state_mode: str | None = None
    state_dtype: str | None = None
    cache_dtype: str | None = None
    dtype: str | None = None
    depth: int = 0
    method: str | None = None
    draft: str | None = None
    seed: int = 0
    state_ratio: float = 0.9
    state_slots: int | None = None
    async_scheduling: bool = True
    report_cached: bool = False
    gauge_every: int = 1
    """Gauges are refreshed every so many decode steps."""
    metrics: bool = True
    dev_mode: bool = False
    fast: bool = False
    """Switched by an environment variable, to be seen in the effective configuration."""
    options: Options = Options()


class Flag(msgspec.Struct, frozen=True):
    """One flag: the field it sets, and how its value is read (int, str, float, bytes, on, off, json, ignore, ignore_switch)."""

    field: str
    kind: str = "str"


def read_flags(argv: Sequence[str], flags: Mapping[str, Flag]) -> tuple[dict[str, Any], list[str]]:
    """Values by field, and the raw `--reference` texts. `--flag=value` works too. Raises UsageError naming the argument."""
    found: dict[str, Any] = {}
    references: list[str] = []
    queue = list(argv)
    while queue:
        word = queue.pop(0)
        name, equals, inline = word.partition("=")
        if name == "--reference":
            references.append(inline if equals else _value(queue, word))
            continue
        if name == "--probe-log":
            references.append(f"probe_log={inline if equals else _value(queue, word)}")
            continue
        flag = flags.get(name)
        if flag is None:
            raise UsageError(word)
        if flag.kind in ("on", "off"):
            found[flag.field] = flag.kind == "on"
            continue
        if flag.kind == "ignore_switch":
            continue
        text = inline if equals else _value(queue, word)
        if flag.kind != "ignore":
            found[flag.field] = _convert(name, flag.kind, text)
    return found, references


def _value(queue: list[str], flag: str) -> str:
    if not queue:
        raise UsageError(flag)
    return queue.pop(0)


def _convert(flag: str, kind: str, text: str) -> Any:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
        if kind == "bytes":
            from evenhand.engines.reference.options import bytes_of

            return bytes_of(text)
        if kind == "json":
            return msgspec.json.decode(text)
    except (ValueError, msgspec.DecodeError) as err:
        raise UsageError(f"{flag}: invalid value {text!r}") from err
    return text


def usage(program: str, flags: Mapping[str, Flag]) -> str:
    """A usage text with every flag, `--[no-]x` for pairs."""
    words = []
    for name, flag in sorted(flags.items()):
        if flag.kind == "off" and name.startswith("--no-"):
            continue
        shown = f"--[no-]{name[2:]}" if f"--no-{name[2:]}" in flags else name
        words.append(f"[{shown}]" if flag.kind in ("on", "off", "ignore_switch") else f"[{shown} {flag.field.upper()}]")
    lines, line = [], f"usage: {program} [--reference JSON]"
    for word in words:
        if len(line) + len(word) > 110:
            lines.append(line)
            line = "              "
        line += " " + word
    return "\n".join([*lines, line]) + "\n"
