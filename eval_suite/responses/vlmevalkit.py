"""Which option VLMEvalKit reads out of a prediction of its result tables, so that a score can be held beside its own.

Described from `can_infer` of vlmeval/utils/matching_util.py and `build_choices` and `eval_vanilla` of
vlmeval/dataset/utils/multiple_choice.py (open-compass/VLMEvalKit e8e78f0, Apache-2.0): this follows what they do
without a judge (`exact_matching`) and copies none of their text. A letter that stands alone and near the end is the
answer, else what follows `the answer is`, else the only option whose text the prediction contains. pandas reads the
tables, so that an option `None` is none and the numbers of a column with gaps are 1.0 and 2.0.

Only multiple choice is decided there by rule. With a judge, a model reads what this leaves open; MMBench is scored by
groups of rotated options, which are not put together here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any

from mmcorl.grading.reference import to_text

NO_OPTION = "Z"
"""What it reads out of a refusal, and out of the letter itself."""
_FAILED = "Failed to obtain answer via API"
_REFUSALS = (
    "Sorry, I can't help with images of people yet.",
    "I can't process this file.",
    "I'm sorry, but without the image provided",
    "Cannot determine the answer",
)
_BETWEEN_WORDS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_NEAR_THE_END = 4
"""A letter among so many last words is the answer."""
_ANSWER_IS = re.compile(r"answer\s+is\s+\**([ABCD])", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_MISSING = frozenset(
    [
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
        *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
    ]
)
"""Texts that pandas reads as nothing."""


def inferred_option(prediction: str, options: Mapping[str, str]) -> str | None:
    """Return the letter that the rule reads out of a prediction, `Z` for none of them; None where it is open."""
    return _by_letter(prediction, options) or _by_text(prediction, options)


def _by_letter(prediction: str, options: Mapping[str, str]) -> str | None:
    if _FAILED in prediction:
        return None
    if any(refusal in prediction for refusal in _REFUSALS):
        return NO_OPTION
    words = prediction.translate(_BETWEEN_WORDS).split()
    letters = [letter for letter in options if letter in words]
    if len(letters) == 1 and words.index(letters[0]) >= len(words) - _NEAR_THE_END:
        return letters[0]
    if not letters and NO_OPTION in words:
        return NO_OPTION
    match = _ANSWER_IS.search(prediction)
    return match[1].upper() if match and match[1].upper() in options else None


def _by_text(prediction: str, options: Mapping[str, str]) -> str | None:
    text = prediction.lower()
    if len(text) > 2 * sum(map(len, options.values())):
        return None
    contained = [letter for letter, option in options.items() if option.lower() in text]
    return contained[0] if len(contained) == 1 else None


class ResultTable:
    """The columns of a file as pandas reads them; whether it is one of VLMEvalKit's shows in every row."""

    def __init__(self, texts: bool) -> None:
        self._texts = texts
        """Whether texts that are numbers become numbers, as in tables, not in JSON."""
        self._numbers: dict[str, bool] = {}
        """By column, whether all its values are numbers so far."""
        self._whole: dict[str, bool] = {}
        """By column, whether all are whole numbers and none is missing."""

    def see(self, row: Mapping[str, Any]) -> None:
        """Note what the columns of a row hold; all rows come before the first verdict."""
        for column in (name for name in row if name in ("prediction", *ascii_uppercase)):
            value = self._value(row[column])
            number = _number(value) if self._texts or not isinstance(value, str) else None
            self._numbers[column] = self._numbers.get(column, True) and (value is None or number is not None)
            self._whole[column] = self._whole.get(column, True) and isinstance(number, int)

    def verdict(self, row: Mapping[str, Any]) -> bool | None:
        """Return whether VLMEvalKit's rule credits a row; None for a row that is no multiple choice of its tables."""
        if "index" not in row or "prediction" not in row:
            return None
        options = {letter: text for letter in ascii_uppercase if (text := self._cell(row, letter)) is not None}
        answer = to_text(row["answer"]).strip() if isinstance(row.get("answer"), str) else ""
        if len(options) < 2 or answer not in set(ascii_uppercase):
            return None
        # Where the right option is one that pandas takes for none, nothing is right.
        return answer in options and inferred_option(self._cell(row, "prediction") or "nan", options) == answer

    def _value(self, stored: Any) -> Any:
        """Return what stands in a cell; None where nothing does."""
        missing = stored is None or stored != stored or (self._texts and stored in _MISSING)
        return None if missing else to_text(stored) if self._texts else stored

    def _cell(self, row: Mapping[str, Any], column: str) -> str | None:
        value = self._value(row.get(column))
        if value is None or not self._numbers[column]:
            return None if value is None else str(value)
        return str(_number(value) if self._whole[column] else float(value))


def _number(value: Any) -> int | float | None:
    """Return what pandas takes for a number; None for anything else."""
    if not isinstance(value, str):
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    try:
        return int(value) if _INTEGER.fullmatch(value) else None if "_" in value else float(value)
    except ValueError:
        return None
