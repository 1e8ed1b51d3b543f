"""Energy per token and the reuse ladder, from rows."""

from __future__ import annotations

import pytest
from judge_runs import cell, failed, gpu, request, run

from evenhand.judge.devices import device_rows
from evenhand.judge.ladder import ladder_rows
from evenhand.judge.reuse import reuse_rows


def test_energy_is_the_counters_increase_around_the_cell_over_its_tokens() -> None:
    readings = [gpu(0, t, energy_mj=int(100_000 + 200_000 * t), power_w=200.0) for t in (-0.1, 0.2, 0.5, 0.9, 1.1, 3.0)]
    view = run(cells=[cell(planned=1)], requests=[request()], gpu=readings)
    (row,) = device_rows(view, ladder_rows(view))
    assert row.energy_j == pytest.approx(240.0)  # from -0.1 s to 1.1 s at 200 W
    assert row.tokens == 4
    assert row.energy_per_token_j == pytest.approx(60.0)
    assert (row.readings, row.clock_mhz, row.power_w) == (3, 1650, 200.0)


def test_energy_per_token_is_null_with_a_reason_when_a_request_failed() -> None:
    readings = [gpu(0, t, energy_mj=round(1e6 * (t + 1))) for t in (-0.1, 0.5, 1.1)]
    view = run(cells=[cell(planned=2)], requests=[request(), failed("ladder/c=1#1")], gpu=readings)
    (row,) = device_rows(view, ladder_rows(view))
    assert row.energy_per_token_j is None
    assert row.energy_reason == "1 of 2 requests gave no result"


def test_a_device_without_a_counter_has_no_energy() -> None:
    view = run(cells=[cell(planned=1)], requests=[request()], gpu=[gpu(0, 0.5)])
    (row,) = device_rows(view, ladder_rows(view))
    assert row.energy_j is None
    assert row.energy_reason == "no energy counter around the cell"


def test_reuse_rows_say_what_was_cached_and_whether_the_replay_says_the_same() -> None:
    name = "reuse/2048"
    asked = [
        request(f"{name}#{i}", cached_tokens=c, ids=ids) for i, (c, ids) in enumerate([(0, [1]), (1792, [2]), (1792, [1])])
    ]
    cells = [cell(name, prompt_tokens=2048, planned=3)]
    (row,) = reuse_rows(run(cells=cells, requests=asked))
    assert row.cached_tokens == (0, 1792, 1792)
    assert row.replay_identical is False
    (row,) = reuse_rows(run(cells=cells, requests=asked[:1]))
    assert row.cached_tokens == (0, None, None)
    assert row.replay_identical is None
