"""Open loop: when requests are due, and what waiting in the client costs."""

from __future__ import annotations

import pytest

from evenhand.drive.arrivals import schedule, send_lags_s

S = 1_000_000_000


def test_b22_waiting_in_the_client_is_kept_apart() -> None:
    due, service = schedule("constant", 3, 1.0), [3 * S, S // 10, S // 10]
    sends, ends, free = [], [], 0
    for at, takes in zip(due, service, strict=True):  # one request in flight at most
        sends.append(max(at, free))
        free = sends[-1] + takes
        ends.append(free)
    assert due == [0, S, 2 * S]
    assert [(end - at) / S for end, at in zip(ends, due, strict=True)] == [3.0, 2.1, 1.2]
    assert [(end - sent) / S for end, sent in zip(ends, sends, strict=True)] == [3.0, 0.1, 0.1]
    lags = send_lags_s(list(zip(due, sends, strict=True)))
    assert lags == [0.0, 2.0, 1.1]
    assert max(lags) == 2.0


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
