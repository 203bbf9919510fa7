"""Confidence intervals of shares, for evaluations, diversity and tables.

A closed form instead of `scipy.stats.binomtest`, which takes whole counts only: clustered answers count as an
effective, non-integer number of independent ones, and scores of several samples are fractional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

LEVEL = 0.95
"""Confidence of every interval in a table."""
SEEDS = 3
"""Seeds from which their spread is told: the deviation of two says next to nothing of that of many."""


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


def wilson(correct: float, total: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of `correct` out of `total` independent answers (Wilson 1927).

    Holds its level near 0 and 1 and for few answers. Raises ValueError unless 0 <= correct <= total and 0 < total.
    """
    if not (total > 0 and 0 <= correct <= total):
        raise ValueError(f"{correct} of {total} is no share")
    z = NormalDist().inv_cdf((1 + level) / 2)
    p, unit = correct / total, z * z / total
    middle = (p + unit / 2) / (1 + unit)
    half = z * math.sqrt(p * (1 - p) / total + unit / (4 * total)) / (1 + unit)
    # At the ends one bound is exactly 0 or 1; rounding may leave it a hair inside.
    return Interval(
        0.0 if correct == 0 else max(0.0, middle - half), 1.0 if correct == total else min(1.0, middle + half)
    )


class Student(NamedTuple):
    """What numbers by seed say of their mean: bounds of its interval, and p of 0."""

    low: float
    high: float
    p: float


def student(values: Sequence[float]) -> Student:
    """Return Student's interval of the mean of two or more numbers, one by seed, and the p of his test against 0."""
    from scipy.special import stdtr

    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    half = t_quantile(len(values) - 1) * error
    p = 2 * float(stdtr(len(values) - 1, -abs(mean) / error)) if error else float(not mean)
    return Student(mean - half, mean + half, p)


def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return how many standard errors an interval reaches to each side, by Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def holm(ps: Sequence[float]) -> list[float]:
    """Return the p of several comparisons, each adjusted for having been the best of those left (Holm 1979)."""
    adjusted, least = list(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        least = max(least, min(1.0, (len(ps) - rank) * ps[place]))
        adjusted[place] = least
    return adjusted


def is_within_noise(start: float, end: float, items: int | None) -> bool:
    """Return whether a change is below 1.96 standard errors of a difference of two binomial shares of `items`.

    False when `items` is unknown. Both evaluations answer the same prompts, so this is conservative.
    """
    if not items:
        return False
    variance = max(0.0, start * (1 - start)) / items + max(0.0, end * (1 - end)) / items
    return abs(end - start) <= 1.96 * math.sqrt(variance)
