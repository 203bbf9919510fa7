"""Agreement with the equality tests of math-verify, on which its authors and ours decided independently."""

import json
from collections.abc import Iterator

import pytest

from eval_suite.grading import Grader
from paths import CASES

CASES = json.loads((CASES / "grading_equality_cases.json").read_text(encoding="utf-8"))["cases"]


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader() as grader:
        yield grader


# As harnesses do: the gold in dollars, the answer in the format the model was asked for.
@pytest.mark.parametrize("form", [r"\boxed{%s}", "<answer>%s</answer>", "<answer>$%s$</answer>"])
def test_nine_in_ten_equalities_agree_and_two_at_most_are_credited_against_them(grader: Grader, form: str) -> None:
    wrongly_credited, agreed = [], 0
    for case in CASES:
        verdict = grader.grade(form % case["pred"], f"${case['gold']}$")
        agreed += verdict.correct == case["expected"]
        if verdict.correct and not case["expected"]:
            wrongly_credited.append((case["gold"], case["pred"]))
    assert len(CASES) == 163
    assert agreed / len(CASES) >= 0.9
    # `x \in [-2,7]` for `-2 \le x \le 7`, which math-verify takes in the other direction only, and a \text whose
    # backslash and t were swallowed, which we repair.
    assert len(wrongly_credited) <= 2, wrongly_credited
    print(f"{form % '...'}: {agreed} of {len(CASES)} agree, {len(wrongly_credited)} credited against them")
