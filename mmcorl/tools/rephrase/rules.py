"""Rules that a rewording must keep, checked without a model before anything else."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mmcorl.data import row_parsing

SHORTEST, LONGEST, SLACK = 1 / 4, 3.0, 200
"""A rewording has at least a quarter of the original's characters and at most three times as many and 200 more."""

_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|,)(?=[0-9]{3}(?![0-9]))")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_UNITS)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
_WORD = re.compile(rf"\b({'|'.join(_TENS)})[- ]({'|'.join(_UNITS[1:10])})\b|\b({'|'.join(_WORDS)})\b", re.IGNORECASE)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_DOLLAR = re.compile(r"(?<!\\)\$")
_FORMULA = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|(\[asy\].+?\[/asy\])|(\\begin\{.+?\\end\{[A-Za-z*]+\})",
    re.DOTALL,
)
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


def breach(original: str, reworded: str, without: frozenset[str] = frozenset()) -> Breach | None:
    """Return the first rule that `reworded` breaks, except those in `without`; None where it keeps all.

    Both are questions without instruction, including options within them.
    """
    for rule, broken in RULES.items():
        if rule not in without and (detail := broken(original, reworded)) is not None:
            return Breach(rule, detail, reworded)
    return None


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


def _length(original: str, reworded: str) -> str | None:
    if not reworded.strip():
        return "it is empty"
    low, high = SHORTEST * len(original), LONGEST * len(original) + SLACK
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
        (old, old_words), (new, new_words) = (_numbers_of(text, merged) for text in (original, reworded))
        # `2 days` may become `two days`: then the word is new as well.
        lost = sorted(value for value in old - new if new_words[value] <= old_words[value])
        added = sorted(value for value in new - old if old_words[value] <= new_words[value])
        if not lost and not added:
            return None
        changes.append([f"{name} {', '.join(of[:5])}" for name, of in (("lost", lost), ("added", added)) if of])
    return f"the numbers differ: {' and '.join(changes[0])}"


def _numbers_of(text: str, merged: bool) -> tuple[set[str], Counter[str]]:
    """Return the numbers in digits, without leading and trailing zeros, and how often each is a word."""
    text = unicodedata.normalize("NFKC", text)
    words: Counter[str] = Counter()
    for tens, unit, word in _WORD.findall(text):
        words[str(_WORDS[word.lower()] if word else _WORDS[tens.lower()] + _WORDS[unit.lower()])] += 1
    digits = set()
    for number in _NUMBER.findall(_THOUSANDS.sub("", text) if merged else text):
        whole, _, part = number.partition(".")
        part = part.rstrip("0")
        digits.add((whole.lstrip("0") or "0") + (f".{part}" if part else ""))
    return digits, words


def _latex(original: str, reworded: str) -> str | None:
    lost = sorted(set(_COMMAND.findall(original)) - set(_COMMAND.findall(reworded)))
    added = sorted(set(_COMMAND.findall(reworded)) - set(_COMMAND.findall(original)))
    for name, commands in (("lost", lost), ("added", added)):
        if commands:
            return f"it {name} {', '.join(commands[:5])}"
    if len(_DOLLAR.findall(original)) % 2 == 0 and len(_DOLLAR.findall(reworded)) % 2:
        return "a $ is left open"
    if _unbalanced(original) == 0 and _unbalanced(reworded):
        return "its braces do not close"
    kept = _squeezed(reworded)
    for match in _FORMULA.finditer(original):
        # A comma or full stop of the sentence may be inside.
        formula = next(group for group in match.groups() if group).rstrip(" .,;:\n")
        if _squeezed(formula) not in kept:
            return f"the formula {formula.strip()[:60]!r} is not in it as written"
    return None


def _unbalanced(text: str) -> int:
    text = text.replace("\\{", "").replace("\\}", "")
    return text.count("{") - text.count("}")


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _options(original: str, reworded: str) -> str | None:
    (_, old), (_, new) = split_options(original), split_options(reworded)
    if _squeezed(old) == _squeezed(new):
        return None
    if not old:
        return f"it adds options: {new.strip()[:60]!r}"
    return f"the options {old.strip()[:60]!r} are not in it as written"


def _pictures(original: str, reworded: str) -> str | None:
    old, new = set(_PICTURE.findall(original)), set(_PICTURE.findall(reworded))
    return None if old == new else f"it names the pictures {sorted(new)}, the original {sorted(old)}"


RULES: dict[str, Callable[[str, str], str | None]] = {
    "unicode": _unicode,
    "length": _length,
    "refusal": _refusal,
    "changed": _changed,
    "pictures": _pictures,
    "options": _options,
    "numbers": _numbers,
    "latex": _latex,
}
"""By name, in the order of application: original and rewording to what is wrong, or None.

`length` comes before the rules that are slow on long texts.
"""
