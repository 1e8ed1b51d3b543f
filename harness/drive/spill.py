"""The spill: finished requests with their raw reads and stamps, appended to one file in one write each.

A file is frames of (uint32 length, MessagePack): a `Head` first, then one `Exchange` per finished request. Several processes
append to one file (O_APPEND keeps frames whole). What a kill cuts short is ignored by readers.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What all rows of the file share."""

    leg: int
    arm: str
    cell: str
    repeat: int = 0
    sampling: dict[str, Any] = {}
    version: int = 1


class Exchange(msgspec.Struct, array_like=True):
    """One request as it happened. Own stamps are monotonic, kernel stamps real time (0: the kernel gave none)."""

    index: int
    key: str
    prompt_sha256: str
    prompt_tokens_asked: int
    slot: int = 0
    scheduled_ns: int | None = None
    send_ns: int | None = None
    end_ns: int = 0
    """Own stamp of the moment the exchange was over."""
    complete: bool = False
    """The HTTP message came to its end."""
    reason: str | None = None
    interrupted: bool = False
    first_on_slot: bool = True
    """Nothing was finished on this slot before it: it has no turn-around."""
    offset_ns: int = 0
    steps: list[tuple[int, int, int, int]] = []
    own: bytes = b""
    """int64 per read"""
    kernel: bytes = b""
    """timespec (two int64) per read"""
    sizes: bytes = b""
    """uint32 per read"""
    data: bytes = b""


class Spill:
    """The writing side. A frame is one write: a kill leaves every finished request on disk."""

    def __init__(self, path: str | Path, head: Head | None) -> None:
        """`head` None: another process wrote it."""
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._encode = msgspec.msgpack.Encoder().encode
        if head is not None:
            os.ftruncate(self._fd, 0)
            self._frame(self._encode(head))

    def append(self, exchange: Exchange) -> None:
        """Write one exchange."""
        self._frame(self._encode(exchange))

    def _frame(self, payload: bytes) -> None:
        frame = memoryview(_LENGTH.pack(len(payload)) + payload)
        while frame:
            frame = frame[os.write(self._fd, frame) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def frames(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """Payloads of the whole frames from byte `start` up to `stop`."""
    with Path(path).open("rb") as file:
        file.seek(start)
        while stop is None or start < stop:
            prefix = file.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                return
            (length,) = _LENGTH.unpack(prefix)
            payload = file.read(length)
            if len(payload) < length:
                return
            yield payload
            start += _LENGTH.size + length


def offsets(path: str | Path) -> list[int]:
    """Byte offset of every whole frame, and the end of the last: found without reading the payloads."""
    size = Path(path).stat().st_size
    found = [0]
    with Path(path).open("rb") as file:
        while True:
            prefix = file.read(_LENGTH.size)
            if len(prefix) < _LENGTH.size:
                return found
            end = found[-1] + _LENGTH.size + _LENGTH.unpack(prefix)[0]
            if end > size:
                return found
            found.append(end)
            file.seek(end)


def read_head(path: str | Path) -> Head | None:
    """The shared part; None when not even that was written."""
    for payload in frames(path):
        return msgspec.msgpack.decode(payload, type=Head)
    return None


def exchanges(path: str | Path, start: int, stop: int | None = None) -> Iterator[Exchange]:
    """Exchanges of the frames between two offsets (of `offsets`, from its second on)."""
    decoder = msgspec.msgpack.Decoder(Exchange)
    for payload in frames(path, start, stop):
        yield decoder.decode(payload)
