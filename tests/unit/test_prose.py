"""Answers stated in sentences: what the grammar reads, and what it credits that is not right."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from mmcorl.answers import Equivalence
from mmcorl.answers.extract import extract_prose
from mmcorl.answers.prose import prose_answer
from mmcorl.errors import UserError
from mmcorl.grading import Grader, Reference, grade
from mmcorl.grading.items import Item, Response
from paths import CASES

ROWS = [json.loads(line) for line in (CASES / "prose.jsonl").read_text(encoding="utf-8").splitlines()]


def credited(row: Mapping[str, Any], relation: Equivalence, **options: Any) -> bool:
    return grade(row["response"], row["gold"], choices=row.get("choices"), relation=relation, **options).correct


def test_no_false_credit_on_labelled_responses() -> None:
    """528 responses in twenty languages; docs/evaluation.md has the figures, those of the first run among them."""
    with Equivalence() as relation:
        wrong = [row for row in ROWS if credited(row, relation, reading="prose") != row["right"]]
        assert wrong == []
        # Off by default, and a response cut off or in a thought that never closed states nothing.
        assert not any(credited(row, relation) for row in ROWS)
        assert not any(credited(row, relation, reading="prose", finish_reason="length") for row in ROWS)
        assert not any(credited(row, relation, reading="prose", thinking=True) for row in ROWS)
    assert Counter(row["right"] for row in ROWS) == {True: 207, False: 321}


@pytest.mark.parametrize(
    ("text", "choices", "answer"),
    [
        ("The answer is 5.", None, "5"),
        ("Answer: B. 45", ["40", "45"], "B. 45"),
        ("Answer: B. 40", ["40", "45"], "B. 40"),  # a letter with another option's text: the rules refuse it
        ("I think that the answer is 5.", None, None),
        ("The answer is 5. Hm.", None, None),
        ("", None, None),
        ("...", None, None),
    ],
)
def test_what_is_read(text: str, choices: Sequence[str] | None, answer: str | None) -> None:
    assert prose_answer(text, choices) == answer


def test_boxes_tags_and_thoughts_come_first() -> None:
    stated = "The answer is 5."
    for text, answer, source in (
        (rf"\boxed{{4}} {stated}", "4", "boxed"),
        (f"<answer>4</answer> {stated}", "4", "answer_tags"),
        (rf"\boxed{{4}} Wait, this is wrong. {stated}", None, "none"),  # taken back, and not replaced by prose
        (rf"\boxed{{ }} {stated}", None, "none"),
        (rf"\boxed{{4 {stated}", None, "unclosed"),
        (f"<answer>4 {stated}", None, "unclosed"),
        (f"<think>{stated}", None, "unclosed"),
        (f"<think>4</think>{stated}", "5", "prose"),
        (f"<think>{stated}</think>", None, "none"),
        (f"[THINK]Answer: 4[/THINK]{stated}<|im_end|>", "5", "prose"),
    ):
        extraction = extract_prose(text)
        assert (extraction.answer, extraction.source) == (answer, source), text


def test_only_items_that_are_read_by_commitment_are_read_as_prose() -> None:
    said = "The answer is 5."
    with Grader(reading="prose") as grader:
        assert grader.rule(Item("a", "1", "?", "5"), Response("a", "1", 0, said)).rule
        assert not grader.rule(Item("a", "1", "?", "5"), Response("a", "1", 0, said, thinking=True)).committed
        assert not grader.rule(Item("a", "1", "?", "5", relation="text"), Response("a", "1", 0, said)).committed
        assert grader.grade(said, Reference("5")).correct
    with pytest.raises(UserError, match="reading 'verse' is not known; use one of commitment, prose"):
        grade(said, "5", reading="verse")  # type: ignore[arg-type]


def test_no_text_takes_long() -> None:
    pieces = (
        "The answer is ",
        "Answer: ",
        "**",
        "A. ",
        "so, ",
        "since a, ",
        "因为",
        "答案是",
        "a\n",
        "# ",
        "\n**Answer**\n",
    )
    for piece in pieces:
        for choices in (None, ["12", "15"]):
            began = time.process_time()
            prose_answer(piece * (1_000_000 // len(piece)), choices)
            assert time.process_time() - began < 1, piece


def test_marks_that_belong_to_a_value():
    for text, answer in (
        ("The answer is 5!.", "5!"), ("The answer is 6'.", "6'"), ("The answer is '6'.", "6"),
        ("The answer is 5.", "5"),
        ("Therefore, rejected: **6**", None), ("It is unlikely to be **6**", None), ("Therefore, it is **6**", "6"),
    ):  # fmt: skip
        assert extract_prose(text).answer == answer, text
