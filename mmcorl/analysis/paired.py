"""Two on the same questions: the paired bootstrap of a difference and McNemar's exact test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmcorl.analysis.intervals import LEVEL, Interval

RESAMPLES = 10_000
"""Resamples of a bootstrap: the third decimal of a bound then still moves, the second does not."""


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Exact two-sided McNemar test: 2 P(X <= min) for X ~ Bin(only_a + only_b, 1/2), at most 1."""
    n = only_a + only_b
    tail = ways = 1
    for count in range(min(only_a, only_b)):
        ways = ways * (n - count) // (count + 1)
        tail += ways
    # Integers divided once: correctly rounded however large n is.
    return min(1.0, 2 * tail / 2**n) if n else 1.0


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


def percentile_interval(values: np.ndarray) -> Interval:
    """Return the middle `LEVEL` of resampled values."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))
