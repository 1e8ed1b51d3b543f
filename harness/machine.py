"""What the machine is: recorded once per run, for people and for the ledger."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

LIBRARIES = ("msgspec", "httptools", "uvloop", "httpx", "tokenizers", "psutil", "numpy", "nvidia-ml-py")


def describe() -> dict[str, Any]:
    """CPU, cores allowed, memory, kernel, and the GPUs where NVML answers."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "system": platform.system(),
        "arch": platform.machine(),
        "gpus": _gpus(),
    }


def _gpus() -> list[dict[str, Any]]:
    """Name, memory, power limit and driver of every GPU; empty where NVML does not answer."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, no driver: NVML raises its own kinds for both
        return []
    found: list[dict[str, Any]] = []
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            row: dict[str, Any] = {"name": pynvml.nvmlDeviceGetName(handle), "uuid": pynvml.nvmlDeviceGetUUID(handle)}
            row["memory_bytes"] = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(
                {key: text.decode() if isinstance(text, bytes) else text for key, text in row.items()} | {"driver": driver}
            )
    except pynvml.NVMLError:
        pass
    finally:
        pynvml.nvmlShutdown()
    return found


def _cpu() -> str | None:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return None


def versions() -> dict[str, str]:
    """Python and the libraries that touch a measurement."""
    found = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
