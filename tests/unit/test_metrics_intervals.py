"""Intervals against published values, by-hand sums and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mmcorl.apps.analysis.statistics import Cluster, clustered_interval, clustered_standard_error, holm, student, wilson
from mmcorl.apps.analysis.statistics import percentile_interval as bounds
from mmcorl.apps.analysis.statistics import resampled_ratios as ratios


def test_wilson_gives_newcombes_published_bounds() -> None:
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3 (Wilson's score without continuity correction).
    for correct, total, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (1, 29, 0.0061, 0.1718)):
        assert wilson(correct, total) == pytest.approx((low, high), abs=5e-5)
    assert (wilson(0, 7).low, wilson(7, 7).high) == (0.0, 1.0)
    for correct, total in ((1, 0), (-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="is no share"):
            wilson(correct, total)


def test_students_interval_and_holms_p() -> None:
    # Student's own sleep data (Biometrika 6, 1908): t = 4.0621 of 10 differences, p = 0.002833, 95 % 0.70 to 2.46.
    sleep = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    assert student(sleep) == pytest.approx((0.7001, 2.4599, 0.002833), abs=5e-5)
    assert student([0.145, 0.185, 0.21])[:2] == pytest.approx((0.0986, 0.2614), abs=5e-5)
    assert student([0.5, 0.5, 0.5]) == (0.5, 0.5, 0.0)
    assert student([0.0, 0.0]) == (0.0, 0.0, 1.0)
    # As R's p.adjust(c(.01, .04, .03, .005), "holm").
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_the_clustered_error_by_hand() -> None:
    # Two clusters of two, one all right, one all wrong: p = 1/2; (2 - 1)^2 + (0 - 1)^2 = 2, times G/(G-1) = 2, is 4;
    # sqrt(4) / 4 = 1/2. Independent, the four answers would have sqrt(1/4 / 3) = 0.289.
    assert clustered_standard_error([Cluster(2, 2), Cluster(0, 2)]) == 0.5
    singles = [Cluster(1, 1)] * 2 + [Cluster(0, 1)] * 2
    assert clustered_standard_error(singles) == pytest.approx(math.sqrt(0.25 / 3))
    assert clustered_standard_error([Cluster(3, 7)]) is None


def test_the_clustered_interval_counts_information_not_copies() -> None:
    # Every item five times (the versions of a MathVerse problem answered alike): as informative as once.
    once = [Cluster(1, 1)] * 30 + [Cluster(0, 1)] * 70
    five = clustered_interval([Cluster(5, 5)] * 30 + [Cluster(0, 5)] * 70)
    assert five.clusters == 100
    assert five.effective_n == pytest.approx(99)  # p (1 - p) / SE^2 with the G - 1 of the error
    assert five.interval == pytest.approx(clustered_interval(once).interval)
    plain = wilson(150, 500)
    assert five.interval.low < plain.low < plain.high < five.interval.high
    singles = [Cluster(1, 1)] * 400 + [Cluster(0, 1)] * 600
    assert clustered_interval(singles).interval == pytest.approx(wilson(400, 1000), abs=1e-4)
    # Each cluster half right: no spread at all, but still only eight answers.
    assert clustered_interval([Cluster(1, 2)] * 4).effective_n == 8
    with pytest.raises(ValueError, match="no answer"):
        clustered_interval([])


def test_the_bootstrap_resamples_whole_clusters() -> None:
    five = [Cluster(5, 5)] * 30 + [Cluster(0, 5)] * 70
    first, again = (bounds(ratios(five, seed=3, resamples=10_000)) for _ in range(2))
    # The share of a binomial of 100 clusters at 0.3: middle 95% from 0.21 to 0.39.
    assert first == again == pytest.approx((0.21, 0.39), abs=0.011)
    # Drawing cluster by cluster gives the same distribution as drawing by kind.
    mixed = [Cluster(1, 1), Cluster(0, 3), Cluster(2, 2), Cluster(1, 4), Cluster(3, 3), Cluster(0, 1)] * 6
    drawn = np.random.default_rng(1).integers(0, len(mixed), size=(20_000, len(mixed)))
    sums = np.asarray(mixed, dtype=float)[drawn].sum(axis=1)
    naive = np.quantile(sums[:, 0] / sums[:, 1], [0.025, 0.975])
    assert bounds(ratios(mixed, seed=0, resamples=10_000)) == pytest.approx(naive, abs=0.01)
