"""Open loop: when requests are due."""

from __future__ import annotations

import pytest

from evenhand.drive.arrivals import schedule

S = 1_000_000_000


def test_constant_arrivals() -> None:
    assert schedule("constant", 4, 2.0) == [0, S // 2, S, 3 * S // 2]


def test_bursts_keep_the_rate() -> None:
    assert schedule("burst", 6, 3.0, burst=3) == [0, 0, 0, S, S, S]


def test_poisson_comes_from_the_seed_and_holds_the_rate() -> None:
    due = schedule("poisson", 5000, 100.0, seed=7)
    assert due == schedule("poisson", 5000, 100.0, seed=7)
    assert due != schedule("poisson", 5000, 100.0, seed=8)
    assert due == sorted(due)
    assert due[-1] / S == pytest.approx(50.0, rel=0.1)


def test_a_rate_is_needed() -> None:
    with pytest.raises(ValueError, match="needs a rate above 0"):
        schedule("poisson", 3, 0.0)
