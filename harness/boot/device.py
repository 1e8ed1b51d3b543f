"""Wait until a device is back where it was: a process's exit is not yet the return of its memory.

The reader is injected (harness/watch has the one for NVML), so this knows no device library.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

TOLERANCE_BYTES = 512 << 20
INTERVAL_S = 0.25


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """How the wait ended."""

    ok: bool
    waited_s: float | None
    """Until the first reading within tolerance; None when there was none."""
    used_bytes: int | None
    """The last reading; None where there was none."""
    reason: str | None = None


def wait_released(
    read: Callable[[], int | None],
    baseline_bytes: int | None,
    *,
    limit_s: float,
    tolerance_bytes: int = TOLERANCE_BYTES,
    interval_s: float = INTERVAL_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Released:
    """Wait until `read()` (bytes in use on the leg's devices) is within `tolerance_bytes` of what it was before the leg.

    Without a device (`baseline_bytes` is None) there is nothing to wait for. Only what is above the baseline counts; a reading
    that failed (None) is no reading.
    """
    if baseline_bytes is None:
        return Released(ok=True, waited_s=None, used_bytes=None, reason="no device to read")
    begin = clock()
    while True:
        used = read()
        waited = clock() - begin
        if used is not None and used <= baseline_bytes + tolerance_bytes:
            return Released(ok=True, waited_s=waited, used_bytes=used)
        if waited >= limit_s:
            held = (
                "cannot be read" if used is None else f"still holds {(used - baseline_bytes) / 2**30:.2f} GiB more than before"
            )
            return Released(ok=False, waited_s=None, used_bytes=used, reason=f"after {limit_s:g} s the device {held}")
        sleep(min(interval_s, max(0.0, limit_s - waited)))
