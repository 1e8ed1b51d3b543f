"""NVML readings of the devices an engine really uses; a figure that a device or driver lacks is None with a reason, never 0.

The library is a parameter (`pynvml` or anything with its functions), so that every case is testable without a GPU. Only this
module knows NVML.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class NvmlError(Exception):
    """NVML cannot be used here; one sentence."""


class Device(NamedTuple):
    """A device to watch. A MIG slice has its own memory but the clocks and power of the card it is cut from (`card`)."""

    handle: Any
    card: Any
    uuid: str
    number: int
    """NVML (PCI) index of the card."""
    mig: bool = False


class Chosen(NamedTuple):
    """Devices that CUDA_VISIBLE_DEVICES names, and what a reader should know about the choice."""

    devices: list[Device]
    warnings: list[str]


def load() -> Any:
    """`pynvml`, initialised. Raises NvmlError where there is no binding, no library or no driver."""
    try:
        import pynvml
    except ImportError as error:
        raise NvmlError(f"no GPU telemetry: {error}") from None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError, OSError) as error:
        raise NvmlError(f"no GPU telemetry: {error}") from None
    return pynvml


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _slices(lib: Any, card: Device) -> list[Device]:
    """MIG slices of a card; none where MIG is off or unknown."""
    try:
        if lib.nvmlDeviceGetMigMode(card.handle)[0] != 1:
            return []
        count = lib.nvmlDeviceGetMaxMigDeviceCount(card.handle)
    except (lib.NVMLError, AttributeError):
        return []
    found = []
    for slot in range(count):
        try:
            handle = lib.nvmlDeviceGetMigDeviceHandleByIndex(card.handle, slot)
            found.append(Device(handle, card.handle, _text(lib.nvmlDeviceGetUUID(handle)), card.number, mig=True))
        except lib.NVMLError:
            continue  # an empty slot
    return found


def devices(lib: Any, visible: str | None, order: str | None = None) -> Chosen:
    """Devices that a process with CUDA_VISIBLE_DEVICES=`visible` sees; None: all cards, none picked by guess.

    Follows CUDA: indices, UUIDs or their unique beginnings, MIG UUIDs; the list ends at its first invalid entry. Indices are
    NVML's only under CUDA_DEVICE_ORDER=PCI_BUS_ID (`order`): otherwise CUDA counts the fastest first, and a warning says so.
    """
    cards = []
    for index in range(lib.nvmlDeviceGetCount()):
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        cards.append(Device(handle, handle, _text(lib.nvmlDeviceGetUUID(handle)), index))
    if visible is None:
        return Chosen(cards, [])
    chosen: list[Device] = []
    warnings: list[str] = []
    for entry in (word.strip() for word in visible.split(",")):
        found: list[Device] = []
        if entry.isascii() and entry.isdigit():
            found = cards[int(entry) : int(entry) + 1]
            if len(cards) > 1 and order != "PCI_BUS_ID":
                warnings.append(f"CUDA_VISIBLE_DEVICES={visible} counts in CUDA's own order: set CUDA_DEVICE_ORDER=PCI_BUS_ID")
        elif entry.startswith("GPU-"):
            found = [card for card in cards if card.uuid.startswith(entry)]
        elif entry.startswith("MIG-"):
            found = [piece for card in cards for piece in _slices(lib, card) if piece.uuid.startswith(entry)]
        if len(found) != 1:
            if entry and entry != "-1":
                warnings.append(
                    f"CUDA_VISIBLE_DEVICES={visible}: {entry!r} names {len(found) or 'no'} device(s) here; it ends there"
                )
            break
        if found[0].uuid not in [device.uuid for device in chosen]:
            chosen.append(found[0])
    return Chosen(chosen, list(dict.fromkeys(warnings)))


class Reading(NamedTuple):
    """Fields of a GpuRow, and why each null one is null."""

    fields: dict[str, Any]
    reasons: dict[str, str]


def read_fields(
    lib: Any, device: Device, roots: Sequence[int] = (), parent: Callable[[int], int | None] | None = None
) -> Reading:
    """One reading of one device. A MIG slice takes clocks, power and temperature from its card."""
    reasons: dict[str, str] = {}

    def ask(field: str, call: Callable[[], Any]) -> Any:
        try:
            value = call()
        except lib.NVMLError as error:
            reasons[field] = str(error)
            return None
        except AttributeError as error:
            reasons[field] = f"the NVML binding lacks it: {error}"
            return None
        if value is None:
            reasons[field] = "not available"
        return value

    def divided(value: float | None, by: float) -> float | None:
        return None if value is None else value / by

    memory = ask("memory_used_bytes", lambda: lib.nvmlDeviceGetMemoryInfo(device.handle))
    if memory is None:
        reasons["memory_total_bytes"] = reasons["memory_used_bytes"]
    rates = ask("utilisation_pct", lambda: lib.nvmlDeviceGetUtilizationRates(device.handle))
    fields: dict[str, Any] = {
        "uuid": device.uuid,
        "index": device.number,
        "memory_used_bytes": None if memory is None else memory.used,
        "memory_total_bytes": None if memory is None else memory.total,
        "utilisation_pct": None if rates is None else float(rates.gpu),
        "sm_clock_mhz": ask("sm_clock_mhz", lambda: lib.nvmlDeviceGetClockInfo(device.card, 1)),
        "power_w": divided(ask("power_w", lambda: lib.nvmlDeviceGetPowerUsage(device.card)), 1000),
        "energy_mj": ask("energy_mj", lambda: lib.nvmlDeviceGetTotalEnergyConsumption(device.card)),
        "clock_reasons": ask("clock_reasons", lambda: _clock_reasons(lib, device.card)),
        "power_limit_w": divided(ask("power_limit_w", lambda: lib.nvmlDeviceGetEnforcedPowerLimit(device.card)), 1000),
        "temperature_c": divided(ask("temperature_c", lambda: lib.nvmlDeviceGetTemperature(device.card, 0)), 1),
    }
    pids = ask("foreign_pids", lambda: [process.pid for process in lib.nvmlDeviceGetComputeRunningProcesses(device.handle)])
    fields["foreign_pids"] = None
    if pids is not None:
        fields["foreign_pids"], why = foreign(pids, roots, parent or parent_pid)
        if why:
            reasons["foreign_pids"] = why
    return Reading(fields, reasons)


def _clock_reasons(lib: Any, handle: Any) -> int:
    """Bit mask; the call was renamed with CUDA 12.2."""
    call = getattr(lib, "nvmlDeviceGetCurrentClocksEventReasons", None)
    if call is not None:
        try:
            return int(call(handle))
        except lib.NVMLError:
            pass  # an old driver knows only the old name
    return int(lib.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def parent_pid(pid: int) -> int | None:
    """Parent of a process; None when there is no such process here."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # the command in parentheses may hold spaces and parentheses itself
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def foreign(
    pids: Iterable[int], roots: Sequence[int], parent: Callable[[int], int | None]
) -> tuple[list[int] | None, str | None]:
    """Pids on a device that do not descend from `roots`; (None, reason) where that cannot be told.

    In a container NVML may list nothing, or pids of the host: neither proves that the device is ours alone.
    """
    listed = sorted(set(pids))
    if not roots:
        return None, "no process of ours was named"
    if not listed:
        return None, "the driver lists no process here (a container?)"
    others, unknown, ours = [], 0, 0
    for pid in listed:
        at: int | None = pid
        for _ in range(64):
            if at is None or at <= 1 or at in roots:
                break
            at = parent(at)
        if at in roots:
            ours += 1
        elif parent(pid) is None:
            unknown += 1
        else:
            others.append(pid)
    if unknown and not ours:
        return None, "the listed processes are not of this pid namespace (a container?)"
    return others, None


def used_bytes(visible: str | None, order: str | None = None) -> int | None:
    """Memory in use on the visible devices together (what must return after a leg); None where there is no NVML."""
    try:
        lib = load()
    except NvmlError:
        return None
    try:
        chosen = devices(lib, visible, order).devices
        return sum(lib.nvmlDeviceGetMemoryInfo(device.handle).used for device in chosen) if chosen else None
    except lib.NVMLError:
        return None
    finally:
        lib.nvmlShutdown()


def visible_uuids(visible: str | None, order: str | None = None) -> list[str]:
    """UUIDs of the devices a leg sees, for locks between harnesses; empty where there is no NVML."""
    try:
        lib = load()
    except NvmlError:
        return []
    try:
        return [device.uuid for device in devices(lib, visible, order).devices]
    except lib.NVMLError:
        return []
    finally:
        lib.nvmlShutdown()
