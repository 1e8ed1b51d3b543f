"""What a campaign tells while it works; show/progress.py draws it, `--live` serves it, tests collect it."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the campaign."""

    what: str
    """ "leg", "ready", "refused", "warmup", "cell", "requests", "cell_end", "leg_end", "note", "end" """
    leg: int | None = None
    legs: int | None = None
    arm: str = ""
    cell: str = ""
    text: str = ""
    done: int | None = None
    total: int | None = None
    ok: int | None = None
    failed: int | None = None
    usage: float | None = None
    """share of the pool in use, latest sample"""
    running: float | None = None
    outcome: str | None = None


class Listener(Protocol):
    """Receives events; must not raise and must be quick."""

    def __call__(self, event: Event) -> None: ...


def silent(event: Event) -> None:
    """Tells nobody."""
