"""What a run costs, said before anything boots."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from show_runs import ladder_run, store

from evenhand import scenario as sc
from evenhand.plan import make_plan
from evenhand.show.dry import took_before, unknown_time, work


def scenario(**changes: object) -> sc.Scenario:
    base = sc.Scenario(
        name="x",
        model="m",
        arm=[sc.Arm(name="a", engine="vllm"), sc.Arm(name="b", engine="reference")],
        ladder=sc.Ladder(concurrency=[1, 8], prompt_tokens=100, output_tokens=10),
        pressure=sc.Pressure(prompt_tokens=[3000]),
    )
    return msgspec.structs.replace(base, **changes)


def test_work_is_counted_and_what_is_found_later_is_said() -> None:
    assert work(make_plan(scenario())) == [
        "2 boots; measured: 122 requests, 18,000 prompt tokens, 1,200 output tokens, more for 2 whose length the warm-up finds",
        "warm-up: 18 requests, 7,600 prompt tokens, 192 output tokens",
    ]


def test_time_is_unknown_before_a_first_run_but_for_starts_and_schedules() -> None:
    arms = [sc.Arm(name="a", engine="vllm"), sc.Arm(name="c", engine="vllm"), sc.Arm(name="b", engine="reference")]
    said = unknown_time(scenario(arm=arms), make_plan(scenario(arm=arms)))
    assert "not known before a first run" in said
    assert "2 starts of engines alone are often 1 to 6 min" in said
    only = scenario(arm=arms[2:], ladder=sc.Ladder(concurrency=[1], requests=30, arrivals="poisson", rate=0.5), pressure=None)
    assert unknown_time(only, make_plan(only)) == (
        "time: not known before a first run, the engines' speed decides; arrivals at 0.5 requests/s alone take 60 s"
    )


def test_an_earlier_run_of_the_same_scenario_says_how_long(tmp_path: Path) -> None:
    run = ladder_run()
    run.manifest = msgspec.structs.replace(run.manifest, started_utc="2026-01-01T00:00:00Z")
    store(run, tmp_path / "three-20260101T000000Z")
    sha256 = run.manifest.scenario_sha256
    assert took_before(tmp_path, "three", "run", sha256) == (
        "time: about 3,600 s, as three-20260101T000000Z took for the same scenario"
    )
    assert took_before(tmp_path, "three", "run", "another") is None
    assert took_before(tmp_path, "three", "gate", sha256) is None
    assert took_before(tmp_path / "none", "three", "run", sha256) is None
