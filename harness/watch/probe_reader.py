"""Reads the log of the in-engine probe (engines/probes says what its rows mean and where its figures are taken)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from evenhand.watch.sampler import whole_lines


class ProbeLog(msgspec.Struct, frozen=True, kw_only=True):
    """A leg's probe log, with what a reader of the leg must know in `warnings`."""

    status: str
    """ "on", "off" (internals of the engine were not as expected: `missing`), or "absent" (no scheduler was ever watched)"""
    version: str | None = None
    missing: list[str] = msgspec.field(default_factory=list)
    """Internals of the engine that were not as expected. With status "on": figures that the log lacks."""
    usable_blocks: int | None = None
    groups: list[dict[str, Any]] = msgspec.field(default_factory=list)
    """Cache groups: {"kind": "attention" | "state", "block_tokens": n}"""
    steps: list[dict[str, Any]] = msgspec.field(default_factory=list)
    requests: list[dict[str, Any]] = msgspec.field(default_factory=list)
    dropped_rows: int = 0
    cost_share: float | None = None
    """The probe's own time over the length of the steps it watched; None when the run was too short to say."""
    warnings: list[str] = msgspec.field(default_factory=list)


def read(path: Path) -> ProbeLog:
    """Read leniently: the file was written inside another process, which may have been killed in the middle of a row.

    Data-parallel engines share the file; their rows carry `engine`. OSError other than a missing file is the caller's.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ProbeLog(status="absent", warnings=["the engine did not load the probe: it wrote no log"])
    rows: list[dict[str, Any]] = []
    broken = 0
    for line in whole_lines(data):
        try:
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.DecodeError:
            broken += 1
    said = [row for row in rows if "probe" in row]
    last = {row["probe"]: row for row in said}
    if "on" not in last and "off" not in last:
        return ProbeLog(status="absent", warnings=["the engine loaded the probe but made no scheduler that it knows"])
    off = last.get("off")
    first = last.get("on", off) or {}
    missing = [str(name) for name in (off or first).get("missing", [])]
    dropped = int(last.get("dropped", {}).get("rows", 0))
    warnings = []
    if off is not None:
        warnings.append(f"the probe turned itself off on vLLM {off.get('version')}: {', '.join(missing)} not as expected")
    elif missing:
        warnings.append(f"the probe lacks on vLLM {first.get('version')}: {', '.join(missing)}")
    if dropped:
        warnings.append(f"{dropped} rows of the probe were dropped: its peaks are lower bounds")
    if broken:
        warnings.append(f"{broken} rows of the probe could not be read")
    # running totals, one series for each data-parallel engine
    costs = {row.get("engine"): row for row in said if row["probe"] == "cost"}.values()
    length_ns = sum(int(row.get("step_ns", 0)) for row in costs)
    return ProbeLog(
        status="off" if off is not None else "on",
        version=first.get("version"),
        missing=missing,
        usable_blocks=first.get("blocks"),
        groups=first.get("groups", []),
        steps=[row for row in rows if "step" in row and isinstance(row.get("used"), int)],
        requests=[row for row in rows if "request" in row],
        dropped_rows=dropped,
        cost_share=sum(int(row.get("own_ns", 0)) for row in costs) / length_ns if length_ns else None,
        warnings=warnings,
    )


def exact_peak(log: ProbeLog, start_ns: int, end_ns: int) -> dict[str, Any] | None:
    """The step row with the most blocks in use in [start, end] (the first of equals); None where no step was logged there.

    Engines of a data-parallel group have pools of their own: the fullest speaks.
    """
    inside = [row for row in log.steps if start_ns <= row["t_ns"] <= end_ns]
    return max(inside, key=lambda row: row["used"], default=None)
