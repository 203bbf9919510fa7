"""Intervals against published values, by-hand sums and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval_suite.metrics.intervals import (
    Cluster,
    clustered_interval,
    clustered_standard_error,
    percentile_interval,
    resampled_ratios,
    wilson,
)
from mmcorl.analysis.intervals import Interval


# Newcombe, Statistics in Medicine 17 (1998), table I, method 3 (Wilson's score without continuity correction).
@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_newcombes_published_bounds(correct: int, total: int, low: float, high: float) -> None:
    assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("correct", "total"), [(1, 0), (-1, 3), (4, 3)])
def test_no_share_no_interval(correct: int, total: int) -> None:
    with pytest.raises(ValueError, match="is no share"):
        wilson(correct, total)


def test_the_clustered_error_by_hand() -> None:
    # Two clusters of two, one all right, one all wrong: p = 1/2; (2 - 1)^2 + (0 - 1)^2 = 2, times G/(G-1) = 2, is 4;
    # sqrt(4) / 4 = 1/2. Independent, the four answers would have sqrt(1/4 / 3) = 0.289.
    assert clustered_standard_error([Cluster(2, 2), Cluster(0, 2)]) == 0.5
    singles = [Cluster(1, 1)] * 2 + [Cluster(0, 1)] * 2
    assert clustered_standard_error(singles) == pytest.approx(math.sqrt(0.25 / 3))
    assert clustered_standard_error([Cluster(3, 7)]) is None


def test_copies_of_an_answer_add_nothing() -> None:
    # Every item five times (the versions of a MathVerse problem answered alike): as informative as once.
    once = [Cluster(1, 1)] * 30 + [Cluster(0, 1)] * 70
    five = [Cluster(5, 5)] * 30 + [Cluster(0, 5)] * 70
    told = clustered_interval(five)
    assert told.clusters == 100
    assert told.effective == pytest.approx(99)  # p (1 - p) / SE^2 with the G - 1 of the error
    assert told.interval == pytest.approx(clustered_interval(once).interval)
    plain = wilson(150, 500)
    assert told.interval.low < plain.low < plain.high < told.interval.high


def test_an_effective_number_is_never_above_the_number_of_answers() -> None:
    # Each cluster half right: no spread at all, but still only eight answers.
    told = clustered_interval([Cluster(1, 2)] * 4)
    assert told.effective == 8
    assert clustered_interval([Cluster(5, 5)] * 3).effective == 3
    with pytest.raises(ValueError, match="no answer"):
        clustered_interval([])


def bootstrap(clusters: list[Cluster], seed: int = 0) -> Interval:
    """Interval of the share over resampled clusters."""
    return percentile_interval(resampled_ratios(clusters, seed=seed, resamples=10_000))


def test_the_bootstrap_resamples_whole_clusters() -> None:
    five = [Cluster(5, 5)] * 30 + [Cluster(0, 5)] * 70
    # The share of a binomial of 100 clusters at 0.3: middle 95% from 0.21 to 0.39.
    assert bootstrap(five, seed=3) == bootstrap(five, seed=3) == pytest.approx((0.21, 0.39), abs=0.011)
    # Drawing cluster by cluster gives the same distribution as drawing by kind.
    mixed = [Cluster(1, 1), Cluster(0, 3), Cluster(2, 2), Cluster(1, 4), Cluster(3, 3), Cluster(0, 1)] * 6
    rng = np.random.default_rng(1)
    table = np.asarray(mixed, dtype=float)
    sums = table[rng.integers(0, len(mixed), size=(20_000, len(mixed)))].sum(axis=1)
    naive = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    assert bootstrap(mixed) == pytest.approx(naive, abs=0.01)
