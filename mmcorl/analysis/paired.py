"""Two on the same questions: the paired bootstrap of a difference, McNemar's exact test and its sign-flip form."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from mmcorl.analysis.intervals import LEVEL, Interval
from mmcorl.errors import UserError

RESAMPLES = 10_000
"""Resamples of a bootstrap: the third decimal of a bound then still moves, the second does not."""
MAX_WORK = 2_000_000_000
"""Units times summed differences up to which the exact test is worked out: some seconds."""


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Exact two-sided McNemar test: 2 P(X <= min) for X ~ Bin(only_a + only_b, 1/2), at most 1."""
    n = only_a + only_b
    tail = ways = 1
    for count in range(min(only_a, only_b)):
        ways = ways * (n - count) // (count + 1)
        tail += ways
    # Integers divided once: correctly rounded however large n is.
    return min(1.0, 2 * tail / 2**n) if n else 1.0


def sign_flip_p(differences: Iterable[int]) -> float:
    """Exact two-sided p of |sum| when every unit's difference keeps or flips its sign with equal chance.

    For differences of -1, 0 and 1 it is McNemar's exact test. The distribution is built unit by unit, not
    sampled. Raises UserError when the differences are too large for that (pass@k of very many samples).
    """
    changes = [change for change in differences if change]
    if not changes:
        return 1.0
    shared = math.gcd(*changes)
    sizes = sorted(abs(change) // shared for change in changes)
    if sizes[-1] == 1:
        return mcnemar_p(sum(change < 0 for change in changes), sum(change > 0 for change in changes))
    whole = sum(sizes)
    if len(sizes) * whole > MAX_WORK:
        raise UserError(
            f"{len(sizes)} differences that add up to {whole} are too many for an exact test: compare avg@k or maj@k"
        )
    # The sum of the differences that end up positive; the signed sum is twice that minus `whole`.
    chance = np.zeros(whole + 1)
    chance[0], reach = 1.0, 0
    for size in sizes:
        reach += size
        moved = chance[: reach - size + 1] * 0.5
        chance[: reach + 1] *= 0.5
        chance[size : reach + 1] += moved
    positive = sum(change for change in changes if change > 0) // shared
    return min(1.0, 2 * math.fsum(chance[: min(positive, whole - positive) + 1]))


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
