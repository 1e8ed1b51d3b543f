"""The ladder's figures and what makes a rung void."""

import pytest
from judge_runs import S, cell, failed, leg, manifest, request, run, sample

from evenhand.judge.arms import by_arm, different_work, ranking
from evenhand.judge.ladder import ladder_rows
from evenhand.judge.unmeasured import not_measured
from evenhand.records import Lag, Pool


def rung(rows, samples=(), legs=None, scenario=None, **kw):
    kw.setdefault("planned", len(rows))
    made = run(
        cells=[cell(**kw)], requests=rows, samples=samples, legs=legs or [leg()], manifest=manifest(scenario=scenario or {})
    )
    return ladder_rows(made)[0]


def some(n=4, **kw):
    return [request(f"ladder/c=1#{i}", **({"send_ns": i * S, "end_ns": (i + 1) * S} | kw)) for i in range(n)]


def test_b16_tokens_are_counted_not_assumed():
    """B16: 24 tok/s, not 40; two short; another length is other work."""
    rows = [request(f"ladder/c=1#{i}", ids=list(range(n))) for i, n in enumerate((100, 100, 20, 20))]
    row = rung(rows, output_tokens=100, end_ns=10 * S)
    assert row.tokens_per_s == 24.0
    assert row.short_outputs == 2
    assert "2 of 4 requests ended before 100 output tokens" in row.notes
    assert row.work == (4, 32, 240)


def test_b16_arms_with_other_work_are_not_ranked():
    rows = [request(f"ladder/c=1#{i}", leg=0, arm="base") for i in range(2)]
    rows += [request(f"ladder/c=1#{i}", leg=1, arm="new", ids=[1, 2]) for i in range(2)]
    made = run(legs=[leg(0), leg(1, "new")], cells=[cell(planned=2), cell(leg=1, arm="new", planned=2)], requests=rows)
    arms = by_arm(made)
    assert ranking(arms) == {}
    assert different_work(arms) == {"ladder/c=1": "different work: output tokens base 8, new 4"}


def test_the_steady_window_is_where_all_slots_are_busy():
    rows = [
        request("ladder/c=2#0", slot=0, send_ns=0, end_ns=2 * S, ids=[1, 2], event_ns=[S // 2, S], event_tokens=[1, 1]),
        request(
            "ladder/c=2#1", slot=1, send_ns=S // 4, end_ns=S, ids=[1, 2], event_ns=[S // 2, S // 2 + 1], event_tokens=[1, 1]
        ),
    ]
    row = rung(rows, name="ladder/c=2", concurrency=2, end_ns=2 * S, output_tokens=2, lag=None)
    assert row.steady_s == 0.75  # from the second slot's send to its last end
    assert row.steady_tokens_per_s == pytest.approx(4 / 0.75)  # 0.5 and 1.0 of slot 0, both of slot 1
    assert row.tokens_per_s == 2.0


def test_events_without_counts_give_no_steady_rate():
    rows = [request("ladder/c=1#0", ids=None, output_tokens=9, token_source="usage", event_ns=[1, 2], event_tokens=[1, 1])]
    row = rung(rows, output_tokens=9)
    assert row.steady_tokens_per_s is None
    assert "do not tell" in row.steady_reason
    assert row.tokens_per_s == 9.0


def test_b17_a_prompt_of_another_length_is_void():
    """B17: actual tokens come from the server, per request."""
    row = rung([request("ladder/c=1#0", prompt_tokens_asked=3, prompt_tokens=2)])
    assert row.outcome == "void"
    assert "asked 3 tokens, the server counted 2" in row.reason
    assert row.tokens_per_s is None


def test_b22_a_client_that_cannot_hold_the_rate():
    """B22: the lag behind the schedule is the client's."""
    lag = Lag(stamp="kernel", send_lag_max_s=2.0)
    row = rung(some(3), lag=lag, scenario={"ladder": {"concurrency": [1], "arrivals": "constant", "rate": 1.0}})
    assert row.outcome == "void"
    assert "could not hold the rate" in row.reason
    fine = Lag(stamp="kernel", send_lag_max_s=0.0001)
    row = rung(some(3), lag=fine, scenario={"ladder": {"concurrency": [1], "arrivals": "constant", "rate": 1.0}})
    assert row.outcome == "ok"
    assert row.steady_tokens_per_s is None


def test_b26_slots_that_were_never_in_flight():
    """B26: a rung of 128 that only reached 100 is none."""
    row = rung(some(), concurrency=4, lag=Lag(stamp="kernel", max_in_flight=3))
    assert row.outcome == "void"
    assert "client limit: at most 3 of 4" in row.reason


@pytest.mark.parametrize(
    ("lag", "word"),
    [
        (Lag(stamp="kernel", turnaround_p50_s=0.021), "starved"),
        (Lag(stamp="user", loop_lag_p99_s=0.021), "without kernel stamps"),
        (Lag(stamp="kernel", clock_steps=1), "clock stepped"),
    ],
)
def test_the_client_was_the_bottleneck(lag, word):
    row = rung(some(), lag=lag)
    assert row.outcome == "void"
    assert word in row.reason


@pytest.mark.parametrize(
    "lag", [Lag(stamp="kernel", turnaround_p50_s=0.019, lag_p99_s=0.5), Lag(stamp="user", loop_lag_p99_s=0.019)]
)
def test_a_lag_within_limits_is_no_reason(lag):
    assert rung(some(), lag=lag).outcome == "ok"


def test_a_turn_around_that_is_next_to_nothing_of_a_seats_time_starves_nobody():
    """A tenth of a very short TPOT can be the kernel's own wake-up: 21 ms beside requests of 10 s are 0.2 % of a seat."""
    long = some(send_ns=0, end_ns=10 * S)
    assert rung(long, lag=Lag(stamp="kernel", turnaround_p50_s=0.021)).outcome == "ok"


def test_all_reasons_are_given_at_once():
    row = rung(some(), restarted=True, lag=Lag(stamp="kernel", clock_steps=2, turnaround_p50_s=1.0))
    assert row.reason.count(";") == 2


def test_b47_tokens_that_nobody_explains():
    """B47: aborted prefills explain a surplus, another client does not."""
    rows = [request(f"ladder/c=1#{i}", prompt_tokens=100, prompt_tokens_asked=100) for i in range(5)]
    rows.append(failed("ladder/c=1#5", "total deadline", prompt_tokens_asked=200))
    row = rung(rows, counters={"prompt_tokens": 700})
    assert (row.outcome, row.reconciled) == ("ok", "explained")
    row = rung(rows, counters={"prompt_tokens": 900})
    assert row.outcome == "void"
    assert "unexplained 200 tokens: another client?" in row.reason
    assert rung(rows, counters={"prompt_tokens": 500}).reconciled == "explained"


def test_b41_a_quiet_series_is_no_proof_of_a_quiet_server():
    """B41: null and undersampled, never a peak of 0."""
    rows = [request("ladder/c=1#0", send_ns=round(1.05 * S), end_ns=round(1.15 * S))]
    outside = [sample(t, running=0, usage=0.0) for t in (1.0, 1.25, 1.5)]
    row = rung(rows, outside, start_ns=round(1.05 * S), end_ns=round(1.15 * S), counters={"generation_tokens": 12})
    assert (row.peak_running, row.peak_pool_share) == (None, None)
    assert row.peak_running_reason.startswith("undersampled")
    assert row.peak_running_client == 1
    inside = [sample(1.1, running=0, usage=0.0)]
    row = rung(rows, inside, start_ns=round(1.05 * S), end_ns=round(1.15 * S), counters={"generation_tokens": 12})
    assert row.peak_running is None
    assert row.peak_pool_reason.startswith("undersampled")


def test_b38_only_samples_inside_the_window_count():
    """B38: what a gauge kept from an earlier rung is outside."""
    stale = [sample(t, running=106, usage=0.9, waiting=0) for t in (0.0, 5.0, 11.0)]
    row = rung(some(), [*stale, sample(7, running=2, usage=0.2, waiting=0)], start_ns=6 * S, end_ns=10 * S)
    assert (row.peak_running, row.peak_pool_share) == (2, 0.2)


def test_b33_absent_is_null_and_not_zero():
    """B33: a missing gauge is absent; others still count."""
    row = rung(some(), [sample(0.5, running=3)])
    assert (row.peak_pool_share, row.peak_pool_reason, row.peak_running) == (None, "absent", 3)


def test_b34_out_of_range_is_left_out_and_never_clipped():
    """B34: 1.04 and 87 are faults of the source."""
    row = rung(some(), [sample(0.2, usage=0.87), sample(0.4, usage=1.04), sample(0.6, usage=87.0)])
    assert row.peak_pool_share == 0.87
    only = rung(some(), [sample(0.4, usage=1.04)])
    assert only.peak_pool_share is None
    assert "out of range (1)" in only.peak_pool_reason


def test_b30_engines_side_by_side():
    """B30: the pooled figure beside the worst engine."""
    row = rung(some(), [sample(0.5, running=35, usage=0.30, by_engine={"usage": {"0": 0.90, "1": 0.10}})])
    assert (row.peak_running, row.peak_pool_share, row.peak_pool_worst_engine) == (35, 0.30, 0.90)


def test_b42_no_metrics_is_no_zero():
    """B42: columns are null, with the status that /metrics answered."""
    row = rung(some(), [sample(0.5, status="absent (404)")])
    assert row.outcome == "ok"
    assert row.peak_pool_reason == "unavailable: absent (404)"


def test_blocks_divide_by_what_is_usable():
    row = rung(some(), [sample(0.5, usage=79 / 899)])
    assert row.peak_pool_blocks == 79


def test_exact_gauges_go_before_rounded_ones():
    pool = Pool(blocks=100, block_tokens=16, tokens=1600)
    row = rung(some(), [sample(0.5, usage=0.13, used_tokens=200)], legs=[leg(pool=pool)])
    assert (row.peak_pool_blocks, row.peak_pool_share) == (13, 0.13)


def test_b39_rates_come_from_tokens_not_from_gauges():
    """B39: nothing here reads a throughput gauge."""
    row = rung(some(), [sample(0.5, gen_throughput=140)], end_ns=4 * S)
    assert row.tokens_per_s == 4.0


def test_cached_share_from_requests_then_counters():
    rows = some(cached_tokens=4)
    assert rung(rows).cached_share == 0.5
    rows = some(cached_tokens=None)
    assert rung(rows, counters={"prefix_queries": 100, "prefix_hits": 98}).cached_share == 0.98
    assert rung(rows).cached_share is None


def test_acceptance_and_tokens_per_step():
    row = rung(some(), counters={"drafts": 10, "drafted_tokens": 30, "accepted_tokens": 15})
    assert (row.acceptance, row.tokens_per_step) == (0.5, 2.5)
    assert rung(some(), counters={"drafted_tokens": 0}).acceptance_reason == "nothing was drafted"


def test_seats_that_the_engine_lowered():
    row = rung(some(), concurrency=32, legs=[leg(seats_requested=32, seats_resolved=10)], lag=None)
    assert row.outcome == "clamped"
    assert row.has_figures
    small = rung(some(), concurrency=8, legs=[leg(seats_requested=32, seats_resolved=10)], lag=None)
    assert small.outcome == "ok"


def test_a_rung_that_only_queued():
    queue = [sample(0.25 * i, running=10, waiting=22) for i in range(4)]
    row = rung(some(), queue, concurrency=32, lag=None)
    assert row.outcome == "queued"
    assert "10 of 32" in row.reason
    filling = [sample(0, running=3, waiting=29), *[sample(0.2 * i, running=31, waiting=0) for i in range(1, 5)]]
    assert rung(some(), filling, concurrency=32, lag=None).outcome == "ok"


def test_b57_a_dead_server_has_no_figures():
    """B57: rates are null; what was measured before stays."""
    rows = [request(f"ladder/c=8#{i}") for i in range(3)] + [failed(f"ladder/c=8#{i}", "connection lost") for i in range(3, 8)]
    row = rung(rows, name="ladder/c=8", concurrency=8, outcome="died", reason="exit -9")
    assert (row.outcome, row.ok, row.failed, row.tokens_per_s, row.ttft_p50_s) == ("died", 3, 5, None, None)


def test_all_failed_is_void_with_the_commonest_reason():
    row = rung([failed(f"ladder/c=1#{i}") for i in range(3)])
    assert (row.outcome, row.reason) == ("void", "all 3 requests failed: HTTP 500")


def test_b81_half_a_rung_is_no_rung():
    """B81: fewer rows than planned."""
    row = rung(some(4), planned=10)
    assert row.outcome == "void"
    assert "4 of 10" in row.reason


def test_a_refusal_is_a_row_without_figures():
    made = run(
        legs=[leg(outcome="refused")],
        cells=[cell("ladder/c=32", outcome="refused", reason="43.40 GiB needed", concurrency=32)],
    )
    row = by_arm(made)[0]
    assert (row.outcome, row.reason, row.has_figures, row.tokens_per_s) == ("refused", "43.40 GiB needed", False, None)


def test_b64_speeds_are_compared_on_matched_rungs_only():
    """B64: a rung that failed or is missing on one side is no row of a ranking."""
    cells, rows = [], []
    for n, arm in enumerate(("base", "new")):
        for c in (1, 8):
            bad = arm == "new" and c == 8
            cells.append(cell(f"ladder/c={c}", n, arm, planned=1, lag=None, restarted=bad, end_ns=S * c * (n + 1)))
            rows.append(request(f"ladder/c={c}#0", leg=n, arm=arm))
    made = run(legs=[leg(0), leg(1, "new")], cells=cells, requests=rows)
    ((name, compared),) = ranking(by_arm(made)).items()
    assert (name, [(row.arm, row.tokens_per_s) for row in compared]) == ("ladder/c=1", [("base", 4.0), ("new", 2.0)])


def test_legs_of_an_arm_are_summed_up():
    rows = [request(f"ladder/c=1#{i}", leg=n, ttft_s=0.1 * (n + 1)) for n in (0, 1) for i in range(20)]
    made = run(legs=[leg(0), leg(1)], cells=[cell(leg=n, planned=20) for n in (0, 1)], requests=rows)
    row = by_arm(made)[0]
    assert (row.legs, row.ok, row.ttft_n, row.outcome) == ([0, 1], 40, 40, "ok")
    assert row.ttft_p50_s == pytest.approx(0.15)
    voided = run(legs=[leg(0), leg(1)], cells=[cell(planned=20), cell(leg=1, planned=20, restarted=True)], requests=rows)
    row = by_arm(voided)[0]
    assert row.outcome == "void"
    assert "1 of 2 legs without figures" in row.reason
    assert ranking([row]) == {}


def test_gaps_leave_coalesced_events_out():
    rows = [
        request("ladder/c=1#0", ids=[1, 2, 3, 4], event_ns=[S, 2 * S, 2 * S, 4 * S], event_coalesced=[1], event_tokens=[1] * 4),
        request("ladder/c=1#1", ids=[1, 2], event_ns=[S, 2 * S], event_tokens=[1, 1]),
    ]
    row = rung(rows, output_tokens=None)
    assert row.gap_p50_s == 1.0
    assert row.gap_p99_s is None


def test_b50_what_was_not_sampled_is_said():
    """B50: a peak is a lower bound; 5.5 of 6.0 s had no sample."""
    points = [(0, 0.2), (0.25, 0.2), (0.5, 0.2), (3.0, 0.8), (6.0, 0.3)]
    row = rung(some(), [sample(t, usage=v) for t, v in points], end_ns=6 * S)
    assert row.peak_pool_share == 0.8
    assert row.unsampled_share == pytest.approx(5.5 / 6.0)


def test_acceptance_from_a_stated_length_where_nothing_is_counted():
    """An engine that says "3.4 tokens per verify step" at depth 8 accepted (3.4 - 1) / 8 of what it drafted."""
    view = run(
        legs=[leg(drafted_depth=8)],
        cells=[cell(planned=1)],
        requests=[request()],
        samples=[sample(t, accept_length=v) for t, v in ((0.1, 0.0), (0.3, 3.2), (0.5, 3.4), (0.7, 3.6))],
    )
    (row,) = ladder_rows(view)
    assert row.acceptance == pytest.approx(0.3)
    assert row.tokens_per_step == pytest.approx(3.4)


def test_a_rung_of_fewer_requests_than_its_concurrency_says_so():
    lag = Lag(stamp="kernel", max_in_flight=4)
    row = rung(some(4), concurrency=8, lag=lag)
    assert (row.outcome, row.concurrency, row.at_once) == ("ok", 8, 4)
    assert "only 4 requests: at most 4 at once" in row.notes
    made = run()
    assert "concurrency above 4" in not_measured(made, [row], [], False)
    same = rung(some(4), concurrency=4, lag=lag)
    assert (same.at_once, [note for note in same.notes if note.startswith("only")]) == (4, [])
    opened = rung(some(4), concurrency=8, lag=lag, scenario={"ladder": {"concurrency": [8], "arrivals": "constant", "rate": 1}})
    assert not [note for note in opened.notes if note.startswith("only")]


def test_what_ran_at_once_is_told_of_one_leg_where_a_row_sums_up_several():
    rows = [request(f"ladder/c=8#{i}", leg=n) for n in (0, 1) for i in range(4)]
    cells = [cell("ladder/c=8", n, concurrency=8, planned=4, lag=None) for n in (0, 1)]
    (row,) = by_arm(run(legs=[leg(0), leg(1)], cells=cells, requests=rows))
    assert (row.planned, row.at_once) == (8, 4)


def test_outputs_of_the_length_asked_or_of_unknown_length_are_no_note():
    assert not [note for note in rung(some(), output_tokens=4).notes if "output tokens" in note]
    unknown = rung([request(ids=None)], output_tokens=4)
    assert (unknown.short_outputs, [note for note in unknown.notes if "output tokens" in note]) == (None, [])
