"""Is one evaluation better than another on the same items? Paired, exact, and aware of groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from eval_suite.metrics.aggregate import Score
from eval_suite.metrics.prompt_protocol import Asked, asked_differences
from eval_suite.metrics.sampled import Change, changes, covers, passes
from mmcorl.apps.analysis.statistics import RESAMPLES, Cluster, Units, by_unit
from mmcorl.errors import UserError
from mmcorl.grading.items import Item


@dataclass(frozen=True)
class Scored:
    """One benchmark of one evaluation, as much of it as a comparison needs."""

    label: str
    """The evaluation's name, for sentences and tables."""
    benchmark: str
    score: Score
    items: Sequence[Item]
    fingerprints: Mapping[str, str]
    """`Item.fingerprint` by item id, as stored with the items."""
    grader: Mapping[str, Any]
    """`name`, `version`, `mcq_policy`."""
    judge: Mapping[str, Any] | None = None
    unsettled: int = 0
    """Responses that are missing or wait for a judge; they count as wrong until they come."""
    asked: Asked | None = None
    """How the items were asked; None where only responses are known."""
    samples: int = 1
    """Responses per item."""
    right: Mapping[str, int] = field(default_factory=dict)
    """Right ones among them by item id."""


@dataclass(frozen=True)
class Paired:
    """B against A on one benchmark."""

    benchmark: str
    a: str
    b: str
    aggregation: str
    n: int
    accuracy_a: float
    accuracy_b: float
    both: int
    only_a: int
    only_b: int
    neither: int
    """Items by who is right; with several samples an item counts for whoever is right more often, ties to
    `both` when either has a correct response and to `neither` when not."""
    by_item: Units
    by_group: Units | None
    """The same over whole groups; None when the benchmark has no groups."""
    unsettled_a: int
    unsettled_b: int
    """Responses that are missing or wait for a judge, and count as wrong."""
    asked_differently: tuple[str, ...] = ()
    """In what the two were asked differently, each as `style: boxed, plain`."""
    sampled: tuple[Change, ...] = ()
    """pass@k and Cover@tau beside the score, where both have as many samples per item, more than one."""
    seed: int = 0
    resamples: int = RESAMPLES

    @property
    def difference(self) -> float:
        """Accuracy of B minus accuracy of A."""
        return self.accuracy_b - self.accuracy_a

    @property
    def headline(self) -> Units:
        """The figures to report: over groups where there are groups."""
        return self.by_group or self.by_item

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, for JSON."""
        return {**asdict(self), "difference": self.difference}


def in_hundredths(score: Score) -> Score:
    """Return a score whose `correct` counts hundredths of the mean score that a benchmark reports.

    The exact test takes whole numbers, to which each score is rounded.
    """
    assert score.scores is not None
    shares = {id: Cluster(round(100 * value), 100) for id, value in score.scores.items()}
    return replace(score, correct=sum(c for c, _ in shares.values()), total=100 * len(shares), by_item=shares)


def compare(a: Scored, b: Scored, *, asked_differently: bool = False) -> Paired:
    """Compare two evaluations of one benchmark, item by item.

    The test asks whether swapping A and B in every unit at random would often give a difference as large
    (exact McNemar: binomial over the items that only one of the two gets right). Units are items, and whole
    groups where the benchmark has them, since five versions of one problem are not five independent items.

    Raises:
        UserError: the two differ in items, aggregation, grader, multiple-choice policy or judge, or, unless
            `asked_differently`, in how the items were asked.
    """
    if a.benchmark != b.benchmark:
        raise UserError(
            f"{a.label!r} and {b.label!r} are about {a.benchmark} and {b.benchmark}: compare one benchmark with itself"
        )
    if a.score.aggregation != b.score.aggregation:
        raise UserError(
            f"{a.benchmark} is {a.score.aggregation} in {a.label!r} and {b.score.aggregation} in {b.label!r}: "
            "score both with one aggregation"
        )
    check_alike(a, b)
    differing = asked_differences(a.asked, b.asked)
    if not asked_differently:
        refuse_differently_asked(a, b, differing)
    ids = list(a.score.by_item)
    shares = [(a.score.by_item[id], b.score.by_item[id]) for id in ids]
    unit = {item.id: item.cluster for item in a.items}
    # Everything an item adds: B's correct minus A's, and its total (equal on both sides).
    differences = [(right.correct - left.correct, left.total) for left, right in shares]
    grouped = by_unit((unit[id], difference) for id, difference in zip(ids, differences, strict=True))
    return Paired(
        benchmark=a.benchmark,
        a=a.label,
        b=b.label,
        aggregation=a.score.aggregation,
        n=len(ids),
        accuracy_a=a.score.correct / a.score.total,
        accuracy_b=b.score.correct / b.score.total,
        both=sum(left.correct == right.correct > 0 for left, right in shares),
        only_a=sum(left.correct > right.correct for left, right in shares),
        only_b=sum(left.correct < right.correct for left, right in shares),
        neither=sum(left.correct == right.correct == 0 for left, right in shares),
        by_item=Units.of(differences),
        by_group=Units.of(grouped) if len(grouped) < len(ids) else None,
        unsettled_a=a.unsettled,
        unsettled_b=b.unsettled,
        asked_differently=tuple(differing),
        sampled=_sampled(a, b),
    )


def _sampled(a: Scored, b: Scored) -> tuple[Change, ...]:
    """Compare pass@k and Cover@tau, without those that are the score itself."""
    if a.samples != b.samples or a.samples < 2:
        return ()
    score = a.score.aggregation.replace(f"avg@{a.samples}", "pass@1")
    measures = [measure for measure in (*passes(a.samples), *covers(a.samples)) if measure.name != score]
    return changes(measures, a.items, a.right, b.right)


def check_alike(a: Scored, b: Scored) -> None:
    """Refuse two evaluations of a benchmark over different items, or graded or judged differently."""
    where = f"{a.label!r} and {b.label!r}"
    ids_a, ids_b = set(a.score.by_item), set(b.score.by_item)
    if ids_a != ids_b:
        first = min(ids_a ^ ids_b)
        raise UserError(
            f"{a.benchmark} has {len(ids_a)} items in {a.label!r} and {len(ids_b)} in {b.label!r} (item {first!r} "
            "is in one only): evaluate both on the same items"
        )
    changed = sorted(id for id in ids_a if a.fingerprints[id] != b.fingerprints[id])
    if changed:
        raise UserError(
            f"{len(changed)} items of {a.benchmark} read differently in {where} (the first is {changed[0]!r}): "
            "evaluate both on one revision of the data"
        )
    for part, facts_a, facts_b in (("grader", a.grader, b.grader), ("judge", a.judge, b.judge)):
        if (difference := facts_difference(facts_a, facts_b)) is not None:
            raise UserError(
                f"{part} of {a.benchmark} differs between {where} ({difference}): "
                "grade the responses of both again with the same one"
            )


def refuse_differently_asked(a: Scored, b: Scored, differing: Sequence[str]) -> None:
    """Refuse two evaluations whose scores differ by the question, too, and not by the models alone."""
    if differing:
        raise UserError(
            f"{a.benchmark} was asked differently in {a.label!r} and {b.label!r} ({'; '.join(differing)}): evaluate "
            "both by one command (`like` asks a base model as what was trained from it), or `asked_differently=True`"
        )


def facts_difference(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> str | None:
    """Return the first fact in which two graders or judges differ, as `mcq_policy: x, y`; None when they agree."""
    if a is None or b is None:
        names = [
            "none" if facts is None else " ".join(str(v) for v in facts.values() if v is not None) for facts in (a, b)
        ]
        return None if a is b else ", ".join(names)
    for key in sorted({*a, *b}):
        if a.get(key) != b.get(key):
            usual = "commitment" if key == "reading" else "none"
            return f"{key}: {', '.join(str(usual if facts.get(key) is None else facts[key]) for facts in (a, b))}"
    return None
