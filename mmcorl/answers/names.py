"""Names of values: what may stand before `=` and mean nothing but what it names."""

from __future__ import annotations

import re

from mmcorl.answers.grammar import FUNCTIONS, GREEK, read
from mmcorl.answers.spellings import spellings
from mmcorl.answers.units import UNIT_WORDS, split_unit
from mmcorl.answers.words import SHORT_WORDS

# `\sqrt{x}`, `xy` and `not x` are no names.
SYMBOL = rf"(?:[A-Za-z]|{'|'.join(re.escape(letter) for letter in sorted(GREEK))})(?:_\w|_\{{[^{{}}]{{1,30}}\}})?"
_SYMBOL_NAME = re.compile(
    rf"{SYMBOL}|[A-Z]{{2}}|\\frac\{{[A-Z]{{2}}\}}\{{[A-Z]{{2}}\}}|m?\\angle ?(?:|[A-Z]{{1,3}}|\d|{SYMBOL})"
    r"|\\vec ?\{?[A-Za-z]{1,2}\}?|\\(?:bar|overline|hat|tilde) ?\{?[a-vxy]\}?"
    r"|\\frac\{d(?:\^2)?[A-Za-z]?\}\{d[A-Za-z](?:\^2)?\}"
    r"|[A-Z]'?(?: ?\\(?:cap|cup|setminus) ?[A-Z]'?){1,3}|\\det ?(?:[A-Z]|\([A-Z]\))"
    rf"|\\(?:{'|'.join(sorted(FUNCTIONS - {'max', 'min', 'mod', 'exp', 'ln', 'log'}))})"
)
_QUANTITIES, _DESCRIBED, _SHAPES = ("|".join(words) for _, words in spellings("quantity"))
QUANTITY = (
    rf"(?:(?:{_DESCRIBED}) ){{0,4}}(?:{_QUANTITIES})"
    rf"(?: of (?:the )?(?:shaded |rectangular )?(?:(?:{_SHAPES})(?-i: [A-Z]{{1,6}})?"
    rf"|(?-i:(?:\\triangle )?[A-Z]{{2,6}})))?"
)
"""Words that describe a quantity: `the total area`, `Area of triangle ABC`."""
QUANTITY_WORDS = frozenset(_QUANTITIES.split("|")) | {"minimum", "maximum"}
_QUANTITY_NAME = re.compile(rf"(?i:{QUANTITY})")
_FUNCTION_NAME = re.compile(
    r"[A-Za-z]'{0,3}(?:_\w|_\{\w+\})?(?:\^\{-1\})?\((?:[A-Za-z]|-?[\d.]+)(?:, ?(?:[A-Za-z]|-?[\d.]+))*\)"
    r"|[fghFGHE]'{0,3}(?:_\w)?\([^()]{1,40}\)|P\((?!.*(?:not|\\neg|\\lnot|\\overline|\\bar|['^]))[^()+*/]{1,60}\)"
)
_TUPLE_NAME = re.compile(r"\([A-Za-z](?:_?\w|_\{\w+\})?(?:, [A-Za-z](?:_?\w|_\{\w+\})?)+\)")
_RATIO_NAME = re.compile(r"[A-Za-z]{1,3}(?:_\w|_\{\w+\})?(?::[A-Za-z]{1,3}(?:_\w|_\{\w+\})?)+")
_LENGTH_NAME = re.compile(
    r"\|[A-Z]{1,2}\||(?:\||\\\|)\\vec ?\{?[A-Za-z]{1,2}\}?(?:\||\\\|)|\\overline\{[A-Z][A-Z]\}|\[[A-Z]{3,6}\]"
)
_TRIGONOMETRIC = frozenset({r"\sin", r"\cos", r"\tan", r"\cot", r"\sec", r"\csc"})
_COMMAND = re.compile(r"\\[A-Za-z]+")
_WORD = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z]{2,}")
_FOREIGN_LETTER = re.compile(r"[^\W\d_A-Za-z]")
_MATH = re.compile(r"[\d+*/^=<>|\\]")
_NO_NAMES = frozenset({r"\pi", r"\infty"})
_NAMES = (_SYMBOL_NAME, _QUANTITY_NAME, _FUNCTION_NAME, _TUPLE_NAME, _RATIO_NAME, _LENGTH_NAME)


def is_of_angle(text: str) -> bool:
    """Return whether a text is `\\cos A` or `\\tan 2\\theta`; `\\sin x` computes what x is."""
    tree = read(text) if text.startswith("\\") and len(text) <= 80 else None
    letters = _COMMAND.sub("", text)
    return tree is not None and tree[0] in _TRIGONOMETRIC and letters == letters.upper()


def is_name(text: str) -> bool:
    return len(text) <= 80 and text not in _NO_NAMES and any(pattern.fullmatch(text) for pattern in _NAMES)


def is_words(text: str) -> bool:
    """Return whether the text is words, whose letters are not variables."""
    text = split_unit(text)[0]
    if _FOREIGN_LETTER.search(text):
        return True
    plain = _COMMAND.sub(" ", text)
    words = _WORD.findall(plain)
    mathematical = _MATH.search(text) is not None
    for word in words:
        if word in FUNCTIONS or word in ("and", "or"):
            continue
        if word in SHORT_WORDS:
            return True
        if len(word) >= 4 and word not in _MATRIX_WORDS and not (mathematical and word in UNIT_WORDS):
            return True
        if not mathematical and "," not in text:
            return True
    # Three words in a row are a sentence, however short.
    return len(re.findall(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?= [A-Za-z]{2,})", plain)) >= 2


_MATRIX_WORDS = frozenset({"matrix", "bmatrix", "pmatrix", "vmatrix", "cases", "array"})
