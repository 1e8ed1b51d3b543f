"""Real-time priority of the measuring thread: asked for while a rung runs, given back after it, never needed."""

from __future__ import annotations

import os

import pytest

from evenhand.drive.loop import Figures, quietly
from evenhand.drive.wake import realtime

linux = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="this system has no scheduling policies")


def fails() -> None:
    with realtime() as woken:
        assert (os.sched_getscheduler(0) == os.SCHED_RR) == woken
        raise KeyError


@linux
def test_the_former_policy_comes_back_whatever_happens() -> None:
    before = os.sched_getscheduler(0)
    with pytest.raises(KeyError):
        fails()
    assert os.sched_getscheduler(0) == before


@pytest.mark.parametrize("allowed", [True, False])
def test_a_rung_says_whether_it_had_it(monkeypatch: pytest.MonkeyPatch, allowed: bool) -> None:
    def asked(pid: int, policy: int, param: object) -> None:
        if not allowed:
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", asked, raising=False)
    assert quietly(Figures).realtime == (allowed and hasattr(os, "sched_getparam"))
