"""What a person gives to be graded, checked once: a mistake in it would be scored as a wrong answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any


def plain(value: Any) -> str:
    """A text or a number as a text, 142.0 as `142`: tables store whole numbers as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def checked(response: Any, gold: Any, choices: Any) -> tuple[str, str, tuple[str, ...] | None]:
    """Response, gold and options as the rules want them; numbers become texts as in a file of responses.

    Raises:
        TypeError: the response is no text, the gold is neither text nor number, or the options are no list of these.
    """
    if not isinstance(response, str):
        raise TypeError(
            f"response is {_kind(response)}, no text: grade what the model wrote, and '' where nothing came"
        )
    if not _is_plain(gold):
        raise TypeError(f"gold is {_kind(gold)}: give the known answer as a text or a number")
    if choices is None:
        return response, plain(gold), None
    if isinstance(choices, str | Mapping) or not isinstance(choices, Sequence):
        shown = f" {choices[:40]!r}" if isinstance(choices, str) else ""
        raise TypeError(f"choices is {_kind(choices)}{shown}: give a list of the options in order, as ['40', '45']")
    wrong = next((option for option in choices if option is not None and not _is_plain(option)), None)
    if wrong is not None:
        raise TypeError(f"choices hold {_kind(wrong)}: give every option as a text or a number")
    return response, plain(gold), tuple("" if option is None else plain(option) for option in choices) or None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | Real) and not (isinstance(value, float) and math.isnan(value))


def _kind(value: Any) -> str:
    return "None" if value is None else "NaN" if isinstance(value, float) else f"a {type(value).__name__}"
