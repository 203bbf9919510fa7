"""Parse an answer: a number with a unit, an option letter, a list, an interval, an equation, words.

Parsing does not judge; `comparison` decides whether two parsed answers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, wraps
from typing import Literal, TypeVar

from mmcorl.answers.latex import FUNCTIONS, MAX_LENGTH, clean
from mmcorl.answers.numbers import Exact, TooLargeError, exact
from mmcorl.answers.units import UNIT_WORDS, split_unit

Kind = Literal["number", "expression", "relation", "list", "union", "matrix", "ratio", "labelled", "words", "opaque"]

_SHORT, _LONGEST = 512, 4 * MAX_LENGTH
"""Answers up to `_SHORT` characters are cached in number; longer than `_LONGEST` they stay as they are."""
T = TypeVar("T")
_MAX_DEPTH = 6
_MAX_PARTS = 256


@dataclass(frozen=True)
class ParsedAnswer:
    """The parts of one answer."""

    kind: Kind
    text: str
    """Canonical spelling; equal texts are equal answers."""
    body: str = ""
    """What to compare as mathematics: the text without its unit and without the name in `x = 5`."""
    name: str | None = None
    """Left-hand side of an assignment (`x`, `Area`), or the letter of a labelled option."""
    number: Exact | None = None
    unit: str | None = None
    brackets: str = ""
    """Of a list: `()`, `[]`, `(]`, `[)`, `{}` or empty for a bare enumeration."""
    parts: tuple[ParsedAnswer, ...] = ()
    rounded: ParsedAnswer | None = None
    """The approximation that the answer gives of itself: the 50.27 of `16\\pi \\approx 50.27`."""


def _cached(function: Callable[[str], T]) -> Callable[[str], T]:
    """Cache many results for answers of up to `_SHORT` characters and few for longer ones, to bound the memory."""
    short, long = lru_cache(maxsize=1 << 14)(function), lru_cache(maxsize=1 << 8)(function)

    @wraps(function)
    def cached(answer: str) -> T:
        if len(answer) > _LONGEST:
            return function(answer)
        return short(answer) if len(answer) <= _SHORT else long(answer)

    return cached


@_cached
def parse(answer: str) -> ParsedAnswer:
    """Parse an extracted answer; never raises, whatever the text."""
    text = clean(answer) if len(answer) <= _LONGEST else answer.strip()
    if len(text) > MAX_LENGTH or len(answer) > _LONGEST:
        return ParsedAnswer("opaque", text)
    if (letter := option_letter(text)) is not None:
        return ParsedAnswer("expression", letter, letter)
    labelled = labelled_option(text)
    if labelled is not None:
        letter, rest = labelled
        inner = _parse(rest, 1)
        return ParsedAnswer("labelled", f"{letter}: {inner.text}", name=letter, parts=(inner,))
    return _parse(text, 0)


@_cached
def canonical_text(answer: str) -> str:
    """Return the canonical spelling: the text of the parsed answer, parsed again until it is stable."""
    text = parse(answer).text
    for _ in range(4 if len(answer) <= _LONGEST else 0):
        again = parse(text).text
        if again == text:
            break
        text = again
    return text


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
    """Return `B` for a cleaned answer that is only an upper-case option letter, whatever its decoration."""
    match = _LETTER.fullmatch(text)
    return match.group(1) if match else None


def lower_case_option_letter(text: str) -> str | None:
    """Return `B` for a cleaned answer that is only a lower-case letter; only safe with known options."""
    match = _SMALL_LETTER.fullmatch(text)
    return match.group(1).upper() if match else None


def labelled_option(text: str) -> tuple[str, str] | None:
    """Return (`B`, `45°`) for a cleaned answer such as `B. 45°`, `(B) 45°` or `B: 45°`."""
    match = _WITH_TEXT.fullmatch(text)
    if match is None:
        return None
    letter, rest = match.group(1) or match.group(2), match.group(3).strip()
    return (letter, rest) if rest else None


def without_option_prefix(text: str) -> str:
    """Return `C and D` for a cleaned answer such as `Options C and D`."""
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
# A number in another base, which later steps would read as decimal, or a date, which is no difference.
_NO_NUMBER = re.compile(r"\d_|^\d{4}-\d{1,2}-\d{1,2}$|^\d{1,2}/\d{1,2}/\d{4}$")
_RATIO_PART = re.compile(r"[\d.]+|\d*\\sqrt\{\d+\}|\\frac\{\d+\}\{\d+\}|\d+/\d+|[A-Za-z]|\d*\\pi")
_CASED_WORDS = frozenset({"YES", "NO", "TRUE", "NOT", "ALL"})


def _parse(text: str, depth: int) -> ParsedAnswer:
    text = text.strip()
    if depth > _MAX_DEPTH or not text:
        return ParsedAnswer("opaque", text)
    text = _without_outer_round(text)
    if r"\in" in text and (member := _MEMBER.fullmatch(text)) is not None:
        inner = _parse(member.group(2), depth + 1)
        if inner.kind in ("list", "union") and inner.name is None:
            return replace(inner, text=rf"{member.group(1)}\in {inner.text}", name=member.group(1))
    if r"\approx" in text:
        text, rounded = _approximation(text, depth)
        if rounded is not None:
            return replace(_parse(text, depth + 1), rounded=rounded)
    pieces = _split_top_level(text, _SEPARATORS)
    equations = [len(_split_top_level(piece, frozenset("="))) > 1 for piece in pieces]
    if not (len(pieces) > 1 and sum(equations) > 1):
        named = _named(text, depth)
        if named is not None:
            return named
    if _is_words(text):
        return _words(text)
    if "=" in text and any(equations) and len(pieces) == 1:
        return _repeated_number(text, depth) or ParsedAnswer("relation", text, text)
    return _mathematics(text, pieces, depth)


def _approximation(text: str, depth: int) -> tuple[str, ParsedAnswer | None]:
    """Split `16\\pi \\approx 50.27`; `x \\approx 11` assigns a value to a name, as `=` does."""
    sides = [side.strip() for side in _split_top_level(text, frozenset({r"\approx"}))]
    if len(sides) != 2 or not all(sides):
        return text, None
    if len(sides[0]) <= 80 and any(pattern.fullmatch(sides[0]) for pattern in _NAMES):
        return f"{sides[0]}={sides[1]}", None
    return sides[0], _parse(sides[1], depth + 1)


def _named(text: str, depth: int) -> ParsedAnswer | None:
    """Parse an assignment such as `x = 5`, `f(x) = ...` or `k = 2+3 = 5`: a name and its last value."""
    sides = [side.strip() for side in _split_top_level(text, frozenset("="))]
    if len(sides) < 2 or not all(sides):
        return None
    name = sides[0]
    if len(sides) == 2 and _PLAIN_NUMBER.fullmatch(name) and _VARIABLE.fullmatch(sides[1]):
        # `5 = s` means `s = 5`.
        name, sides = sides[1], sides[::-1]
    if len(name) > 80 or not any(pattern.fullmatch(name) for pattern in _NAMES):
        return None
    name = " ".join(name.split())
    if (len(name) > 2 and " " in name) or re.fullmatch(r"[A-Za-z]{4,}", name):
        name = name.casefold()
    inner = _parse(sides[-1], depth + 1)
    return replace(inner, text=f"{name}={inner.text}", name=name, rounded=None)


def _repeated_number(text: str, depth: int) -> ParsedAnswer | None:
    """Parse `\\frac{3}{5} = 0.6`, one number written twice; a sum and its value are more than that."""
    sides = _split_top_level(text, frozenset("="))
    if not all(_PLAIN_VALUE.fullmatch(side.strip()) for side in sides):
        return None
    first, *others = (_parse(side, depth + 1) for side in sides)
    value = first.number.value if first.number is not None else None
    return first if all(other.number is not None and other.number.value == value for other in others) else None


def _mathematics(text: str, pieces: list[str], depth: int) -> ParsedAnswer:
    signs = _plus_minus(text)
    if signs is not None:
        parts = tuple(_parse(sign, depth + 1) for sign in signs)
        return ParsedAnswer("list", text, text, parts=parts)
    if len(pieces) > 1:
        return _list(text, pieces, "", depth)
    ratio = _split_top_level(text, frozenset(":"))
    if len(ratio) > 1:
        if all(_RATIO_PART.fullmatch(part) for part in ratio):
            return ParsedAnswer("ratio", text, text, parts=tuple(_parse(part, depth + 1) for part in ratio))
        return ParsedAnswer("opaque", text)
    union = _split_top_level(text, frozenset({r"\cup"}))
    if len(union) > 1:
        parts = tuple(_parse(part, depth + 1) for part in union)
        return ParsedAnswer("union", text, text, parts=parts)
    matrix = _MATRIX.fullmatch(text)
    if matrix is not None:
        return _matrix(text, matrix.group(2), depth)
    array = _ARRAY.fullmatch(text)
    if array is not None:
        return _matrix(text, array.group(1), depth)
    bracketed = _bracketed(text)
    if bracketed is not None:
        brackets, content = bracketed
        inside = _split_top_level(content, frozenset(",;"))
        if len(inside) > 1 or brackets in ("{}", "[]"):
            return _list(text, inside, brackets, depth)
    if len(_split_top_level(text, _RELATIONS)) > 1:
        return ParsedAnswer("relation", text, text)
    return _scalar(text)


def _scalar(text: str) -> ParsedAnswer:
    value, unit = split_unit(text)
    if _NO_NUMBER.search(value):
        return ParsedAnswer("opaque", text)
    if unit is not None:
        value = _without_outer_round(value)
    try:
        number = exact(value)
    except (TooLargeError, ZeroDivisionError):
        return ParsedAnswer("opaque", f"{value} {unit}" if unit else value)
    spelled = value if number is None else _spell(number) or value
    kind: Kind = "number" if number is not None else "expression"
    return ParsedAnswer(kind, f"{spelled} {unit}" if unit else spelled, value, number=number, unit=unit)


def _spell(number: Exact) -> str | None:
    value = number.value
    # Python refuses to print integers of more than 4,300 digits; such a value keeps its spelling.
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 14_000:
        return None
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _list(text: str, pieces: list[str], brackets: str, depth: int) -> ParsedAnswer:
    pieces = [piece.strip() for piece in pieces if piece.strip()]
    if len(pieces) > _MAX_PARTS:
        return ParsedAnswer("opaque", text)
    parts = tuple(_parse(piece, depth + 1) for piece in pieces)
    # A list with an opaque part is opaque.
    if any(part.kind == "opaque" for part in parts):
        return ParsedAnswer("opaque", text)
    opening, closing = brackets[:1], brackets[1:]
    escape = "\\" if brackets == "{}" else ""
    spelled = f"{escape}{opening}{', '.join(part.text for part in parts)}{escape}{closing}"
    return ParsedAnswer("list", spelled, text, brackets=brackets, parts=parts)


def _matrix(text: str, content: str, depth: int) -> ParsedAnswer:
    rows = [_split_top_level(row, frozenset("&")) for row in content.strip().removesuffix(r"\\").split(r"\\")]
    if sum(len(row) for row in rows) > _MAX_PARTS:
        return ParsedAnswer("opaque", text)
    parts = tuple(
        ParsedAnswer("list", "", brackets="row", parts=tuple(_parse(cell, depth + 1) for cell in row)) for row in rows
    )
    return ParsedAnswer("matrix", text, text, parts=parts)


def _plus_minus(text: str) -> tuple[str, str] | None:
    """Return the two values of `a \\pm b`; None without the sign or with several."""
    if text.count(r"\pm") != 1 or len(_split_top_level(text, _SEPARATORS | {"=", ":"})) > 1:
        return None
    before, _, after = text.partition(r"\pm")
    return f"{before}+{after}" if before.strip() else after, f"{before}-{after}"


def _is_words(text: str) -> bool:
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
        if word in _SHORT_WORDS:
            return True
        if len(word) >= 4 and word not in _MATRIX_WORDS and not (mathematical and word in UNIT_WORDS):
            return True
        if not mathematical and "," not in text:
            return True
    # Three words in a row are a sentence, however short.
    return len(re.findall(r"(?<![A-Za-z\\])[A-Za-z]{2,}(?= [A-Za-z]{2,})", plain)) >= 2


# Short words that are words even next to numbers (`5 am`).
_SHORT_WORDS = frozenset({"am", "pm", "no", "is", "of", "the", "not", "for", "but", "yes", "odd"})
_MATRIX_WORDS = frozenset({"matrix", "bmatrix", "pmatrix", "vmatrix", "cases", "array"})


def _words(text: str) -> ParsedAnswer:
    folded = [
        word if word.isupper() and len(word) <= 3 and word not in _CASED_WORDS else word.casefold()
        for word in text.replace('"', "").split()
    ]
    folded_text = " ".join(folded).rstrip(".!,;: ")
    # `SIN` is a word and `sin` a function: fold case only where that keeps the meaning.
    stable = len(text) > 1 and clean(folded_text) == folded_text and _is_words(folded_text)
    return ParsedAnswer("words", folded_text if stable else text)


# --- splitting ----------------------------------------------------------------------------------------------


def _split_top_level(text: str, separators: frozenset[str]) -> list[str]:
    """Split `text` at separators outside brackets; the whole text when brackets do not balance."""
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
    # In `1, 2, and 3` the comma before `and` separates nothing.
    kept = [part for part in parts if part.strip()] if "," in separators else parts
    return kept or [text]


def _bracketed(text: str) -> tuple[str, str] | None:
    """Return (brackets, content) when one pair encloses the whole text; the two may differ (`[6,8)`)."""
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
    """Drop parentheses around the whole of one value."""
    for _ in range(4):
        if not text.startswith("("):
            break
        bracketed = _bracketed(text)
        if bracketed is None or bracketed[0] != "()" or len(_split_top_level(bracketed[1], frozenset(",;"))) > 1:
            break
        inner = bracketed[1].strip()
        if not inner:
            break
        text = inner
    return text
