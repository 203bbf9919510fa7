"""Intervals of an accuracy when answers are not independent: clustered errors.

Items of one group (the five versions of a MathVerse problem, the rows of a We-Math group) and samples of one item are
correlated, so they count as fewer independent answers than there are rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

from mmcorl.analysis.intervals import LEVEL, Interval, wilson


class Cluster(NamedTuple):
    """One independent unit: correct answers among all its answers."""

    correct: int
    total: int


@dataclass(frozen=True)
class Clustered:
    """An interval that accounts for dependent answers."""

    clusters: int
    standard_error: float | None
    """Standard error of the accuracy; None for a single cluster, which says nothing about its own spread."""
    effective_n: float
    """Number of independent answers that would be as informative."""
    interval: Interval


def clustered_standard_error(clusters: Sequence[tuple[float, int]]) -> float | None:
    """Standard error of sum(correct) / sum(total) when only whole clusters are independent.

    The cluster-robust (linearised ratio) estimator, G / (G - 1) * sum_g (correct_g - p * total_g)^2 / N^2; with
    one answer per cluster it is sqrt(p (1 - p) / (N - 1)). None for a single cluster.
    """
    if len(clusters) < 2:
        return None
    total = sum(count for _, count in clusters)
    p = sum(correct for correct, _ in clusters) / total
    squares = math.fsum((correct - p * count) ** 2 for correct, count in clusters)
    return math.sqrt(len(clusters) / (len(clusters) - 1) * squares) / total


def clustered_interval(clusters: Sequence[Cluster]) -> Clustered:
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
    return Clustered(len(clusters), error, effective, wilson(p * effective, effective))


def mean_interval(clusters: Sequence[tuple[float, int]]) -> Interval | None:
    """Interval of a mean of scores from 0 to 1, of which only whole clusters, (sum, number), are independent.

    The normal one, with the cluster-robust standard error, cut at 0 and 1; None for a single cluster.
    """
    error = clustered_standard_error(clusters)
    if error is None:
        return None
    mean = math.fsum(score for score, _ in clusters) / sum(count for _, count in clusters)
    reach = NormalDist().inv_cdf((1 + LEVEL) / 2) * error
    return Interval(max(0.0, mean - reach), min(1.0, mean + reach))
