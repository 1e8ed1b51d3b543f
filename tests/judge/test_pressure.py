"""Pool pressure: sampled and exact peaks, retained states, paired rows."""

import msgspec
import pytest
from judge_runs import POOL, S, cell, leg, manifest, request, run, sample

from evenhand.judge.exact import retained, series_text
from evenhand.judge.pool import judge_pool
from evenhand.judge.pressure import paired_pressure, pressure_rows
from evenhand.judge.rules import parse_rules

L = 14_000
NAME = f"pressure/{L}"


def at_blocks(t, blocks, **kw):
    return sample(t, usage=blocks / 899, running=1, waiting=0, **kw)


def probe_steps(*blocks, start=0.1):
    return [{"step": n, "t_ns": round((start + 0.01 * n) * S), "used": b, "free": 899 - b} for n, b in enumerate(blocks)]


def two_arms(base=(79,), new=(61,), cached=0, probes=None, settle=0.0):
    legs, cells, rows, samples, probe = [], [], [], [], {}
    for n, (arm, peaks) in enumerate([("base", base), ("new", new)] * max(len(base), len(new))):
        pair = n // 2
        if pair >= len(peaks):
            continue
        legs.append(leg(n, arm, pair=pair))
        cells.append(
            cell(NAME, n, arm, prompt_tokens=L, planned=1, settle_ns=2 * S, end_ns=2 * S, kind="pressure", output_tokens=None)
        )
        tokens = {"prompt_tokens": L, "prompt_tokens_asked": L, "cached_tokens": cached}
        rows.append(request(f"{NAME}#0", leg=n, arm=arm, **tokens))
        samples += [at_blocks(0.25, 20, leg=n), at_blocks(1.0, peaks[pair], leg=n), sample(2.5, leg=n, usage=settle)]
        if probes:
            probe[n] = probe_steps(*probes[arm])
    return run(legs=legs, cells=cells, requests=rows, samples=samples, probe=probe, manifest=manifest())


def pairs(made):
    return paired_pressure(pressure_rows(made), made.legs, "base", "new")


def test_a_row_says_how_its_peak_was_seen():
    row = pressure_rows(two_arms())[0]
    assert (row.peak_blocks, row.samples, row.largest_gap_s) == (79, 2, 1.0)
    assert row.quantum_share == pytest.approx(1 / 899)
    assert (row.settle_blocks, row.settle_reason, row.prefix, row.ttft_s) == (0, None, "none", 0.4)
    assert (row.exact_blocks, row.exact_reason) == (None, "no probe")


def test_paired_rows_reproduce_the_measured_change():
    row = pairs(two_arms())[0]
    assert (row.baseline_blocks, row.candidate_blocks, row.blocks) == (79, 61, -18)
    assert row.change == pytest.approx(-0.228, abs=5e-4)
    assert row.ratio == pytest.approx(61 / 79)
    assert row.extra_tokens_per_prompt_token == pytest.approx(18 * 272 / L)
    assert (row.exact, row.baseline_settle_blocks, row.candidate_settle_blocks) == (False, 0, 0)


def test_exact_peaks_replace_sampled_ones_and_show_what_was_missed():
    made = two_arms((172, 172), (61, 61), probes={"base": (20, 175, 172), "new": (20, 61)})
    row = pressure_rows(made)[0]
    assert (row.exact_blocks, row.exact_step, row.missed_blocks, row.blocks) == (175, 1, 3, 175)
    paired = pairs(made)[0]
    assert (paired.exact, paired.baseline_blocks, paired.baseline_sampled, paired.spread_blocks) == (True, 175, 172, 0)


def test_a_pool_that_does_not_come_back():
    assert pressure_rows(two_arms(settle=3 / 899))[0].settle_blocks == 3


def test_what_stayed_behind_is_read_once_the_engine_is_idle():
    """A sample between the last byte and the idle engine still shows the request's own blocks."""
    early = at_blocks(1.1, 9)
    times = {"prompt_tokens": L, "planned": 1, "end_ns": S, "settle_ns": 2 * S, "output_tokens": None}
    busy = run(cells=[cell(NAME, **times)], requests=[request(f"{NAME}#0")], samples=[at_blocks(0.5, 20), early])
    row = pressure_rows(busy)[0]
    assert (row.settle_blocks, row.settle_reason) == (None, "no sample after the engine went idle")
    shuffled = [at_blocks(2.5, 0), early, at_blocks(0.5, 20), at_blocks(2.2, 7)]
    row = pressure_rows(run(cells=busy.cells, requests=busy.requests(), samples=shuffled))[0]
    assert (row.settle_blocks, row.peak_blocks, row.samples) == (0, 20, 1)


def test_rows_with_a_large_cached_prefix_stand_apart():
    assert [pairs(two_arms(cached=c))[0].prefix for c in (0, 100, 7000)] == ["none", "some", "large"]


def test_b33_an_arm_without_the_gauge_is_not_comparable():
    """B33: not comparable for the pool."""
    made = two_arms()
    made._samples = [s if s.leg == 0 else sample(0.5, leg=1, running=1) for s in made._samples]
    row = pairs(made)[0]
    assert (row.blocks, row.change) == (None, None)
    assert row.reason == "not comparable: candidate, leg 1: absent"
    assert judge_pool(parse_rules({"peak_pool": "not worse"})[0], [row], 2)[0] == "void"


def judged(made, rule="not worse", boots=2):
    return judge_pool(parse_rules({"peak_pool": rule})[0], pairs(made), boots)


def test_more_blocks_than_before_fail():
    status, reason = judged(two_arms((61, 61), (79, 79)))
    assert status == "fail"
    assert "61 -> 79 blocks (+29.5 %)" in reason


def test_a_sampled_margin_is_at_least_the_spread_of_one_build():
    made = two_arms((62, 65), (66, 67))
    status, reason = judged(made)
    assert (status, "A/A spread of 3 blocks" in reason) == ("pass", True)
    assert judged(two_arms((65, 65), (66, 66)))[0] == "fail"
    assert judged(two_arms((65, 65), (66, 66)), {"blocks": 1})[0] == "pass"


def test_the_candidates_own_boots_excuse_nothing():
    made = two_arms((79,) * 6, (300, 300, 79, 300, 300, 300))
    assert pairs(made)[0].spread_blocks == 0
    status, reason = judged(made)
    assert (status, "79 -> 300 blocks (+279.7 %) in 5 of 6 boots" in reason) == ("inconclusive", True)
    made = two_arms((79,) * 3, (300, 79, 300), probes={"base": (79,), "new": (300, 79, 300)})
    assert judged(made)[0] == "fail"


def test_the_spread_of_one_cell_excuses_no_other():
    made, other = two_arms((79, 79), (300, 300)), two_arms((100, 500), (100, 100))
    rows = [*pairs(made), *(msgspec.structs.replace(p, cell="pressure/58000") for p in pairs(other))]
    assert judge_pool(parse_rules({"peak_pool": "not worse"})[0], rows, 2)[0] == "fail"


def test_a_void_boot_is_not_left_out_of_the_peaks():
    made = two_arms((79, 79), (300, 79))
    made.cells = [msgspec.structs.replace(c, planned=2) if c.leg == 1 else c for c in made.cells]
    row = pairs(made)[0]
    assert row.reason == "not comparable: candidate, leg 1: void: 1 of 2 requests were recorded"
    assert judged(made)[0] == "void"
    made.cells = [c for c in made.cells if c.leg != 1]
    assert pairs(made)[0].reason == "not comparable: candidate, leg 1: not measured"


def test_a_second_pass_of_the_baseline_tells_the_spread_too():
    made = two_arms((76, 76), (79, 79))
    assert judged(made)[0] == "fail"
    tokens = {"prompt_tokens": L, "prompt_tokens_asked": L}
    made.cells.append(cell(NAME, 0, "base", prompt_tokens=L, planned=1, start_ns=3 * S, end_ns=5 * S, repeat=1))
    made._requests.append(request(f"{NAME}#0", leg=0, arm="base", repeat=1, send_ns=3 * S, end_ns=5 * S, **tokens))
    made._samples.append(at_blocks(4, 79, leg=0))
    assert pairs(made)[0].baseline_each == [76, 76]
    assert judged(made)[0] == "pass"


def test_exact_peaks_take_no_such_margin():
    made = two_arms((62, 65), (66, 66), probes={"base": (65,), "new": (66,)})
    assert judged(made)[0] == "fail"


def exact_of_two(base, new):
    """Exact peaks of every boot while two requests ran at a time."""
    made = two_arms(base, new)
    made.cells = [msgspec.structs.replace(c, planned=2, concurrency=2, lag=None) for c in made.cells]
    made._requests += [msgspec.structs.replace(r, index=1, key=f"{NAME}#1") for r in made._requests]
    made._probe = {leg.leg: probe_steps((base if leg.arm == "base" else new)[leg.pair]) for leg in made.legs}
    return made


def test_exact_peaks_of_requests_together_have_a_margin_too():
    """How requests fall into batches differs from boot to boot of one build, however exactly their peak is counted."""
    status, reason = judged(exact_of_two((62, 65), (66, 67)))
    assert (status, "exact peaks, margin raised to the baseline's A/A spread of 3 blocks" in reason) == ("pass", True)
    assert judged(exact_of_two((65, 65), (66, 66)))[0] == "fail"
    status, reason = judged(exact_of_two((79, 79, 79), (300, 79, 300)))
    assert status == "inconclusive"
    assert reason.endswith("79 -> 300 blocks (+279.7 %) in 2 of 3 boots (exact peaks: more boots would tell)")


def test_one_boot_is_not_enough():
    assert judged(two_arms(), boots=1)[0] == "inconclusive"


def test_retained_states_are_said_as_the_seed_says_them():
    def row(computed, kept, state):
        return {"request": "r", "t_ns": S, "computed": computed, "attention": 1, "state": state, "kept": kept}

    rows = [row(1664 * n, [4 + n] * 3, [5 + n] * 3) for n in range(13)] + [row(21_000, [16, 15, 16], [16] * 3)]
    got = retained(rows, cell(end_ns=2 * S))[0]
    assert (got.first, got.last, got.most, got.text) == (4, 16, 16, "4, 5, ..., 16")
    assert got.growth_per_1000_tokens == pytest.approx(1000 / 1664)
    never_retired = retained([row(100, None, [2, 3])], cell(end_ns=2 * S))[0]
    assert (never_retired.most, never_retired.text, never_retired.growth_per_1000_tokens) == (3, "3", None)
    assert retained([row(100, None, [])], cell(end_ns=2 * S)) == []
    assert series_text([5, 5, 5]) == "5"
    assert series_text([2, 3, 3, 1]) == "2, 3"


def test_a_probe_that_fell_silent_or_lost_rows_gives_no_exact_peak():
    made = two_arms(probes={"base": (79,), "new": (61,)})
    made._probe = {
        0: [{"probe": "off", "missing": ["BlockPool.touch"]}],
        1: [*probe_steps(61), {"probe": "dropped", "rows": 7}],
    }
    base, new = pressure_rows(made)
    assert (base.exact_blocks, base.exact_reason) == (None, "the probe turned itself off: BlockPool.touch")
    assert (new.exact_blocks, new.exact_reason) == (None, "the probe dropped 7 rows")


def off(**kw):
    return {"probe": "off", "missing": ["x"], **kw}


@pytest.mark.parametrize("row", [off(), off(t_ns=S), off(t_ns=0)])
def test_a_probe_that_stopped_in_the_cell_gives_no_exact_peak(row):
    made = two_arms((79, 79), (300, 300), probes={"base": (79,), "new": (5,)})
    for n in (1, 3):
        made._probe[n].append(row)
    assert pressure_rows(made)[1].exact_reason == "the probe turned itself off: x"
    status, reason = judged(made)
    assert status == "fail"
    assert "79 -> 300 blocks" in reason
    assert "sampled peaks, no exact ones: leg 1: the probe turned itself off: x" in reason


def test_a_probe_that_stopped_after_the_cell_or_came_back_before_it_keeps_its_peak():
    made = two_arms((79, 79), (61, 61), probes={"base": (79,), "new": (61,)})
    made._probe[1].append(off(t_ns=3 * S))
    made._probe[0].insert(0, off(t_ns=-2 * S))
    made._probe[0].insert(1, {"t_ns": -S, "step": 0, "used": 0})
    assert [r.exact_blocks for r in pressure_rows(made)] == [79, 61, 79, 61]


def test_no_sample_can_exceed_an_exact_peak():
    row = pressure_rows(two_arms((79,), (300,), probes={"base": (79,), "new": (5,)}))[1]
    assert (row.exact_blocks, row.blocks) == (None, 300)
    assert row.exact_reason == "the probe saw 5 blocks where a sample read 300"


def test_a_null_result_is_a_row_like_any_other():
    row = pairs(two_arms((61, 61), (61, 61)))[0]
    assert (row.blocks, row.change, row.extra_tokens_per_prompt_token) == (0, 0.0, 0.0)
    assert POOL.usable_blocks == 899
