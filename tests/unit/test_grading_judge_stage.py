"""`correct = rule or (committed and not cut_off and judge)`, whatever the judge is."""

import itertools
from typing import Any

import pytest

from eval_suite.grading import Verdict, grade

RIGHT = r"\boxed{5}"
WRONG = r"\boxed{half of ten}"
UNCOMMITTED = "The answer is five."
CUT_OFF = r"so \boxed{5"


class Judge:
    """A judge that says one thing and remembers what it was asked."""

    def __init__(self, says: Any) -> None:
        self.says = says
        self.asked: list[tuple[Any, ...]] = []

    def __call__(self, *request: Any) -> Any:
        self.asked.append(request)
        if isinstance(self.says, BaseException):
            raise self.says
        return self.says


@pytest.mark.parametrize(
    ("says", "stage", "credited"),
    [
        (True, "judge", True),
        (False, "judge", False),
        (None, "judge_unclear", False),
        # Nonsense is no verdict, however true it looks.
        ("yes", "judge_unclear", False),
        (1, "judge_unclear", False),
        ([True], "judge_unclear", False),
        (TimeoutError("30 s"), "judge_failed", False),
        (ConnectionError("refused"), "judge_failed", False),
    ],
)
def test_a_judge_only_decides_what_the_rules_left_open(says: Any, stage: str, credited: bool) -> None:
    judge = Judge(says)
    for response in (RIGHT, UNCOMMITTED, CUT_OFF, "", "<answer></answer>"):
        verdict = grade(response, "5", "How many?", judge=judge)
        assert verdict.correct is (response == RIGHT)
        assert verdict.stage == ("rule" if response == RIGHT else "no_answer")
    for blank in ("", " ", "$ $"):
        assert (grade(WRONG, blank, judge=judge).correct, judge.asked) == (False, [])
    verdict = grade(WRONG, "5", "How many?", judge=judge)
    assert (verdict.correct, verdict.stage, verdict.rule) == (credited, stage, False)
    assert judge.asked == [("How many?", None, "5", "half of ten")]
    if isinstance(says, Exception):
        assert type(says).__name__ in verdict.reason


def test_a_judge_reads_the_options_that_stand_in_the_question() -> None:
    judge = Judge(True)
    assert grade("<answer>the second</answer>", "B", "Which?\nA. 45\nB. 60", judge=judge).correct
    assert grade("<answer>the second</answer>", "B", "Which?", ["45", "60"], judge).correct
    assert [asked[1] for asked in judge.asked] == [("45", "60"), ("45", "60")]


def test_an_interrupt_is_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        grade(WRONG, "5", judge=Judge(KeyboardInterrupt()))


def test_the_invariant_over_all_combinations() -> None:
    responses = {RIGHT: (True, True, False), WRONG: (False, True, False)}
    responses |= {UNCOMMITTED: (False, False, False), CUT_OFF: (False, False, True)}
    for (response, (rule, committed, cut_off)), says in itertools.product(responses.items(), (True, False, None)):
        verdict = grade(response, "5", judge=Judge(says))
        assert (verdict.rule, verdict.committed, verdict.cut_off) == (rule, committed, cut_off)
        assert verdict.correct == (rule or (committed and not cut_off and says is True))


@pytest.mark.parametrize(
    ("correct", "stage", "answer", "rule", "committed", "cut_off"),
    [
        (True, "no_answer", None, False, False, False),
        (True, "rule", "5", False, True, False),
        (True, "judge_failed", "5", False, True, False),
        (True, "judge_unclear", "5", False, True, False),
        (False, "judge", "5", True, True, False),
        (True, "judge", "5", False, True, True),
        (True, "judge", None, False, False, True),
    ],
)
def test_a_verdict_that_breaks_it_cannot_be_made(
    correct: bool, stage: Any, answer: str | None, rule: bool, committed: bool, cut_off: bool
) -> None:
    with pytest.raises(AssertionError):
        Verdict(correct, stage, answer, "", rule, committed, cut_off)
