"""How a run is asked to end early: Ctrl-C (once or more), SIGTERM and SIGHUP set one flag; clean-up always runs."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):
    """The run was asked to end; clean-up follows."""


class Stop:
    """A flag that signals set. Use as a context manager in the main thread; former handlers come back at the end.

    A second Ctrl-C changes nothing: engines are stopped by the guardian either way, within its deadline.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self.signal: int | None = None
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup: the user wants the run to outlive the terminal
            self._former[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, former in self._former.items():
            signal.signal(number, former)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = number
        self._event.set()

    def set(self) -> None:
        """Ask for the end without a signal."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether the end was asked for."""
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Sleep, waking early; True when the end was asked for."""
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raises Interrupted when the end was asked for."""
        if self._event.is_set():
            raise Interrupted

    @property
    def exit_code(self) -> int:
        """130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self.signal or signal.SIGINT)
