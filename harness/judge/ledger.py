"""The fairness ledger: what each arm's engine resolved, side by side, and what its sequences cost in device memory."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenhand.judge.columns import Reader
from evenhand.judge.fairness import arm_of, model_files
from evenhand.judge.ladder import LadderRow
from evenhand.judge.outcome import earlier_boot
from evenhand.judge.stats import median
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import HAS_FIGURES, LegRow

GIB = 1 << 30
BESIDE_POOL_BYTES = 2 * GIB
"""What an engine may hold beyond weights and pool (context, graphs, activations) and still count as bounded by its flag."""
OBSERVED = frozenset({"peak running", "device memory idle"})
"""Facts that samples saw: they vary from boot to boot, and are shown without being held against each other."""
FLAT_GIB = 0.02
"""A slope below this, in GiB per sequence, is flat: NVML counts in MiB and allocators in steps."""


class LedgerRow(JudgeRow, frozen=True, kw_only=True):
    """One fact, per arm. `differs` marks a row in which arms do not agree; null values are unknown, not equal. What was only
    observed is never marked, nor are overlays and compile caches that differ in nothing but the arm's name.
    """

    name: str
    values: dict[str, str | None]
    differs: bool = False


class Memory(JudgeRow, frozen=True, kw_only=True):
    """Device memory of one arm: idle, at each rung, and per running sequence."""

    arm: str
    before_bytes: int | None = None
    idle_bytes: int | None = None
    rungs: dict[str, tuple[float, int]] = msgspec.field(default_factory=dict)
    """cell -> (peak running sequences, median bytes used on all devices)"""
    slope_gib_per_sequence: float | None = None
    slope_reason: str | None = None
    budget_bytes: int | None = None
    beyond_weights_bytes: int | None = None
    """Peak use - use before the boot - weights."""
    bounded: bool | None = None
    """Whether the budget flag bounds what is used beyond weights, within BESIDE_POOL_BYTES."""
    bounded_reason: str | None = None


def ledger(run: RunView, rows: Sequence[LadderRow], reader: Reader | None = None) -> list[LedgerRow]:
    """Facts read back from the engines, one row each. Boots of one arm that disagree are shown as "x / y".

    `reader`: gives the sampling parameters that were sent, which otherwise have no row.
    """
    scenario = run.manifest.scenario
    arms: dict[str, list[LegRow]] = {}
    for leg in run.legs:
        if leg.role != "warm_boot":
            arms.setdefault(leg.arm, []).extend([*leg.earlier, leg])
    facts = {arm: _facts(scenario, arm_of(scenario, arm), legs, rows) for arm, legs in arms.items()}
    if reader is not None:
        for arm, legs in arms.items():
            sent = {text for leg in legs for text in reader.columns(leg.leg).samplings}
            facts[arm]["sampling"] = " / ".join(sorted(sent)) or None
    last = {leg.leg: leg for leg in run.legs}
    for arm in arms:
        kept = [cell.cell for cell in run.cells if cell.arm == arm and earlier_boot(cell, last.get(cell.leg))]
        if kept:
            facts[arm]["cells of an earlier boot"] = ", ".join(kept)
    names = list(dict.fromkeys(name for each in facts.values() for name in each))
    table = []
    for name in names:
        values = {arm: each.get(name) for arm, each in facts.items()}
        told = {_nameless(value, arm) for arm, value in values.items()}
        table.append(LedgerRow(name=name, values=values, differs=len(told) > 1 and name not in OBSERVED))
    return table


def _nameless(value: str | None, arm: str) -> str | None:
    """A fact without the arm's name in the paths of its overlay and compile caches, which are its own by design."""
    name = re.escape(arm).replace(r"\+", "[+_]")  # a folder has "_" for what is not harmless in its name
    return value and re.sub(rf"/(overlay|compile/[^/]+)/{name}(?=[/:]|$)", r"/\1/ARM", value)


def _facts(
    scenario: Mapping[str, Any], arm: Mapping[str, Any], legs: list[LegRow], rows: Sequence[LadderRow]
) -> dict[str, str | None]:
    draft = arm.get("draft") or scenario.get("draft") or {}
    model = arm.get("model") or scenario.get("model")
    executables = {f.sha256 for leg in legs for f in leg.files if not _of(leg, f.path, model, draft.get("model"))}
    patched = {f"{p.path} {(p.loaded_sha256 or '?')[:12]}" for leg in legs for p in leg.patched}
    mine = [r for r in rows if r.arm == legs[0].arm and r.peak_running is not None]
    found: dict[str, str | None] = {
        "engine": _join(leg.engine for leg in legs),
        "version": _join(leg.version for leg in legs),
        "commit": arm.get("commit"),
        "engine files (sha256)": _few(executables),
        "patched files (sha256)": ", ".join(sorted(patched)) or None,
        "model": str(model) if model else None,
        "model files (sha256)": _digest(legs, model),
        "conversion": "yes" if arm.get("model") else "no",
        "draft": draft.get("method"),
        "draft files (sha256)": _digest(legs, draft.get("model")),
        "drafted depth": _join(leg.drafted_depth for leg in legs),
        "seats requested": _join(leg.seats_requested for leg in legs),
        "seats resolved": _join(leg.seats_resolved for leg in legs),
        "peak running": f"{max(r.peak_running or 0 for r in mine):g}" if mine else None,
    }  # fmt: skip
    for name in ("blocks", "usable_blocks", "block_tokens", "tokens", "bytes", "state_slots", "source"):
        found[f"pool {name.replace('_', ' ')}"] = _join(getattr(leg.pool, name) if leg.pool else None for leg in legs)
    found["pool state bytes"] = _join(_state_bytes(leg) for leg in legs)
    for key in sorted({key for leg in legs for key in leg.config}):
        found[f"config {key}"] = _join(leg.config.get(key) for leg in legs)
    for key in sorted({key for leg in legs for key in leg.env}):
        found[f"env {key}"] = _join(leg.env.get(key) for leg in legs)
    idle = [leg.device_bytes_idle for leg in legs]
    found["device memory idle"] = _join(None if b is None else f"{b / GIB:.2f} GiB" for b in idle) if any(idle) else None
    inexpressible = list(dict.fromkeys(text for leg in legs for text in leg.inexpressible))
    found["cannot express"] = "; ".join(inexpressible) or "nothing"
    return found


def _state_bytes(leg: LegRow) -> int | None:
    """Bytes of the recurrent-state slots beside the pool, where the engine's log gives them; None for a pool without."""
    parts = [v for name, v in leg.figures.items() if name.startswith("state_") and name.endswith("_bytes") and v is not None]
    return round(sum(parts)) if parts and leg.pool and leg.pool.state_slots else None


def _few(hashes: set[str]) -> str | None:
    """Up to three hashes; above that one hash over all of them and their number, as for a model."""
    short = sorted(h[:12] for h in hashes)
    if len(short) <= 3:
        return ", ".join(short) or None
    return f"{hashlib.sha256(' '.join(sorted(hashes)).encode()).hexdigest()[:12]} ({len(short)} files)"


def _of(leg: LegRow, path: str, model: str | None, draft: str | None) -> bool:
    return path in model_files(leg, model) or path in model_files(leg, draft)


def _digest(legs: list[LegRow], path: str | None) -> str | None:
    """One hash over all files of a model, the same for the same files."""
    found = set()
    for leg in legs:
        files = model_files(leg, path)
        if files:
            text = "\n".join(f"{name} {digest}" for name, digest in sorted(files.items()))
            found.add(f"{hashlib.sha256(text.encode()).hexdigest()[:12]} ({len(files)} files)")
    return " / ".join(sorted(found)) or None


def _join(values: Any) -> str | None:
    seen = list(dict.fromkeys(None if v is None else (v if isinstance(v, str) else _plain(v)) for v in values))
    known = [v for v in seen if v]
    if not known:
        return None
    return " / ".join(known) if None not in seen else " / ".join([*known, "unknown"])


def _plain(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()


# --- device memory --------------------------------------------------------------------------------------------------------


def memory(run: RunView, reader: Reader, rows: Sequence[LadderRow]) -> list[Memory]:
    """Device memory of every arm that ran on a device. `rows`: the ladder per leg."""
    found = []
    for arm in dict.fromkeys(leg.arm for leg in run.legs):
        legs = [leg for leg in run.legs if leg.arm == arm and leg.role != "warm_boot" and leg.outcome in HAS_FIGURES]
        if any(reader.gpu(leg.leg) for leg in legs):
            found.append(_memory(run, reader, arm, legs, [r for r in rows if r.arm == arm and r.has_figures and not r.repeat]))
    return found


def _memory(run: RunView, reader: Reader, arm: str, legs: list[LegRow], rows: list[LadderRow]) -> Memory:
    spans = {(c.leg, c.cell): (c.start_ns, c.end_ns) for c in run.cells if c.repeat == 0}
    points: list[tuple[float, float]] = []
    rungs: dict[str, tuple[float, int]] = {}
    peak = None
    for row in rows:
        used = _used(reader, row.legs[0], spans.get((row.legs[0], row.cell), (None, None)))
        if used is None:
            continue
        peak = max(peak or 0, used)
        running = row.peak_running if row.peak_running is not None else row.peak_running_client
        if running:
            points.append((running, used / GIB))
            rungs[row.cell] = (running, used)
    slope, why = _slope(points)
    budget = next((leg.pool.bytes for leg in legs if leg.pool and leg.pool.bytes), None)
    before = next((leg.device_bytes_before for leg in legs if leg.device_bytes_before is not None), None)
    weights = next((w for leg in legs if (w := _weights(leg)) is not None), None)
    beyond = None if peak is None or before is None or weights is None else round(peak - before - weights)
    bounded, reason = _bounded(beyond, budget, slope)
    return Memory(
        arm=arm,
        before_bytes=before,
        idle_bytes=next((leg.device_bytes_idle for leg in legs if leg.device_bytes_idle is not None), None),
        rungs=rungs,
        slope_gib_per_sequence=slope,
        slope_reason=why,
        budget_bytes=budget,
        beyond_weights_bytes=beyond,
        bounded=bounded,
        bounded_reason=reason,
    )


def _used(reader: Reader, leg: int, span: tuple[int | None, int | None]) -> int | None:
    """Median over the cell's window of the bytes used on all devices."""
    start, end = span
    if start is None or end is None:
        return None
    by_device: dict[str, list[float]] = {}
    for row in reader.gpu(leg):
        if row.memory_used_bytes is not None and start <= row.t_ns <= end:
            by_device.setdefault(row.uuid, []).append(row.memory_used_bytes)
    return round(sum(median(values) or 0 for values in by_device.values())) if by_device else None


def _slope(points: list[tuple[float, float]]) -> tuple[float | None, str | None]:
    """Least squares of GiB over running sequences."""
    if len({x for x, _ in points}) < 2:
        return None, "needs rungs with different numbers of running sequences"
    n = len(points)
    mx, my = sum(x for x, _ in points) / n, sum(y for _, y in points) / n
    return sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points), None


def _weights(leg: LegRow) -> float | None:
    """Bytes of the loaded model, from the engine's log."""
    for name in ("weight_memory_bytes", "model_memory_bytes"):
        value = leg.figures.get(name)
        if value is not None:
            return value
    return None


def _bounded(beyond: int | None, budget: int | None, slope: float | None) -> tuple[bool | None, str]:
    if beyond is None or budget is None:
        missing = "the pool in bytes" if budget is None else "the engine's memory for weights, or use before the boot"
        return None, f"not known: {missing} was not read"
    over = beyond - budget
    text = f"{beyond / GIB:.2f} GiB beyond weights for a budget of {budget / GIB:.2f} GiB"
    if slope is not None and slope > FLAT_GIB:
        return False, f"{text}, growing by {slope:.2f} GiB per sequence"
    if over > BESIDE_POOL_BYTES:
        return False, text
    return True, text
