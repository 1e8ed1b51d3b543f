"""The few distributions that verdicts need, without scipy: Student's t, sign flips, Holm, binomial tails."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

EXACT_FLIPS = 20
"""Up to this many pairs all 2^n sign patterns are counted; above, a fixed random sample of them."""


def betainc(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function I_x(a, b) by Lentz's continued fraction (Numerical Recipes 6.4), about 1e-14."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - betainc(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 + numerator * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + numerator / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * result


def t_cdf(t: float, df: float) -> float:
    """P(T <= t) for Student's t with df degrees of freedom."""
    tail = 0.5 * betainc(df / 2, 0.5, df / (df + t * t))
    return 1.0 - tail if t > 0 else tail


def t_quantile(p: float, df: float) -> float:
    """t with P(T <= t) = p, 0 < p < 1, by bisection to the last bit that matters."""
    if p == 0.5:
        return 0.0
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mean_sd(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation (n - 1); the latter 0 below two values."""
    n = len(values)
    mean = math.fsum(values) / n
    return mean, math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1)) if n > 1 else 0.0


def t_interval(values: Sequence[float], confidence: float = 0.9) -> tuple[float, float]:
    """Two-sided interval of the mean; at least two values."""
    n = len(values)
    mean, sd = mean_sd(values)
    half = t_quantile((1 + confidence) / 2, n - 1) * sd / math.sqrt(n)
    return mean - half, mean + half


def bootstrap_interval(
    values: Sequence[float], seed: int, confidence: float = 0.9, resamples: int = 10_000
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean, the same for the same values and seed."""
    rng = np.random.Generator(np.random.PCG64(seed))
    data = np.asarray(values)
    means = np.sort(data[rng.integers(0, len(data), (resamples, len(data)))].mean(axis=1))
    tail = (1 - confidence) / 2
    return float(np.quantile(means, tail)), float(np.quantile(means, 1 - tail))


def sign_flip(values: Sequence[float], seed: int = 0) -> float:
    """One-sided p: share of sign patterns of the values whose sum is at least the one observed. Its floor is 1/2^n."""
    data = np.abs(np.asarray(values, dtype=float))
    n = len(data)
    observed = math.fsum(values)
    slack = 1e-12 * float(data.sum())
    if n <= EXACT_FLIPS:
        sums = np.zeros(1)
        for v in data:
            sums = np.concatenate([sums + v, sums - v])
        return int(np.count_nonzero(sums >= observed - slack)) / float(2**n)
    rng = np.random.Generator(np.random.PCG64(seed))
    draws = 1 << 17
    hits = 1  # the observed pattern itself
    for _ in range(draws >> 12):
        signs = rng.integers(0, 2, (1 << 12, n)) * 2 - 1
        hits += int(np.count_nonzero(signs @ data >= observed - slack))
    return hits / (draws + 1)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p values, in the order given."""
    adjusted = [1.0] * len(ps)
    running = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        running = max(running, min(1.0, (len(ps) - rank) * ps[i]))
        adjusted[i] = running
    return adjusted


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(at least k of n), each with probability p: I_p(k, n - k + 1)."""
    if k <= 0:
        return 1.0
    return 0.0 if k > n else betainc(k, n - k + 1, p)
