"""The summary of an evaluation, from graded responses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.metrics.outcomes import Outcome
from eval_suite.metrics.summary import one_judge, summarise
from mmcorl.apps.analysis.statistics import wilson
from mmcorl.errors import UserError
from mmcorl.grading.items import Item

GRADER = {"name": "mmcorl-grader", "version": "1", "mcq_policy": "letter_or_value"}
JUDGE = {"model": "judge", "prompt_version": "1"}
WORDS: Any = [None] * 4 + ["yes", "yes", "no", "unclear"] + [None] * 2
# Ten items: 4 right by rule, 2 recovered, 1 refused, 1 unclear, 1 without an answer, 1 cut off.
ITEMS = [Item("mathvision", str(n), "?", "1", meta={"level": n % 2, "subject": "algebra"}) for n in range(10)]
OUTCOMES = [
    Outcome("mathvision", str(n), 0, n < 6, n < 4, n != 8, n == 9, None if n == 8 else "1", WORDS[n]) for n in range(10)
]


def summary(items: list[Item], outcomes: list[Outcome], **options: Any) -> dict[str, Any]:
    (scores,) = summarise(items, outcomes, GRADER, **options)["benchmarks"].values()
    return dict(scores)


def test_integers_first() -> None:
    scores = summary(ITEMS, OUTCOMES, judge=JUDGE, benchmarks=BENCHMARKS)
    assert (scores["n"], scores["correct"], scores["total"], scores["accuracy"]) == (10, 6, 10, 0.6)
    assert (scores["aggregation"], scores["samples"], scores["clustered"]) == ("pass@1", 1, None)
    assert tuple(scores["wilson"]) == wilson(6, 10)
    judged = [scores[f"judge_{word}"] for word in ("recovered", "refused", "unclear", "failed", "pending")]
    assert (scores["rule_correct"], judged) == (4, [2, 1, 1, 0, 0])
    assert (scores["committed"], scores["format_rate"], scores["cut_off"], scores["cut_off_rate"]) == (9, 0.9, 1, 0.1)
    # Right are 0..5: three even, three odd, of five each.
    level = {"n": 5, "correct": 3, "accuracy": 0.6}
    assert scores["sub_scores"]["level"] == {"0": level, "1": level}
    assert (scores["grader"], scores["judge"], scores["full_n"]) == (GRADER, JUDGE, 3040)


def test_what_is_missing_or_left_undone_is_counted() -> None:
    unjudged = [replace(outcome, judge=None, correct=outcome.rule) for outcome in OUTCOMES]
    assert summary(ITEMS, unjudged, judge=JUDGE).items() >= {"judge_pending": 4, "correct": 4, "total": 10}.items()
    assert summary(ITEMS, unjudged).items() >= {"judge": None, "judge_pending": 0}.items()
    lacking = [replace(unjudged[0], correct=False, rule=False, missing=True), *unjudged[1:]]
    expected = {"missing": 1, "responses": 9, "correct": 3, "format_rate": 8 / 10, "total": 10}
    assert summary(ITEMS, lacking).items() >= expected.items()
    # Code is not judged.
    code = [replace(item, kind="code") for item in ITEMS]
    assert summary(code, unjudged, judge=JUDGE).items() >= {"judge": None, "judge_pending": 0}.items()


def test_verdicts_of_two_judges_are_not_mixed() -> None:
    assert one_judge([JUDGE, JUDGE], None) == JUDGE
    assert one_judge([], JUDGE) == JUDGE  # it had nothing to do
    with pytest.raises(UserError, match=r"verdicts of 2 judges are mixed \(judge 1, other 1\)"):
        one_judge([JUDGE, JUDGE | {"model": "other"}], None)


def test_groups_and_samples_widen_the_interval() -> None:
    items = [Item("mathverse", str(n), "?", "1", group=str(n // 5)) for n in range(100)]
    scores = summary(items, [Outcome("mathverse", str(n), 0, n < 50, n < 50, True, False, "1") for n in range(100)])
    assert (scores["clustered"]["by"], scores["clustered"]["clusters"]) == ("group", 20)
    low, high = scores["clustered"]["interval"]
    assert low < scores["wilson"][0] < scores["wilson"][1] < high
    # Eight samples per item: the item is the unit.
    pair = [Item("amc", id, "?", "1") for id in "ab"]
    sampled = [Outcome("amc", id, k, id == "a", id == "a", True, False, "1") for id in "ab" for k in range(8)]
    amc = summary(pair, sampled)
    assert (amc["aggregation"], amc["correct"], amc["total"], amc["n"]) == ("avg@8", 8, 16, 2)
    assert (amc["clustered"]["by"], amc["clustered"]["clusters"]) == ("item", 2)
    voted = summary(pair, sampled, aggregations={"amc": "maj@8"})
    assert (voted["correct"], voted["total"], voted["tie_rule"], voted["ties"]) == (1, 2, "lexicographic", 0)
    passed = summary(pair, sampled, aggregations={"amc": "pass@4"})
    assert (passed["accuracy"], tuple(passed["wilson"])) == (0.5, wilson(1, 2))


def test_the_items_leave_their_mark_and_order_does_not_matter() -> None:
    changed = [replace(item, question="other?") for item in ITEMS]
    stored = {("mathvision", item.id): item.fingerprint for item in ITEMS}
    mark = summary(ITEMS, OUTCOMES)["items"]
    assert summary(changed, OUTCOMES)["items"] != mark == summary(changed, OUTCOMES, fingerprints=stored)["items"]
    assert json.dumps(summary(ITEMS[::-1], OUTCOMES[::-1])) == json.dumps(summary(ITEMS, OUTCOMES))
    with pytest.raises(UserError, match="item '0' of mathvision appears twice"):
        summary([*ITEMS, ITEMS[0]], OUTCOMES)
