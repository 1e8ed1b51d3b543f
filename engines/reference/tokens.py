"""Deterministic tokens: which ids come out depends on the prompt's ids (and the seed, where sampling is asked for) only."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

NEAR_TIE_EVERY = 37
"""about one position in this many has two candidates within 0.005 nat"""


class Stream:
    """The tokens that follow one prompt, made in portions as they are asked for."""

    __slots__ = ("_digest", "_ids", "_ordinary", "_portion", "plant")

    def __init__(self, digest: bytes, ordinary: Sequence[int], plant: int | None = None) -> None:
        self._digest = digest
        self._ordinary = ordinary
        self._ids: list[int] = []
        self._portion = 64
        self.plant = plant
        """Position whose token is replaced by its neighbour: a planted regression."""

    def take(self, start: int, count: int) -> list[int]:
        """Ids at positions start .. start+count-1."""
        while len(self._ids) < start + count:
            self._more()
        return self._ids[start : start + count]

    def _more(self) -> None:
        made, self._portion = self._portion, min(4096, self._portion * 4)
        begin = len(self._ids)
        raw = array("I", hashlib.shake_128(self._digest + begin.to_bytes(4, "little")).digest(4 * made))
        ordinary = self._ordinary
        size = len(ordinary)
        self._ids += [ordinary[value % size] for value in raw]
        if self.plant is not None and begin <= self.plant < begin + made:
            self._ids[self.plant] = self.neighbour(self._ids[self.plant])

    def end(self, position: int, eos: int) -> None:
        """Make `eos` the token at a position that was made already."""
        self._ids[position] = eos

    def neighbour(self, token: int) -> int:
        """The second candidate beside `token`."""
        ordinary = self._ordinary
        at = token - ordinary[0]
        if not (0 <= at < len(ordinary) and ordinary[at] == token):
            at = 0
        return ordinary[(at + 1) % len(ordinary)]

    def margin(self, position: int) -> float:
        """Nats between the best and the second candidate at `position`: a near tie here and there."""
        value = self._noise(position)
        return 0.005 if value % NEAR_TIE_EVERY == 0 else 0.05 + (value % 2000) / 1000

    def top(self, position: int) -> float:
        """Log-probability of the best candidate at `position`."""
        return -0.05 - (self._noise(position + 1) % 700) / 1000

    def _noise(self, position: int) -> int:
        return int.from_bytes(
            hashlib.blake2b(position.to_bytes(8, "little"), key=self._digest, digest_size=4).digest(), "little"
        )


def digest(prompt: array[int], salt: bytes = b"") -> bytes:
    """What the tokens depend on."""
    return hashlib.blake2b(prompt.tobytes(), digest_size=16, salt=salt[:16]).digest()


def accepted(stream_digest: bytes, position: int, depth: int, acceptance: float) -> int:
    """How many of `depth` drafted tokens are accepted: a chain of draws with one probability each, the same on every run."""
    if acceptance >= 1.0:
        return depth
    if acceptance <= 0.0:
        return 0
    raw = hashlib.blake2b(position.to_bytes(8, "little"), key=stream_digest, digest_size=2 * depth).digest()
    limit = int(acceptance * 65536)
    for index in range(depth):
        if int.from_bytes(raw[2 * index : 2 * index + 2], "little") >= limit:
            return index
    return depth
