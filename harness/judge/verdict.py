"""verdict.json: what a gate concluded, rule by rule. Version 1.

Written beside the run as verdict.json, with sorted keys and floats of 9 significant digits, so that judging the same run again
gives the same bytes except `judged_utc`. Every status is one of pass, fail, void, control failed, inconclusive. `exit_code` is
the first present of 1 fail, 2 void, 3 control failed, 4 inconclusive, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from evenhand.judge.equality import Comparison
from evenhand.judge.fairness import Reason
from evenhand.judge.gpu import GpuSummary
from evenhand.judge.ladder import LadderRow
from evenhand.judge.ledger import LedgerRow, Memory
from evenhand.judge.outputs import OutputsResult
from evenhand.judge.pressure import PairedPressure, PressureRow
from evenhand.judge.timing import Status, TimingResult
from evenhand.judge.view import JudgeRow

VERDICT_SCHEMA = 1
"""Raised when a field changes its meaning."""

EXIT: dict[str, int] = {"fail": 1, "void": 2, "control failed": 3, "inconclusive": 4, "pass": 0}
"""Status -> exit code, in the order in which the first present decides."""


class RuleVerdict(JudgeRow, frozen=True, kw_only=True):
    """One rule of the gate."""

    rule: str
    text: str
    status: Status
    reason: str


class Verdict(JudgeRow, frozen=True, kw_only=True):
    """All a gate concluded. Field names carry units; see the modules of the rows for their meaning."""

    schema: int = VERDICT_SCHEMA
    evenhand: str
    """Version of evenhand that measured."""
    run: str
    scenario: str
    scenario_sha256: str
    judged_utc: str
    simulated: bool
    """An arm is the embedded engine: a reference model, not a measurement."""
    partial: bool
    baseline: str
    candidate: str
    compare: str
    pairs: int
    """Boots per arm."""
    order: list[str] = msgspec.field(default_factory=list)
    """Arms of the counted legs in the order they ran."""
    status: Status
    exit_code: int
    rules: list[RuleVerdict] = msgspec.field(default_factory=list)
    reasons: list[Reason] = msgspec.field(default_factory=list)
    """Broken preconditions, all of them."""
    claims: list[str] = msgspec.field(default_factory=list)
    """What may be said, with configuration and count."""
    notes: list[str] = msgspec.field(default_factory=list)
    not_measured: list[str] = msgspec.field(default_factory=list)
    widen: list[str] = msgspec.field(default_factory=list)
    """What would widen the claim."""
    power: list[str] = msgspec.field(default_factory=list)
    """What the plan said before booting about what these rules can decide."""
    outputs: OutputsResult | None = None
    comparisons: list[Comparison] = msgspec.field(default_factory=list)
    """Candidate against baseline, one per boot pair."""
    controls: list[Comparison] = msgspec.field(default_factory=list)
    """Baseline against itself: passes within a boot, then boots."""
    timing: list[TimingResult] = msgspec.field(default_factory=list)
    pressure: list[PairedPressure] = msgspec.field(default_factory=list)
    pressure_rows: list[PressureRow] = msgspec.field(default_factory=list)
    ladder: list[LadderRow] = msgspec.field(default_factory=list)
    ledger: list[LedgerRow] = msgspec.field(default_factory=list)
    memory: list[Memory] = msgspec.field(default_factory=list)
    gpu: list[GpuSummary] = msgspec.field(default_factory=list)


def overall(statuses: Iterable[str]) -> tuple[Status, int]:
    """Status and exit code of a gate; a gate without rules decided nothing, which is void."""
    present = set(statuses)
    if not present:
        return "void", EXIT["void"]
    status: Status
    for status in ("fail", "void", "control failed", "inconclusive", "pass"):
        if status in present:
            return status, EXIT[status]
    raise ValueError(f"unknown status among {sorted(present)}")


def encode(verdict: Verdict) -> bytes:
    """Deterministic, strict JSON: sorted keys, 9 significant digits, no NaN and no infinity."""
    plain = _round(msgspec.to_builtins(verdict))
    return msgspec.json.format(msgspec.json.encode(plain, order="sorted"), indent=1) + b"\n"


def _round(value: Any) -> Any:
    # sums may differ in their last bits between processors; nine digits are more than anything measured here has
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    return value


def decode(data: bytes) -> Verdict:
    """A stored verdict. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Verdict)


def as_before(path: Path, verdict: Verdict) -> Verdict:
    """The verdict with the time of the one that a run folder holds, where they differ in nothing else: then all files that are
    written of it stay as they are.
    """
    try:
        before = (path / "verdict.json").read_bytes()
        stored = msgspec.structs.replace(verdict, judged_utc=decode(before).judged_utc)
    except (OSError, msgspec.MsgspecError):
        return verdict
    return stored if encode(stored) == before else verdict


def write(path: Path, verdict: Verdict) -> Path:
    """Write verdict.json into a run folder by rename."""
    file = path / "verdict.json"
    temporary = path / ".verdict.json.tmp"
    temporary.write_bytes(encode(verdict))
    temporary.replace(file)
    return file
