"""The thread of the sampler's process that reads NVML: a slow driver then delays no scrape."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from evenhand.watch import nvml


class GpuLoop(threading.Thread):
    """One GpuRow per device and deadline. Says once which devices it watches and what they lack."""

    def __init__(
        self,
        config: dict[str, Any],
        write: Callable[[dict[str, Any]], None],
        stop: threading.Event,
        say: Callable[..., None],
        lib: Any = None,
    ) -> None:
        super().__init__(daemon=True)
        self._config = config
        self._write = write
        self._stop_event = stop
        self._say = say
        self._lib = lib

    def run(self) -> None:
        """Until told to stop; whatever NVML does ends this thread at most, never the scrapes."""
        try:
            self._watch()
        except Exception as error:
            self._say(what="warning", text=f"GPU telemetry ended: {type(error).__name__}: {error}")

    def _watch(self) -> None:
        config = self._config
        try:
            lib = self._lib or nvml.load()
        except nvml.NvmlError as error:
            self._say(what="gpu", uuids=[], reasons={"*": str(error)})
            return
        chosen = nvml.devices(lib, config["visible"], config["device_order"])
        for text in chosen.warnings:
            self._say(what="warning", text=text)
        interval_ns = int(config["gpu_interval_s"] * 1e9)
        due_ns, first = time.monotonic_ns(), True
        while chosen.devices:
            for device in chosen.devices:
                t_ns = time.monotonic_ns()
                reading = nvml.read_fields(lib, device, config["roots"])
                row = {"leg": config["leg"], "t_ns": t_ns, **reading.fields}
                if first:
                    row["reasons"] = reading.reasons
                    self._say(what="gpu", uuids=[each.uuid for each in chosen.devices], reasons=reading.reasons)
                self._write(row)
            first = False
            due_ns += max(1, -(-(time.monotonic_ns() - due_ns) // interval_ns)) * interval_ns
            if self._stop_event.wait((due_ns - time.monotonic_ns()) / 1e9):
                return
        self._say(what="gpu", uuids=[], reasons={"*": "no GPU is visible to the engine"})
