"""Is the candidate slower? One figure per leg, one log ratio per boot pair, an interval and a sign flip.

The boot is the unit of statistics: requests of one boot share its luck, so they only sharpen that boot's own figure.

Several cells (rungs, prompt lengths) count by their geometric mean, but no rule passes while one cell alone is clearly worse.

The 90 % t interval is that of the arm's effect in a least-squares fit of all 2n legs: log figure = level + arm + drift x order.
It has 2n - 3 degrees of freedom where the n log ratios alone have n - 1, and it keeps its level: a true slow-down at the margin
passes once in twenty. `tests/benchmarks/calibration.py` measures what that buys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from evenhand.judge.rules import ALPHA, Rule, pairs_needed
from evenhand.judge.student import bootstrap_interval, holm, mean_sd, sign_flip, t_interval, t_quantile
from evenhand.judge.view import JudgeRow

Status = Literal["pass", "fail", "void", "control failed", "inconclusive"]

CONFIDENCE = 0.9
CONTROL_PAIRS = 2
"""Pairs of the baseline's own boots with which it can be judged against itself: fewer have no interval."""
BOOTSTRAP_PAIRS = 12
"""From so many pairs on a bootstrap interval is drawn too, and the wider ends decide."""


class Spread(JudgeRow, frozen=True, kw_only=True):
    """Log ratios of boot pairs, summed up."""

    d: list[float] = msgspec.field(default_factory=list)
    mean: float | None = None
    sd: float | None = None
    low: float | None = None
    high: float | None = None
    """Ends of the 90 % interval of the mean, in log units."""
    method: str = ""
    p: float | None = None
    """One-sided sign flip."""


class Decision(JudgeRow, frozen=True, kw_only=True):
    """What the rule makes of a spread."""

    status: Status
    reason: str
    spread: Spread
    smallest_margin: float | None = None
    """The smallest margin, as a share, that these pairs could have passed."""
    p_adjusted: float | None = None


def spread(d: Sequence[float], seed: int, fit: tuple[float, float] | None = None) -> Spread:
    """Mean, sd, 90 % interval and sign-flip p of paired log ratios.

    `fit`: (effect, half width) of the fit over all legs, which then gives mean and interval; None: the ratios give them.
    """
    values = list(d)
    if not values:
        return Spread()
    mean, sd = mean_sd(values)
    if len(values) < 2:
        return Spread(d=values, mean=mean, p=sign_flip(values, seed))
    low, high = t_interval(values, CONFIDENCE)
    method = "t of pairs"
    if fit is not None:
        mean, low, high, method = fit[0], fit[0] - fit[1], fit[0] + fit[1], "t of legs"
    if len(values) >= BOOTSTRAP_PAIRS:
        again = bootstrap_interval(values, seed, CONFIDENCE)
        low, high, method = min(low, again[0]), max(high, again[1]), f"{method} and bootstrap, the wider"
    return Spread(d=values, mean=mean, sd=sd, low=low, high=high, method=method, p=sign_flip(values, seed))


def decide(found: Spread, margin: float, rules: int, p_adjusted: float | None = None) -> Decision:
    """Pass if the interval's upper end < log(1+m). Fail if its lower end > 0, the mean >= log(1+m) and the sign flip, adjusted
    for the number of rules, confirms it. Else inconclusive, and so is everything with too few pairs.

    `p_adjusted`: Holm-adjusted over the rules of the gate; None: times `rules` (Bonferroni, the first step of Holm).
    """
    n, need = len(found.d), pairs_needed(rules)
    if found.mean is None or found.low is None or found.high is None or found.p is None:
        return Decision(status="inconclusive", reason=f"{n} of {need} boot pairs", spread=found)
    adjusted = min(1.0, found.p * rules) if p_adjusted is None else p_adjusted
    smallest = max(0.0, math.expm1(found.high))
    limit = math.log1p(margin)
    change = f"{_percent(found.mean)} [{_percent(found.low)}, {_percent(found.high)}]"

    def decision(status: Status, reason: str) -> Decision:
        return Decision(
            status=status, reason=f"{change}: {reason}", spread=found, smallest_margin=smallest, p_adjusted=adjusted
        )

    if n < need:
        return decision("inconclusive", f"{n} boot pairs, {rules} timing rule{'s need' if rules > 1 else ' needs'} {need}")
    if found.high < limit:
        return decision("pass", f"the 90 % interval ends below {100 * margin:g} %")
    if found.low > 0 and found.mean >= limit:
        if adjusted <= ALPHA + 1e-12:
            return decision("fail", f"worse by at least {100 * margin:g} %, sign flip p = {found.p:.3g}")
        return decision("inconclusive", f"worse, but the sign flip does not confirm it (p = {adjusted:.3g} after Holm)")
    return decision("inconclusive", f"these pairs could have passed a margin of {100 * smallest:.1f} %")


def decide_control(found: Spread, margin: float) -> Decision:
    """The baseline against itself: fail if the whole 90 % interval lies beyond the margin, in either direction; pass if it lies
    within; else inconclusive, and so is everything with too few pairs.

    A control blames nobody, so it takes no sign flip, and n boots give it only n // 2 pairs.
    """
    n = len(found.d)
    if n < CONTROL_PAIRS or found.low is None or found.high is None:
        reason = f"not judged: {n} of {CONTROL_PAIRS} pairs of the baseline's boots"
        return Decision(status="inconclusive", reason=reason, spread=found)
    limit = math.log1p(margin)
    change = f"{_percent(found.mean)} [{_percent(found.low)}, {_percent(found.high)}]"
    if found.low > limit or found.high < -limit:
        return Decision(
            status="fail", reason=f"{change}: all of the 90 % interval lies beyond {100 * margin:g} %", spread=found
        )
    if -limit < found.low and found.high < limit:
        return Decision(status="pass", reason=f"{change}: the 90 % interval lies within {100 * margin:g} %", spread=found)
    return Decision(status="inconclusive", reason=f"{change}: {n} pairs of the baseline's boots cannot tell", spread=found)


def fit_legs(baseline: Sequence[tuple[int, float]], candidate: Sequence[tuple[int, float]]) -> tuple[float, float] | None:
    """(effect of the candidate, half width of its 90 % t interval) from (order, value) of every leg, a linear drift removed.

    Least squares of value = level + effect + drift x order; None where fewer than four legs, or an order that cannot tell
    effect from drift, leave nothing to estimate the noise from.
    """
    order = np.array([at for at, _ in (*baseline, *candidate)], dtype=float)
    value = np.array([v for _, v in (*baseline, *candidate)])
    arm = np.array([0.0] * len(baseline) + [1.0] * len(candidate))
    design = np.column_stack([np.ones_like(order), arm, order - order.mean()])
    freedom = len(value) - 3
    if freedom < 1 or np.linalg.matrix_rank(design) < 3:
        return None
    inverse = np.linalg.inv(design.T @ design)
    solution = inverse @ design.T @ value
    residual = value - design @ solution
    error = math.sqrt(float(residual @ residual) / freedom * float(inverse[1, 1]))
    return float(solution[1]), t_quantile((1 + CONFIDENCE) / 2, freedom) * error


def planted_seen(found: Spread, margin: float, rules: int, seed: int) -> bool:
    """Whether a slow-down by 2m, planted into the noise of the real pairs, is seen: interval and sign flip at 5 %.

    A positive control blames nobody, so unlike a fail it takes no correction for the number of rules.
    """
    if len(found.d) < pairs_needed(rules) or found.mean is None or found.low is None or found.high is None:
        return False
    shift = math.log1p(2 * margin) - found.mean
    centre = math.log1p(2 * margin) - math.fsum(found.d) / len(found.d)
    planted = [v + centre for v in found.d]
    moved = msgspec.structs.replace(
        found, d=planted, mean=found.mean + shift, low=found.low + shift, high=found.high + shift, p=sign_flip(planted, seed)
    )
    return decide(moved, margin, rules, p_adjusted=moved.p).status == "fail"


class TimingResult(JudgeRow, frozen=True, kw_only=True):
    """One timing rule over all boot pairs."""

    rule: str
    margin: float
    status: Status
    reason: str
    decision: Decision | None = None
    control: Decision | None = None
    """Baseline against itself across boots."""
    control_spread: float | None = None
    """Largest over smallest figure among the baseline's boots, minus 1."""
    planted_seen: bool | None = None
    """None: not run, there were too few pairs."""
    baseline: list[float | None] = msgspec.field(default_factory=list)
    candidate: list[float | None] = msgspec.field(default_factory=list)
    """Figure of every leg, by pair (seconds, or tokens per second)."""
    cells: dict[str, float] = msgspec.field(default_factory=dict)
    """cell -> change there, as a share; where there are several."""
    pairs_needed: int = 0


class Legs(JudgeRow, frozen=True, kw_only=True):
    """Figures of one rule by boot pair: cell -> figure. Infinite where failures reach the percentile."""

    baseline: list[dict[str, float]]
    candidate: list[dict[str, float]]
    control: list[tuple[dict[str, float], dict[str, float]]] = msgspec.field(default_factory=list)
    """(earlier, later) or (later, earlier) boots of the baseline."""
    order: list[tuple[int, int]] = msgspec.field(default_factory=list)
    """Places of both legs of every pair in the order of all legs."""
    missing: list[str] = msgspec.field(default_factory=list)
    """Why a figure that the plan promised is not there."""


def judge_timing(rules: Sequence[Rule], legs: dict[str, Legs], seed: int) -> list[TimingResult]:
    """Judge all timing rules of a gate together: Holm looks at all of them."""
    count = len(rules)
    spreads: dict[str, Spread] = {}
    early: dict[str, TimingResult] = {}
    for rule in rules:
        found = legs[rule.name]
        refused = _refuse(rule, found, count)
        if refused:
            early[rule.name] = refused
        else:
            pairs = zip(found.baseline, found.candidate, strict=True)
            spreads[rule.name] = spread([_ratio(rule, a, b) for a, b in pairs], seed, _fit(rule, found))
    tested = [r.name for r in rules if r.name in spreads]
    # a rule without figures still counts: it was asked, and dropping it would loosen the others
    ps = [spreads[name].p if spreads[name].p is not None else 1.0 for name in tested] + [1.0] * (count - len(tested))
    adjusted = dict(zip(tested, holm([p or 0.0 for p in ps]), strict=False))
    return [
        early[rule.name] if rule.name in early else _judge(rule, legs[rule.name], spreads, adjusted[rule.name], count, seed)
        for rule in rules
    ]


def _judge(rule: Rule, legs: Legs, spreads: dict[str, Spread], adjusted: float, count: int, seed: int) -> TimingResult:
    margin = rule.margin or 0.0
    decision = decide(spreads[rule.name], margin, count, adjusted)
    control = decide_control(spread([_ratio(rule, a, b) for a, b in legs.control], seed), margin)
    status, reason = decision.status, decision.reason
    seen: bool | None = None
    if len(decision.spread.d) >= pairs_needed(count):
        seen = planted_seen(decision.spread, margin, count, seed)
        if not seen and status == "pass":
            status, reason = "inconclusive", f"too noisy to see {200 * margin:g} %: {reason}"
    cells = _by_cell(rule, legs, seed)
    worse = [f"{cell} {_percent(c.mean)}" for cell, c in cells.items() if _clearly_worse(c, margin)]
    if worse and status == "pass":
        status, reason = "inconclusive", f"passes over all cells, but not in {', '.join(worse)}: {reason}"
    if status == "pass" and len(legs.control) < CONTROL_PAIRS:
        reason += "; the control was not judged"
    if control.status == "fail":
        status, reason = "control failed", f"the baseline against itself: {control.reason}"
    figures = [_mean(f) for f in legs.baseline]
    known = [f for f in figures if f is not None]
    return TimingResult(
        rule=rule.name,
        margin=margin,
        status=status,
        reason=reason,
        decision=decision,
        control=control,
        control_spread=max(known) / min(known) - 1 if len(known) > 1 else None,
        planted_seen=seen,
        baseline=figures,
        candidate=[_mean(f) for f in legs.candidate],
        cells={cell: math.expm1(c.mean or 0.0) for cell, c in cells.items()},
        pairs_needed=pairs_needed(count),
    )


def _refuse(rule: Rule, legs: Legs, count: int) -> TimingResult | None:
    """A verdict that needs no statistics: figures missing, impossible, or infinite because requests failed."""
    status: Status = "void"
    if legs.missing:
        reason = "no data: " + "; ".join(legs.missing)
    elif not legs.baseline:
        reason = "no data: no boot pair has figures"
    elif any(not f or any(math.isnan(v) for v in f.values()) for f in (*legs.baseline, *legs.candidate)):
        reason = "no data"
    elif any(v <= 0 or math.isinf(v) for f in legs.baseline for v in f.values()):
        reason = "bad baseline: " + (
            "requests failed" if any(math.isinf(v) for f in legs.baseline for v in f.values()) else "0"
        )
    elif any(math.isinf(v) for f in legs.candidate for v in f.values()):
        status, reason = "fail", f"{rule.name} is infinite on the candidate: failed requests count as infinitely slow"
    elif any(v <= 0 for f in legs.candidate for v in f.values()):
        reason = "no data: a figure of the candidate is 0"
    else:
        return None
    return TimingResult(
        rule=rule.name,
        margin=rule.margin or 0.0,
        status=status,
        reason=reason,
        baseline=[_finite(_mean(f)) for f in legs.baseline],
        candidate=[_finite(_mean(f)) for f in legs.candidate],
        pairs_needed=pairs_needed(count),
    )


def _ratio(rule: Rule, a: dict[str, float], b: dict[str, float]) -> float:
    """Mean over cells of log(b/a), + is worse: a rate counts the other way round."""
    mean = math.fsum(math.log(b[cell] / a[cell]) for cell in sorted(a)) / len(a)
    return -mean if rule.name == "throughput" else mean


def _fit(rule: Rule, legs: Legs, cell: str | None = None) -> tuple[float, float] | None:
    """The fit over all legs, of all cells or of one."""
    if len(legs.order) != len(legs.baseline):
        return None

    def value(figures: dict[str, float]) -> float:
        chosen = figures if cell is None else {cell: figures[cell]}
        return _ratio(rule, dict.fromkeys(chosen, 1.0), chosen)

    a = [(at, value(f)) for (at, _), f in zip(legs.order, legs.baseline, strict=True)]
    b = [(at, value(f)) for (_, at), f in zip(legs.order, legs.candidate, strict=True)]
    return fit_legs(a, b)


def _by_cell(rule: Rule, legs: Legs, seed: int) -> dict[str, Spread]:
    """The same for every cell alone, where there are several."""
    cells = sorted(legs.baseline[0])
    if len(cells) < 2:
        return {}
    pairs = list(zip(legs.baseline, legs.candidate, strict=True))
    return {c: spread([_ratio(rule, {c: a[c]}, {c: b[c]}) for a, b in pairs], seed, _fit(rule, legs, c)) for c in cells}


def _clearly_worse(found: Spread, margin: float) -> bool:
    """Whether one cell alone is worse by the margin: an average over cells must not hide it."""
    return found.mean is not None and found.low is not None and found.low > 0 and found.mean >= math.log1p(margin)


def _percent(log_ratio: float | None) -> str:
    return f"{math.expm1(log_ratio or 0.0):+.1%}".replace("%", " %")


def _mean(figures: dict[str, float]) -> float | None:
    """Geometric mean over cells."""
    values = list(figures.values())
    if not values or any(v <= 0 or math.isnan(v) for v in values):
        return None
    return math.exp(math.fsum(math.log(v) for v in values) / len(values))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def interleaving(order: Sequence[tuple[str, int]], baseline: str, candidate: str) -> str | None:
    """Why the order of legs would credit a slow drift to one arm, or None.

    `order`: (arm, position) of the counted legs. Positions of the two arms must balance: in AAABBB the candidate runs three
    legs later on average, in ABAB always one; in ABBA neither.
    """
    a = [at for arm, at in order if arm == baseline]
    b = [at for arm, at in order if arm == candidate]
    if not a or not b:
        return "only one arm was measured"
    shift = sum(b) / len(b) - sum(a) / len(a)
    if abs(shift) < 1 - 1e-9 or len(a) + len(b) == 2:
        return None
    later = candidate if shift > 0 else baseline
    return f"not interleaved: {later} ran {abs(shift):.1f} legs later on average, so a drift would count against it"
