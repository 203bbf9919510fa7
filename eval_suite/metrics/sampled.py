"""What several samples per problem say beside one score: pass@k and Cover@tau, each a mean over problems.

pass@k is without bias from the n >= k samples that there are (Chen et al. 2021, arXiv 2107.03374); pass@1 is avg@n.
Cover@tau is the share of problems of which at least a share tau of the samples is right (Dragoi et al. 2025,
arXiv 2510.08325).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from eval_suite.metrics.aggregate import pass_at_k
from eval_suite.metrics.outcomes import Outcome
from mmcorl.apps.analysis.statistics import (
    RESAMPLES,
    Cluster,
    Interval,
    by_unit,
    clustered_interval,
    may_be_chance,
    percentile_interval,
    resampled_ratios,
    sign_flip_p,
)
from mmcorl.grading.items import Item

QUARTERS = 4
"""Cover@tau is shown for tau = 1/4, 1/2, 3/4 and 1."""


class Measure(NamedTuple):
    """A share that every problem has, by how many of its samples are right."""

    name: str
    """`pass@4` or `cover@0.5`."""
    at: float
    """k, or tau."""
    shares: Sequence[Cluster]
    """Of a problem of which 0, 1, ... all of the samples are right; one total."""
    exact: bool = True
    """Whether differences are small whole numbers, of which the exact test can be worked out."""


@dataclass(frozen=True)
class Change:
    """A mean over the problems in A and in B, or before and after training."""

    name: str
    """`pass@4` or `cover@0.5`."""
    at: float
    """k, or tau."""
    before: float
    after: float
    interval: Interval
    """Of the difference: paired bootstrap over what is independent, problems or groups of them."""
    p: float | None
    """Exact, by flips of signs; None where k is neither 1 nor all samples."""

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    @property
    def direction(self) -> int:
        """1 up, -1 down, 0 where the difference may be chance."""
        return 0 if may_be_chance(self.interval, self.p) else 1 if self.difference > 0 else -1


def passes(n: int) -> list[Measure]:
    """Return pass@k of n samples for powers of two and for all of them."""
    ks = [*(1 << power for power in range(n.bit_length()) if 1 << power < n), n]
    return [Measure(f"pass@{k}", k, [pass_at_k(n, c, k) for c in range(n + 1)], k in (1, n)) for k in ks]


def covers(n: int) -> list[Measure]:
    """Return Cover@tau of n samples by quarters; of several tau that so few cannot tell apart, the largest."""
    least = {-(-quarter * n // QUARTERS): quarter / QUARTERS for quarter in range(1, QUARTERS + 1)}
    return [
        Measure(f"cover@{tau:g}", tau, [Cluster(int(c >= count), 1) for c in range(n + 1)])
        for count, tau in least.items()
    ]


def right_samples(items: Sequence[Item], outcomes: Iterable[Outcome]) -> dict[str, int]:
    """Return the number of right samples of each item; a missing response is wrong."""
    counts = dict.fromkeys((item.id for item in items), 0)
    for outcome in outcomes:
        counts[outcome.id] += outcome.correct
    return counts


def summarised(items: Sequence[Item], right: Mapping[str, int], n: int) -> dict[str, Any] | None:
    """Return every measure of n samples as {"value", "interval"} by name, pass@1 as avg@n; None for a single sample.

    Intervals are Wilson's at the effective number of answers, where only problems, or groups of them, are independent.
    """
    if n < 2:
        return None
    values: dict[str, Any] = {}
    for measure in (*passes(n), *covers(n)):
        shares = [share.correct / share.total for share in measure.shares]
        # Every problem weighs as many answers as it has, whose number bounds the effective one.
        units = by_unit((item.cluster, (n * shares[right[item.id]], n)) for item in items)
        mean = math.fsum(shares[right[item.id]] for item in items) / len(items)
        name = f"avg@{n}" if measure.name == "pass@1" else measure.name
        values[name] = {"value": mean, "interval": list(clustered_interval(units).interval)}
    return values


def changes(
    measures: Iterable[Measure], items: Sequence[Item], before: Mapping[str, int], after: Mapping[str, int]
) -> tuple[Change, ...]:
    """Compare two sides of the same problems, each given as right samples by item id."""
    clusters = [item.cluster for item in items]
    result = []
    for measure in measures:
        values = [[measure.shares[side[item.id]] for item in items] for side in (before, after)]
        shares = [[value.correct / value.total for value in side] for side in values]
        differences = by_unit((unit, (b - a, 1)) for unit, a, b in zip(clusters, *shares, strict=True))
        whole = by_unit((unit, (b.correct - a.correct, 1)) for unit, a, b in zip(clusters, *values, strict=True))
        result.append(
            Change(
                *(measure.name, measure.at, sum(shares[0]) / len(items), sum(shares[1]) / len(items)),
                percentile_interval(resampled_ratios(differences, seed=0, resamples=RESAMPLES)),
                sign_flip_p(count for count, _ in whole) if measure.exact else None,
            )
        )
    return tuple(result)
