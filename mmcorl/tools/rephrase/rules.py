"""Rules that a rewording must keep, checked without a model before anything else."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from mmcorl.data import row_parsing
from mmcorl.tools.rephrase import scenario
from mmcorl.tools.rephrase.texts import formulas, left_open, numbers_of, squeezed
from model_adapters.templates import PLACE

Style = Literal["wording", "scenario"]
"""Other words for the same problem, or the same problem in another concrete scenario."""
Rule = Callable[[str, str], str | None]
"""From original and rewording to what is wrong, or None."""
ANSWER = "answer"
"""The rule of scenarios that needs the known answer."""

_COMMAND = re.compile(r"\\[A-Za-z]+")
_DRAWING = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)
_OPTION_LINE = re.compile(r"(?m)^[ \t]*(?:\(([A-Z])\)|([A-Z])[ \t]*[.:：．、)])[ \t]*(?=\S)")
_OPTION_INLINE = re.compile(r"(?:(?<=[\n.?:!;,$])|(?<=[.?:!;,$\w)}][ \n]))\(([A-Z])\)[ \t]*(?=\S)")
_PICTURE = re.compile(r"<image\d*>")
_REFUSAL = re.compile(
    r"\W{0,3}(?:(?:i['’]?m|i am)\s+(?:very\s+)?(?:sorry|unable|afraid|not able)|sorry[,.]|i can(?:no|['’])t"
    r"|i apologi[sz]e|as an ai\b|unfortunately, i\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Breach:
    reason: str
    """In a word: a rule, `no_rewording`, `other_answer`, `undecided`, `unclear`, `unanswered`."""
    detail: str
    question: str | None = None
    """The rewording, where there is one."""


def breach(
    original: str,
    reworded: str,
    without: frozenset[str] = frozenset(),
    *,
    style: Style = "wording",
    answer: str | None = None,
) -> Breach | None:
    """Return the first rule that `reworded` breaks, except those in `without`; None where it keeps all.

    Both are questions without instruction, including options within them. A scenario may not tell the `answer`.
    """
    rules = dict(RULES[style])
    if style == "scenario" and answer is not None:
        rules[ANSWER] = partial(scenario.told, answer)
    for rule, broken in rules.items():
        if rule not in without and (detail := broken(original, reworded)) is not None:
            return Breach(rule, detail, reworded)
    return None


def rule_names(style: Style) -> tuple[str, ...]:
    return (*RULES[style], ANSWER) if style == "scenario" else (*RULES[style],)


def split_options(question: str) -> tuple[str, str]:
    """Split a question into its stem and the options that end it, with the space before them (or empty).

    Options are lines `A. ...`, `(A) ...` from A on, or `(A) ... (B) ... (C) ...` in a line.
    """
    # `dot (A); dot (B); dot (C)` are no options.
    text = _DRAWING.sub(lambda match: "~" * len(match.group()), question)
    # Letters from A on, at least two lines or three in one line.
    for pattern, least in ((_OPTION_LINE, 2), (_OPTION_INLINE, 3)):
        marks: list[int] = []
        for match in pattern.finditer(text):
            letter = next(group for group in match.groups() if group)
            if letter == string.ascii_uppercase[len(marks) % 26]:
                marks.append(match.start())
        if len(marks) >= least:
            stem = question[: marks[0]].rstrip()
            return (stem, question[len(stem) :]) if stem else (question, "")
    return question, ""


def _unicode(_: str, reworded: str) -> str | None:
    try:
        row_parsing.require_text([reworded])
    except row_parsing.RowError as fault:
        return str(fault)
    controls = [char for char in reworded if unicodedata.category(char) == "Cc" and char not in "\n\t"]
    return f"it holds the control character {controls[0]!r}" if controls else None


def _length(shortest: float, longest: float, slack: int, original: str, reworded: str) -> str | None:
    """Allow so many times the characters of the original, and `slack` more."""
    if not reworded.strip():
        return "it is empty"
    low, high = shortest * len(original), longest * len(original) + slack
    if low <= len(reworded) <= high:
        return None
    return f"it has {len(reworded)} characters, the original {len(original)}"


def _refusal(original: str, reworded: str) -> str | None:
    if _REFUSAL.match(reworded) and not _REFUSAL.match(original):
        return f"it begins like a refusal: {reworded[:60]!r}"
    return None


def _changed(original: str, reworded: str) -> str | None:
    return "it is the original again" if _plain(original) == _plain(reworded) else None


def _plain(text: str) -> str:
    """Return letters and digits only, so that spaces, case and punctuation do not count."""
    return "".join(char for char in unicodedata.normalize("NFKC", text).casefold() if char.isalnum())


def _numbers(original: str, reworded: str) -> str | None:
    changes = []
    # `1,200` is one number or two: either reading may agree.
    for merged in (True, False):
        (old, old_words), (new, new_words) = (numbers_of(text, merged) for text in (original, reworded))
        # `2 days` may become `two days`: then the word is new as well.
        lost = sorted(value for value in old - new if new_words[value] <= old_words[value])
        added = sorted(value for value in new - old if old_words[value] <= new_words[value])
        if not lost and not added:
            return None
        changes.append([f"{name} {', '.join(of[:5])}" for name, of in (("lost", lost), ("added", added)) if of])
    return f"the numbers differ: {' and '.join(changes[0])}"


def _latex(original: str, reworded: str) -> str | None:
    lost = sorted(set(_COMMAND.findall(original)) - set(_COMMAND.findall(reworded)))
    added = sorted(set(_COMMAND.findall(reworded)) - set(_COMMAND.findall(original)))
    for name, commands in (("lost", lost), ("added", added)):
        if commands:
            return f"it {name} {', '.join(commands[:5])}"
    if opened := left_open(original, reworded):
        return opened
    kept = squeezed(reworded)
    for formula in formulas(original):
        if squeezed(formula) not in kept:
            return f"the formula {formula.strip()[:60]!r} is not in it as written"
    return None


def _options(original: str, reworded: str) -> str | None:
    (_, old), (_, new) = split_options(original), split_options(reworded)
    if squeezed(old) == squeezed(new):
        return None
    if not old:
        return f"it adds options: {new.strip()[:60]!r}"
    return f"the options {old.strip()[:60]!r} are not in it as written"


def _pictures(original: str, reworded: str) -> str | None:
    old, new = set(_PICTURE.findall(original)), set(_PICTURE.findall(reworded))
    if old != new:
        return f"it names the pictures {sorted(new)}, the original {sorted(old)}"
    places, left = original.count(PLACE), reworded.count(PLACE)
    return None if left == places else f"it has {left} places for images, the original {places}"


_ANY: dict[str, Rule] = {"refusal": _refusal, "changed": _changed, "pictures": _pictures, "options": _options}
RULES: dict[Style, dict[str, Rule]] = {
    "wording": {
        "unicode": _unicode,
        "length": partial(_length, 1 / 4, 3.0, 200),
        **_ANY,
        "numbers": _numbers,
        "latex": _latex,
    },
    "scenario": {
        "unicode": _unicode,
        "length": partial(_length, 1 / 2, 5.0, 400),
        **_ANY,
        "numbers": scenario.numbers,
        "formulas": scenario.formulas_kept,
    },
}
"""By style and name, in the order of application. `length` comes before the rules that are slow on long texts."""
