"""When one is better than another: intervals, paired tests, and what counts as noise; the only statement of it.

Closed forms instead of `scipy.stats.binomtest`, which takes whole counts only: clustered answers count as an effective,
non-integer number of independent ones, and scores of several samples are fractional.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple, TypeVar

import numpy as np

from mmcorl.errors import UserError

LEVEL = 0.95
"""Confidence of every interval in a table."""
ALPHA = 0.05
"""A p above it may be chance."""
Z = 1.96
"""Standard errors up to which a difference may be chance."""
SEEDS = 3
"""Seeds from which their spread is told: the deviation of two says next to nothing of that of many."""
RESAMPLES = 10_000
"""Resamples of a bootstrap: the third decimal of a bound then still moves, the second does not."""
MAX_WORK = 2_000_000_000
"""Units times summed differences up to which the exact test is worked out: some seconds."""
MARK = "~ "
"""Stands before a difference that may be chance."""
CHANCE = f"p above {ALPHA}, or an interval that holds 0"
"""When a difference may be chance, in words; see `may_be_chance`."""


Number = TypeVar("Number", int, float)


class Interval(NamedTuple):
    """Lower and upper bound."""

    low: float
    high: float


class Cluster(NamedTuple):
    """One independent unit: correct answers among all its answers."""

    correct: int
    total: int


class Student(NamedTuple):
    """What numbers by seed say of their mean: bounds of its interval, and p of 0."""

    low: float
    high: float
    p: float


@dataclass(frozen=True)
class Spread:
    """A number over the seeds."""

    mean: float
    deviation: float | None
    """With n - 1; None of a single seed."""
    n: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """None where no seed has it."""
        known = [value for value in values if value is not None]
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None

    def is_within_noise_of(self, other: Spread) -> bool:
        """Return whether two means differ by less than Student's interval over the seeds; False where unknown.

        A mean of one seed has no error of its own, so the other's says what can be said.
        """
        known = [(one.deviation**2 / one.n, one.n - 1) for one in (self, other) if one.deviation is not None]
        if not known:
            return False
        errors, freedom = map(sum, zip(*known, strict=True))
        return bool(abs(self.mean - other.mean) <= t_quantile(freedom) * math.sqrt(errors))


@dataclass(frozen=True)
class Clustered:
    """An interval that accounts for dependent answers."""

    clusters: int
    standard_error: float | None
    """Standard error of the accuracy; None for a single cluster, which says nothing about its own spread."""
    effective_n: float
    """Number of independent answers that would be as informative."""
    interval: Interval


@dataclass(frozen=True)
class Units:
    """A paired difference over what is taken as independent: items, or whole groups of them."""

    count: int
    p_value: float
    """Two-sided exact p: McNemar's for right-or-wrong items, its sign-flip form for counts and for groups."""
    interval: Interval
    """Paired bootstrap interval of the difference, seeded."""

    @classmethod
    def of(cls, changes: Sequence[tuple[int, int]]) -> Units:
        """Return what units say of a difference: of each B's correct answers minus A's, and how many either gave."""
        ratios = resampled_ratios(changes, seed=0, resamples=RESAMPLES)
        return cls(len(changes), sign_flip_p(change for change, _ in changes), percentile_interval(ratios))


def by_unit(shares: Iterable[tuple[Hashable, tuple[Number, int]]]) -> list[tuple[Number, int]]:
    """Return the sums of (correct, total) by unit, in the order in which units come."""
    units: dict[Hashable, tuple[Number, int]] = {}
    for unit, (correct, total) in shares:
        known = units.get(unit)
        units[unit] = (correct, total) if known is None else (known[0] + correct, known[1] + total)
    return list(units.values())


def is_within_noise(start: float | None, end: float | None, items: int | None) -> bool:
    """Return whether a change is below `Z` standard errors of a difference of two binomial shares of `items`.

    False when anything is unknown, and where nothing changed. Both evaluations answer the same prompts, so this is
    conservative.
    """
    if not items or start is None or end is None or start == end:
        return False
    variance = max(0.0, start * (1 - start)) / items + max(0.0, end * (1 - end)) / items
    return abs(end - start) <= Z * math.sqrt(variance)


def may_be_chance(interval: Interval, p: float | None) -> bool:
    """Return whether a difference may be, by its interval or its exact test, which holds for few prompts as well."""
    return interval.low <= 0 <= interval.high or (p is not None and p > ALPHA)


def shown_best(values: Iterable[Spread | None], shown: Callable[[Spread], str]) -> list[str]:
    """Return the means as shown, best first; none where all read alike or the next is within noise of the best."""
    ordered = sorted((value for value in values if value is not None), key=lambda value: -value.mean)
    texts = list(dict.fromkeys(map(shown, ordered)))
    below = next((value for value in ordered if shown(value) != texts[0]), None)
    return [] if below is None or ordered[0].is_within_noise_of(below) else texts


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


def newcombe(a: float, of_a: int, b: float, of_b: int) -> Interval:
    """Newcombe's interval of b - a, two independent shares (his method 10), from Wilson's of each."""
    one, other = wilson(a * of_a, of_a), wilson(b * of_b, of_b)
    low = b - a - math.hypot(b - other.low, one.high - a)
    return Interval(low, b - a + math.hypot(other.high - b, a - one.low))


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


def clustered_interval(clusters: Sequence[tuple[float, int]]) -> Clustered:
    """Wilson's interval at the effective number of answers, p (1 - p) / SE^2 (Kott and Carr 1997).

    Items of one group (the five versions of a MathVerse problem) and samples of one item are correlated, so they count
    as fewer independent answers than there are rows: never more than there are answers, and where all clusters agree
    (accuracy 0 or 1) one for each cluster. Raises ValueError when there is no answer.
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
