"""Parse an answer by the grammar in `grammar`: what it says, or that it is opaque.

Parsing does not judge; `comparison` decides whether two parsed answers are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, wraps
from itertools import islice
from typing import Literal, TypeVar

from mmcorl.answers.grammar import (
    GREEK,
    THEREFORE,
    bracketed,
    is_expression,
    split_top_level,
    without_round_brackets,
)
from mmcorl.answers.latex import MAX_LENGTH, clean
from mmcorl.answers.matrices import matrix_rows
from mmcorl.answers.names import SYMBOL, is_name, is_of_angle, is_words
from mmcorl.answers.numbers import Exact, TooLargeError, constant_value, equal_expressions, exact, is_rounding
from mmcorl.answers.numerals import scaled, with_counter
from mmcorl.answers.option_letters import LISTED_LETTER, labelled_option, offers_more, option_letter
from mmcorl.answers.units import UNIT_WORDS, split_unit, without_units
from mmcorl.answers.words import MULTIPLES, amount_in_words, counted_things, fold_case

Kind = Literal[
    "number", "expression", "relation", "list", "union", "matrix", "ratio", "labelled", "parts", "words", "opaque"
]

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
    """Brackets of a list: `()`, `[]`, `(]`, `[)`, `{}` or empty for a bare enumeration."""
    parts: tuple[ParsedAnswer, ...] = ()
    joined: str = ""
    """The `or` or `and` between the conditions of a bare enumeration."""
    rounded: ParsedAnswer | None = None
    """The approximation that the answer gives of itself: the 50.27 of `16\\pi \\approx 50.27`."""
    sides: tuple[ParsedAnswer, ...] = ()
    """Constants that the answer says are equal, itself the last: `24*24 = 576`."""


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
    if labelled is not None and not offers_more(labelled[1]) and not LISTED_LETTER.match(text):
        letter, rest = labelled
        inner = _parse(rest, 1)
        return ParsedAnswer("labelled", f"{letter}: {inner.text}", name=letter, parts=(inner,))
    return _parse(text, 0)


@_cached
def parse_value(value: str) -> ParsedAnswer:
    """Parse the value of an option, in which a letter is no label; never raises."""
    text = clean(value) if len(value) <= MAX_LENGTH else value
    return _parse(text, 0) if len(text) <= MAX_LENGTH else ParsedAnswer("opaque", text)


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


# --- structure ----------------------------------------------------------------------------------------------

_COMMAND = re.compile(r"\\[A-Za-z]+")
_POINT = re.compile(r"([A-Z](?:_\w)?'?)(\(.+\))", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z](?:_\w)?|\\[a-z]+")
_PLAIN_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_MEMBER = re.compile(r"([A-Za-z](?:_\w)?|\\(?:theta|alpha|beta|lambda|mu))\s*\\in(?![A-Za-z])\s*(.+)", re.DOTALL)
_SET_BUILDER = re.compile(
    r"\\\{\s*([A-Za-z](?:_\w)?)(?:\s*\\in\s*(?:\\mathbb ?\{?R\}?|R))?\s*(?:\||:|\\mid|\\colon)\s*(.+)\\\}", re.DOTALL
)
# `2y`, `12/P` and `2\pi oP` between two equations: a value, and a name that a sign or word may have parted from it.
_VALUE_AND_NAME = re.compile(
    r"(.*?(?:[\d)\]}°%]|\\pi(?! ?[A-Za-z](?:\Z|_))))(?:\s|[^\w\s\\]|_|\\(?!pi(?![A-Za-z]))[A-Za-z]+)*"
    rf"(?:(?<=\\pi )[A-Za-z ]+|{SYMBOL}|[A-Z]{{2,3}}|[A-Za-z]\([^()]*\))",
    re.DOTALL,
)
# What stands for a value by its bound variables.
_BOUND = re.compile(r"\\(?:lim|sum|prod|i*nt|det|begin|gcd|lcm|max|min)(?![a-z])")
# `(a) 5 (b) 3`
_LABEL = re.compile(r"(?:(?<=[\s,;)\d}])|^)(?:\(([a-h]|[ivx]{1,4}|[1-9])\)|([a-h]|[ivx]{1,4})(?:\)|[.:] ))[:.]?\s?")
_LABELS = ("abcdefgh", ("i", "ii", "iii", "iv", "v", "vi", "vii", "viii"), "123456789")
_LETTER_OR_GREEK = re.compile(r"[A-DF-Za-df-z]")
# `A-C-B` and `5-2-3-1` are orders: a difference would be worked out, or its letters are small.
_ORDER = re.compile(r"[A-Z]{1,4}(?:-[A-Z]{1,4}){2,}|[a-z](?:-[a-z]){2,}|\d{1,3}(?:-\d{1,3}){2,}")
_SEPARATORS = frozenset({",", ";", "and", "or"})
_RELATIONS = frozenset({"<", ">", r"\le", r"\ge", r"\ne"})
# A number in another base, which later steps would read as decimal, a date, which is no difference, or a bearing.
_NO_NUMBER = re.compile(r"\d_|^(?:1\d|20)\d0'?s$|^\d{4}(-\d\d?){2}$|^(?:\d\d?/){2}\d{4}$|^[NSEW] ?[\d.]+° ?[NSEW]$")
_TERM = re.compile(r"([+-]?) ?(.{0,64}?) ?\\hat\{([ijk])\}")
_SCIENTIFIC = re.compile(r"\d[eE]")
# `10-20` and `10-20 cm` are ranges as often as differences; a side of an equation is worked out.
_RANGE = re.compile(r"\d+-\d+")
_RATIO_PART = re.compile(r"[\d.]+|\d*\\sqrt\{\d+\}|\\frac\{\d+\}\{\d+\}|\d+/\d+|[A-Za-z]|\d*\\pi")


def _parse(text: str, depth: int, worked_out: bool = False) -> ParsedAnswer:
    text = text.strip()
    if depth > _MAX_DEPTH or not text:
        return ParsedAnswer("opaque", text)
    text = without_round_brackets(text)
    if not worked_out and "-" in text and _RANGE.fullmatch(split_unit(text)[0]):
        return ParsedAnswer("opaque", text)
    if (r"\in" in text or r"\{" in text) and (member := _member(text, depth)) is not None:
        return member
    if (derived := _derivation(text, depth)) is not None:
        return derived
    if r"\approx" in text:
        return _approximation(text, depth)
    if (parts := _labelled_parts(text, depth)) is not None:
        return parts
    pieces = split_top_level(text, _SEPARATORS)
    equations = [len(split_top_level(piece, frozenset("="))) > 1 for piece in pieces]
    if any(equations) and not (len(pieces) > 1 and sum(equations) > 1):
        chain = _chain(text, depth)
        if chain is not None:
            return chain
    if is_words(text):
        return _words(text)
    if len(pieces) == 1 and any(equations):
        return ParsedAnswer("relation", text, text)
    return _mathematics(text, pieces, depth, worked_out)


def _member(text: str, depth: int) -> ParsedAnswer | None:
    """Parse `x \\in (0, 1)`, and `\\{x | x > 2\\}` by its condition; None for other text."""
    if (member := _MEMBER.fullmatch(text)) is not None:
        inner = _parse(member.group(2), depth + 1)
        if inner.kind in ("list", "union") and inner.name is None:
            return replace(inner, text=rf"{member.group(1)}\in {inner.text}", name=member.group(1))
    if (condition := _SET_BUILDER.fullmatch(text)) is not None:
        inner = _parse(condition.group(2), depth + 1)
        if inner.kind == "relation" and "=" not in inner.text and condition.group(1) in inner.text:
            return inner
    return None


def _approximation(text: str, depth: int) -> ParsedAnswer:
    """Parse `16\\pi \\approx 50.27`: what follows the sign must be the rounding of the value before it."""
    sides = [side.strip() for side in split_top_level(text, frozenset({r"\approx"}))]
    if len(sides) == 2 and not sides[0]:
        return _parse(sides[1], depth + 1)
    if len(sides) != 2 or not all(sides):
        return ParsedAnswer("opaque", text)
    # `x \approx 11` assigns a value to a name, as `=` does.
    if is_name(sides[0]):
        return _parse(f"{sides[0]}={sides[1]}", depth + 1)
    first, second = (_parse(side, depth + 1, worked_out=True) for side in sides)
    # `0.333 \approx 1/3` is the same the other way round.
    for value, rounded in ((first, second), (second, first)):
        number = rounded.number
        if number is not None and (number.places is not None or number.value.denominator == 1):
            constant = constant_value(value.body) if value.kind in ("number", "expression") else None
            if constant is not None and is_rounding(number, constant):
                if None not in (value.unit, rounded.unit) and value.unit != rounded.unit:
                    break
                # The unit behind the rounding is that of the value.
                unit = value.unit or rounded.unit
                return replace(value, unit=unit, rounded=replace(rounded, name=None, unit=unit))
    name = sides[0].partition("=")[0].strip()
    return ParsedAnswer("opaque", text, name=name if "=" in sides[0] and is_name(name) else None)


def _labelled_parts(text: str, depth: int) -> ParsedAnswer | None:
    """Parse `(a) 5 (b) 3`, whose labels are the first of a row in any order; None for other text."""
    if ")" not in text and ":" not in text and ". " not in text:
        return None
    marks = list(islice(_LABEL.finditer(text), _MAX_PARTS))
    names = [mark.group(1) or mark.group(2) for mark in marks]
    run = next((run for run in _LABELS if sorted(names) == sorted(run[: len(names)])), None)
    if len(marks) < 2 or marks[0].start() or run is None:
        return None
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    values = [text[mark.end() : end].strip(" ,;") for mark, end in zip(marks, ends, strict=True)]
    if not all(value and value[0] not in "+-*/^=<>)" for value in values[:-1]) or not values[-1]:
        return None
    inner = [_parse(value, depth + 1) for value in values]
    if any(part.kind == "opaque" for part in inner):
        return ParsedAnswer("opaque", text)
    parts = tuple(
        ParsedAnswer("labelled", f"({name}) {part.text}", name=name, parts=(part,))
        for name, part in sorted(zip(names, inner, strict=True), key=lambda pair: run.index(pair[0]))
    )
    return ParsedAnswer("parts", " ".join(part.text for part in parts), text, parts=parts)


def _derivation(text: str, depth: int) -> ParsedAnswer | None:
    """Parse `2x = 6 \\implies x = 3` by its last chain, for whose value every other has to hold; None: no such text."""
    if "=" not in text:
        return None
    steps = [step.strip(" ,;.") for step in split_top_level(text, THEREFORE)]
    if len(steps) < 2 or not all("=" in step for step in steps):
        return None
    last = _parse(steps[-1], depth + 1)
    known = last.kind in ("number", "expression") and last.name is not None and _VARIABLE.fullmatch(last.name)
    if not known or not all(_holds(step, str(last.name), last.body) for step in steps[:-1]):
        return ParsedAnswer("opaque", text)
    return last


def _holds(equation: str, name: str, value: str) -> bool:
    """Return whether an equation is shown to hold where one name has a value."""
    where = re.compile(rf"(?<!\\)(?<![A-Za-z]){re.escape(name)}(?![A-Za-z_'])")
    sides = [where.sub(lambda _: f"({value})", side.strip()) for side in split_top_level(equation, frozenset("="))]
    return len(sides) > 1 and all(equal_expressions(side, sides[-1]) is True for side in sides[:-1])


def _chain(text: str, depth: int) -> ParsedAnswer | None:
    """Parse `x = 5` or `k = 2+3 = 5`, a name and its last value, and equal constants such as `24*24 = 576`."""
    sides = [side.strip() for side in split_top_level(text, frozenset("="))]
    if len(sides) < 2 or not all(sides):
        return None
    name: str | None = sides[0]
    if len(sides) == 2 and _PLAIN_NUMBER.fullmatch(sides[0]) and _VARIABLE.fullmatch(sides[1]):
        # `5 = s` means `s = 5`.
        name, sides = sides[1], sides[::-1]
    if name is not None and (
        is_name(name)
        or (_BOUND.match(name) and is_expression(name))
        or (is_of_angle(name) and not _is_constant(name) and _is_constant(sides[-1]))
    ):
        sides = sides[1:]
        name = " ".join(name.split())
        if (len(name) > 2 and " " in name) or re.fullmatch(r"[A-Za-z]{4,}", name):
            name = name.casefold()
        # `x = 1 < y` is an inequality.
        if len(split_top_level(sides[-1], _RELATIONS)) > 1:
            return None
    else:
        name = None
    # `5 cm \times 4 cm = 20 cm^2`, `2160°/2 = 1080°`: units are no factors where the value has one.
    if split_unit(sides[-1])[1] is not None:
        sides = [*map(without_units, sides[:-1]), sides[-1]]
    if not all(is_expression(split_unit(side)[0]) for side in sides[:-1]):
        return ParsedAnswer("opaque", text)
    if name is None and not all(_is_constant(side) for side in sides):
        return None
    inner = _parse(sides[-1], depth + 1, worked_out=True)
    # In `A = bh = 6` the formula says nothing about the value; in `y = 2(x+1) = 2x+2` both are values.
    valued = _is_constant(sides[-1])
    before = [side for side in sides[:-1] if not valued or _is_constant(side)]
    formulas = [side for side in sides[:-1] if valued and not _is_constant(side)]
    if not all(_is_formula(side, str(name)) for side in formulas):
        return ParsedAnswer("opaque", text)
    constants = tuple(_parse(side, depth + 1, worked_out=True) for side in before)
    if any(side.kind not in ("number", "expression") for side in constants):
        return ParsedAnswer("opaque", text)
    if name is not None:
        inner = replace(inner, text=f"{name}={inner.text}", name=name)
    if not constants:
        return inner
    value = inner.number.value if inner.number is not None else None
    if name is None or value is None or any(side.number is None or side.number.value != value for side in constants):
        inner = replace(inner, text=text)
    return replace(inner, sides=(*constants, replace(inner, name=None)))


def _is_formula(side: str, name: str) -> bool:
    """Return whether a side with unknowns is a step to the value of a name, and no value beside another name."""
    if len(side) > 256 or name in (side if name[0] == "\\" else _COMMAND.sub(" ", side)):
        return False
    beside = _VALUE_AND_NAME.fullmatch(side)
    return beside is None or not _is_constant(beside.group(1))


def _is_constant(text: str) -> bool:
    """Return whether a side of an equation holds no unknown; a unit may end it."""
    if len(text) > 256:
        return False
    value = split_unit(text)[0]
    return not _LETTER_OR_GREEK.search(_COMMAND.sub(_greek, value)) or constant_value(value) is not None


def _greek(command: re.Match[str]) -> str:
    return "x" if command.group() in GREEK else " "


def _mathematics(text: str, pieces: list[str], depth: int, worked_out: bool) -> ParsedAnswer:
    signs = _plus_minus(text)
    if signs is not None:
        parts = tuple(_parse(sign, depth + 1, worked_out=True) for sign in signs)
        return ParsedAnswer("list", text, text, parts=parts)
    if len(pieces) > 1:
        return _list(text, pieces, "", depth)
    if (not worked_out and _ORDER.fullmatch(text)) or r"\to" in text:
        steps = [step.strip() for step in re.split(r"-|\\to(?![A-Za-z])", text)]
        return _list(text, steps, "->", depth) if all(steps) else ParsedAnswer("opaque", text)
    if (point := _POINT.fullmatch(text)) is not None:
        inner = _parse(point.group(2), depth + 1)
        if inner.kind == "list" and inner.brackets == "()":
            return replace(inner, text=f"{point.group(1)}={inner.text}", name=point.group(1))
    if r"\hat" in text and (components := _components(text, depth)) is not None:
        spelled = f"({', '.join(part.text for part in components)})"
        return ParsedAnswer("list", spelled, text, brackets="()", parts=components)
    ratio = split_top_level(text, frozenset(":"))
    if len(ratio) > 1:
        if all(_RATIO_PART.fullmatch(part) for part in ratio):
            return ParsedAnswer("ratio", text, text, parts=tuple(_parse(part, depth + 1) for part in ratio))
        return ParsedAnswer("opaque", text)
    union = split_top_level(text, frozenset({r"\cup"}))
    if len(union) > 1:
        parts = tuple(_parse(part, depth + 1) for part in union)
        return ParsedAnswer("union", text, text, parts=parts)
    if r"\begin" in text and (rows := matrix_rows(text)) is not None:
        return _matrix(text, rows, depth)
    inside_brackets = bracketed(text)
    if inside_brackets is not None:
        brackets, content = inside_brackets
        inside = split_top_level(content, frozenset(",;"))
        nested = [bracketed(row.strip()) for row in inside] if brackets == "[]" else []
        if nested and all(row is not None and row[0] == "[]" for row in nested):
            # `[[1, 2], [3, 4]]` is a matrix in a programming language.
            return _matrix(text, [split_top_level(row[1], frozenset(",")) for row in nested if row], depth)
        if len(inside) == 1 and brackets == "[]":
            # `[40]` and `[(0, 0)]`: one value as a program prints it.
            return _parse(content.strip().strip("'\""), depth + 1)
        if len(inside) > 1 or brackets == "{}":
            return _list(text, inside, brackets, depth)
    if len(split_top_level(text, _RELATIONS)) > 1:
        return ParsedAnswer("relation", text, text)
    return _scalar(text)


def _components(text: str, depth: int) -> tuple[ParsedAnswer, ...] | None:
    """Return the coordinates of `3\\hat{i}-2\\hat{j}`; None for other text."""
    terms = re.split(r"(?<=\})(?=[+-])", text)
    matches = [_TERM.fullmatch(term.strip()) for term in terms]
    names = [match.group(3) for match in matches if match]
    if len(names) < len(terms) or names != sorted(set(names)):
        return None
    values = {match.group(3): f"{match.group(1)}{match.group(2) or '1'}" for match in matches if match}
    axes = "ijk" if "k" in names else "ij"
    return tuple(_parse(values.get(axis, "0").lstrip("+"), depth + 1, worked_out=True) for axis in axes)


def _scalar(text: str) -> ParsedAnswer:
    value, unit = split_unit(text)
    if _NO_NUMBER.search(value) or _NO_NUMBER.search(text):
        return ParsedAnswer("opaque", text.replace(" ", ""))
    if unit is not None:
        value = without_round_brackets(value)
    try:
        number = exact(value)
    except (TooLargeError, ZeroDivisionError):
        return ParsedAnswer("opaque", f"{value} {unit}" if unit else value)
    spelled = value if number is None else _spell(number) or value
    # The e of `1e-9` is no constant.
    value = spelled if number is not None and _SCIENTIFIC.search(value) else value
    if number is None and not is_expression(value):
        return _counted(text) or ParsedAnswer("opaque", f"{value} {unit}" if unit else value, unit=unit)
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
    parts = tuple(_parse(piece, depth + 1, worked_out=brackets != "") for piece in pieces)
    # A list with an opaque part is opaque.
    if any(part.kind == "opaque" for part in parts):
        return ParsedAnswer("opaque", text)
    names = list(dict.fromkeys(part.name for part in parts))
    joints = {word: len(split_top_level(text, frozenset({word}))) - 1 for word in ("and", "or")} if not brackets else {}
    if (
        None not in names
        and 1 < len(names) < len(parts)
        and names * (len(parts) // len(names)) == [p.name for p in parts]
    ):
        # `x=1, y=2; x=3, y=4` are two points; in `x=1 or y=2, x=3 or y=4` it is open which.
        if joints["or"] not in (0, len(parts) // len(names) - 1):
            return ParsedAnswer("opaque", text)
        pieces = [", ".join(pieces[start : start + len(names)]) for start in range(0, len(pieces), len(names))]
        parts = tuple(_parse(piece, depth + 1) for piece in pieces)
    if brackets == "->":
        return ParsedAnswer("list", r"\to ".join(part.text for part in parts), text, brackets=brackets, parts=parts)
    opening, closing = brackets[:1], brackets[1:]
    escape = "\\" if brackets == "{}" else ""
    joined = _joined(parts, joints) if joints else ""
    if joined == "and or":
        return ParsedAnswer("opaque", text)
    between = f" {joined} " if joined else ", "
    spelled = f"{escape}{opening}{between.join(part.text for part in parts)}{escape}{closing}"
    return ParsedAnswer("list", spelled, text, brackets=brackets, parts=parts, joined=joined)


def _joined(parts: tuple[ParsedAnswer, ...], joints: dict[str, int]) -> str:
    """Return the words between conditions; between values (`1 or 2`, `x = 1 or x = 2`) they are a comma."""
    words = " ".join(word for word, count in joints.items() if count)
    if any(part.kind == "relation" or r"\in " in part.text for part in parts):
        # Where a value is excluded, all are.
        return words or ("and" if all(r"\ne" in part.text for part in parts) else "")
    return "or" if "or" in words and len({part.name for part in parts} - {None}) > 1 else ""


def _matrix(text: str, rows: Sequence[Sequence[str]], depth: int) -> ParsedAnswer:
    if sum(len(row) for row in rows) > _MAX_PARTS:
        return ParsedAnswer("opaque", text)
    parts = tuple(
        ParsedAnswer("list", "", brackets="row", parts=tuple(_parse(cell, depth + 1) for cell in row)) for row in rows
    )
    return ParsedAnswer("matrix", text, text, parts=parts)


def _plus_minus(text: str) -> tuple[str, str] | None:
    """Return the two values of `a \\pm b`; None without the sign or with several."""
    if text.count(r"\pm") != 1 or len(split_top_level(text, _SEPARATORS | {"=", ":"})) > 1:
        return None
    before, _, after = text.partition(r"\pm")
    return f"{before}+{after}" if before.strip() else after, f"{before}-{after}"


def _counted(text: str) -> ParsedAnswer | None:
    """Parse `twenty-one`, `1.5 million dollars`, `five apples` and `12 red balls`; None for other words."""
    value, unit = split_unit(text)
    count = amount_in_words(value)
    count = scaled(value) if count is None else count
    if count is None and value.casefold() in MULTIPLES:
        count, unit = Fraction(MULTIPLES[value.casefold()]), "times"
    if count is None and (counted := with_counter(text)) is not None:
        unit = split_unit(f"1{counted[1]}")[1]
        count = counted[0] if unit else None
    amount, _, last = text.rpartition(" ")
    if count is None and (last in UNIT_WORDS or last.endswith("s")):
        count, unit = counted_things(text) or (amount_in_words(amount), split_unit(f"1 {last}")[1] or last)
    if count is None:
        return None
    spelled = str(_spell(Exact(count)))
    return ParsedAnswer("number", f"{spelled} {unit}" if unit else spelled, spelled, number=Exact(count), unit=unit)


def _words(text: str) -> ParsedAnswer:
    if (counted := _counted(text)) is not None:
        return counted
    folded_text = fold_case(text.replace('"', "")).rstrip(".!,;: ")
    # `SIN` is a word and `sin` a function: fold case only where that keeps the meaning.
    stable = len(text) > 1 and clean(folded_text) == folded_text and is_words(folded_text)
    return ParsedAnswer("words", folded_text if stable else text)
