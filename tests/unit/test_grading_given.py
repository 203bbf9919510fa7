"""What people hand to `grade` by mistake: said at once instead of scored as a wrong answer."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from eval_suite.grading import grade


@pytest.mark.parametrize("gold", [45, 45.0, Fraction(45), "45"])
def test_a_number_is_a_gold_as_in_a_file(gold: Any) -> None:
    assert grade("<answer>45</answer>", gold).correct
    assert grade("<answer>B</answer>", gold, choices=[40, 45.0]).correct


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None, "2"), "response is None, no text"),
        ((["2"], "2"), "response is a list, no text"),
        (("<answer>2</answer>", None), "gold is None: give the known answer as a text or a number"),
        (("<answer>2</answer>", float("nan")), "gold is NaN"),
        (("<answer>2</answer>", ["2"]), "gold is a list"),
        (("<answer>B</answer>", "B", None, "40|45"), "choices is a str '40|45': give a list of the options"),
        (("<answer>B</answer>", "B", None, {"A": "40"}), "choices is a dict: give a list"),
        (("<answer>B</answer>", "B", None, [["40"], "45"]), "choices hold a list"),
    ],
)
def test_anything_else_is_one_sentence(arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(TypeError, match=says.replace("|", r"\|")) as refused:
        grade(*arguments)
    assert "\n" not in str(refused.value)
