"""Tables: what stands in them, what may not stand side by side, and the paper's own averages."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from rich.console import Console

from eval_suite.items import Item, Response
from eval_suite.metrics.aggregate import Score
from eval_suite.metrics.intervals import Cluster
from eval_suite.metrics.paired import Scored, compare
from eval_suite.metrics.summary import summarise
from eval_suite.tables import (
    DASH,
    comparison_table,
    csv_text,
    mean,
    p_text,
    percent,
    score_tables,
    sub_score_tables,
)
from eval_suite.tasks import BENCHMARKS, suites
from mmcorl.errors import UserError
from mmcorl.report.table import Cell, Table, latex, markdown, terminal
from paper_rows import ROWS

GRADER = {"name": "mmcorl-grader", "version": "1", "mcq_policy": "letter_or_value"}
JUDGE = {"model": "a-judge", "prompt_version": "1"}
VISION = ("mathvision", "mathverse", "mathvista", "wemath")


def summary(counts: Mapping[str, tuple[int, int]], samples: int = 1, **facts: Any) -> dict[str, Any]:
    """Benchmarks with so many right of so many items, `recovered` of them by the judge."""
    items, responses, rules, judges = [], [], [], []
    for name, (right, n) in counts.items():
        for number in range(n):
            group = str(number // 5) if name == "mathverse" else None
            items.append(Item(name, str(number), "?", "1", group=group, meta={"level": number % 2}))
            for sample in range(samples):
                key = {"benchmark": name, "id": str(number), "sample": sample}
                responses.append(Response(name, str(number), sample, ""))
                rules.append({**key, "answer": "1", "committed": True, "cut_off": False, "rule": number < right - 1})
                if number >= right - 1 and facts.get("judge", JUDGE) is not None:
                    word = "yes" if number == right - 1 else "no"
                    judges.append({**key, "verdict": word, "raw": word, **JUDGE})

    def by_level(members: Any, correct: Mapping[str, float]) -> dict[str, Any]:
        return {"level": {"0": {"n": len(correct), "correct": sum(correct.values())}, "9": {"n": 0, "correct": 0}}}

    grader = facts.get("grader", GRADER)
    return summarise(items, responses, rules, judges, dict.fromkeys(counts, by_level), grader, **facts.get("more", {}))


def shown(grids: list[Table], width: int = 200) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(terminal(grids))
    return out.getvalue()


@pytest.mark.parametrize("row", ROWS.split("\n")[1:-1])
def test_the_papers_averages_are_plain_means(row: str) -> None:
    # The printed cells are rounded themselves, so their mean may be off by half a unit of its last place.
    *cells, average = row.split()
    scores = [{"correct": int(Decimal(cell) * 100), "total": 10_000} for cell in cells]
    unit = Fraction(1, 10 ** len(average.split(".")[1]))
    assert abs(mean(scores) * 100 - Fraction(average)) <= unit / 2
    assert len(cells) in {len(members) for members in suites().values()}


def test_every_benchmark_has_its_own_title() -> None:
    assert len({benchmark.title for benchmark in BENCHMARKS.values()} - {""}) == len(BENCHMARKS)
    assert suites()["mean of 4"] == VISION


def test_percentages_are_rounded_once_and_half_up() -> None:
    # 31/83 = 37.349...: 37.3 once rounded; through 37.35 it would be 37.4, as the paper's table has it.
    assert (percent(31, 83, 1), percent(31, 83, 2)) == ("37.3", "37.35")
    assert percent(1, 16, 1) == "6.3"  # 6.25; Python's float formatting rounds half to even, 6.2
    assert (percent(0, 7), percent(7, 7), percent(1, 3, 0)) == ("0.00", "100.00", "33")
    # MathVision has 3,040 items: the paper's 21.05 and 26.25.
    assert (percent(640, 3040), percent(798, 3040)) == ("21.05", "26.25")


def test_one_evaluation_has_everything_beside_its_score() -> None:
    told = summary({"mathvision": (8, 40), "wemath": (3, 12)}, more={"full_sizes": {"wemath": 1740}})
    text = shown(score_tables([("step 400", told)]))
    for part in (
        "MathVision │ pass@1      │ 20.00 [10.5, 34.8] │       8 │ 40",
        "Grader: mmcorl-grader 1, multiple choice letter_or_value.",
        "Judge: a-judge, prompt 1.",
        "We-Math: 12 of 1,740 items only.",
        "rules alone %",
        "judge recovered",
        "format %",
        "cut off %",
        "judge failed",
    ):
        assert part in text
    # Rules alone: 7 of 40.
    assert "17.50" in text
    assert "mean" not in text, "a mean needs all its members"


def test_the_mean_appears_with_its_members() -> None:
    whole = summary(dict(zip(VISION, [(1, 2), (2, 10), (3, 4), (1, 4)], strict=True)))
    part = summary({"mathvision": (1, 2)})
    # (50 + 20 + 75 + 25) / 4 = 42.5, whatever the sizes; the other evaluation has no mean.
    rows = score_tables([("whole", whole), ("part", part)])[0].rows
    assert [row[0].text for row in rows] == ["whole", "part"]
    assert [row[-1].text for row in rows] == ["42.50", DASH]
    text = [*suites()["mean of 7"], "mmlu"]
    heads = [head for head, _ in score_tables([("a", summary(dict.fromkeys(text, (1, 2)))), ("b", whole)])[0].columns]
    assert [head for head in heads if "mean" in head] == ["mean of 4", "mean of 7"], "3 text sets lie within the 7"


def test_benchmarks_may_be_rows() -> None:
    a, b = summary({"mathvision": (1, 2), "amc": (1, 2)}), summary({"mathvision": (2, 2)})
    grid = score_tables([("a", a), ("b", b)], layout="rows")[0]
    assert [head for head, _ in grid.columns] == ["", "a", "b"]
    assert [[cell.text for cell in row] for row in grid.rows] == [
        ["MathVision pass@1", "50.00", "100.00"],
        ["AMC pass@1", "50.00", DASH],
    ]


def test_every_column_names_one_aggregation() -> None:
    one, eight = summary({"amc": (1, 4)}), summary({"amc": (2, 4)}, samples=8)
    grid = score_tables([("one", one), ("eight", eight)])[0]
    assert [head for head, _ in grid.columns] == ["", "AMC pass@1", "AMC avg@8"]
    assert [cell.text for cell in grid.rows[1]] == ["eight", DASH, "50.00"]
    assert "AMC: interval clustered by 4 items sampled several times." in grid.notes


def test_dependent_items_have_the_wider_interval() -> None:
    told = summary({"mathverse": (20, 40)})
    grid = score_tables([("a", told)])[0]
    clustered = told["benchmarks"]["mathverse"]["clustered"]["interval"]
    assert grid.rows[0][2].small == f"[{100 * clustered[0]:.1f}, {100 * clustered[1]:.1f}]"
    assert "MathVerse: interval clustered by 8 groups of dependent items." in grid.notes


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"grader": {**GRADER, "mcq_policy": "letter_only"}}, "mcq_policy: letter_or_value, letter_only.*two tables"),
        ({"grader": {**GRADER, "version": "2"}}, r"grader differs between 'a' and 'b' \(version: 1, 2\)"),
        ({"judge": None}, r"judge of amc differs.*\(a-judge 1, none\): judge both or neither"),
    ],
)
def test_graders_policies_and_judges_are_not_mixed(other: dict[str, Any], message: str) -> None:
    pair = [("a", summary({"amc": (1, 2)})), ("b", summary({"amc": (1, 2)}, **other))]
    for table in (score_tables, csv_text):
        with pytest.raises(UserError, match=message):
            table(pair)


def test_a_policy_is_one_for_the_table_even_in_different_benchmarks() -> None:
    legacy = summary({"gsm8k": (1, 2)}, grader={"name": "other", "version": "1", "mcq_policy": "letter_only"})
    with pytest.raises(UserError, match="mcq_policy differs between 'a' and 'b'"):
        score_tables([("a", summary({"amc": (1, 2)})), ("b", legacy)])
    # Tests of code know no policy, so code may stand beside.
    code = summary({"mbpp": (1, 2)}, grader={"name": "tests", "version": "1", "mcq_policy": None})
    assert len(score_tables([("a", summary({"amc": (1, 2)})), ("b", code)])) == 2


def test_other_items_are_refused() -> None:
    with pytest.raises(UserError, match=r"amc has other items in 'a' \(2\) than in 'b' \(3\)"):
        score_tables([("a", summary({"amc": (1, 2)})), ("b", summary({"amc": (1, 3)}))])
    with pytest.raises(UserError, match="no scores to show"):
        score_tables([("a", {"benchmarks": {}})])


def test_csv_is_unrounded_and_complete() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([("a, b", summary({"mathverse": (10, 30), "amc": (1, 3)}))]))))
    assert [(row["run"], row["benchmark"]) for row in rows] == [("a, b", "mathverse"), ("a, b", "amc")]
    assert (rows[1]["correct"], rows[1]["total"], float(rows[1]["accuracy"])) == ("1", "3", 1 / 3)
    assert (rows[0]["clusters"], rows[1]["clusters"]) == ("6", "")
    assert {row["mcq_policy"] for row in rows} == {"letter_or_value"}
    assert {row["judge_model"] for row in rows} == {"a-judge"}


def test_no_width_loses_a_digit() -> None:
    pair = [(f"run {n}", summary(dict.fromkeys(VISION, (17, 40)))) for n in range(2)]
    for width in (200, 100, 80, 60, 40):
        text = shown(score_tables(pair), width)
        assert "…" not in text
        assert text.count("42.50") == 10, "four scores and their mean, twice"
        assert max(map(len, text.splitlines())) <= width


def test_text_stays_text_in_every_form() -> None:
    name = "50%_of|<b>$x$ & \\evil{#~^}\n\x1b[31m"
    grid = Table(name, [(name, "left"), ("n", "right")], [[Cell(name), Cell("1", "[0, 2]")]], [name])
    assert "\x1b" not in shown([grid])
    table = markdown([grid]).splitlines()
    assert table[2].startswith(r"| 50%\_of\|\<b\>$x$ & \\evil{#~^}")
    assert [line.replace(r"\|", "").count("|") for line in table[2:5]] == [3, 3, 3]
    tex = latex([grid])
    assert r"50\%\_of|\textless{}b\textgreater{}\$x\$ \& \textbackslash{}evil\{\#\textasciitilde{}" in tex
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lr}", r"{\scriptsize [0, 2]} \\"):
        assert part in tex
    assert latex([Table("t", [("", "left")], [[Cell("[a]")]])]).count("{}[a]") == 1


def test_sub_scores_have_a_table_each() -> None:
    told = summary({"mathvision": (8, 40)})["benchmarks"]["mathvision"]
    (grid,) = sub_score_tables("run", "mathvision", told)
    assert grid.title == "MathVision by level: run"
    assert [[cell.text for cell in row] for row in grid.rows] == [["0", "40", "20.00"], ["9", "0", DASH]]


def scored(label: str, right: int, grouped: bool) -> Scored:
    items = [Item("mathverse", str(n), "?", "1", group=str(n // 5) if grouped else None) for n in range(50)]
    shares = {item.id: Cluster(int(int(item.id) < right), 1) for item in items}
    score = Score("pass@1", right, 50, shares)
    return Scored(label, "mathverse", score, items, {item.id: item.fingerprint for item in items}, GRADER)


def test_the_comparison_says_what_it_rests_on() -> None:
    flat = comparison_table([compare(scored("base", 10, False), scored("co-rl", 20, False))])
    assert flat.title == "co-rl against base"
    texts = [cell.text for cell in flat.rows[0]]
    assert texts == ["MathVerse", "50", "20.00", "40.00", "+20.00", "0", "10", "0.002"]  # 2 / 2^10
    grouped = comparison_table([compare(scored("base", 10, True), scored("co-rl", 20, True))])
    assert grouped.rows[0][-1].text == "0.500"  # two problems, both won: 2 / 2^2
    assert "over 10 whole groups of dependent items (items taken as independent: p 0.002)" in grouped.notes[1]
    less = comparison_table([compare(scored("base", 20, False), scored("co-rl", 10, False))] * 2)
    assert less.rows[0][4].text == "−20.00"
    assert less.notes[-1] == "2 tests in one table: p is not corrected for their number."
    assert (p_text(0.0004), p_text(0.04)) == ("<0.001", "0.040")
