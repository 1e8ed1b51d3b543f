"""Simulated gates with known truth go through the real judge."""

import numpy as np
import pytest
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


def test_a_slow_first_boot_and_lasting_luck_are_what_they_say():
    def speeds(**kw):
        made = simulated_gate(World(request_sd=0.0, drift=0.0, requests=1, pairs=400, **kw), 1)
        return np.log([row.ttft_s / 0.2 for row in made._requests])

    assert speeds(boot_sd=0.0, first_boot=0.05)[:2] == pytest.approx([np.log(1.05), 0.0])
    lasting, fresh = speeds(memory=0.5), speeds()
    assert (np.std(lasting), np.std(fresh)) == (pytest.approx(0.03, rel=0.15), pytest.approx(0.03, rel=0.15))
    assert np.corrcoef(lasting[1:], lasting[:-1])[0, 1] == pytest.approx(0.5, abs=0.1)
    assert np.corrcoef(fresh[1:], fresh[:-1])[0, 1] == pytest.approx(0.0, abs=0.1)


def test_the_same_seed_is_the_same_gate():
    world = World(requests=24)
    assert play(world, 2, seed=9) == play(world, 2, seed=9)
