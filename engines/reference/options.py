"""What the embedded engine can be told beside the flags of the engine whose dialect it speaks: `[arm.options]` of a scenario.

On the command line it is `--reference JSON` or `--reference KEY=VALUE` (nested keys with a dot), repeatable, later wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from evenhand.engines.reference.clock import Clock


class OptionError(ValueError):
    """One sentence about an option that cannot be used."""


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ways to fail. A request number counts from 1, the harness's own readiness request included; 0 means every request."""

    die_at_request: int | None = None
    """The process ends when this request has `after_tokens` tokens."""
    die_signal: int = 9
    """Signal it sends itself; 0: exit code 1."""
    engine_dies_at_request: int | None = None
    """The engine dies, the server lives on: its health stays 200 where the dialect's does."""
    stall_at_request: int | None = None
    """The stream falls silent after `after_tokens` tokens, its socket stays open."""
    error_at_request: int | None = None
    """An error object comes in the 200 stream after `after_tokens` tokens."""
    truncate_at_request: int | None = None
    """The stream ends cleanly after `after_tokens` tokens, without finish_reason and [DONE]."""
    reset_at_request: int | None = None
    """The connection is cut after `after_tokens` tokens."""
    after_tokens: int = 1
    always_500: bool = False
    keepalive_s: float | None = None
    """Comments are sent this often while a stream waits."""
    split_bytes: int | None = None
    """Events are written in pieces of this many bytes, 2 ms apart."""
    batch_dependent: float = 0.0
    """Share of near-tie positions whose token depends on who else runs (0..1)."""
    leak_blocks: int = 0
    """Blocks that never come back, one per finished request."""
    metrics: Literal["ok", "absent", "denied", "junk", "nan", "huge", "never", "truncated"] = "ok"
    metrics_delay_s: float = 0.0
    bind_after_s: float = 0.0
    reuse_port: bool = False
    """Listen with SO_REUSEPORT: another server may share the port."""
    models_after_s: float = 0.0
    """/v1/models lists nothing until then."""
    generate_after_s: float = 0.0
    """Requests end with 500 until then."""
    flood_lines_per_s: int = 0
    grandchild: bool = False
    """A sleeping child in a session of its own."""
    ignore_sigterm: bool = False
    restart_counters_at_request: int | None = None
    plant_token: int | None = None
    """Position of an output token that is changed."""
    plant_every: int = 1
    """... in every n-th prompt (by its content)."""
    eos_share: float = 0.0
    """Share of prompts that end early, unless ignore_eos."""
    boot_text: str | None = None
    """Words on stderr at start, then exit with `boot_exit_code`."""
    boot_exit_code: int = 1
    """137: SIGKILL by itself."""
    boot_delay_s: float = 0.0


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The embedded engine's own switches."""

    dialect: Literal["vllm", "sglang", "vllm.cpp"] = "vllm"
    pools: Literal["unified", "separate"] | None = None
    """None: as the dialect's engine has it (SGLang: separate; the others: unified)."""
    state_bytes: int | str | None = None
    """Bytes free for recurrent state beside the pool (separate pools)."""
    memory_bytes: int | str = 2 << 30
    """Bytes for pools where nothing else says so."""
    in_flight: Literal[0, 1] = 1
    """A step is in flight while the next one is scheduled."""
    null_gap_fix: bool = False
    acceptance: float = 0.7
    """Probability that a drafted token is accepted, given that those before it were."""
    build: Literal["2026-07", "2026-10"] = "2026-10"
    """vllm.cpp's trees differ in flags, /metrics and token ids."""
    version: str | None = None
    """Version to report."""
    clock: Clock = Clock()
    faults: Faults = Faults()
    probe_log: str | None = None


def parse(texts: Iterable[str]) -> Options:
    """Options from `--reference` values. Raises OptionError with one sentence."""
    merged: dict[str, Any] = {}
    for text in texts:
        _merge(merged, _one(text))
    return convert(merged)


def convert(values: Any) -> Options:
    """Options from plain values, as a scenario's `[arm.options]` holds them. Raises OptionError."""
    try:
        return msgspec.convert(values, Options)
    except msgspec.ValidationError as err:
        text = str(err)
        if match := re.fullmatch(r"Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?", text):
            key = f"{match[2]}.{match[1]}" if match[2] else match[1]
            known = "" if match[2] else f"; known are {', '.join(Options.__struct_fields__)}"
            raise OptionError(f"options of the embedded engine: key {key!r} is not known{known}") from err
        raise OptionError(f"options of the embedded engine: {text[:1].lower()}{text[1:]}") from err


def _one(text: str) -> dict[str, Any]:
    if text.lstrip().startswith("{"):
        try:
            value: dict[str, Any] = msgspec.json.decode(text)
        except msgspec.DecodeError as err:
            raise OptionError(f"--reference {text!r}: not JSON ({err})") from err
        return value
    key, equals, raw = text.partition("=")
    if not equals:
        raise OptionError(f"--reference {text!r}: neither JSON nor KEY=VALUE")
    try:
        leaf: Any = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        leaf = raw
    for part in reversed(key.split(".")):
        leaf = {part: leaf}
    result: dict[str, Any] = leaf
    return result


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


UNITS: dict[str, int] = {
    "": 1,
    "B": 1,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "K": 1 << 10,
    "M": 1 << 20,
    "G": 1 << 30,
}


def bytes_of(value: int | str) -> int:
    """Bytes of `4096`, "14.625 GiB", "512M". Raises OptionError."""
    if isinstance(value, int):
        return value
    number = value.strip().rstrip("KMGTBiIkmgtb ")
    unit = value.strip()[len(number) :].strip().upper()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise OptionError(f"{value!r} is no size: write bytes or a number with KiB, MiB or GiB") from None
