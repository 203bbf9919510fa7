"""What an answer is: a number with a unit, an option letter, a list, an interval, an equation, words.

`read` only takes apart; whether two readings mean the same is decided in `equivalence`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from mmcorl.answers.latex import FUNCTIONS, MAX_LENGTH, clean
from mmcorl.answers.numbers import Exact, TooLargeError, exact
from mmcorl.answers.units import UNIT_WORDS, split_unit

Kind = Literal["number", "expression", "relation", "list", "union", "matrix", "ratio", "labelled", "words", "opaque"]

_SHORT = 512
"""Readings of many answers up to this length are kept, and of a few longer ones, so that memory stays small."""
_MAX_DEPTH = 6
_MAX_PARTS = 256


@dataclass(frozen=True)
class Reading:
    """One answer, taken apart."""

    kind: Kind
    text: str
    """The canonical spelling; equal texts are equal answers."""
    body: str = ""
    """The text to compare as mathematics: without a unit and without the name in `x = 5`."""
    name: str | None = None
    """Left-hand side of an assignment (`x`, `Area`), or the letter of a labelled option."""
    number: Exact | None = None
    unit: str | None = None
    brackets: str = ""
    """Of a list: `()`, `[]`, `(]`, `[)`, `{}` or empty for a bare enumeration."""
    parts: tuple[Reading, ...] = ()
    rounded: Reading | None = None
    """What the answer itself says its value is about: the 50.27 of `16\\pi \\approx 50.27`."""


def read(answer: str) -> Reading:
    """The reading of an extracted answer; never raises, whatever the text."""
    if len(answer) > 4 * MAX_LENGTH:
        return Reading("opaque", answer.strip())
    return _remembered(answer) if len(answer) <= _SHORT else _long_remembered(answer)


def _taken_apart(answer: str) -> Reading:
    text = clean(answer)
    if len(text) > MAX_LENGTH:
        return Reading("opaque", text)
    if (letter := option_letter(text)) is not None:
        return Reading("expression", letter, letter)
    labelled = labelled_option(text)
    if labelled is not None:
        letter, rest = labelled
        inner = _read(rest, 1)
        return Reading("labelled", f"{letter}: {inner.text}", name=letter, parts=(inner,))
    return _read(text, 0)


_remembered = lru_cache(maxsize=1 << 14)(_taken_apart)
_long_remembered = lru_cache(maxsize=1 << 8)(_taken_apart)


def key(answer: str) -> str:
    """The text of the reading, read again until it settles, which only odd text does not do at once."""
    if len(answer) > 4 * MAX_LENGTH:
        return answer.strip()
    return _remembered_key(answer) if len(answer) <= _SHORT else _long_remembered_key(answer)


def _settled(answer: str) -> str:
    text = read(answer).text
    for _ in range(4):
        again = read(text).text
        if again == text:
            break
        text = again
    return text


_remembered_key = lru_cache(maxsize=1 << 14)(_settled)
_long_remembered_key = lru_cache(maxsize=1 << 8)(_settled)


# --- option letters -----------------------------------------------------------------------------------------

_OPTION_PREFIX = (
    r"(?:(?:the )?(?:correct |final |best )?(?:answer|option|choice)s?(?: is)? ?:? ?"
    r"|(?:故|应|因此|所以)?(?:正确)?(?:答案|选项|选择|选)(?:应)?(?:是|为|选)?:? ?)?"
)
_LETTER = re.compile(rf"(?i:{_OPTION_PREFIX})[(\[【<]? ?([A-Z]) ?[)\]】>]? ?[.:!]?(?:选项|项)?")
_SMALL_LETTER = re.compile(rf"(?i:{_OPTION_PREFIX})[(\[【<]? ?([a-z]) ?[)\]】>]? ?[.:!]?")
_PREFIX = re.compile(rf"(?i:{_OPTION_PREFIX})")
_WITH_TEXT = re.compile(
    rf"(?i:{_OPTION_PREFIX})(?:[(\[【<] ?([A-Z]) ?[)\]】>] ?[.:,]?|([A-Z]) ?[.:)]) ?(?=\S)(.+)", re.DOTALL
)


def option_letter(text: str) -> str | None:
    """`B` for a cleaned answer that is nothing but an upper-case option letter, however it is dressed."""
    match = _LETTER.fullmatch(text)
    return match.group(1) if match else None


def small_option_letter(text: str) -> str | None:
    """`B` for a cleaned answer that is nothing but a lower-case letter; only safe with known options."""
    match = _SMALL_LETTER.fullmatch(text)
    return match.group(1).upper() if match else None


def labelled_option(text: str) -> tuple[str, str] | None:
    """(`B`, `45°`) for a cleaned answer such as `B. 45°`, `(B) 45°` or `B: 45°`."""
    match = _WITH_TEXT.fullmatch(text)
    if match is None:
        return None
    letter, rest = match.group(1) or match.group(2), match.group(3).strip()
    return (letter, rest) if rest else None


def without_option_prefix(text: str) -> str:
    """`C and D` for a cleaned answer such as `Options C and D`."""
    match = _PREFIX.match(text)
    return text[match.end() :] if match else text


# --- structure ----------------------------------------------------------------------------------------------

_OPENING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}
_CLOSING = frozenset(")]}") | {r"\}"}
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|[A-Za-z]+|<=|>=|!=|.", re.DOTALL)
_WORD = re.compile(r"(?<!\\)(?<![A-Za-z])[A-Za-z]{2,}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_FOREIGN_LETTER = re.compile(r"[^\W\d_A-Za-z]")
_MATH = re.compile(r"[\d+*/^=<>|\\]")
_NAME = re.compile(r"(?:\\[a-z]+|[A-Za-z' {}.]|_\w|_\{\w+\})+")
_FUNCTION_NAME = re.compile(r"[A-Za-z]'?(?:_\w)?(?:\^\{-1\})?\([A-Za-z](?:,[A-Za-z])*\)")
_TUPLE_NAME = re.compile(r"\([A-Za-z](?:_\w)?(?:, [A-Za-z](?:_\w)?)+\)")
_RATIO_NAME = re.compile(r"[A-Za-z]+(?:_\w|_\{\w+\})?(?::[A-Za-z]+(?:_\w|_\{\w+\})?)+")
_LENGTH_NAME = re.compile(r"\|[A-Z][A-Z]\||\\overline\{[A-Z][A-Z]\}")
_VARIABLE = re.compile(r"[A-Za-z](?:_\w)?|\\[a-z]+")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MEMBER = re.compile(r"([A-Za-z](?:_\w)?|\\(?:theta|alpha|beta|lambda|mu))\s*\\in(?![A-Za-z])\s*(.+)", re.DOTALL)
_PLAIN_VALUE = re.compile(r"-?(?:\d+(?:\.\d+)?|\d+/\d+|(?:\d+ ?)?\\frac\{\d+\}\{\d+\})(?: ?%)?")
_MATRIX = re.compile(r"\\begin\{([bp]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)
_ARRAY = re.compile(r"[(\[]?\\begin\{array\}\{[lcr|]{1,32}\}(.*)\\end\{array\}[)\]]?", re.DOTALL)
_NAMES = (_NAME, _FUNCTION_NAME, _TUPLE_NAME, _RATIO_NAME, _LENGTH_NAME)
_SEPARATORS = frozenset({",", ";", "and", "or"})
_RELATIONS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
# Another base, which nobody downstream would respect, or a date, which is no difference.
_NO_NUMBER = re.compile(r"\d_|^\d{4}-\d{1,2}-\d{1,2}$|^\d{1,2}/\d{1,2}/\d{4}$")
_RATIO_PART = re.compile(r"[\d.]+|\d*\\sqrt\{\d+\}|\\frac\{\d+\}\{\d+\}|\d+/\d+|[A-Za-z]|\d*\\pi")
_CASED_WORDS = frozenset({"YES", "NO", "TRUE", "NOT", "ALL"})


def _read(text: str, depth: int) -> Reading:
    text = text.strip()
    if depth > _MAX_DEPTH or not text:
        return Reading("opaque", text)
    text = _without_outer_round(text)
    if r"\in" in text and (member := _MEMBER.fullmatch(text)) is not None:
        inner = _read(member.group(2), depth + 1)
        if inner.kind in ("list", "union") and inner.name is None:
            return replace(inner, text=rf"{member.group(1)}\in {inner.text}", name=member.group(1))
    if r"\approx" in text:
        text, rounded = _approximation(text, depth)
        if rounded is not None:
            return replace(_read(text, depth + 1), rounded=rounded)
    pieces = _top_level(text, _SEPARATORS)
    equations = [len(_top_level(piece, frozenset("="))) > 1 for piece in pieces]
    if not (len(pieces) > 1 and sum(equations) > 1):
        named = _named(text, depth)
        if named is not None:
            return named
    if _is_words(text):
        return _words(text)
    if "=" in text and any(equations) and len(pieces) == 1:
        return _one_number(text, depth) or Reading("relation", text, text)
    return _mathematics(text, pieces, depth)


def _approximation(text: str, depth: int) -> tuple[str, Reading | None]:
    """`16\\pi \\approx 50.27` taken apart; `x \\approx 11` gives a name its value, as `=` does."""
    sides = [side.strip() for side in _top_level(text, frozenset({r"\approx"}))]
    if len(sides) != 2 or not all(sides):
        return text, None
    if len(sides[0]) <= 80 and any(pattern.fullmatch(sides[0]) for pattern in _NAMES):
        return f"{sides[0]}={sides[1]}", None
    return sides[0], _read(sides[1], depth + 1)


def _named(text: str, depth: int) -> Reading | None:
    """`x = 5`, `f(x) = ...`, `Area = 9\\pi cm^2`, `k = 2+3 = 5`: a name and the last value it is given."""
    sides = [side.strip() for side in _top_level(text, frozenset("="))]
    if len(sides) < 2 or not all(sides):
        return None
    name = sides[0]
    if len(sides) == 2 and _PLAIN_NUMBER.fullmatch(name) and _VARIABLE.fullmatch(sides[1]):
        # `5 = s` is `s = 5`.
        name, sides = sides[1], sides[::-1]
    if len(name) > 80 or not any(pattern.fullmatch(name) for pattern in _NAMES):
        return None
    name = " ".join(name.split())
    if (len(name) > 2 and " " in name) or re.fullmatch(r"[A-Za-z]{4,}", name):
        name = name.casefold()
    inner = _read(sides[-1], depth + 1)
    return Reading(
        inner.kind,
        f"{name}={inner.text}",
        inner.body,
        name,
        inner.number,
        inner.unit,
        inner.brackets,
        inner.parts,
    )


def _one_number(text: str, depth: int) -> Reading | None:
    """`\frac{3}{5} = 0.6`: one number written twice; a sum and its value say more."""
    sides = _top_level(text, frozenset("="))
    if not all(_PLAIN_VALUE.fullmatch(side.strip()) for side in sides):
        return None
    first, *others = (_read(side, depth + 1) for side in sides)
    same = all(
        o.number is not None and first.number is not None and o.number.value == first.number.value for o in others
    )
    return first if same else None


def _mathematics(text: str, pieces: list[str], depth: int) -> Reading:
    signs = _both_signs(text)
    if signs is not None:
        parts = tuple(_read(sign, depth + 1) for sign in signs)
        return Reading("list", text, text, parts=parts)
    if len(pieces) > 1:
        return _list(text, pieces, "", depth)
    ratio = _top_level(text, frozenset(":"))
    if len(ratio) > 1:
        if all(_RATIO_PART.fullmatch(part) for part in ratio):
            return Reading("ratio", text, text, parts=tuple(_read(part, depth + 1) for part in ratio))
        return Reading("opaque", text)
    union = _top_level(text, frozenset({r"\cup"}))
    if len(union) > 1:
        parts = tuple(_read(part, depth + 1) for part in union)
        return Reading("union", text, text, parts=parts)
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None:
        return _matrix(text, matrix.group(2), depth)
    array = _ARRAY.fullmatch(text)
    if array is not None:
        return _matrix(text, array.group(1), depth)
    bracketed = _bracketed(text)
    if bracketed is not None:
        brackets, content = bracketed
        inside = _top_level(content, frozenset(",;"))
        if len(inside) > 1 or brackets in ("{}", "[]"):
            return _list(text, inside, brackets, depth)
    if len(_top_level(text, _RELATIONS)) > 1:
        return Reading("relation", text, text)
    return _scalar(text)


def _scalar(text: str) -> Reading:
    value, unit = split_unit(text)
    if _NO_NUMBER.search(value):
        return Reading("opaque", text)
    if unit is not None:
        value = _without_outer_round(value)
    try:
        number = exact(value)
    except (TooLargeError, ZeroDivisionError):
        return Reading("opaque", f"{value} {unit}" if unit else value)
    spelled = value if number is None else _spell(number) or value
    kind: Kind = "number" if number is not None else "expression"
    return Reading(kind, f"{spelled} {unit}" if unit else spelled, value, number=number, unit=unit)


def _spell(number: Exact) -> str | None:
    value = number.value
    # Python refuses to print integers of more than 4,300 digits; such a value keeps the way it was written.
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 14_000:
        return None
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _list(text: str, pieces: list[str], brackets: str, depth: int) -> Reading:
    pieces = [piece.strip() for piece in pieces if piece.strip()]
    if len(pieces) > _MAX_PARTS:
        return Reading("opaque", text)
    parts = tuple(_read(piece, depth + 1) for piece in pieces)
    # A list is read as a list when every part is read as something.
    if any(part.kind == "opaque" for part in parts):
        return Reading("opaque", text)
    opening, closing = brackets[:1], brackets[1:]
    escape = "\\" if brackets == "{}" else ""
    spelled = f"{escape}{opening}{', '.join(part.text for part in parts)}{escape}{closing}"
    return Reading("list", spelled, text, brackets=brackets, parts=parts)


def _matrix(text: str, content: str, depth: int) -> Reading:
    rows = [_top_level(row, frozenset("&")) for row in content.strip().removesuffix(r"\\").split(r"\\")]
    if sum(len(row) for row in rows) > _MAX_PARTS:
        return Reading("opaque", text)
    parts = tuple(
        Reading("list", "", brackets="row", parts=tuple(_read(cell, depth + 1) for cell in row)) for row in rows
    )
    return Reading("matrix", text, text, parts=parts)


def _both_signs(text: str) -> tuple[str, str] | None:
    """`a \\pm b` as its two values; None when there is no sign or more than one."""
    if text.count(r"\pm") != 1 or len(_top_level(text, _SEPARATORS | {"=", ":"})) > 1:
        return None
    before, _, after = text.partition(r"\pm")
    return f"{before}+{after}" if before.strip() else after, f"{before}-{after}"


def _is_words(text: str) -> bool:
    """Whether the text says something in words, so that reading its letters as variables would be wrong."""
    text = split_unit(text)[0]
    if _FOREIGN_LETTER.search(text):
        return True
    plain = _COMMAND.sub(" ", text)
    words = _WORD.findall(plain)
    mathematical = _MATH.search(text) is not None
    for word in words:
        if word in FUNCTIONS or word in ("and", "or"):
            continue
        if word in _SHORT_WORDS:
            return True
        if len(word) >= 4 and word not in _MATRIX_WORDS and not (mathematical and word in UNIT_WORDS):
            return True
        if not mathematical and "," not in text:
            return True
    # Three words in a row are a sentence, whatever their length.
    return len(re.findall(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?= [A-Za-z]{2,})", plain)) >= 2


# Short words that are read as words even beside numbers (`5 am`).
_SHORT_WORDS = frozenset({"am", "pm", "no", "is", "of", "the", "not", "for", "but", "yes", "odd"})
_MATRIX_WORDS = frozenset({"matrix", "bmatrix", "pmatrix", "vmatrix", "cases", "array"})


def _words(text: str) -> Reading:
    folded = [
        word if word.isupper() and len(word) <= 3 and word not in _CASED_WORDS else word.casefold()
        for word in text.replace('"', "").split()
    ]
    folded_text = " ".join(folded).rstrip(".!,;: ")
    # `SIN` says something in words, `sin` does not: case is only folded where that changes no meaning.
    stable = len(text) > 1 and clean(folded_text) == folded_text and _is_words(folded_text)
    return Reading("words", folded_text if stable else text)


# --- splitting ----------------------------------------------------------------------------------------------


def _top_level(text: str, separators: frozenset[str]) -> list[str]:
    """`text` split at separators outside brackets; the whole text when brackets do not balance."""
    if not any(separator in text for separator in separators):
        return [text]
    parts, depth, start, at = [], 0, 0, 0
    for match in _PIECE.finditer(text):
        piece, at = match.group(), match.start()
        if piece in _OPENING or piece == r"\begin":
            depth += 1
        elif piece in _CLOSING or piece == r"\end":
            depth -= 1
        elif depth == 0 and piece in separators:
            parts.append(text[start:at])
            start = match.end()
    parts.append(text[start:])
    if len(parts) == 1:
        return parts
    # `1, 2, and 3`: the comma before `and` separates nothing of its own.
    kept = [part for part in parts if part.strip()] if "," in separators else parts
    return kept or [text]


def _bracketed(text: str) -> tuple[str, str] | None:
    """(brackets, content) when one pair of brackets encloses the whole text; pairs may differ (`[6,8)`)."""
    for opening in (r"\{", "(", "["):
        if not text.startswith(opening):
            continue
        closing = next((mark for mark in (r"\}", ")", "]") if text.endswith(mark)), None)
        if closing is None or (opening == r"\{") != (closing == r"\}"):
            return None
        content = text[len(opening) : -len(closing)]
        depth = 0
        for match in _PIECE.finditer(content):
            depth += (match.group() in _OPENING) - (match.group() in _CLOSING)
            if depth < 0:
                return None
        if depth:
            return None
        return f"{opening[-1]}{closing[-1]}", content
    return None


def _without_outer_round(text: str) -> str:
    """`(x+1)` without the parentheses when they hold one value."""
    for _ in range(4):
        if not text.startswith("("):
            break
        bracketed = _bracketed(text)
        if bracketed is None or bracketed[0] != "()" or len(_top_level(bracketed[1], frozenset(",;"))) > 1:
            break
        inner = bracketed[1].strip()
        if not inner:
            break
        text = inner
    return text
