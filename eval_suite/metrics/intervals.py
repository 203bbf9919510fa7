"""How far a measured accuracy may be from the true one: intervals from integers, clusters and resampling.

Items of one group (the five versions of a MathVerse problem, the rows of a We-Math group) and samples of one
item stand or fall together, so they count as fewer independent answers than there are rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
"""Confidence of every interval in a table."""
RESAMPLES = 10_000
"""Resamples of a bootstrap: the third decimal of a bound then still moves, the second does not."""


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


class Cluster(NamedTuple):
    """What one independent unit brings: correct answers among all its answers."""

    correct: int
    total: int


@dataclass(frozen=True)
class Clustered:
    """An interval that knows which answers are not independent."""

    interval: Interval
    standard_error: float | None
    """Standard error of the accuracy; None for a single cluster, which says nothing about its own spread."""
    clusters: int
    effective: float
    """Number of independent answers that would be as informative."""


def wilson(correct: float, total: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of `correct` out of `total` independent answers (Wilson 1927).

    Holds its level near 0 and 1 and for few answers, where the usual mean plus or minus 1.96 standard errors
    leaves the scale. `total` may be an effective, non-integer number. Raises ValueError when 0 <= correct <=
    total, 0 < total does not hold.
    """
    if not (total > 0 and 0 <= correct <= total):
        raise ValueError(f"{correct} of {total} is no share")
    z = normal_quantile(level)
    p, unit = correct / total, z * z / total
    middle = (p + unit / 2) / (1 + unit)
    half = z * math.sqrt(p * (1 - p) / total + unit / (4 * total)) / (1 + unit)
    # At the ends one bound is exactly 0 or 1; rounding may leave it a hair inside.
    return Interval(
        0.0 if correct == 0 else max(0.0, middle - half), 1.0 if correct == total else min(1.0, middle + half)
    )


def clustered_standard_error(clusters: Sequence[Cluster]) -> float | None:
    """Standard error of sum(correct) / sum(total) when only whole clusters are independent.

    The cluster-robust (linearised ratio) estimator, G / (G - 1) * sum_g (correct_g - p * total_g)^2 / N^2; with
    one answer per cluster it is sqrt(p (1 - p) / (N - 1)). None for a single cluster.
    """
    if len(clusters) < 2:
        return None
    total = sum(cluster.total for cluster in clusters)
    p = sum(cluster.correct for cluster in clusters) / total
    squares = math.fsum((cluster.correct - p * cluster.total) ** 2 for cluster in clusters)
    return math.sqrt(len(clusters) / (len(clusters) - 1) * squares) / total


def clustered_interval(clusters: Sequence[Cluster], level: float = LEVEL) -> Clustered:
    """Wilson's interval at the effective number of answers, p (1 - p) / SE^2 (Kott and Carr 1997).

    The effective number is never above the number of answers, and where all clusters agree (accuracy 0 or 1)
    it is the number of clusters. Raises ValueError when there is no answer.
    """
    correct, total = (sum(column) for column in zip(*clusters, strict=True)) if clusters else (0, 0)
    if not total:
        raise ValueError("no answer, no interval")
    error = clustered_standard_error(clusters)
    p = correct / total
    if error is None or correct in (0, total):
        effective = float(len(clusters))
    else:
        effective = min(float(total), p * (1 - p) / error**2) if error else float(total)
    return Clustered(wilson(p * effective, effective, level), error, len(clusters), effective)


def bootstrap_interval(
    clusters: Sequence[Cluster], *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Interval:
    """Percentile interval of sum(correct) / sum(total) over seeded resamples of whole clusters."""
    pairs = [(float(cluster.correct), float(cluster.total)) for cluster in clusters]
    return percentile_interval(resampled_ratios(pairs, seed=seed, resamples=resamples), level)


def resampled_ratios(pairs: Sequence[tuple[float, float]], *, seed: int, resamples: int) -> np.ndarray:
    """sum(a) / sum(b) of `resamples` draws, with replacement, of as many (a, b) pairs; shape (resamples,).

    Equal pairs are drawn together, by how often each kind comes up, which is the same distribution at a
    fraction of the work. Raises ValueError without pairs.
    """
    if not pairs:
        raise ValueError("nothing to resample")
    kinds, counts = np.unique(np.asarray(pairs, dtype=np.float64), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(pairs), counts / len(pairs), size=resamples)
    sums = drawn @ kinds
    ratios: np.ndarray = sums[:, 0] / sums[:, 1]
    return ratios


def normal_quantile(level: float) -> float:
    """Half-width in standard errors of a two-sided interval: 1.96 at 0.95."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def percentile_interval(values: np.ndarray, level: float = LEVEL) -> Interval:
    """The middle `level` of resampled values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high))
