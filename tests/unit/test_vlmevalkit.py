"""What VLMEvalKit's own rule says of its result tables, beside what the rules here say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from eval_suite import grade_file
from eval_suite.responses.imports import ResponseFile
from eval_suite.responses.vlmevalkit import inferred_option

FOUR = {"A": "teddy bear", "B": "rabbit", "C": "cat", "D": "dog"}
MANY = {letter: f"option {number}." for number, letter in enumerate("ABCDEFGHIJKLMN", 1)}


@pytest.mark.parametrize(
    ("prediction", "options", "letter"),
    [
        ("B", FOUR, "B"),
        ("The answer is (B).", FOUR, "B"),
        ("**B**", FOUR, "B"),
        ("B because the ears are long", FOUR, None),  # six words: the letter is not among the last four
        ("B: the ears are", FOUR, "B"),  # four words
        ("A or B", FOUR, None),
        ("Both A and B fit, so the correct answer is **C**, I think", FOUR, "C"),  # three letters, then the phrase
        ("the answer is e", FOUR, None),
        ("the answer is d, of course and beyond all doubt", FOUR, "D"),  # the phrase knows no case
        ("a cat", FOUR, "C"),  # the only option in the text; `a` is no letter
        ("a cat and a dog", FOUR, None),
        ("This is a rabbit, as its long ears and its short tail show beyond any doubt", FOUR, None),  # too long
        ("Sorry, I can't help with images of people yet. A", FOUR, "Z"),
        ("Z", FOUR, "Z"),
        ("Failed to obtain answer via API. A", FOUR, None),
        ("", FOUR, None),
        ("K", MANY, "K"),  # beyond J
        ("the answer is K, which is beyond what the phrase knows", MANY, None),
        ("option 1.", MANY, "A"),
        ("option 1", MANY, None),
    ],
)
def test_the_option_that_is_read_out(prediction: str, options: dict[str, str], letter: str | None) -> None:
    assert inferred_option(prediction, options) == letter


def rows(predictions: list[Any], answers: list[str], **options: list[Any]) -> pandas.DataFrame:
    questions = [f"Which is {number}?" for number in range(len(predictions))]
    return pandas.DataFrame(
        {"index": range(len(predictions)), "question": questions, "answer": answers, **options}
        | {"prediction": predictions}
    )


def verdicts(path: Path) -> list[bool | None]:
    return [row.as_vlmevalkit for row in ResponseFile(path, golds=True)]


TABLE = rows(
    ["1.0", "It is 2", "B", "None", "C", "4"],
    ["A", "B", "B", "A", "C", "B"],
    A=[1, 1, 3, 5, 7, 9],
    B=[2.0, 2, None, 6, 8, 4],
    C=["x", "y", "None", "z", "w", "NA"],
)
"""A column of whole numbers, one with a gap, and options that pandas takes for nothing."""


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".xlsx"])
def test_cells_are_what_pandas_reads(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"model_MMStar{ending}"
    if ending == ".xlsx":
        TABLE.to_excel(path, index=False)
        read = pandas.read_excel(path)
    else:
        separator = "\t" if ending == ".tsv" else ","
        TABLE.to_csv(path, sep=separator, index=False)
        read = pandas.read_csv(path, sep=separator)
    expected: list[bool | None] = []
    for _, row in read.iterrows():
        options = {letter: str(row[letter]) for letter in "ABC" if not pandas.isna(row[letter])}
        known = row["answer"] if row["answer"] in options and len(options) > 1 else None
        expected.append(None if known is None else inferred_option(str(row["prediction"]), options) == known)
    # A stays 1, which 1.0 contains; B has a gap and is 2.0, which 2 does not contain; the third row has no B; a
    # prediction None is `nan`; C; and 4 is not 4.0.
    assert expected == [True, False, None, False, True, False]
    assert verdicts(path) == expected


def test_files_of_other_tools_have_no_verdict(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"id": "1", "response": "A", "gold": "A", "choices": ["1", "2"]}) + "\n")
    assert verdicts(path) == [None]
    open_ended = rows(["4"], ["4"])
    open_ended.to_csv(tmp_path / "open.tsv", sep="\t", index=False)
    assert verdicts(tmp_path / "open.tsv") == [None]


def test_both_stand_beside_each_other_where_they_differ(tmp_path: Path) -> None:
    table = rows(
        [
            "<answer>B</answer>",  # both; to VLMEvalKit a text that contains no letter alone
            r"So it is \boxed{B}",  # both: braces fall away
            "rabbit, since its ears are long and so on \\boxed{B}",  # both
            "the answer is B",  # there alone: prose
            "<answer>rabbit</answer> as its ears are long, its tail short and its nose always moving",  # here alone
            "A or B, hence \\boxed{C}",  # neither: wrong
            None,  # missing
        ],
        ["B"] * 7,
        A=["teddy bear"] * 7,
        B=["rabbit"] * 7,
        C=["cat"] * 7,
    )
    table.to_excel(tmp_path / "model_MMStar.xlsx", index=False)
    done = grade_file(tmp_path / "model_MMStar.xlsx")
    (scores,) = done.scores.values()
    theirs = [
        inferred_option(str(text), {"A": "teddy bear", "B": "rabbit", "C": "cat"}) for text in table["prediction"]
    ]
    assert theirs == [None, "B", "B", "B", None, None, None]
    assert (scores["correct"], scores["total"]) == (4, 7)
    assert scores["vlmevalkit"] == {"n": 7, "right": 3, "both": 2, "here_alone": 2, "there_alone": 1}
    head, *_ = done.tables()
    assert head.columns[-1][0] == "as VLMEvalKit %"
    assert [row[-1].text for row in head.rows] == ["42.86"]
    assert any("VLMEvalKit's own rule" in note and "1 of them alone" in note for note in head.notes)
    # A folder that is graded again keeps it; a file that is none of theirs drops it.
    assert grade_file(done.path).scores == done.scores
    (tmp_path / "plain.jsonl").write_text(json.dumps({"id": "1", "response": "<answer>1</answer>", "gold": "1"}) + "\n")
    plain = grade_file(tmp_path / "plain.jsonl", out=tmp_path / "plain")
    assert plain.tables()[0].columns[-1][0] == "of"
    assert next(iter(plain.scores.values()))["vlmevalkit"] is None


def test_blank_cells_are_missing_responses_in_every_table(tmp_path: Path) -> None:
    table = rows(["<answer>A</answer>", None, "<answer>A</answer>"], ["A"] * 3, A=["x"] * 3, B=["y"] * 3)
    counted = []
    for ending in (".tsv", ".csv", ".xlsx"):
        path = tmp_path / f"t{ending}"
        if ending == ".xlsx":
            table.to_excel(path, index=False)
        else:
            table.to_csv(path, sep="\t" if ending == ".tsv" else ",", index=False)
        (scores,) = grade_file(path, out=tmp_path / f"out{ending}").scores.values()
        counted.append([scores[name] for name in ("correct", "total", "responses", "missing", "no_answer")])
    assert counted == [[2, 3, 2, 1, 0]] * 3
