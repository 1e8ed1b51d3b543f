"""A plan is a pure function of the scenario."""

from __future__ import annotations

import msgspec
import pytest

from evenhand import scenario as sc
from evenhand.plan import abba, ladder_requests, make_plan, settings_for


def scenario(**changes: object) -> sc.Scenario:
    base = sc.Scenario(
        name="x",
        model="m",
        seats=32,
        arm=[sc.Arm(name="a", engine="reference"), sc.Arm(name="b", engine="reference", args=["--x"])],
        ladder=sc.Ladder(concurrency=[1, 2, 32]),
        pressure=sc.Pressure(prompt_tokens=[3000, 6000]),
    )
    return msgspec.structs.replace(base, **changes)


def test_a_run_boots_each_arm_once_with_every_cell() -> None:
    plan = make_plan(scenario())
    assert [leg.arm for leg in plan.legs] == ["a", "b"]
    assert [cell.cell for cell in plan.legs[0].cells] == [
        "ladder/c=1",
        "ladder/c=2",
        "ladder/c=32",
        "pressure/3000",
        "pressure/6000",
    ]
    assert {leg.seats for leg in plan.legs} == {32}


def test_seats_follow_the_rung_with_one_boot_each() -> None:
    plan = make_plan(scenario(ladder=sc.Ladder(concurrency=[1, 4], seats="rung"), pressure=None))
    assert [(leg.arm, leg.seats) for leg in plan.legs] == [("a", 1), ("b", 1), ("a", 4), ("b", 4)]


def test_a_rung_has_max_20_5c_requests() -> None:
    assert [ladder_requests(sc.Ladder(concurrency=[1]), c) for c in (1, 4, 5, 32)] == [20, 20, 25, 160]
    assert ladder_requests(sc.Ladder(concurrency=[1], requests=7), 32) == 7


def test_warm_ups_share_no_name_with_measured_cells() -> None:
    plan = make_plan(scenario())
    for leg in plan.legs:
        assert leg.warmup
        assert {c.cell for c in leg.warmup}.isdisjoint(c.cell for c in leg.cells)
        assert {c.prompt_tokens for c in leg.warmup} == {c.prompt_tokens for c in leg.cells}


def test_abba_cancels_linear_drift() -> None:
    order = abba(4)
    place = {side: sum(i for i, (_, s) in enumerate(order) if s == side) for side in "AB"}
    assert place["A"] == place["B"]
    assert "".join(side for _, side in order) == "ABBAABBA"


def gate(**kw: object) -> sc.Gate:
    return sc.Gate(baseline="a", candidate="b", rules={"outputs": "identical"}, **kw)  # type: ignore[arg-type]


def test_a_gate_is_abba_after_one_uncounted_boot_each_with_a_control_within_a_boot() -> None:
    plan = make_plan(scenario(gate=gate(pairs=2)), "gate")
    assert [(leg.role, leg.arm) for leg in plan.legs] == [
        ("warm_boot", "a"),
        ("warm_boot", "b"),
        ("measure", "a"),
        ("measure", "b"),
        ("measure", "b"),
        ("measure", "a"),
    ]
    assert [{c.repeat for c in leg.cells} for leg in plan.legs] == [set(), set(), {0, 1}, {0}, {0}, {0}]
    assert any("ABBA" in note.replace(" ", "") for note in plan.notes)


def test_one_pair_gets_a_control_boot() -> None:
    plan = make_plan(scenario(gate=gate(pairs=1, warm_boot=False)), "gate")
    assert [(leg.role, leg.arm) for leg in plan.legs] == [("measure", "a"), ("measure", "b"), ("control", "a")]


def test_a_gate_needs_its_section() -> None:
    with pytest.raises(ValueError, match=r"\[gate\]"):
        make_plan(scenario(), "gate")


def test_a_gate_that_no_measurement_could_decide_boots_nothing() -> None:
    same = [sc.Arm(name=name, engine="reference") for name in "ab"]
    with pytest.raises(ValueError, match=r'would be void.*arms do not differ; declare it with compare = "same"'):
        make_plan(scenario(arm=same, gate=gate()), "gate")
    with pytest.raises(ValueError, match="declares an A/A gate, but the arms differ: args"):
        make_plan(scenario(gate=gate(compare="same")), "gate")
    two = [same[0], sc.Arm(name="b", engine="reference", args=["--x"], env={"Y": "1"})]
    with pytest.raises(ValueError, match="differ in 2 things"):
        make_plan(scenario(arm=two, gate=gate()), "gate")
    assert make_plan(scenario(arm=same, gate=gate(compare="same")), "gate").legs
    assert make_plan(scenario(arm=same, gate=gate())).legs, "a plain run judges no gate"


def test_seats_that_would_follow_the_rung_stop_a_gate() -> None:
    follows = scenario(ladder=sc.Ladder(concurrency=[1, 4], seats="rung"), gate=gate())
    with pytest.raises(ValueError, match=r'^ladder.seats = "rung" needs a boot for every rung.*leave it out'):
        make_plan(follows, "gate")
    assert make_plan(follows).legs


def test_arms_override_draft_and_pool() -> None:
    arm = sc.Arm(name="a", engine="reference", draft=sc.Draft(method="mtp", depth=3), pool=sc.PoolSection(bytes="1 GiB"))
    settings = settings_for(scenario(draft=sc.Draft(method="ngram", depth=7)), arm, 4)
    assert (settings.method, settings.depth, settings.pool.bytes, settings.seats) == ("mtp", 3, 1 << 30, 4)
