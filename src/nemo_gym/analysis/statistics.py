"""Small statistics over lists of floats: no value, no statistic. Pure Python, exact to double precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

_TINY = 1e-300
_MAX_TERMS = 100_000


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean; raises ZeroDivisionError without values."""
    return math.fsum(values) / len(values)


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation with n - 1 in the denominator; None with fewer than two values."""
    return None if len(values) < 2 else math.sqrt(_squares(values) / (len(values) - 1))


def population_std(values: Sequence[float]) -> float:
    """Return the standard deviation with n in the denominator; raises ZeroDivisionError without values."""
    return math.sqrt(_squares(values) / len(values))


def _squares(values: Sequence[float]) -> float:
    center = mean(values)
    return math.fsum((value - center) ** 2 for value in values)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile, 0 to 1, by linear interpolation between order statistics; IndexError without values."""
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two middle ones."""
    return quantile(values, 0.5)


def t_interval_95(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95% confidence interval of the mean by Student's t; None with fewer than two values.

    Both ends are the mean when the values do not differ.
    """
    std = sample_std(values)
    if std is None:
        return None
    center = mean(values)
    margin = t_quantile(0.975, len(values) - 1) * std / math.sqrt(len(values))
    return center - margin, center + margin


@lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Return the p-quantile of Student's t with `df` degrees of freedom; 0 < p < 1, df > 0."""
    if not 0 < p < 1 or not df > 0:
        raise ValueError(f"no t quantile for p = {p} and df = {df}")
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while t_cdf(high, df) < p:
        low, high = high, high * 2
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        if t_cdf(middle, df) < p:
            low = middle
        else:
            high = middle


def t_cdf(t: float, df: float) -> float:
    """Return the probability that a Student's t variable with `df` degrees of freedom is at most `t`."""
    # The tail that is computed is the one that does not cancel: near t = 0 it is the middle part.
    square = t * t
    if square < df:
        half = regularized_beta(square / (df + square), 0.5, df / 2) / 2
        return 0.5 + half if t >= 0 else 0.5 - half
    tail = regularized_beta(df / (df + square), df / 2, 0.5) / 2
    return 1 - tail if t >= 0 else tail


def regularized_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) for 0 <= x <= 1 and a, b > 0."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - regularized_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    return front * _beta_fraction(x, a, b) / a


def _beta_fraction(x: float, a: float, b: float) -> float:
    """Return the continued fraction of the incomplete beta function by Lentz's method."""
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, _MAX_TERMS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + numerator * d)
            c = _away_from_zero(1 + numerator / c)
            step = c * d
            result *= step
        if abs(step - 1) < 1e-16:
            break
    return result


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
