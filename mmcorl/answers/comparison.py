"""Compare two parsed answers by what they are: numbers, lists, intervals, equations, words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from mmcorl.answers.grammar import split_top_level
from mmcorl.answers.intervals import interval, region, same_region
from mmcorl.answers.notation import minutes
from mmcorl.answers.numbers import constant_value, equal_equations, equal_expressions
from mmcorl.answers.options import LETTERS, same_spelling
from mmcorl.answers.parse import ParsedAnswer, canonical_text, parse
from mmcorl.answers.rounding import rounds_to, same_number

_MAX_UNMATCHED = 8
_BEARING = {"°", "°T"}
"""True bearings are degrees; the T only names the direction they are measured from."""
_LETTER, _COMMAND = re.compile(r"[A-Za-z]"), re.compile(r"\\[A-Za-z]+")
# A letter that is nowhere else in an antiderivative.
_CONSTANT_TERM = re.compile(r"(.+)\+ ?[CcK](?:_[01])?", re.DOTALL)
_PLAIN_UNION = {"", "()", "{}"}
_WRITTEN_FRACTION = re.compile(r"\\frac|\d/\d")
_TIME = re.compile(r"\d{1,2}:[0-5]\d")
_LEADING_ZERO = re.compile(r"(?<![\d.])0\d")
_COMPUTED = re.compile(r".+[-+].*|.*\\(?:cdot|times|div).*", re.DOTALL)
_INDEXED = re.compile(r"\\?([A-Za-z]+)_?\{?(\w{0,6})\}?")
_INEQUALITY = re.compile(r"(<|>|\\le(?![A-Za-z])|\\ge(?![A-Za-z]))")
_MIRRORED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}
_LINES = {("m", "b"), ("m", "c"), ("k", "b"), ("k", "m")}  # in the order of `y = mx + b`
_SUM = re.compile(r"\\(?:sum|prod)_(?:\{[^{}]*\}|\w)\^(?:\{[^{}]*\}|\w|\\infty(?![A-Za-z]))")
_SYMBOLS = {
    "slope": ("m", "k"),
    "area": ("s",),
    "perimeter": ("c", "l"),
    "bearing": (r"\theta",),
    "angle": (r"\theta",),
}
"""Letters that usually stand for a described quantity, besides its initials."""


class Comparison:
    """Compares one pair of answers; `prove` decides equality of two expressions that needs computer algebra."""

    def __init__(self, prove: Callable[[str, str], bool]) -> None:
        self._prove = prove

    def same_text(self, a: str, b: str) -> bool:
        """Return whether two answers to an open question are the same."""
        left, right = parse(a), parse(b)
        if left.number is not None and right.number is not None:
            return self.same(left, right)
        # Votes are shown by canonical text, so equal texts are one answer.
        return self.same(left, right) or canonical_text(a) == canonical_text(b)

    def same_value(self, value: ParsedAnswer, option: ParsedAnswer, ratio_asked: bool = False) -> bool:
        """Return whether a value is that of an option or a gold; `7:30` is a ratio only where one is asked."""
        if same_spelling(value, option):
            return True
        if ratio_asked and value.kind == option.kind == "ratio" and _proportional(value, option):
            return True
        for ratio, other in ((option, value), (value, option)):
            # 5/12 answers 5:6, and 5:6 answers 5/6; the decimal does not, nor a fraction of something.
            if (
                (fraction := quotient(ratio, ratio_asked)) is not None
                and other.unit is None
                and _WRITTEN_FRACTION.search(other.body)
            ):
                return self.same(other, fraction)
        # A single letter that is no label names nothing by value: the variable a is not the option "A".
        if len(value.body) == 1 and value.body in LETTERS:
            return False
        return self.same(value, option)

    def same(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        """Return whether two parsed answers are the same."""
        if a.text == b.text:
            return True
        if ":" in a.text and ":" in b.text and (time := minutes(a.text)) is not None and time == minutes(b.text):
            return True
        for answer in (a, b):
            last = answer.sides[-1] if answer.sides else answer
            if not all(self.same(side, last) or _close(side, last) for side in answer.sides[:-1]):
                return False
        if a.sides and b.sides and a.name is None and b.name is None:
            # Equations between constants are not the same because both are true.
            return self._same_sides(a.sides, b.sides) or self._same_sides(a.sides, b.sides[::-1])
        for answer, other in ((a, b), (b, a)):
            if answer.rounded is not None and other.rounded is None:
                return self.same(replace(answer, rounded=None), other) or self.same(answer.rounded, other)
        kinds = {a.kind, b.kind}
        if "parts" in kinds:
            return self._same_parts(a, b)
        if "labelled" in kinds:
            return "opaque" not in kinds and self._same_labelled(a, b)
        left, right = (_assigned(answer) if kinds == {"list"} else None for answer in (a, b))
        if left is not None or right is not None:
            return self._same_assigned(a, b, left, right)
        if a.name is not None and b.name is not None and not may_share_a_name(a.name, b.name):
            return False
        if kinds != {"list"} or a.joined or b.joined:
            left_region, right_region = region(a), region(b)
            if left_region is not None and right_region is not None:
                return same_region(left_region, right_region, self.same)
        if "opaque" in kinds:
            # Only the spelling is known: `x = 4343_6` gives 4343_6.
            return a.kind == b.kind and _value_text(a) == _value_text(b)
        if "relation" in kinds:
            return self._same_relation(a, b)
        if "words" in kinds:
            return a.kind == b.kind and _value_text(a) == _value_text(b)
        if kinds <= {"number", "expression"}:
            return self._same_scalar(a, b)
        if kinds == {"matrix", "list"}:
            # A column or row of numbers is a point.
            matrix, other = (a, b) if a.kind == "matrix" else (b, a)
            cells = tuple(cell for row in matrix.parts for cell in row.parts)
            line = len(cells) > 1 and len(cells) == max(len(matrix.parts), len(matrix.parts[0].parts))
            return line and other.brackets == "()" and self._same_in_order(cells, other.parts)
        if a.kind != b.kind:
            return False
        if a.kind == "list":
            return self._same_list(a, b)
        if a.kind == "union":
            return self._match(a.parts, b.parts)
        if a.kind == "matrix":
            return len(a.parts) == len(b.parts) and all(
                self._same_in_order(row.parts, other.parts) for row, other in zip(a.parts, b.parts, strict=True)
            )
        # `01:02` is a time, which is `1:02` and not `1:2`.
        if any(_LEADING_ZERO.search(ratio.body) or _TIME.fullmatch(ratio.body) for ratio in (a, b)):
            return a.body.lstrip("0") == b.body.lstrip("0")
        return self._same_in_order(a.parts, b.parts) or _proportional(a, b)

    def _same_sides(self, a: tuple[ParsedAnswer, ...], b: tuple[ParsedAnswer, ...]) -> bool:
        """Return whether equal constants are written alike: `5+19=24` is another answer than `11+13=24`."""
        return self._same_in_order(a, b) and all(
            _spelled_out(x) == _spelled_out(y)
            for x, y in zip(a, b, strict=True)
            if _COMPUTED.fullmatch(x.body) or _COMPUTED.fullmatch(y.body)
        )

    def _same_parts(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        """Compare `(a) 5 (b) 3` label by label, and with `5, 3` in order."""
        if a.kind == b.kind:
            return self._same_in_order(a.parts, b.parts)
        labelled, plain = (a, b) if a.kind == "parts" else (b, a)
        values = tuple(part.parts[0] for part in labelled.parts)
        # `True, False` is words.
        others = tuple(map(parse, plain.text.split(", "))) if plain.kind == "words" else plain.parts
        return plain.kind in ("list", "words") and not plain.brackets and self._same_in_order(values, others)

    def _same_labelled(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        """`B. 45°` against `B`, `B: 45` or `45°`: what one side omits cannot contradict the other."""
        if a.kind != "labelled":
            a, b = b, a
        if b.kind == "labelled":
            return a.name == b.name and self.same(a.parts[0], b.parts[0])
        if b.name is None and len(b.text) == 1 and b.text in LETTERS:
            return a.name == b.text
        return self.same(a.parts[0], b)

    def _same_relation(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        if a.kind != b.kind:
            relation, other = (a, b) if a.kind == "relation" else (b, a)
            equation = "=" in relation.body
            ends = other.kind == "list" and len(other.parts) == 2 and other.brackets in ("()", "[]", "(]", "[)")
            # `x > 2` may be an interval, and `2x + y = 5` may be `y = 5 - 2x`; nothing else is comparable.
            if not (other.name is not None if equation else ends or other.kind == "union"):
                return False
        comparisons = [_INEQUALITY.split(text.body) for text in (a, b)]
        left, right = interval(a), interval(b)
        if (
            left is not None
            and right is not None
            and (None in (left.variable, right.variable) or left.variable == right.variable)
        ):
            return same_region((left,), (right,), self.same)
        if max(len(sides) for sides in comparisons) > 3:
            # `A>B>C` is an order.
            return any(self._same_chain(comparisons[0], sides) for sides in (comparisons[1], _mirrored(comparisons[1])))
        decided = equal_equations(_equation(a), _equation(b))
        return self._prove(_equation(a), _equation(b)) if decided is None else decided

    def _same_chain(self, a: list[str], b: list[str]) -> bool:
        """Return whether chains `A>B>C`, split at their signs, agree side by side and sign by sign."""
        return a[1::2] == b[1::2] and all(self.same(parse(x), parse(y)) for x, y in zip(a[::2], b[::2], strict=True))

    def _same_list(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        if a.brackets == b.brackets:
            ordered = a.brackets not in ("", "{}")
        elif "" in (a.brackets, b.brackets) and {a.brackets, b.brackets} <= _PLAIN_UNION:
            # A list of values is no point, unless a question asks for them in order.
            ordered = False
            if "()" in (a.brackets, b.brackets):
                return False
        else:
            return False
        if a.joined != b.joined or (a.brackets != b.brackets and (_is_member(a) or _is_member(b))):
            return False
        if ordered:
            return self._same_in_order(a.parts, b.parts)
        return self._match(_without_repeated_points(a.parts), _without_repeated_points(b.parts))

    def _same_assigned(
        self,
        a: ParsedAnswer,
        b: ParsedAnswer,
        left: tuple[ParsedAnswer, ...] | None,
        right: tuple[ParsedAnswer, ...] | None,
    ) -> bool:
        """`x = 1, y = 2` and `(x, y) = (1, 2)` by name; `(1, 2)` is in the order of the alphabet."""
        if a.joined != b.joined:
            return False
        if left is not None and right is not None:
            return self._match(left, right)
        named, plain, values = (a, b, left) if left is not None else (b, a, right)
        assert values is not None
        if _is_member(plain) or any(part.name is not None for part in plain.parts):
            return False
        if not _are_named(values):
            # Roots x_1, x_2 come in any order, and are no point.
            if named.brackets == "()":
                return plain.brackets in ("()", "") and self._same_in_order(values, plain.parts)
            return plain.brackets in ("", "{}") and self._match(values, plain.parts)
        keys = [_INDEXED.fullmatch(str(part.name)) for part in values]
        if (
            plain.brackets not in ("()", "")
            or (plain.name and not plain.brackets)
            or len({part.name for part in values}) < len(keys)
            or not all(keys)
        ):
            return False
        order = sorted(range(len(keys)), key=lambda i: _alphabetical(keys[i]))
        if tuple(part.name for part in values) in _LINES:
            order = [0, 1]
        # Coordinates have their order; elsewhere `y = 1, x = 2` and `1, 2` leave open which is which.
        if order != list(range(len(keys))) and (named.brackets or not plain.brackets):
            return False
        return self._same_in_order(tuple(values[i] for i in order), plain.parts)

    def _same_in_order(self, a: tuple[ParsedAnswer, ...], b: tuple[ParsedAnswer, ...]) -> bool:
        return len(a) == len(b) and all(self.same(x, y) for x, y in zip(a, b, strict=True))

    def _match(self, a: tuple[ParsedAnswer, ...], b: tuple[ParsedAnswer, ...]) -> bool:
        """Return whether the parts pair up in some order, each used once: `1, 1` is neither `1, 2` nor `1`."""
        if len(a) != len(b):
            return False
        rest = list(b)
        unmatched = []
        for part in a:
            index = next((i for i, other in enumerate(rest) if other.text == part.text), None)
            if index is None:
                unmatched.append(part)
            else:
                del rest[index]
        if len(unmatched) > _MAX_UNMATCHED:
            return False
        for part in unmatched:
            index = next((i for i, other in enumerate(rest) if self.same(part, other)), None)
            if index is None:
                return False
            del rest[index]
        return True

    def _same_scalar(self, a: ParsedAnswer, b: ParsedAnswer) -> bool:
        if a.unit is not None and b.unit is not None and a.unit != b.unit and {a.unit, b.unit} != _BEARING:
            return False
        if a.number is not None and b.number is not None:
            # The x of `x = 4` has a value, which is not 4%.
            return (a.unit == b.unit or "%" not in (a.unit, b.unit) or a.name == b.name) and same_number(a, b)
        if (a.unit == "%") != (b.unit == "%"):
            return False
        a, b = _with_one_constant(a, b)
        if a.body == b.body:
            return True
        # `\\infty+1` is no number, and an algebra system says it equals `\\infty`.
        if r"\infty" in a.body or r"\infty" in b.body:
            return False
        sums = _SUM.match(a.body), _SUM.match(b.body)
        if sums[0] is not None and sums[1] is not None and sums[0].group() == sums[1].group():
            # Both run over the same terms; a product is wholly under the sign.
            terms = parse(a.body[sums[0].end() :]), parse(b.body[sums[1].end() :])
            if all(term.kind == "expression" and _is_product(term.body) for term in terms):
                return self._same_scalar(*terms)
        decided = rounds_to(a, b)
        if decided is None:
            decided = equal_expressions(a.body, b.body)
        return self._prove(a.body, b.body) if decided is None else decided


def _close(a: ParsedAnswer, b: ParsedAnswer) -> bool:
    """Return whether two constants agree to all digits of a float, which a chain that holds is known by."""
    x, y = (None if "i" not in answer.body else constant_value(answer.body) for answer in (a, b))
    y = constant_value(b.body) if y is None else y
    return x is not None and y is not None and abs(x - y) <= 1e-12 * max(abs(x), 1.0)


def _proportional(a: ParsedAnswer, b: ParsedAnswer) -> bool:
    """Return whether two ratios are one in different terms: `6:8` is `3:4`."""
    if len(a.parts) != len(b.parts) or any(not part.body.strip("0.") for part in (*a.parts, *b.parts)):
        return False
    (x, y), *rest = [(x.body, y.body) for x, y in zip(a.parts, b.parts, strict=True)]
    return all(equal_expressions(f"({x})({above})", f"({y})({below})") is True for below, above in rest)


def _with_one_constant(a: ParsedAnswer, b: ParsedAnswer) -> tuple[ParsedAnswer, ParsedAnswer]:
    """Spell the constant of integration C where both answers end with one, `+C` or `+c`."""
    ends = [_CONSTANT_TERM.fullmatch(answer.body) for answer in (a, b)]
    rest = [end.group(1) for end in ends if end]
    letters = [set(_LETTER.findall(_COMMAND.sub("", text))) for text in rest]
    if len(rest) < 2 or not all(names - {"e", "i"} and not names & {"C", "c", "K"} for names in letters):
        return a, b
    return replace(a, body=f"{rest[0]}+C"), replace(b, body=f"{rest[1]}+C")


def _is_product(text: str) -> bool:
    return len(split_top_level(text, frozenset("+-"))) == 1


def _mirrored(sides: list[str]) -> list[str]:
    return [_MIRRORED.get(side, side) for side in sides[::-1]]


def quotient(ratio: ParsedAnswer, ratio_asked: bool = True) -> ParsedAnswer | None:
    """Return 5/6 for the ratio 5:6; None for other answers and times, of which only the question can say `ratio`."""
    if ratio.kind != "ratio" or len(ratio.parts) != 2 or ratio.unit is not None:
        return None
    if _LEADING_ZERO.search(ratio.body) or (_TIME.fullmatch(ratio.body) and not ratio_asked):
        return None
    return parse(rf"\frac{{{ratio.parts[0].text}}}{{{ratio.parts[1].text}}}")


def _without_repeated_points(parts: tuple[ParsedAnswer, ...]) -> tuple[ParsedAnswer, ...]:
    """Drop repeated points; numbers stay, because two equal ones are a double root or fill two blanks."""
    if any(part.kind != "list" for part in parts):
        return parts
    return tuple({part.text: part for part in parts}.values())


def _assigned(answer: ParsedAnswer) -> tuple[ParsedAnswer, ...] | None:
    """Return the values of several names, of `x = 1, y = 2` and of `(x, y) = (1, 2)`; None for another list."""
    if answer.name is not None:
        names = answer.name[1:-1].split(", ") if answer.name.startswith("(") else []
        if len(names) != len(answer.parts) or answer.brackets != "()" or any(part.name for part in answer.parts):
            return None
        return tuple(
            replace(part, text=f"{name}={part.text}", name=name) for name, part in zip(names, answer.parts, strict=True)
        )
    names_of_parts = {part.name for part in answer.parts}
    if answer.brackets or None in names_of_parts or len(names_of_parts) < 2 or any(map(_is_member, answer.parts)):
        return None
    return answer.parts


def _is_member(answer: ParsedAnswer) -> bool:
    """Return whether an answer lies in an interval: `x\\in(1, 2)`."""
    return answer.brackets not in ("", "{}") and answer.text.startswith(rf"{answer.name}\in ")


def _alphabetical(name: re.Match[str] | None) -> tuple[str, int, str]:
    """Return what orders names as people do: x_2 before x_10, and r before \\theta."""
    assert name is not None
    letters, index = name.groups()
    return letters.casefold(), int(index) if index.isdecimal() else -1, index


def _spelled_out(side: ParsedAnswer) -> str:
    return side.body.replace(r"\times", r"\cdot").replace(" ", "")


def _are_named(parts: tuple[ParsedAnswer, ...]) -> bool:
    """Return whether the parts are values of different quantities, not `x_1`, `x_2`, ... in turn."""
    names = [part.name for part in parts]
    if None in names or len(set(names)) < 2:
        return False
    indexed = [re.fullmatch(r"(.+)_\{?(\d)\}?", str(name)) for name in names]
    if not all(indexed):
        return True
    bases = {match.group(1) for match in indexed if match}
    return len(bases) > 1 or [int(match.group(2)) for match in indexed if match] != list(range(1, len(names) + 1))


def may_share_a_name(a: str, b: str) -> bool:
    """Return whether two names may stand for one quantity: `Area` and `A` may, `k` and `m` may not."""
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    initials = {"".join(word[0] for word in long.split()), long[0]}
    described = re.fullmatch(r"[a-z.' ]{4,}", long) is not None
    # An unknown called x may be whatever the question asks for.
    return described and (
        short == "x" or short.casefold() in initials or short.casefold() in _SYMBOLS.get(long.split()[-1], ())
    )


def _value_text(answer: ParsedAnswer) -> str:
    return answer.text if answer.name is None else answer.text.partition("=")[2]


def _equation(answer: ParsedAnswer) -> str:
    return answer.text if answer.name is not None else answer.body
