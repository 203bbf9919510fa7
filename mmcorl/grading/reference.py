"""What a response is graded against, and the check of what users pass to `grade`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from mmcorl.errors import UserError
from mmcorl.grading.items import Item

AnswerType = Literal["integer", "float", "list", "text"]


@dataclass(frozen=True)
class Reference:
    """The gold answer and how to compare with it."""

    gold: str
    question: str | None = None
    """Its text; without `choices` the options are parsed from it, and a judge reads it."""
    choices: tuple[str, ...] | None = None
    """Option values in order A, B, C, ..."""
    answer_type: AnswerType | None = None
    """As declared by MathVista; only lists are compared differently."""
    precision: int | None = None
    """Decimals to which both values are rounded."""
    relative_tolerance: float | None = None
    """Accepted relative difference, 0.05 for SciBench."""
    unit: str | None = None
    """The unit asked for; an answer in another unit is wrong."""
    absolute_tolerance: float | None = None
    """Accepted difference, 0.001 for DynaMath."""

    @staticmethod
    def of(item: Item) -> Reference:
        """Return the reference of a benchmark item."""
        return Reference(
            item.gold,
            item.for_judge,
            item.choices,
            item.answer_type,
            item.precision,
            item.relative_tolerance,
            item.unit,
            item.absolute_tolerance,
        )


def to_text(value: Any) -> str:
    """Return a text or number as text, 142.0 as `142`, because tables store whole numbers as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def check_arguments(response: Any, gold: Any, choices: Any) -> tuple[str, str, tuple[str, ...] | None]:
    """Return response, gold and options as text; numbers become text as in a file of responses.

    Checked because a mistake would be scored as a wrong answer. Raises UserError when the response is not text, the
    gold neither text nor number, or the options are not a list of these.
    """
    if not isinstance(response, str):
        raise UserError(f"response is {_type_name(response)}, not text: pass the model's output, '' if there is none")
    if not _is_text_or_number(gold):
        raise UserError(f"gold is {_type_name(gold)}: pass the reference answer as text or a number")
    if choices is None:
        return response, to_text(gold), None
    if isinstance(choices, str | Mapping) or not isinstance(choices, Sequence):
        shown = f" {choices[:40]!r}" if isinstance(choices, str) else ""
        raise UserError(
            f"choices is {_type_name(choices)}{shown}: pass a list of the options in order, as ['40', '45']"
        )
    wrong = next((option for option in choices if option is not None and not _is_text_or_number(option)), None)
    if wrong is not None:
        raise UserError(f"choices contain {_type_name(wrong)}: pass every option as text or a number")
    return response, to_text(gold), tuple("" if option is None else to_text(option) for option in choices) or None


def _is_text_or_number(value: Any) -> bool:
    return isinstance(value, str | Real) and not (isinstance(value, float) and math.isnan(value))


def _type_name(value: Any) -> str:
    return "None" if value is None else "NaN" if isinstance(value, float) else f"a {type(value).__name__}"
