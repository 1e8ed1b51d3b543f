"""Requests of one leg as columns: one pass over the rows, which can then be forgotten.

A hundred thousand requests of 128 tokens are 38 million numbers; as Python objects they would need gigabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from evenhand.judge.view import JudgeError, RunView
from evenhand.records import GpuRow, RequestRow, SampleRow

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LENGTHS = frozenset({"max_tokens", "n_predict"})


class Columns:
    """Requests of one leg (or of one cell), in the order of the rows. Plain lists hold what may be null."""

    def __init__(self, rows: Iterable[RequestRow]) -> None:
        self.cell: list[str] = []
        self.repeat: list[int] = []
        self.key: list[str] = []
        self.index: list[int] = []
        self.slot: list[int] = []
        self.outcome: list[str] = []
        self.reason: list[str | None] = []
        self.prompt_sha256: list[str] = []
        self.prompt_tokens_asked: list[int] = []
        self.prompt_tokens: list[int | None] = []
        self.cached_tokens: list[int | None] = []
        self.output_tokens: list[int | None] = []
        self.accepted_tokens: list[int | None] = []
        self.token_source: list[str] = []
        self.ttft_s: list[float | None] = []
        self.ttft_kind: list[str | None] = []
        self.tpot_s: list[float | None] = []
        self.tpot_reason: list[str | None] = []
        self.tpot_marked: list[bool] = []
        self.gaps_kind: list[str | None] = []
        self.scheduled_ns: list[int | None] = []
        self.send_ns: list[int | None] = []
        self.end_ns: list[int | None] = []
        self.stamp: list[str] = []
        self.finish_reason: list[str | None] = []
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.ids: list[bytes | None] = []
        """Token ids as little arrays of int64; None: the engine sent none."""
        self.greedy: list[bool] = []
        """The recorded body says temperature 0 literally."""
        self.samplings: set[str] = set()
        """Sampling parameters as sent, without the length."""
        event_ns, event_tokens, early = array("q"), array("i"), array("q")
        event_at = array("q", [0])
        for row in rows:
            self._scalars(row)
            events = len(row.event_ns)
            event_ns.extend(row.event_ns)
            # a row whose counts do not fit its events counts none of them, and so contradicts its own total
            event_tokens.extend(row.event_tokens if len(row.event_tokens) == events else [0] * events)
            if row.event_coalesced:
                early.extend([event_at[-1] + i for i in set(row.event_coalesced) if 0 <= i < events])
            event_at.append(len(event_ns))
        self.event_ns = _view(event_ns)
        self.event_tokens = _view(event_tokens, np.int32)
        self.early = _view(early)
        """Numbers of the events that were not the last of their read."""
        self.event_at = _view(event_at)
        """Offsets: events of row i are event_at[i]:event_at[i+1]."""

    def _scalars(self, row: RequestRow) -> None:
        self.cell.append(row.cell)
        self.repeat.append(row.repeat)
        self.key.append(row.key)
        self.index.append(row.index)
        self.slot.append(row.slot)
        self.outcome.append(row.outcome)
        self.reason.append(row.reason or row.error_text)
        self.prompt_sha256.append(row.prompt_sha256)
        self.prompt_tokens_asked.append(row.prompt_tokens_asked)
        self.prompt_tokens.append(row.prompt_tokens)
        self.cached_tokens.append(row.cached_tokens)
        self.output_tokens.append(row.output_tokens)
        self.accepted_tokens.append(row.accepted_tokens)
        self.token_source.append(row.token_source)
        self.ttft_s.append(row.ttft_s)
        self.ttft_kind.append(row.ttft_kind)
        self.tpot_s.append(row.tpot_s)
        self.tpot_reason.append(row.tpot_reason)
        self.tpot_marked.append(row.tpot_marked)
        self.gaps_kind.append(row.gaps_kind)
        self.scheduled_ns.append(row.scheduled_ns)
        self.send_ns.append(row.send_ns)
        self.end_ns.append(row.end_ns)
        self.stamp.append(row.stamp)
        self.finish_reason.append(row.finish_reason)
        self.text.append(row.text)
        self.reasoning.append(row.reasoning)
        self.ids.append(None if row.token_ids is None else array("q", row.token_ids).tobytes())
        self.greedy.append(row.sampling.get("temperature") == 0)
        sent = {key: value for key, value in row.sampling.items() if key not in _LENGTHS}
        self.samplings.add(msgspec.json.encode(sent, order="sorted").decode())

    def __len__(self) -> int:
        return len(self.key)

    def where(self, cell: str, repeat: int = 0) -> list[int]:
        """Row numbers of a cell."""
        return self.groups.get((cell, repeat), [])

    @cached_property
    def groups(self) -> dict[tuple[str, int], list[int]]:
        """(cell, repeat) -> row numbers, in order of appearance."""
        found: dict[tuple[str, int], list[int]] = {}
        for i, at in enumerate(zip(self.cell, self.repeat, strict=True)):
            found.setdefault(at, []).append(i)
        return found

    def events(self, i: int) -> slice:
        """Slice of the event columns that belongs to row i."""
        return slice(int(self.event_at[i]), int(self.event_at[i + 1]))

    def token_ids(self, i: int) -> list[int] | None:
        """Ids of row i."""
        data = self.ids[i]
        if data is None:
            return None
        ids = array("q")
        ids.frombytes(data)
        return ids.tolist()

    def flat(self, rows: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(event numbers of all the rows, position in `rows` that each belongs to)."""
        at = np.asarray(rows, dtype=np.int64)
        if not len(at):
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        starts = self.event_at[at]
        counts = self.event_at[at + 1] - starts
        owner = np.repeat(np.arange(len(at), dtype=np.int64), counts)
        before = np.cumsum(counts) - counts
        return np.arange(len(owner), dtype=np.int64) - before[owner] + starts[owner], owner

    def gaps_s(self, rows: Sequence[int]) -> NDArray[np.float64]:
        """Gaps between token events in seconds; events that were not the last of their read are left out."""
        events, owner = self.flat(rows)
        if len(self.early):
            keep = ~np.isin(events, self.early, assume_unique=True)
            events, owner = events[keep], owner[keep]
        return np.asarray(np.diff(self.event_ns[events])[np.diff(owner) == 0] / 1e9, dtype=np.float64)


def _view(numbers: array[int], kind: Any = np.int64) -> NDArray[Any]:
    return np.frombuffer(numbers, dtype=kind) if len(numbers) else np.empty(0, dtype=kind)


def sample_ns(row: SampleRow) -> int:
    """When the server rendered the sample: its first byte, else the middle of the scrape."""
    return row.first_byte_ns if row.first_byte_ns is not None else (row.start_ns + row.end_ns) // 2


class Reader:
    """A run of which each file is read at most once."""

    def __init__(self, run: RunView) -> None:
        self.run = run
        self._columns: dict[int, Columns] = {}
        self._samples: dict[int, Sequence[SampleRow]] = {}
        self._gpu: dict[int, Sequence[GpuRow]] = {}
        self._probe: dict[int, Sequence[dict[str, Any]]] = {}

    def columns(self, leg: int) -> Columns:
        """Requests of a leg."""
        if leg not in self._columns:
            try:
                self._columns[leg] = Columns(self.run.stream_requests(leg))
            except OverflowError as error:
                raise JudgeError(f"leg {leg} of {self.run.path} holds a number beyond 64 bits: {error}") from error
        return self._columns[leg]

    def samples(self, leg: int) -> Sequence[SampleRow]:
        """Scrapes of a leg, in order of time."""
        if leg not in self._samples:
            self._samples[leg] = sorted(self.run.samples(leg), key=sample_ns)
        return self._samples[leg]

    def gpu(self, leg: int) -> Sequence[GpuRow]:
        """NVML readings of a leg."""
        if leg not in self._gpu:
            self._gpu[leg] = self.run.gpu(leg)
        return self._gpu[leg]

    def probe(self, leg: int) -> Sequence[dict[str, Any]]:
        """Rows of the probe of a leg."""
        if leg not in self._probe:
            self._probe[leg] = self.run.probe(leg)
        return self._probe[leg]


def longest_gap(times_ns: list[int]) -> int | None:
    """The largest step between neighbours of a sorted list, None below two."""
    return max((b - a for a, b in pairwise(times_ns)), default=None)
