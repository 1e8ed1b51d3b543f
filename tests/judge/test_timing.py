"""Timing rules, with scipy as the oracle."""

import math
import random

import numpy as np
import pytest
from scipy import special, stats

from evenhand.judge.rules import RuleError, pairs_needed, parse_rules, plan_power
from evenhand.judge.student import betainc, binomial_tail, bootstrap_interval, holm, sign_flip, t_cdf, t_interval, t_quantile
from evenhand.judge.timing import Legs, decide, fit_legs, interleaving, judge_timing, planted_seen, spread


@pytest.mark.parametrize("df", [1, 2, 3, 5, 11, 30, 200])
def test_student_is_scipys(df):
    for p in (0.001, 0.05, 0.3, 0.5, 0.9, 0.95, 0.999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-9, abs=1e-12)
    for t in (-30.0, -1.0, 0.0, 0.3, 2.0, 50.0):
        assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), rel=1e-9, abs=1e-14)
    assert betainc(df / 2, 0.5, 0.3) == pytest.approx(special.betainc(df / 2, 0.5, 0.3), rel=1e-12)


def test_intervals_and_flips_are_scipys():
    rng = random.Random(1)
    for n in (2, 5, 6, 9):
        d = [rng.gauss(0.02, 0.03) for _ in range(n)]
        expected = stats.t.interval(0.9, n - 1, loc=sum(d) / n, scale=stats.sem(d))
        assert t_interval(d) == pytest.approx(expected, rel=1e-9)
        exact = stats.permutation_test((d,), lambda x, axis: x.mean(axis=axis), permutation_type="samples",
                                       alternative="greater", n_resamples=10**5)  # fmt: skip
        assert sign_flip(d) == pytest.approx(exact.pvalue, rel=1e-9)


def test_binomial_tails_are_scipys():
    for k, n, p in [(0, 5, 0.5), (5, 5, 0.5), (3, 10, 0.2), (60, 100, 0.5), (7, 6, 0.5), (51_000, 100_000, 0.5)]:
        assert binomial_tail(k, n, p) == pytest.approx(stats.binom.sf(k - 1, n, p), rel=1e-6)
    assert binomial_tail(2, 3, 1.0) == 1.0


def test_holm_steps_down():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_many_pairs_flip_by_sampling_and_repeat_exactly():
    d = [0.01 * (i % 7 - 2) for i in range(30)]
    assert sign_flip(d, 3) == sign_flip(d, 3)
    assert sign_flip(d, 3) == pytest.approx(stats.permutation_test((d,), lambda x, axis: x.mean(axis=axis),
        permutation_type="samples", alternative="greater", n_resamples=100_000, rng=1).pvalue, abs=0.01)  # fmt: skip


def test_a_bootstrap_is_drawn_from_twelve_pairs_on():
    rng = random.Random(2)
    d = [rng.gauss(0, 0.03) for _ in range(12)]
    assert spread(d[:11], 1).method == "t of pairs"
    wide = spread(d, 1)
    assert "bootstrap" in wide.method
    assert wide.low <= t_interval(d)[0]
    assert wide.high >= bootstrap_interval(d, 1)[1]
    assert spread(d, 1) == wide


@pytest.mark.parametrize(("rules", "pairs"), [(1, 5), (2, 6), (3, 6), (4, 7), (6, 7), (7, 8)])
def test_pairs_that_rules_need(rules, pairs):
    assert pairs_needed(rules) == pairs
    assert 0.5**pairs <= 0.05 / rules < 0.5 ** (pairs - 1)


LOUD = [0.10, 0.12, 0.09, 0.11, 0.10, 0.13]
CALM = [0.002, -0.003, 0.001, -0.002, 0.003, 0.0]
NOISY = [0.10, -0.12, 0.09, -0.11, 0.10, -0.13]


@pytest.mark.parametrize(
    ("d", "status"),
    [(LOUD, "fail"), (CALM, "pass"), (NOISY, "inconclusive"), ([0.03, 0.04, 0.035, 0.03, 0.045, 0.04], "pass")],
)
def test_decisions_at_five_percent(d, status):
    assert decide(spread(d, 0), 0.05, 3).status == status


def test_a_clear_loss_below_the_margin_is_no_fail():
    got = decide(spread([0.03, 0.06, 0.035, 0.05, 0.06, 0.045], 0), 0.05, 3)
    assert got.status == "inconclusive"
    assert got.smallest_margin == pytest.approx(math.expm1(got.spread.high))
    assert decide(spread(got.spread.d, 0), got.smallest_margin + 1e-9, 3).status == "pass"


@pytest.mark.parametrize("d", [LOUD[:5], CALM[:5], LOUD[:2], CALM[:2], LOUD[:1], []])
def test_too_few_pairs_decide_nothing(d):
    assert decide(spread(d, 0), 0.05, 3).status == "inconclusive"


def test_the_sign_flip_must_confirm_a_fail():
    d = [0.20, 0.21, 0.22, 0.19, 0.20, -0.001]
    assert spread(d, 0).low > 0
    assert decide(spread(d, 0), 0.05, 3).status == "inconclusive"
    assert decide(spread(d, 0), 0.05, 1).status == "fail"


def test_planted_time_is_seen_in_calm_pairs_only():
    assert planted_seen(spread(CALM, 0), 0.05, 3, 0)
    assert not planted_seen(spread(NOISY, 0), 0.05, 3, 0)
    assert not planted_seen(spread([v + 0.4 for v in NOISY], 0), 0.05, 3, 0)  # centred: the effect itself does not help
    assert not planted_seen(spread(CALM[:5], 0), 0.05, 3, 0)


def test_the_fit_is_least_squares_over_all_legs():
    rng = random.Random(3)
    letters = "ABBAABBAABBA"
    value = [rng.gauss(0, 0.03) + 0.005 * n + 0.04 * (c == "B") for n, c in enumerate(letters)]
    a, b = ([(n, v) for n, (c, v) in enumerate(zip(letters, value, strict=True)) if c == side] for side in "AB")
    effect, half = fit_legs(a, b)
    design = np.array([[1.0, c == "B", n] for n, c in enumerate(letters)])
    beta, rss, *_ = np.linalg.lstsq(design, np.array(value), rcond=None)
    error = math.sqrt(rss[0] / 9 * np.linalg.inv(design.T @ design)[1, 1])
    assert effect == pytest.approx(beta[1])
    assert half == pytest.approx(stats.t.ppf(0.95, 9) * error)
    assert effect == pytest.approx(np.mean([y for _, y in b]) - np.mean([x for _, x in a]))  # ABBA: drift cancels by itself


def test_an_order_that_cannot_tell_effect_from_drift_gives_no_fit():
    assert fit_legs([(0, 1.0)], [(1, 1.0)]) is None
    assert fit_legs([(0, 1.0), (0, 1.1)], [(1, 1.0), (1, 1.2)]) is None


def legs(a, b, **kw):
    return Legs(baseline=[{"c": x} for x in a], candidate=[{"c": x} for x in b], **kw)


def timing(a, b, rules=None, name="ttft_p50", **kw):
    parsed = parse_rules(rules or {name: {"not_worse_by": 0.05}})
    return judge_timing(parsed, {r.name: legs(a, b, **kw) for r in parsed}, 0)[0]


def test_slower_fails_and_a_rate_counts_the_other_way():
    a = [1.0, 1.01, 0.99, 1.0, 1.02, 1.0]
    assert timing(a, [1.2 * x for x in a]).status == "fail"
    assert timing(a, [1.2 * x for x in a], name="throughput").status == "pass"
    assert timing(a, [x / 1.2 for x in a], name="throughput").status == "fail"


def test_b73_nothing_passes_without_data():
    """B73: NaN, missing, zero baseline, and a planted regression."""
    a = [0.40] * 6
    assert timing(a, [math.nan] * 6).reason == "no data"
    missing = timing([], [], missing=["ladder/c=1 on leg 3 (new): no values"])
    assert (missing.status, missing.reason.startswith("no data")) == ("void", True)
    assert timing([0.0] * 6, [0.48] * 6).reason.startswith("bad baseline")
    worse = timing(a, [0.48, 0.481, 0.479, 0.48, 0.481, 0.479])
    assert worse.status == "fail"
    assert "+20.0 %" in worse.reason


def test_b21_failures_make_a_percentile_infinite():
    """B21: the gate uses the adjusted value and fails."""
    got = timing([1.0] * 6, [1.0] * 5 + [math.inf])
    assert got.status == "fail"
    assert "failed requests" in got.reason


@pytest.mark.parametrize("by", [1.2, 1 / 1.2])
@pytest.mark.parametrize("boots", [2, 3, 6])
def test_the_baseline_against_itself_can_fail_the_control(by, boots):
    """Half as many pairs as the rule has, and a difference in either direction: both boots are the baseline."""
    quiet = [({"c": 1.0}, {"c": 1.0 + 0.001 * i}) for i in range(boots)]
    loud = [({"c": 1.0}, {"c": by + 0.001 * i}) for i in range(boots)]
    a = [1.0, 1.001, 0.999, 1.0, 1.002, 1.0]
    assert timing(a, a, control=quiet).status == "pass"
    failed = timing(a, a, control=loud)
    assert failed.status == "control failed"
    assert "beyond 5 %" in failed.reason
    assert failed.control_spread == pytest.approx(1.002 / 0.999 - 1)


@pytest.mark.parametrize("control", [[], [({"c": 1.0}, {"c": 1.2})]])
def test_one_pair_of_boots_is_no_control(control):
    a = [1.0, 1.001, 0.999, 1.0, 1.002, 1.0]
    got = timing(a, a, control=control)
    assert (got.status, got.control.status) == ("pass", "inconclusive")
    assert got.control.reason == f"not judged: {len(control)} of 2 pairs of the baseline's boots"
    assert "the control was not judged" in got.reason


def test_too_noisy_to_see_a_planted_slowdown():
    got = timing([1.0] * 6, [1.0, 1.0, 1.0, 1.0, 1.0, 0.75])
    assert got.planted_seen is False
    assert got.status == "inconclusive"
    assert "too noisy to see 10 %" in got.reason


def test_b75_order_matters():
    """B75: AAABBB credits a drift to an arm, ABBABAAB does not."""

    def order(letters):
        return [(c, n) for n, c in enumerate(letters)]

    assert "not interleaved" in interleaving(order("AAABBB"), "A", "B")
    assert interleaving(order("ABBABAAB"), "A", "B") is None
    assert "B ran 1.0 legs later" in interleaving(order("ABAB"), "A", "B")
    for pairs in (1, 2, 3, 5, 6):
        letters = "".join("AB" if p % 2 == 0 else "BA" for p in range(pairs))
        assert interleaving(order(letters), "A", "B") is None
    assert interleaving(order("AA"), "A", "B") == "only one arm was measured"


def test_power_is_said_before_booting():
    three = {name: {"not_worse_by": 0.05} for name in ("ttft_p50", "tpot_p50", "throughput")}
    said = plan_power(three | {"outputs": "identical"}, 2)
    assert any("3 timing rules need 6 boot pairs" in s and "2 planned" in s for s in said)
    assert not any("inconclusive" in s for s in plan_power(three, 6))
    assert any("outputs will be inconclusive" in s for s in plan_power({"outputs": "identical"}, 1))


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"outputs": "same"}, "found 'same'; write \"identical\""),
        ({"peak_pool": {"block": 1}}, "{ blocks = 1 }"),
        ({"ttft_p50": 0.05}, "{ not_worse_by = 0.05 }"),
        ({"ttft_p50": {"not_worse_by": 5}}, "not_worse_by"),
        ({"errors": True}, "how many are allowed"),
        ({"ttft_p51": {"not_worse_by": 0.05}}, "no such rule"),
    ],
)
def test_a_wrong_rule_is_one_sentence(rules, words):
    with pytest.raises(RuleError) as error:
        parse_rules(rules)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_average_over_cells_does_not_hide_one_that_is_worse():
    calm = [1.0, 1.001, 0.999, 1.0, 1.002, 1.0]
    names = [f"ladder/c={1 << n}" for n in range(6)]
    order = [(2 * n, 2 * n + 1) if n % 2 == 0 else (2 * n + 1, 2 * n) for n in range(6)]

    def judged(worse):
        baseline = [dict.fromkeys(names, x) for x in calm]
        candidate = [dict.fromkeys(names, x) | {names[0]: x * worse} for x in calm]
        rule = parse_rules({"ttft_p50": {"not_worse_by": 0.05}})
        return judge_timing(rule, {"ttft_p50": Legs(baseline=baseline, candidate=candidate, order=order)}, 0)[0]

    assert judged(1.0).status == "pass"
    hidden = judged(1.2)
    assert hidden.decision.status == "pass"
    assert hidden.status == "inconclusive"
    assert "passes over all cells, but not in ladder/c=1 +20.0 %" in hidden.reason
    assert hidden.cells["ladder/c=2"] == pytest.approx(0.0)
