"""Devices and the ledger: what made times unlike, what sequences cost, what each engine resolved."""

import msgspec
import pytest
from judge_runs import S, cell, gpu, leg, manifest, request, run, sample

from evenhand.judge.columns import Reader
from evenhand.judge.gpu import summarise, timing_voids
from evenhand.judge.ladder import ladder_rows
from evenhand.judge.ledger import GIB, ledger, memory
from evenhand.records import Pool


def voids(base, new, count=40):
    """Reasons for two arms with these GPU fields."""
    cells = [cell(leg=0, end_ns=20 * S), cell(leg=1, arm="new", end_ns=20 * S)]
    rows = {n: [gpu(n, 0.4 * i, **fields) for i in range(count)] for n, fields in enumerate((base, new))}
    return timing_voids(summarise("base", cells, rows), summarise("new", cells, rows))


@pytest.mark.parametrize(
    ("base", "new", "words"),
    [
        ({}, {}, None),
        ({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1965}, None),
        ({"sm_clock_mhz": 1980}, {"sm_clock_mhz": 1950}, "unequal clocks"),
        ({"sm_clock_mhz": 600}, {"sm_clock_mhz": 615}, None),
        ({}, {"clock_reasons": 0x40}, "hardware thermal slowdown on GPU-a under new in 40 busy samples"),
        ({"clock_reasons": 0x80}, {}, "hardware power brake"),
        ({"clock_reasons": 0x4}, {"clock_reasons": 0x4}, None),
        ({}, {"clock_reasons": 0x4}, "unequal power capping on GPU-a: 0 % and 100 %"),
        ({"power_limit_w": 700.0}, {"power_limit_w": 500.0}, "unequal power limits on GPU-a: 700 W and 500 W"),
        ({"power_limit_w": None}, {"power_limit_w": None}, "power limit not observed on GPU-a: unknown and unknown"),
        ({}, {"power_limit_w": None}, "power limit not observed on GPU-a: 700 W and unknown"),
        ({}, {"foreign_pids": [77]}, "foreign processes on GPU-a under new: pids 77"),
        ({"uuid": "GPU-b"}, {}, "different devices"),
        ({"sm_clock_mhz": None}, {"sm_clock_mhz": None}, "clock not observed"),
        ({"utilisation_pct": 0.0}, {"utilisation_pct": 0.0, "sm_clock_mhz": 300}, None),
    ],
)
def test_what_makes_times_unlike(base, new, words):
    found = voids(base, new)
    if words is None:
        assert found == []
    else:
        assert any(words in text for text in found)


def test_b78_missing_readings_are_null_and_said():
    """B78: no utilisation is not idleness, and no clock is not an equal one."""
    unknown = {"utilisation_pct": None, "sm_clock_mhz": None, "clock_reasons": None}
    assert voids(unknown, unknown) == ["clock not observed on GPU-a: 0 and 0 busy samples with a clock, 30 are needed"]
    assert voids({"utilisation_pct": None}, {"utilisation_pct": None}) == []


def test_what_a_container_hides_is_not_none():
    rows = {0: [gpu(0, 0.5, clock_reasons=None, foreign_pids=None)], 1: [gpu(1, 0.5, foreign_pids=[])]}
    hidden, seen = (summarise(arm, [cell(leg=n, arm=arm)], rows)[0] for n, arm in enumerate(("base", "new")))
    assert (hidden.slowdowns, hidden.foreign_pids) == (None, None)
    assert (seen.slowdowns, seen.foreign_pids) == ({}, [])


def test_samples_outside_measured_cells_do_not_count():
    cells = [cell(end_ns=S)]
    rows = {0: [gpu(0, 0.5), gpu(0, 5.0, clock_reasons=0x40)]}
    assert [(s.busy, s.slowdowns) for s in summarise("base", cells, rows)] == [(1, {})]


def resident(per_sequence_gib, budget_gib=10.0, weights_gib=5.0):
    """A ladder 1, 2, 4, 8 whose device memory grows by so much per running sequence."""
    rungs = (1, 2, 4, 8)
    cells, rows, samples, devices = [], [], [], []
    for n, c in enumerate(rungs):
        cells.append(cell(f"ladder/c={c}", concurrency=c, planned=1, start_ns=n * 10 * S, end_ns=(n * 10 + 9) * S, lag=None))
        rows.append(request(f"ladder/c={c}#0", send_ns=n * 10 * S, end_ns=(n * 10 + 9) * S))
        samples.append(sample(n * 10 + 5, running=c, waiting=0, usage=0.1))
        used = round((1 + weights_gib + budget_gib + per_sequence_gib * c) * GIB)
        devices += [gpu(0, n * 10 + i, memory_used_bytes=used) for i in range(9)]
    pool = Pool(blocks=10, bytes=round(budget_gib * GIB))
    row = leg(pool=pool, device_bytes_before=GIB, figures={"weight_memory_bytes": weights_gib * GIB}, device_bytes_idle=2 * GIB)
    made = run(legs=[row], cells=cells, requests=rows, samples=samples, gpu=devices)
    reader = Reader(made)
    return memory(made, reader, ladder_rows(made, reader))[0]


def test_memory_per_running_sequence():
    got = resident(1.25)
    assert got.slope_gib_per_sequence == pytest.approx(1.25)
    assert got.rungs["ladder/c=8"] == (8, round(26 * GIB))
    assert (got.bounded, "growing by 1.25 GiB per sequence" in got.bounded_reason) == (False, True)
    flat = resident(0.0)
    assert flat.slope_gib_per_sequence == pytest.approx(0.0)
    assert (flat.bounded, flat.beyond_weights_bytes) == (True, 10 * GIB)


def test_no_device_no_memory():
    made = run(cells=[cell(planned=0)])
    assert memory(made, Reader(made), []) == []


def test_the_ledger_marks_what_differs():
    legs = [leg(0, config={"dtype": "bf16", "caching": True}), leg(1, "new", config={"dtype": "bf16"}, seats_resolved=6)]
    requests = [
        request("ladder/c=1#0", leg=n, arm=a, sampling={"temperature": 0, "seed": n, "max_tokens": 9})
        for n, a in ((0, "base"), (1, "new"))
    ]
    made = run(legs=legs, requests=requests, manifest=manifest())
    rows = {r.name: r for r in ledger(made, [], Reader(made))}
    assert rows["config dtype"].differs is False
    assert (rows["config caching"].values, rows["config caching"].differs) == ({"base": "true", "new": None}, True)
    assert (rows["seats resolved"].values, rows["seats resolved"].differs) == ({"base": "8", "new": "6"}, True)
    assert rows["model files (sha256)"].values["base"].endswith("(1 files)")
    assert rows["sampling"].values == {"base": '{"seed":0,"temperature":0}', "new": '{"seed":1,"temperature":0}'}


def test_what_is_an_arms_own_or_only_observed_is_no_difference():
    def env(arm, more=""):
        caches = {"VLLM_CACHE_ROOT": f"/c/compile/run/{arm}/root", "PYTHONPATH": f"/runs/r/overlay/{arm}:/x{more}"}
        return leg(0 if arm == "base" else 1, arm, env=caches, device_bytes_idle=(5 if arm == "base" else 6) << 30)

    def marked(made, rows=()):
        return {r.name for r in ledger(made, rows) if r.differs}

    assert marked(run(legs=[env("base"), env("new")])) == set()
    assert marked(run(legs=[env("base"), env("new", "y")])) == {"env PYTHONPATH"}
    made = run(legs=[leg(0), leg(1, "new")], cells=[cell(leg=0), cell(leg=1, arm="new")])
    rows = [msgspec.structs.replace(r, peak_running=n) for n, r in enumerate(ladder_rows(made, Reader(made)))]
    (peak,) = [r for r in ledger(made, rows) if r.name == "peak running"]
    assert (peak.values, peak.differs) == ({"base": "0", "new": "1"}, False)


def test_boots_of_one_arm_that_disagree_are_shown():
    made = run(legs=[leg(0, version="1"), leg(1, version="2"), leg(2, version=None)])
    assert {r.name: r for r in ledger(made, [])}["version"].values == {"base": "1 / 2 / unknown"}
