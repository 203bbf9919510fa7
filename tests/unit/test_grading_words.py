"""Words around an answer: sentences that say it, and words that keep it from being one."""

import json
import time
from collections import Counter

import pytest

from mmcorl.answers import Equivalence
from mmcorl.answers.assertion import is_denied
from mmcorl.answers.retraction import is_taken_back
from mmcorl.grading import grade
from paths import CASES

ROWS = [json.loads(line) for line in (CASES / "grading_words.jsonl").read_text(encoding="utf-8").splitlines()]
"""Written, and their truth decided, before any grader saw them."""
_MISSED = "parallel-hedge clause-without-question gloss gloss-and-tail comparison-sentences breakdown ratio-named"
MISSED = dict.fromkeys(_MISSED.split(), 1)
"""Right answers that rules leave to a judge, by family."""


@pytest.mark.parametrize("family", sorted({row["family"] for row in ROWS}))
def test_right_answers_in_words_and_wrong_ones(relation: Equivalence, family: str):
    rows = [row for row in ROWS if row["family"] == family]
    credited = {
        row["id"]: grade(row["response"], row["gold"], row["question"], row["choices"], relation=relation).correct
        for row in rows
    }
    assert len(rows) >= 6
    assert [row["id"] for row in rows if credited[row["id"]] and not row["truth"]] == []
    missed = [row["id"] for row in rows if row["truth"] and not credited[row["id"]]]
    assert len(missed) == MISSED.get(family, 0), missed


def test_half_of_the_cases_are_wrong():
    counts = Counter(row["truth"] for row in ROWS)
    assert counts[True] >= 250
    assert counts[False] >= counts[True]
    assert len({row["family"] for row in ROWS}) >= 46


_CHANGING = (
    "nem ei ez ddim si ní ekki ne nē nuk nije ni mhux nie non nao kein keine weniger höchstens mindestens presque "
    "almost nearly barely hardly scarcely unlikely seldom beyond besides minus half twice double triple up down "
    "roughly near "
    "fast beinahe casi quasi quase bijna nästan næsten melkein prawie skoro téměř почти gần hampir neredeyse σχεδόν "
    "כמעט تقريبا लगभग เกือบ 거의 ほぼ 几乎 約 大约 不 不是 非 没 未 ない 안 "
    "不到 超过 至少 至多 少于 wrong falsch faux falso неверно 错 ± ! pseudo "
    "former fake so-called sub super semi no nor but lest plus negative root inverse reciprocal opposite complement "
    "previous next sixth third mod log sin"
)
_AROUND = (
    "{w} 12", "12 {w}", "12 ({w})", "({w}) 12", "{w}: 12", "It is {w} 12", "The answer is {w} 12", "{w}, 12",
    "There are {w} 12 apples", "the {w} of 12", "answer: {w} 12", "In {w} 12", "12 apples {w}", "Lena {w} 12 dollars",
    "Lena pays {w} 12 dollars",
)  # fmt: skip


def test_no_word_beside_a_value_is_dropped_that_changes_it(relation: Equivalence):
    """In forty languages; most of the words are in no list of the grader."""
    credited, graded = [], 0
    for word in _CHANGING.split():
        for form in _AROUND:
            for question in (None, "How much does Lena pay?"):
                answer = rf"\boxed{{\text{{{form.format(w=word)}}}}}"
                graded += 1
                credited += [answer] if grade(answer, "12", question, relation=relation).correct else []
    assert credited == []
    assert graded > 3000


def test_what_stands_around_a_box_states_it_or_does_not():
    for before in (
        "If the side were $x = ", "Suppose, as a test, that it is ", "For instance, take ", "Angenommen, es sind $",
        "One is tempted to say ", "It is not ", "假设答案是 ", "Assume the answer is $",
    ):  # fmt: skip
        assert is_denied(f"First we look at it. {before}"), before
    for before in (
        "If the side is 3, the area is $", "Suppose x = 2, then y = ", "A common mistake is 12, but the answer is $",
        "For example, 3 works, so ", "Si ottiene $x = ", "Als Ergebnis erhalten wir $", "The percent error is ", "Let ",
    ):  # fmt: skip
        assert not is_denied(f"First we look at it. {before}"), before
    for behind in (" is wrong.", "?", ". Sorry, 12.", ". Wait, no.", "$. Nein, 12.", ". I forgot the factor of two."):
        assert is_taken_back(behind), behind
    for behind in (".", ". No other value works.", " cm$.", ". This is not far from 12.", ". Noted."):
        assert not is_taken_back(behind), behind


def test_hostile_surroundings_take_linear_time(relation: Equivalence):
    for piece in (
        "if ",
        "a",
        "not ",
        "the answer is 5. ",
        "e.g. ",
        "(",
        "A ",
        ", ",
        ": ",
        "is ",
        "12 ",
        r"\text{",
        "ab ",
    ):
        text = piece * (200_000 // len(piece))
        for response in (rf"{text}\boxed{{5}}{text}", rf"\boxed{{{piece * (399 // len(piece))}}}"):
            for gold, choices in (("5", None), ("Yes", None), ("red, blue", None), ("B", ["5", "red"])):
                started = time.process_time()
                grade(response, gold, "Is the answer one of two?", choices, relation=relation)
                assert time.process_time() - started < 1.5, (piece, gold)


def test_a_verdict_is_true_where_it_is_correct(relation: Equivalence):
    assert grade(r"\boxed{5}", "5", relation=relation)
    assert not grade(r"\boxed{6}", "5", relation=relation)
    assert not grade("", "5", relation=relation)


def test_percent_beside_a_tolerance_and_commas_in_braces(relation: Equivalence):
    for answer, gold, right in (
        (r"0.123", r"12\%", True), (r"12.3\%", "0.12", True), (r"0.12\%", "0.12", False), ("12", r"12\%", True),
    ):  # fmt: skip
        verdict = grade(rf"\boxed{{{answer}}}", gold, relative_tolerance=0.05, relation=relation)
        assert verdict.correct is right, (answer, gold)
    for answer, gold, right in (
        ("1{,}234", "1234", True), ("3{,}5", "3.5", True), ("0{,}123", "123", False), ("1{,}2{,}3", "1, 2, 3", False),
        ("0H", "00", False), ("x-x", "0", True),
    ):  # fmt: skip
        assert grade(rf"\boxed{{{answer}}}", gold, relation=relation).correct is right, (answer, gold)
