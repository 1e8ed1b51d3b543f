"""What each cell cost the devices: clock, power, memory, energy per token."""

from __future__ import annotations

from collections.abc import Sequence

from evenhand.judge.columns import Reader
from evenhand.judge.ladder import LadderRow
from evenhand.judge.stats import median
from evenhand.judge.view import JudgeRow, RunView
from evenhand.records import CellRow, GpuRow


class DeviceRow(JudgeRow, frozen=True, kw_only=True):
    """One device over one cell. Null where NVML gave nothing."""

    arm: str
    cell: str
    repeat: int = 0
    leg: int
    uuid: str
    readings: int
    clock_mhz: float | None = None
    """Median SM clock of readings at work."""
    power_w: float | None = None
    """Median of the same readings."""
    memory_peak_bytes: int | None = None
    energy_j: float | None = None
    """Increase of the device's energy counter, from the last reading before the cell's first send to the first one after its
    last byte: idle time of up to one interval on either side is in it."""
    tokens: int | None = None
    """Output tokens of the cell's successful requests."""
    energy_per_token_j: float | None = None
    energy_reason: str | None = None


def device_rows(run: RunView, rows: Sequence[LadderRow], reader: Reader | None = None) -> list[DeviceRow]:
    """One row per judged cell with figures and device. Energy is null with its reason when a request failed."""
    reader = reader or Reader(run)
    spans = {(cell.leg, cell.cell, cell.repeat): cell for cell in run.cells}
    found = []
    for row in rows:
        cell = spans.get((row.legs[0], row.cell, row.repeat))
        if cell is None or not row.has_figures or cell.start_ns is None or cell.end_ns is None:
            continue
        by_uuid: dict[str, list[GpuRow]] = {}
        for reading in reader.gpu(cell.leg):
            by_uuid.setdefault(reading.uuid, []).append(reading)
        found += [_row(row, cell, uuid, readings) for uuid, readings in sorted(by_uuid.items())]
    return found


def _row(row: LadderRow, cell: CellRow, uuid: str, readings: Sequence[GpuRow]) -> DeviceRow:
    start, end = cell.start_ns or 0, cell.end_ns or 0
    inside = [r for r in readings if start <= r.t_ns <= end]
    busy = [r for r in inside if r.utilisation_pct is None or r.utilisation_pct > 0]
    memory = [r.memory_used_bytes for r in inside if r.memory_used_bytes is not None]
    energy = _energy_j(readings, start, end)
    tokens = row.work[2] if row.work else None
    reason = None
    if energy is None:
        reason = "no energy counter around the cell"
    elif row.failed or row.interrupted:
        reason = f"{row.failed + row.interrupted} of {row.ok + row.failed + row.interrupted} requests gave no result"
    elif not tokens:
        reason = "tokens are not known"
    return DeviceRow(
        arm=row.arm,
        cell=row.cell,
        repeat=row.repeat,
        leg=cell.leg,
        uuid=uuid,
        readings=len(inside),
        clock_mhz=median(r.sm_clock_mhz for r in busy),
        power_w=median(r.power_w for r in busy),
        memory_peak_bytes=max(memory, default=None),
        energy_j=energy,
        tokens=tokens,
        energy_per_token_j=energy / tokens if reason is None and energy is not None and tokens else None,
        energy_reason=reason,
    )


def _energy_j(readings: Sequence[GpuRow], start_ns: int, end_ns: int) -> float | None:
    known = [(r.t_ns, r.energy_mj) for r in readings if r.energy_mj is not None]
    before = [mj for t, mj in known if t <= start_ns]
    after = [mj for t, mj in known if t >= end_ns]
    if not before or not after or after[0] < before[-1]:
        return None
    return (after[0] - before[-1]) / 1e3
