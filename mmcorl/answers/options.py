"""Multiple choice: which options an answer names, by letter or by value."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mmcorl.answers.latex import clean
from mmcorl.answers.parse import (
    Reading,
    labelled_option,
    option_letter,
    read,
    small_option_letter,
    without_option_prefix,
)

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SEPARATOR = re.compile(r"\s*(?:,|;|&|\band\b|和|\s)\s*")
_LETTER_LIST = re.compile(r"[(\[]?([A-Z])[)\]]?\.?")
# `B, 45°`, `B (45°)`, `B - 45°`, `B 45°` and `45° (B)`, believed only next to the option's own value.
_LETTER_THEN_VALUE = re.compile(r"([A-Z])(?: ?[,;-] ?| ?(?=\()| )(.+)", re.DOTALL)
_VALUE_THEN_LETTER = re.compile(r"(.+?) ?[(\[]([A-Z])[)\]]", re.DOTALL)
_LONGEST_LIST = 256
_COMMA = re.compile(r"(?<=\S)[,，]\s{0,4}")
_ALTERNATIVES = re.compile(r"[,;&/\n]|\b(?:and|or|not|nor)\b")

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

    several = _several_letters(text)
    several = several if several <= first.keys() else frozenset()
    labelled = labelled_option(text) if not several else None
    if labelled is not None and labelled[0] in first:
        label, rest = labelled
        named = _by_value(rest, choices, same_value)
        if (named and first[label] not in named) or (not named and _names_another(rest, first[label], first)):
            return Options(conflict=True)
        return Options(frozenset({first[label]}), by_letter=True)

    # An option that is spelled exactly so comes before a reading as several letters (`AB` the segment).
    named = _by_value(answer, choices, same_value)
    if len(named) == 1:
        return Options(conflict=True) if _is_called_another(answer, named, choices) else Options(named)
    if several:
        return Options(frozenset(first[label] for label in several), by_letter=True)
    beside = _letter_beside_value(text)
    if beside is not None and beside[0] in first:
        label, rest = beside
        values = _by_value(rest, choices, same_value)
        if values and first[label] not in values:
            return Options(conflict=True)
        if values:
            return Options(frozenset({first[label]}), by_letter=True)
    small = small_option_letter(text)
    if small is not None and small in first and not named:
        return Options(frozenset({first[small]}), by_letter=True)
    return Options()


def _letter_beside_value(text: str) -> tuple[str, str] | None:
    """(letter, text beside it), to be believed only when the text is an option's value."""
    if (match := _LETTER_THEN_VALUE.fullmatch(text)) is not None:
        return match.group(1), match.group(2)
    if (match := _VALUE_THEN_LETTER.fullmatch(text)) is not None:
        return match.group(2), match.group(1)
    return None


def _names_another(text: str, own: str, first: dict[str, str]) -> bool:
    """Whether what stands behind a letter offers another one: `B. 45° or C. 60°`."""
    for piece in _ALTERNATIVES.split(text):
        piece = piece.strip()
        labelled = labelled_option(piece)
        letter = option_letter(piece) or (labelled[0] if labelled is not None else None)
        if letter is not None and letter in first and first[letter] != own:
            return True
    return False


def _is_called_another(answer: str, named: frozenset[str], choices: tuple[str, ...]) -> bool:
    """Whether `C = 60°` is the value of an option other than C, and none is written with that name."""
    first, name = _first_labels(choices), read(answer).name
    if name not in first or first[name] in named:
        return False
    own = (choice for letter, choice in zip(LETTERS, choices, strict=False) if first[letter] in named)
    return all(read(choice).name != name for choice in own)


def _several_letters(text: str) -> frozenset[str]:
    """The letters of `C, D`, `D and C`, `(C), (D)` or `CD`; empty when the text is anything else."""
    if len(text) > _LONGEST_LIST:
        return frozenset()
    text = without_option_prefix(text)
    pieces = [piece for piece in _SEPARATOR.split(text) if piece]
    if len(pieces) == 1 and 2 <= len(text) <= len(LETTERS) and all(char in LETTERS for char in text):
        pieces = list(text)
    letters = [match.group(1) for piece in pieces if (match := _LETTER_LIST.fullmatch(piece))]
    if len(letters) < 2 or len(letters) != len(pieces) or len(set(letters)) != len(letters):
        return frozenset()
    return frozenset(letters)


def _written(text: str) -> str:
    return _COMMA.sub(",", text.strip()) if "," in text or "，" in text else text.strip()


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
    # As written, `300,400` is the option `300, 400`; as a number it would be 300400.
    options = [(first[letter], choice) for letter, choice in zip(LETTERS, choices, strict=False)]
    written = _written(value)
    verbatim = frozenset(letter for letter, choice in options if _written(choice) == written)
    if verbatim:
        return verbatim
    text, reading = clean(value), read(value)
    spelled = frozenset(letter for letter, choice in options if clean(choice) == text)
    alike = spelled or frozenset(letter for letter, choice in options if read(choice).text == reading.text)
    return alike or frozenset(letter for letter, choice in options if same_value(reading, read(choice)))
