"""Multiple choice: which options an answer names, by letter or by value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mmcorl.answers.latex import clean
from mmcorl.answers.reading import Reading, labelled_option, option_letter, read, small_option_letter

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SEPARATOR = re.compile(r"\s*(?:,|;|&|\band\b|和|\s)\s*")
_LETTER_LIST = re.compile(r"[(\[]?([A-Z])[)\]]?")

SameValue = Callable[[Reading, Reading], bool]
"""Whether two values are the same answer."""


@dataclass(frozen=True)
class Options:
    """The options an answer names."""

    labels: frozenset[str] = frozenset()
    """Letters named; options with one value share the first one's letter. Empty: none, or not for certain."""
    conflict: bool = False
    """A letter together with another option's value."""
    by_letter: bool = False
    """Named by letter, with or without its value, rather than by value alone."""


def same_spelling(a: Reading, b: Reading) -> bool:
    """Equality that needs no mathematics beyond exact numbers; units may be missing on one side."""
    if a.text == b.text:
        return True
    if a.number is None or b.number is None or a.number.value != b.number.value:
        return False
    return a.unit is None or b.unit is None or a.unit == b.unit


def read_options(answer: str, choices: tuple[str, ...], same_value: SameValue = same_spelling) -> Options:
    """The options that `answer` names among `choices`; `same_value` compares it with their values.

    In order: an upper-case letter in range (so that it beats a value that looks like it); a letter with
    text, refused when the text is another option's value; several letters; the value of exactly one
    option; a lower-case letter.
    """
    text = clean(answer)
    first = _first_labels(choices)
    letter = option_letter(text)
    if letter is not None and letter in first:
        return Options(frozenset({first[letter]}), by_letter=True)

    labelled = labelled_option(text) or _spaced_label(text)
    if labelled is not None and labelled[0] in first:
        label, rest = labelled
        named = _by_value(rest, choices, same_value)
        if named and first[label] not in named:
            return Options(conflict=True)
        if named or labelled_option(text) is not None:
            return Options(frozenset({first[label]}), by_letter=True)

    # An option that is spelled exactly so comes before a reading as several letters (`AB` the segment).
    named = _by_value(answer, choices, same_value)
    if len(named) == 1:
        return Options(named)
    several = _several_letters(text)
    if several and several <= first.keys():
        return Options(frozenset(first[label] for label in several), by_letter=True)
    small = small_option_letter(text)
    if small is not None and small in first and not named:
        return Options(frozenset({first[small]}), by_letter=True)
    return Options()


def _spaced_label(text: str) -> tuple[str, str] | None:
    """`B 45°`: a letter, a space and text, believed only when the text is that option's own value."""
    letter, _, rest = text.partition(" ")
    return (letter, rest) if len(letter) == 1 and letter in LETTERS and rest else None


def _several_letters(text: str) -> frozenset[str]:
    """The letters of `C, D`, `D and C` or `CD`; empty when the text is anything else."""
    pieces = [piece for piece in _SEPARATOR.split(text) if piece]
    if len(pieces) == 1 and 2 <= len(text) <= len(LETTERS) and all(char in LETTERS for char in text):
        pieces = list(text)
    letters = [match.group(1) for piece in pieces if (match := _LETTER_LIST.fullmatch(piece))]
    if len(letters) < 2 or len(letters) != len(pieces) or len(set(letters)) != len(letters):
        return frozenset()
    return frozenset(letters)


@lru_cache(maxsize=4096)
def _first_labels(choices: tuple[str, ...]) -> dict[str, str]:
    """Letter of each option, mapped to the letter of the first option spelled the same."""
    seen: dict[str, str] = {}
    labels = {}
    for letter, choice in zip(LETTERS, choices, strict=False):
        labels[letter] = seen.setdefault(clean(choice), letter)
    return labels


def _by_value(value: str, choices: tuple[str, ...], same_value: SameValue) -> frozenset[str]:
    """First letters of the options whose value this is.

    The exact spelling beats the same reading, and that beats the same value: options such as `5-4-3-2-1` and
    `5-2-3-4-1` are orders, though both read as the number -5.
    """
    first = _first_labels(choices)
    text, reading = clean(value), read(value)
    options = [(first[letter], choice) for letter, choice in zip(LETTERS, choices, strict=False)]
    spelled = frozenset(letter for letter, choice in options if clean(choice) == text)
    alike = spelled or frozenset(letter for letter, choice in options if read(choice).text == reading.text)
    return alike or frozenset(letter for letter, choice in options if same_value(reading, read(choice)))
