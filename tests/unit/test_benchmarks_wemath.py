"""We-Math's official scores against tables worked out by hand."""

from __future__ import annotations

import pytest

from eval_suite.items import Item
from eval_suite.tasks import BENCHMARKS
from eval_suite.tasks.wemath import DOMAINS, caveats, four_way, official
from paths import FIXTURES

FIXTURE = FIXTURES / "wemath.parquet"

# Sub-answers, composite; what strict and loose make of it.
TABLE = [
    ((True, True), True, "CM", "CM"),
    ((True, False), True, "RM", "CM"),
    ((False, False), True, "RM", "RM"),
    ((True, True), False, "IG", "IG"),
    ((True, False), False, "IK", "IK"),
    ((False, False), False, "IK", "IK"),
    ((True, True, True), True, "CM", "CM"),
    ((True, False, True), True, "RM", "CM"),
    ((False, False, False), True, "RM", "RM"),
    ((True, True, True), False, "IG", "IG"),
    ((True, True, False), False, "IK", "IK"),
    ((False, False, False), False, "IK", "IK"),
]


@pytest.mark.parametrize(("steps", "composite", "strict", "loose"), TABLE)
def test_states(steps, composite, strict, loose):
    assert (four_way(steps, composite, loose=False), four_way(steps, composite, loose=True)) == (strict, loose)


def rows(steps: int, group: str, concepts: list[str] | None = None) -> list[Item]:
    """The items of one group; ids are `group/place`."""
    places = [*map(str, range(1, steps + 1)), "multi"]
    made = []
    for number, place in enumerate(places):
        meta: dict[str, object] = {"key": f"{steps}steps_{place}", "step": f"S{steps}"}
        if place != "multi":
            concept = (concepts or ["Translation", "Rotation", "Axial Symmetry"])[number]
            domain = next(name for name, inside in DOMAINS.items() if concept in inside)
            meta |= {"step": "S1", "concept": concept, "domain": domain}
        made.append(Item("wemath", f"{group}/{place}", "?", "A", group=group, meta=meta))
    return made


def test_sub_scores_of_whole_groups():
    items = [*rows(2, "a"), *rows(2, "b"), *rows(3, "c")]
    right = {"a/1", "a/2", "a/multi", "b/1", "b/multi", "c/1", "c/2", "c/3"}
    scores = BENCHMARKS["wemath"].sub_scores(items, {item.id: item.id in right for item in items})
    # a: all steps and the whole, CM. b: one step and the whole, RM strictly and CM loosely. c: all steps only, IG.
    assert scores["strict"] == {
        "Score": {"n": 3, "correct": 1.5, "accuracy": 0.5},
        "InsufficientKnowledge": {"n": 3, "correct": 0, "accuracy": 0.0},
        "InadequateGeneralization": {"n": 3, "correct": 1, "accuracy": 1 / 3},
        "CompleteMastery": {"n": 3, "correct": 1, "accuracy": 1 / 3},
        "RoteMemorization": {"n": 2, "correct": 1, "accuracy": 0.5},
    }
    assert scores["loose"]["Score"] == {"n": 3, "correct": 2.5, "accuracy": 2.5 / 3}
    assert scores["loose"]["RoteMemorization"] == {"n": 2, "correct": 0, "accuracy": 0.0}
    # One-step rows 1, 2 of a and b and 1, 2, 3 of c: 7, of which b/2 is wrong. Wholes: a and b right, c wrong.
    assert {name: (cell["correct"], cell["n"]) for name, cell in scores["step"].items()} == {
        "S1": (6, 7), "S2": (2, 2), "S3": (0, 1),
    }  # fmt: skip


def test_a_group_with_a_row_missing_leaves_no_four_way_scores():
    items = [*rows(2, "a"), *rows(2, "b")]
    everything = dict.fromkeys((item.id for item in items), True)
    assert BENCHMARKS["wemath"].sub_scores(items, everything)["strict"]["Score"]["n"] == 2
    del everything["b/2"]
    scores = BENCHMARKS["wemath"].sub_scores(items, everything)
    assert not {"strict", "loose"} & scores.keys()
    assert scores["step"]["S2"]["n"] == 2
    assert "strict" not in BENCHMARKS["wemath"].sub_scores(items, {"a/1": True})


def test_shares_of_several_samples_have_no_states_but_accuracies():
    items = rows(2, "a")
    scores = BENCHMARKS["wemath"].sub_scores(items, {"a/1": 0.5, "a/2": 1.0, "a/multi": 0.25})
    assert "strict" not in scores
    assert scores["step"]["S1"] == {"n": 2, "correct": 1.5, "accuracy": 0.75}


def test_official_domains_are_means_over_concepts():
    transformations = [*rows(2, "a", ["Translation", "Translation"]), *rows(2, "b", ["Translation", "Rotation"])]
    correct = {"a/1": 0, "a/2": 0, "b/1": 1, "b/2": 1}
    # Translation 1 of 3, Rotation 1 of 1: the mean over concepts is 2/3, that over rows 2/4.
    told = official(transformations, correct)["domain_official"]
    assert told["Basic Transformations of Figures"]["n"] == 2
    assert told["Basic Transformations of Figures"]["accuracy"] == pytest.approx(2 / 3)
    pooled = BENCHMARKS["wemath"].sub_scores(transformations, correct)["domain"]
    assert pooled["Basic Transformations of Figures"]["accuracy"] == 0.5


def test_there_are_12_domains_and_67_concepts():
    concepts = [concept for inside in DOMAINS.values() for concept in inside]
    assert (len(DOMAINS), len(concepts), len(set(concepts))) == (12, 67, 67)


def test_the_fixture_has_three_whole_groups():
    items = BENCHMARKS["wemath"].load(FIXTURE).items
    scores = BENCHMARKS["wemath"].sub_scores(items, dict.fromkeys((item.id for item in items), True))
    assert scores["strict"]["Score"] == {"n": 3, "correct": 3, "accuracy": 1.0}
    assert {name: cell["n"] for name, cell in scores["step"].items()} == {"S1": 7, "S2": 2, "S3": 1}


def test_why_there_are_no_four_way_scores():
    rows = [("g", "2steps_1"), ("g", "2steps_2"), ("g", "2steps_multi"), ("h", "2steps_1")]
    items = [Item("wemath", str(n), "?", "A", group=group, meta={"key": key}) for n, (group, key) in enumerate(rows)]
    right = {item.id: 1.0 for item in items}
    assert caveats(items[:3], right) == []
    assert "1 of 2 groups are whole" in caveats(items, right)[0]
    assert "not shares of several samples" in caveats(items[:3], right | {"0": 0.5})[0]
