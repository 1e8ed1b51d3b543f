"""What judging sees of a run: the stored folder, or one made in memory by tests and by the calibration bench."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from evenhand.records import CellRow, GpuRow, LegRow, Manifest, RequestRow, SampleRow


class JudgeError(Exception):
    """One sentence for the user: this run cannot be judged, and why."""


class RunView(Protocol):
    """A stored run, read-only. `evenhand.store.Run` is one."""

    path: Path
    manifest: Manifest
    legs: list[LegRow]
    cells: list[CellRow]

    @property
    def partial(self) -> bool:
        """Whether the run did not reach its planned end."""
        ...

    def requests(self, leg: int | None = None, cell: str | None = None) -> Iterable[RequestRow]:
        """Requests of a leg (None: all legs), of a cell (None: all cells)."""
        ...

    def stream_requests(self, leg: int) -> Iterable[RequestRow]:
        """Requests of a leg, one after the other."""
        ...

    def replays(self) -> Iterable[RequestRow]:
        """Untimed replays of diverged requests, with top-2 margins."""
        ...

    def samples(self, leg: int) -> Sequence[SampleRow]: ...

    def gpu(self, leg: int) -> Sequence[GpuRow]: ...

    def probe(self, leg: int) -> Sequence[dict[str, Any]]: ...


class MemoryRun:
    """A run that was never on disk."""

    def __init__(
        self,
        *,
        manifest: Manifest,
        legs: list[LegRow],
        cells: list[CellRow],
        requests: Iterable[RequestRow] = (),
        samples: Iterable[SampleRow] = (),
        gpu: Iterable[GpuRow] = (),
        probe: dict[int, list[dict[str, Any]]] | None = None,
        replays: Iterable[RequestRow] = (),
        path: Path = Path("memory"),
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.legs = legs
        self.cells = cells
        self._requests = list(requests)
        self._samples = list(samples)
        self._gpu = list(gpu)
        self._probe = probe or {}
        self._replays = list(replays)

    @property
    def partial(self) -> bool:
        """Whether the run did not reach its planned end."""
        return self.manifest.status != "finished"

    def requests(self, leg: int | None = None, cell: str | None = None) -> list[RequestRow]:
        """Requests of a leg, of a cell."""
        return [r for r in self._requests if leg in (None, r.leg) and cell in (None, r.cell)]

    def stream_requests(self, leg: int) -> list[RequestRow]:
        """Requests of a leg."""
        return self.requests(leg)

    def samples(self, leg: int) -> list[SampleRow]:
        """Scrapes of a leg."""
        return [s for s in self._samples if s.leg == leg]

    def gpu(self, leg: int) -> list[GpuRow]:
        """NVML readings of a leg."""
        return [g for g in self._gpu if g.leg == leg]

    def probe(self, leg: int) -> list[dict[str, Any]]:
        """Rows of the probe of a leg."""
        return self._probe.get(leg, [])

    def replays(self) -> list[RequestRow]:
        """Untimed replays of diverged requests."""
        return self._replays


class JudgeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what judging returns. A null figure has its reason beside it."""
