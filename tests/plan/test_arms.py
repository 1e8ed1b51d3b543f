"""What surrounds a leg."""

from __future__ import annotations

import pytest

from evenhand import arms
from evenhand.engines import engine_for
from evenhand.engines.base import Capabilities, Settings


@pytest.mark.parametrize(("env", "seen"), [({}, "3"), ({"CUDA_VISIBLE_DEVICES": "1"}, "1")])
def test_devices_are_those_that_the_engine_will_see(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], seen: str) -> None:
    """An exported choice reaches the engine unless its arm makes another one: locks and memory are of the same devices."""
    asked: list[str | None] = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(arms, "used_bytes", lambda visible, order=None: asked.append(visible))
    monkeypatch.setattr(arms, "visible_uuids", lambda visible, order=None: asked.append(visible) or [])
    settings = Settings(model="m", served_name="m", env=env)
    arms.Prepared(engine_for("vllm", settings), settings, Capabilities(), None, {}, [], 1.0)
    with arms._devices_locked(settings):
        assert asked == [seen, seen]
