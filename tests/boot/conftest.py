"""One guardian a test, closed at its end whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from boot_fake import Toy

from evenhand.boot.guardian import Guardian
from evenhand.boot.leg import LegName, Running, boot_leg
from evenhand.engines.base import Settings
from evenhand.records import LegRow
from evenhand.scenario import Deadlines


@pytest.fixture
def guardian() -> Iterator[Guardian]:
    with Guardian() as found:
        yield found


@pytest.fixture
def boot(guardian: Guardian, tmp_path: Path) -> Callable[..., Running | LegRow]:
    """Boot the toy engine with options; settings and arguments of boot_leg may be given too."""

    def start(
        options: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        ready_s: float = 20.0,
        engine: Any = None,
        **more: Any,
    ) -> Running | LegRow:
        chosen = Settings(
            **{"model": "m", "served_name": "toy", "options": {"folder": str(tmp_path), **(options or {})}, **(settings or {})}
        )
        return boot_leg(
            guardian,
            engine or Toy(),
            chosen,
            tmp_path / "000-A",
            LegName(leg=0, arm="A"),
            Deadlines(ready_s=ready_s, stop_s=2.0),
            lock_dir=tmp_path / "locks",
            **more,
        )

    return start
