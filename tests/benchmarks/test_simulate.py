"""Simulated gates with known truth go through the real judge."""

from simulate import World, play, simulated_gate

from evenhand.judge.gate import judge_gate


def test_a_quiet_world_passes_and_a_slow_candidate_fails():
    quiet = World(boot_sd=0.002, request_sd=0.02, requests=24)
    assert judge_gate(simulated_gate(quiet, 1), "").status == "pass"
    slow = World(boot_sd=0.002, request_sd=0.02, requests=24, effect=0.1)
    got = judge_gate(simulated_gate(slow, 1), "")
    assert (got.status, {r.status for r in got.rules}) == ("fail", {"fail"})


def test_a_noisy_world_is_inconclusive_rather_than_wrong():
    noisy = World(boot_sd=0.2, requests=24)
    got = play(noisy, 3, seed=5)
    assert got.statuses == {"inconclusive": 3}
    assert got.too_noisy == 3


def test_the_same_seed_is_the_same_gate():
    world = World(requests=24)
    assert play(world, 2, seed=9) == play(world, 2, seed=9)
