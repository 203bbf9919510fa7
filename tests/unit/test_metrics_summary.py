"""The summary of an evaluation, from rows as they stand in the files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from eval_suite.items import Item, Response
from eval_suite.metrics.intervals import wilson
from eval_suite.metrics.summary import summarise
from mmcorl.errors import UserError

GRADER = {"name": "mmcorl-grader", "version": "1", "mcq_policy": "letter_or_value"}
JUDGE = {"model": "judge", "prompt_version": "1"}


def by_level(items: Iterable[Item], correct: Mapping[str, float]) -> dict[str, Any]:
    cells = {level: [correct[item.id] for item in items if item.meta["level"] == level] for level in (0, 1)}
    return {"level": {str(level): {"n": len(cell), "correct": sum(cell)} for level, cell in cells.items()}}


def rows(name: str = "mathvision") -> tuple[list[Item], list[Response], list[dict[str, Any]], list[dict[str, Any]]]:
    """Ten items: 4 right by rule, 2 recovered, 1 refused, 1 unclear, 1 without an answer, 1 cut off."""
    items = [Item(name, str(number), "?", "1", meta={"level": number % 2}) for number in range(10)]
    responses = [Response(name, item.id, 0, "text") for item in items]
    rules, judges = [], []
    for number in range(10):
        committed, cut_off = number != 8, number == 9
        key = {"benchmark": name, "id": str(number), "sample": 0}
        scores = {"committed": committed, "cut_off": cut_off, "rule": number < 4, "reason": ""}
        rules.append({**key, "answer": "1" if committed else None, **scores})
        if 4 <= number < 8:
            word = ["yes", "yes", "no", "unclear"][number - 4]
            judges.append({**key, "verdict": word, "raw": word, **JUDGE})
    return items, responses, rules, judges


def test_integers_first() -> None:
    scores = summarise(*rows(), {"mathvision": by_level}, GRADER)["benchmarks"]["mathvision"]
    assert (scores["n"], scores["correct"], scores["total"], scores["accuracy"]) == (10, 6, 10, 0.6)
    assert (scores["aggregation"], scores["samples"], scores["clustered"]) == ("pass@1", 1, None)
    assert tuple(scores["wilson"]) == wilson(6, 10)
    judged = [scores[f"judge_{word}"] for word in ("recovered", "refused", "unclear", "failed", "pending")]
    assert (scores["rule_correct"], judged) == (4, [2, 1, 1, 0, 0])
    assert (scores["committed"], scores["format_rate"], scores["cut_off"], scores["cut_off_rate"]) == (9, 0.9, 1, 0.1)
    # Right are 0..5: three even, three odd, of five each.
    assert scores["sub_scores"] == {"level": {"0": {"n": 5, "correct": 3}, "1": {"n": 5, "correct": 3}}}
    assert (scores["grader"], scores["judge"]) == (GRADER, JUDGE)


def test_what_is_missing_or_left_undone_is_counted() -> None:
    items, responses, rules, judges = rows()
    judges[0]["verdict"] = "failed"
    for files, judge, expected in (
        ((responses, rules, judges[:2]), None, {"judge_failed": 1, "judge_pending": 2, "correct": 5}),
        ((responses, rules, []), None, {"judge": None, "judge_pending": 0, "correct": 4}),
        # A judge that had nothing to do is a judge all the same.
        ((responses[:4], rules[:4], []), JUDGE, {"judge": JUDGE, "missing": 6}),
        ((responses[1:], rules[1:], []), None, {"missing": 1, "responses": 9, "correct": 3, "format_rate": 8 / 9}),
    ):
        scores = summarise(items, *files, {}, GRADER, judge=judge)["benchmarks"]["mathvision"]
        assert scores.items() >= {**expected, "total": 10}.items()
    judges[1]["model"] = "other"
    with pytest.raises(UserError, match=r"verdicts of 2 judges are mixed \(judge 1, other 1\)"):
        summarise(items, responses, rules, judges, {}, GRADER)
    _, responses, rules, _ = rows("mbpp")
    code = [Item("mbpp", item.id, "?", "", kind="code") for item in items]
    scores = summarise(code, responses, rules, [], {}, GRADER, judge=JUDGE)["benchmarks"]["mbpp"]
    assert (scores["judge"], scores["judge_pending"]) == (None, 0)


def test_groups_and_samples_widen_the_interval() -> None:
    items = [Item("mathverse", str(number), "?", "1", group=str(number // 5)) for number in range(100)]
    responses = [Response("mathverse", item.id, 0, "") for item in items]
    rules = [
        {"benchmark": "mathverse", "id": i.id, "sample": 0, "answer": "1", "committed": True, "cut_off": False}
        | {"rule": int(i.id) < 50}
        for i in items
    ]
    scores = summarise(items, responses, rules, [], {}, GRADER)["benchmarks"]["mathverse"]
    assert (scores["clustered"]["by"], scores["clustered"]["clusters"]) == ("group", 20)
    low, high = scores["clustered"]["interval"]
    assert low < scores["wilson"][0] < scores["wilson"][1] < high
    # Eight samples per item: the item is the unit.
    sampled = [Response("amc", "a", k, "") for k in range(8)] + [Response("amc", "b", k, "") for k in range(8)]
    graded = [{**rules[0], "benchmark": "amc", "id": r.id, "sample": r.sample, "rule": r.id == "a"} for r in sampled]
    pair = [Item("amc", id, "?", "1") for id in "ab"]
    amc = summarise(pair, sampled, graded, [], {}, GRADER)["benchmarks"]["amc"]
    assert (amc["aggregation"], amc["correct"], amc["total"], amc["n"]) == ("avg@8", 8, 16, 2)
    assert (amc["clustered"]["by"], amc["clustered"]["clusters"]) == ("item", 2)
    voted = summarise(pair, sampled, graded, [], {}, GRADER, aggregations={"amc": "maj@8"})["benchmarks"]["amc"]
    assert (voted["correct"], voted["total"], voted["tie_rule"], voted["ties"]) == (1, 2, "lexicographic", 0)
    passed = summarise(pair, sampled, graded, [], {}, GRADER, aggregations={"amc": "pass@4"})["benchmarks"]["amc"]
    assert passed["accuracy"] == 0.5
    assert tuple(passed["wilson"]) == wilson(1, 2)


def test_the_items_leave_their_mark_and_order_does_not_matter() -> None:
    items, *files = rows()

    def mark(items: list[Item], **options: Any) -> str:
        return str(summarise(items, *files, {}, GRADER, **options)["benchmarks"]["mathvision"]["items"])

    changed = [Item("mathvision", item.id, "other?", "1", meta=item.meta) for item in items]
    stored = {("mathvision", item.id): item.fingerprint for item in items}
    assert mark(changed) != mark(items) == mark(changed, fingerprints=stored)
    there, back = (summarise(items[::way], *(part[::way] for part in files), {}, GRADER) for way in (1, -1))
    assert json.dumps(there) == json.dumps(back)
    with pytest.raises(UserError, match="item '0' of mathvision appears twice"):
        mark([*items, items[0]])
