"""Whether the GPU was the same machine for both arms: clocks, throttling, power limit, other processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from evenhand.judge.stats import median
from evenhand.judge.view import JudgeRow
from evenhand.records import CellRow, GpuRow

BUSY_SAMPLES = 30
CLOCK_SHARE = 0.01
CLOCK_STEP_MHZ = 15.0
"""NVIDIA clocks move in steps of 15 MHz (7.5 on some); a median can be off by one."""
POWER_CAP_POINTS = 0.05

# bits of NVML's clocks-event reasons
_SW_POWER_CAP = 0x4
_SLOWDOWNS = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}


class GpuSummary(JudgeRow, frozen=True, kw_only=True):
    """One device over one arm's measured windows."""

    arm: str
    uuid: str
    busy: int = 0
    """Samples with a clock, taken while the device worked inside a measured cell."""
    clock_mhz: float | None = None
    """Median of those."""
    worked: bool = True
    """False: the device says that it did nothing in any measured window."""
    slowdowns: dict[str, int] | None = None
    """Reason -> busy samples in which the device gave it; None: not observed."""
    power_cap_share: float | None = None
    power_limits_w: list[float] = msgspec.field(default_factory=list)
    foreign_pids: list[int] | None = None
    """None: not observed."""
    memory_peak_bytes: int | None = None


def summarise(arm: str, cells: Sequence[CellRow], gpu: Mapping[int, Sequence[GpuRow]]) -> list[GpuSummary]:
    """One summary per device. A sample is busy when it lies inside a measured cell and the device says that it worked."""
    windows: dict[int, list[tuple[int, int]]] = {}
    for cell in cells:
        if cell.arm == arm and cell.kind != "warmup" and cell.start_ns is not None and cell.end_ns is not None:
            windows.setdefault(cell.leg, []).append((cell.start_ns, cell.end_ns))
    by_uuid: dict[str, list[GpuRow]] = {}
    for leg, spans in sorted(windows.items()):
        for row in gpu.get(leg, ()):
            if any(start <= row.t_ns <= end for start, end in spans):
                by_uuid.setdefault(row.uuid, []).append(row)
    return [_summary(arm, uuid, rows) for uuid, rows in sorted(by_uuid.items())]


def _summary(arm: str, uuid: str, rows: list[GpuRow]) -> GpuSummary:
    busy = [r for r in rows if r.utilisation_pct is None or r.utilisation_pct > 0]
    clocked = [r for r in busy if r.sm_clock_mhz is not None]
    reasons = [r.clock_reasons for r in busy if r.clock_reasons is not None]
    slow = {name: sum(bool(bits & bit) for bits in reasons) for bit, name in _SLOWDOWNS.items()}
    foreign = [r.foreign_pids for r in rows if r.foreign_pids is not None]
    memory = [r.memory_used_bytes for r in rows if r.memory_used_bytes is not None]
    return GpuSummary(
        arm=arm,
        uuid=uuid,
        busy=len(clocked),
        worked=bool(busy),
        clock_mhz=median(r.sm_clock_mhz for r in clocked),
        slowdowns={name: count for name, count in slow.items() if count} if reasons else None,
        power_cap_share=sum(bool(bits & _SW_POWER_CAP) for bits in reasons) / len(reasons) if reasons else None,
        power_limits_w=sorted({r.power_limit_w for r in rows if r.power_limit_w is not None}),
        foreign_pids=sorted({pid for pids in foreign for pid in pids}) if foreign else None,
        memory_peak_bytes=max(memory, default=None),
    )


def timing_voids(baseline: Sequence[GpuSummary], candidate: Sequence[GpuSummary]) -> list[str]:
    """Everything on the devices that makes times of the two arms unlike.

    Empty without devices (then nothing was observed) and for devices that neither arm used.
    """
    reasons = []
    used = {s.uuid for s in (*baseline, *candidate) if s.worked}
    mine, other = ({s.uuid: s for s in side if s.uuid in used} for side in (baseline, candidate))
    if mine.keys() != other.keys():
        reasons.append(f"different devices: {', '.join(sorted(mine)) or 'none'} and {', '.join(sorted(other)) or 'none'}")
    for summary in (*mine.values(), *other.values()):
        where = f"{summary.uuid} under {summary.arm}"
        if summary.foreign_pids:
            reasons.append(f"foreign processes on {where}: pids {', '.join(map(str, summary.foreign_pids))}")
        reasons += [f"{name} on {where} in {count} busy samples" for name, count in (summary.slowdowns or {}).items()]
    for uuid in sorted(mine.keys() & other.keys()):
        reasons += _unlike(mine[uuid], other[uuid])
    return reasons


def _unlike(a: GpuSummary, b: GpuSummary) -> list[str]:
    reasons = []
    limits = f"on {a.uuid}: {_watts(a.power_limits_w)} and {_watts(b.power_limits_w)}"
    if not a.power_limits_w or not b.power_limits_w:
        reasons.append(f"power limit not observed {limits}")
    elif len({*a.power_limits_w, *b.power_limits_w}) > 1:
        reasons.append(f"unequal power limits {limits}")
    if a.busy < BUSY_SAMPLES or b.busy < BUSY_SAMPLES or a.clock_mhz is None or b.clock_mhz is None:
        reasons.append(
            f"clock not observed on {a.uuid}: {a.busy} and {b.busy} busy samples with a clock, {BUSY_SAMPLES} are needed"
        )
    else:
        offset = b.clock_mhz - a.clock_mhz
        if abs(offset) > max(CLOCK_SHARE * a.clock_mhz, CLOCK_STEP_MHZ):
            share = f"{offset / a.clock_mhz:+.1%}".replace("%", " %")
            reasons.append(f"unequal clocks on {a.uuid}: {a.clock_mhz:g} and {b.clock_mhz:g} MHz ({share})")
    caps = (a.power_cap_share, b.power_cap_share)
    if caps[0] is not None and caps[1] is not None and abs(caps[1] - caps[0]) >= POWER_CAP_POINTS - 1e-12:
        reasons.append(f"unequal power capping on {a.uuid}: {100 * caps[0]:.0f} % and {100 * caps[1]:.0f} % of busy samples")
    return reasons


def _watts(limits: Sequence[float]) -> str:
    return "/".join(f"{w:g} W" for w in limits) or "unknown"
