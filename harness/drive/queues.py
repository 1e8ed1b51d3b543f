"""Where a rung's requests come from, and the timer that says when one is due."""

from __future__ import annotations

import ctypes
import os
from typing import Protocol


class Queue(Protocol):
    """Where indices of requests come from."""

    def take(self) -> int | None:
        """Next index, None when there is none left."""
        ...


class LocalQueue:
    """0..count-1, in order."""

    def __init__(self, count: int) -> None:
        self._next, self._count = 0, count

    def take(self) -> int | None:
        """Next index."""
        if self._next >= self._count:
            return None
        self._next += 1
        return self._next - 1


class FileQueue:
    """Indices as 32-bit words in a file whose offset several processes share: the kernel hands each word out once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def take(self) -> int | None:
        """Next index."""
        word = os.read(self._fd, 4)
        return int.from_bytes(word, "little") if len(word) == 4 else None


class Timer:
    """Wakes epoll at an absolute monotonic time, to microseconds (poll's own timeout counts milliseconds)."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(1, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")

    def set(self, at_ns: int) -> None:
        """Fire at `at_ns` (at once when that is past)."""
        spec = (ctypes.c_long * 4)(0, 0, *divmod(max(at_ns, 1), 1_000_000_000))
        self._libc.timerfd_settime(self.fd, 1, ctypes.byref(spec), None)

    def clear(self) -> None:
        """Take note that it fired."""
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Give it back."""
        os.close(self.fd)
