"""`evenhand` and `python -m evenhand`: Ctrl-C (130) and SIGTERM (143) end it without a word, also while it still imports."""

from __future__ import annotations

import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(128 + number)


def main() -> None:
    """Import the command line, which takes a tenth of a second, and hand over to it."""
    interrupt = signal.getsignal(signal.SIGINT)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from evenhand.cli import main as command

    try:
        signal.signal(signal.SIGINT, interrupt)  # a verb cleans up behind itself
        command()
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None


if __name__ == "__main__":
    main()
