"""What really happened, for tests: peaks, values per step, and the same per-step file that the in-engine probe writes."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import IO, Any

import msgspec

from evenhand.engines.reference import scheduler
from evenhand.engines.reference.sequences import Seq, State, Step

RING = 4096
FLUSH_EVERY_S = 0.1


class Vitals:
    """Server-side truth."""

    def __init__(self, state: State, probe_log: str | None = None) -> None:
        self._state = state
        self.in_flight = 0
        self.peak_in_flight = 0
        self.requests = 0
        self.peak_running = 0
        self.peak_used = 0
        self.tokens = 0
        self.ring: deque[tuple[int, int, int, int, int]] = deque(maxlen=RING)
        """(step, blocks in use once the step was scheduled, in the gauge after commit of the one before, running, waiting)"""
        self.gauge: deque[int] = deque(maxlen=RING)
        """Distinct consecutive values of the usage gauge, in blocks."""
        self._file: IO[bytes] | None = None
        if probe_log:
            self._file = Path(probe_log).open("ab", buffering=1 << 16)  # noqa: SIM115 - lives as long as the process
            state.trace = []
        self._flushed = 0.0
        self._encode = msgspec.json.Encoder().encode
        self._held: dict[Seq, tuple[int, ...]] = {}
        groups = [{"kind": group.kind, "block_tokens": group.block_tokens or None} for group in state.groups]
        self._put({"probe": "on", "version": "reference", "missing": [], "blocks": state.pool.usable, "groups": groups})
        self.flush()

    def arrived(self) -> int:
        """A request came in; its number, from 1."""
        self.requests += 1
        self.in_flight += 1
        self.peak_in_flight = max(self.peak_in_flight, self.in_flight)
        return self.requests

    def left(self) -> None:
        self.in_flight -= 1

    def scheduled(self, step: Step) -> None:
        """Keep a step's figures."""
        state = self._state
        running, waiting = len(state.running), len(state.waiting)
        self.peak_running = max(self.peak_running, running)
        self.peak_used = max(self.peak_used, step.used)
        self.ring.append((step.number, step.used, state.pool.used, running, waiting))
        if self._file is not None:
            self._write(step, running, waiting)

    def committed(self) -> None:
        """The gauge as it reads now."""
        used = self._state.pool.used
        if not self.gauge or self.gauge[-1] != used:
            self.gauge.append(used)

    def _write(self, step: Step, running: int, waiting: int) -> None:
        assert self._file is not None
        state, now = self._state, time.monotonic_ns()
        rows: list[dict[str, Any]] = []
        for seq, kept in state.trace or ():
            held = scheduler.held(state, seq)
            if self._held.get(seq) == held:
                continue
            self._held[seq] = held
            row = {"t_ns": now, "request": seq.name, "computed": seq.computed, "attention": held[0], "state": held[1:]}
            rows.append(row | {"kept": kept})
        if state.trace:
            state.trace.clear()
        self._held = {seq: self._held[seq] for seq in state.running if seq in self._held}
        rows.append(
            {
                "t_ns": now,
                "step": step.number,
                "used": step.used,
                "free": state.pool.usable - step.used,
                "running": running,
                "waiting": waiting,
                "preemptions": state.totals.preemptions,
                "evictions": state.pool.evictions,
                "attention": sum(held[0] for held in self._held.values()),
                "state": sum(sum(held[1:]) for held in self._held.values()),
            }
        )
        self._put(*rows)
        if now / 1e9 - self._flushed > FLUSH_EVERY_S:
            self.flush()
            self._flushed = now / 1e9

    def _put(self, *rows: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(b"".join(self._encode(row) + b"\n" for row in rows))

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def report(self) -> dict[str, Any]:
        """GET /evenhand/state."""
        state = self._state
        return {
            "simulated": True,
            "requests": self.requests,
            "in_flight": self.in_flight,
            "peak_in_flight": self.peak_in_flight,
            "peak_running": state.totals.peak_running,
            "pool_blocks": state.pool.size,
            "usable_blocks": state.pool.usable,
            "used_blocks": state.pool.used,
            "peak_used_blocks": state.pool.peak,
            "state_slots": state.slots.size if state.slots else None,
            "state_used_slots": state.slots.used if state.slots else None,
            "peak_state_slots": state.slots.peak if state.slots else None,
            "evictions": state.pool.evictions,
            "preemptions": state.totals.preemptions,
            "leaked_blocks": len(state.leaked),
            "steps": state.totals.steps,
            "drafted": state.totals.drafted,
            "accepted": state.totals.accepted,
            "gauge_blocks": list(self.gauge),
            "step_blocks": [[step, used, running, waiting] for step, used, _, running, waiting in self.ring],
        }

    def reset_peaks(self) -> None:
        """Begin a new window."""
        pool = self._state.pool
        pool.peak = pool.used
        if self._state.slots:
            self._state.slots.peak = self._state.slots.used
        self.peak_in_flight = self.in_flight
        self.peak_running = self._state.totals.peak_running = len(self._state.running)
        self.peak_used = pool.used
        self.gauge.clear()
        self.ring.clear()
