"""The values of expressions: exact ones, and those that tell whether two expressions are equal.

An expression is worked out in rationals (`exact`), in floats, and in numbers of 420 digits, each variable as a number
that its name decides. What differs in a value differs. Expressions without a root, logarithm or modulus of a variable
that agree in two such values to 100 places are equal; of others only computer algebra can tell.
"""

from __future__ import annotations

import cmath
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from mmcorl.answers.grammar import Node, read

Value = Any
"""A Fraction, a float or complex, or a number of mpmath; one type per calculation."""

MAX_BITS = 1 << 16
"""Larger numbers are not evaluated."""
MAX_FACTORIAL = 3000
_DIGITS, _AGREEING = 420, 100
"""Digits of a precise value, and places to which equal ones agree: no float has more than 309 digits before them."""
_LITERAL = re.compile(r"([-+]?)(\d*)(?:\.(\d*))?(?:[eE]([-+]?\d{1,4}))?")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_CONSTANTS = frozenset({r"\pi", "e", "i"})
_BRANCHING = frozenset({"root", "|", "floor", "ceil", "mod", r"\ln", r"\log", "log", r"\arcsin", r"\arccos"})
"""Operations whose rules (`\\ln xy = \\ln x + \\ln y`) do not hold for all values of a variable."""


class NotArithmeticError(Exception):
    """The expression has no value of this kind."""


class TooLargeError(Exception):
    """The text is arithmetic whose value is too large to evaluate."""


@dataclass(frozen=True)
class Exact:
    """A rational value and its number of decimals (None unless a decimal literal)."""

    value: Fraction
    places: int | None = None


def literal(text: str) -> Exact | None:
    """Return the value of a plain decimal literal such as `-12.50`, `.4`, `004` or `1.5e3`; None for other text.

    Raises TooLargeError for literals of more than 4,000 digits.
    """
    match = _LITERAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, decimals, exponent = match.groups()
    if not whole and not decimals:
        return None
    # Python refuses to convert more than 4,300 digits.
    if len(whole) + len(decimals or "") > 4000 or abs(int(exponent or 0)) > 4000:
        raise TooLargeError
    digits = int(whole + (decimals or "") or "0")
    value = Fraction(digits, 10 ** len(decimals)) if decimals else Fraction(digits)
    value = value * Fraction(10) ** int(exponent) if exponent else value
    return Exact(-value if sign == "-" else value, len(decimals) if decimals else None)


def exact(text: str) -> Exact | None:
    """Return the rational value of constant arithmetic (`2^{10}`, `7 \\frac{3}{4}`, `\\frac{1}{2004!}`).

    None when the text is not constant arithmetic or not rational. Raises ZeroDivisionError for 1/0 and TooLargeError
    for values too large to evaluate.
    """
    value = literal(text)
    if value is not None:
        return value
    tree = read(text) if any(char.isdigit() for char in text) else None
    try:
        return None if tree is None else Exact(Fraction(_evaluate(tree, _EXACT)))
    except NotArithmeticError:
        return None


def constant_value(text: str) -> complex | None:
    """Approximate an expression without variables; None for one with variables and for ambiguous text."""
    tree = read(text)
    return None if tree is None or _variables(tree) else _approximate(tree, 1)


def is_rounding(number: Exact, value: complex) -> bool:
    """Return whether a decimal is within half its last place, plus the float's own error, of a value."""
    if abs(value.imag) > 1e-12 * abs(value):
        return False
    slack = Fraction(1, 2 * 10 ** (number.places or 0)) + Fraction(abs(value.real)) / 10**14
    return abs(Fraction(value.real) - number.value) <= slack


def equal_expressions(a: str, b: str) -> bool | None:
    """Return whether two expressions are equal; None when that takes computer algebra."""
    left, right = read(a), read(b)
    return None if left is None or right is None else _equal(left, right)


def equal_equations(a: str, b: str) -> bool | None:
    """Return whether the differences of the sides of two equations are multiples of each other; None: undecided."""
    parts = [part.strip() for text in (a, b) for part in text.split("=")]
    sides = [tree for tree in map(read, parts) if tree is not None]
    if not len(parts) == len(sides) == 4:
        return None
    left, right = (("+", x, ("-", y)) for x, y in (sides[:2], sides[2:]))
    pairs = [(_precise(left, sample), _precise(right, sample)) for sample in (1, 2, 3)]
    values = [(x, y) for x, y in pairs if x is not None and y is not None]
    if len(values) < len(pairs):
        return None
    if any(all(_agree(value[side], values[0][side]) for value in values) for side in (0, 1)):
        # `0x=5` and `0x=7` have no solution, and are not the same for that; constants are compared side by side.
        return _letters(a) == _letters(b) and any(
            _equal(sides[0], sides[2 + k]) is True and _equal(sides[1], sides[3 - k]) is True for k in (0, 1)
        )
    if any(_agree(x, 0) or _agree(y, 0) for x, y in values):
        return None
    if not all(_agree(x / y, values[0][0] / values[0][1]) for x, y in values):
        return False
    return None if _branches(left) or _branches(right) else True


def _letters(text: str) -> set[str]:
    return {char for char in _COMMAND.sub("", text) if char.isalpha()}


def _equal(left: Node, right: Node) -> bool | None:
    samples = (1, 2) if _variables(left) or _variables(right) else (1,)
    for sample in samples:
        x, y = _approximate(left, sample), _approximate(right, sample)
        if x is None or y is None:
            return None
        # 1e-9 is far above the rounding of a float and far below any difference an answer would show.
        if abs(x - y) > 1e-9 * max(1.0, abs(x), abs(y)):
            return False
    for sample in samples:
        x, y = _precise(left, sample), _precise(right, sample)
        if x is None or y is None:
            return None
        if not _agree(x, y):
            return False
    return None if _branches(left) or _branches(right) else True


def _agree(x: Value, y: Value) -> bool:
    return bool(abs(x - y) <= 10**-_AGREEING)


@lru_cache(maxsize=1 << 13)
def _variables(tree: Node) -> frozenset[str]:
    """Return the variables and unknown functions of an expression."""
    if tree[0] in ("symbol", "apply"):
        named = frozenset({tree[1]}) - _CONSTANTS
        return named | _variables(tree[2]) if tree[0] == "apply" else named
    return frozenset().union(*(_variables(part) for part in tree[1:] if isinstance(part, tuple)))


@lru_cache(maxsize=1 << 13)
def _branches(tree: Node) -> bool:
    """Return whether a variable is where equal values at some points say nothing of others."""
    if tree[0] in _BRANCHING and _variables(tree):
        return True
    if tree[0] == "^" and _variables(tree[1]) and not _is_whole(tree[2]):
        return True
    return any(_branches(part) for part in tree[1:] if isinstance(part, tuple))


def _is_whole(tree: Node) -> bool:
    try:
        return bool(_evaluate(tree, _EXACT).denominator == 1)
    except (NotArithmeticError, TooLargeError, ZeroDivisionError):
        return False


@lru_cache(maxsize=1 << 13)
def _approximate(tree: Node, sample: int) -> complex | None:
    """Return the value in floats, each variable a number that depends on `sample`; None where there is none."""
    value = _value(tree, sample, precise=False)
    return None if value is None or not cmath.isfinite(value) else complex(value)


def _precise(tree: Node, sample: int) -> Value | None:
    # What is too large for a float is not worked out: mpmath knows no overflow.
    return None if _approximate(tree, sample) is None else _value(tree, sample, precise=True)


def _value(tree: Node, sample: int, precise: bool) -> Value | None:
    try:
        return _evaluate(tree, _inexact_operations(sample, precise))
    except (NotArithmeticError, TooLargeError, ArithmeticError, ValueError, TypeError):
        # TypeError: functions, roots and factorials of complex numbers are not attempted.
        return None


Operations = dict[str, Callable[..., Value]]


def _evaluate(tree: Node, operations: Operations) -> Value:
    operation = operations.get(tree[0])
    if operation is None:
        raise NotArithmeticError
    return operation(*[_evaluate(part, operations) if isinstance(part, tuple) else part for part in tree[1:]])


def _operations(
    number: Callable[[str], Value], power: Callable[[Value, Value], Value], root: Callable[[Value, int], Value]
) -> Operations:
    """Return the operations that every kind of number has."""
    unit, ten = number("1"), number("10")

    def repeating(start: str, digits: str) -> Value:
        return number(start) + number(digits) / ten ** len(start.partition(".")[2]) / (ten ** len(digits) - unit)

    return {
        "number": number,
        "+": _sum,
        "-": lambda value: -value,
        "*": lambda *factors: _bounded(math.prod(factors[1:], start=factors[0])),
        "/": lambda value: unit / value,
        "mod": lambda a, b: unit * (_whole(a) % _whole(b)),
        "^": power,
        "!": lambda value: unit * _factorial(_whole(value)),
        "binom": lambda n, k: unit * _binomial(_whole(n), _whole(k)),
        "root": lambda value, degree: root(value, _whole(degree)),
        "|": abs,
        "floor": lambda value: unit * math.floor(value),
        "ceil": lambda value: unit * math.ceil(value),
        "repeating": repeating,
    }


def _sum(*terms: Value) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = _bounded(total + term)
    return total


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction) and value.numerator.bit_length() > 4 * MAX_BITS:
        raise TooLargeError
    return value


def _whole(value: Value) -> int:
    whole = int(value)
    if value != whole:
        raise NotArithmeticError
    return whole


def _factorial(whole: int) -> int:
    if whole < 0:
        raise NotArithmeticError
    if whole > MAX_FACTORIAL:
        raise TooLargeError
    return math.factorial(whole)


def _binomial(n: int, k: int) -> int:
    if not 0 <= k <= n:
        raise NotArithmeticError
    if n > 1000:
        raise TooLargeError
    return math.comb(n, k)


def _exact_number(text: str) -> Fraction:
    value = literal(text)
    if value is None:
        raise NotArithmeticError
    return value.value


def _exact_power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        if exponent.denominator > 8:
            raise NotArithmeticError
        return _exact_power(_exact_root(base, exponent.denominator), Fraction(exponent.numerator))
    if base == 0 and exponent <= 0:
        raise NotArithmeticError
    if base in (0, 1, -1):
        return base if exponent.numerator % 2 or base != -1 else Fraction(1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent.numerator) > MAX_BITS:
        raise TooLargeError
    return Fraction(base**exponent.numerator)


def _exact_root(value: Fraction, degree: int) -> Fraction:
    """Return the root of a rational; raises NotArithmeticError when it is irrational or imaginary."""
    if value < 0 and degree % 2:
        return -_exact_root(-value, degree)
    if value < 0:
        raise NotArithmeticError
    parts = [_integer_root(part, degree) for part in (value.numerator, value.denominator)]
    if parts[0] ** degree != value.numerator or parts[1] ** degree != value.denominator:
        raise NotArithmeticError
    return Fraction(parts[0], parts[1])


def _integer_root(value: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**degree <= value:
            low = middle
        else:
            high = middle - 1
    return low


_EXACT = _operations(_exact_number, _exact_power, _exact_root)


_FUNCTIONS = ("sin", "cos", "tan", "exp", "sinh", "cosh", "tanh")
_INVERSE = {r"\arcsin": "asin", r"\arccos": "acos", r"\arctan": "atan"}
_RECIPROCAL = {r"\csc": "sin", r"\sec": "cos", r"\cot": "tan"}


@cache
def _inexact_operations(sample: int, precise: bool) -> Operations:
    """Return the operations of floats, or of numbers of `_DIGITS` digits; variables have the values of a sample."""
    functions: Any = math
    number: Callable[[str], Value] = float
    if precise:
        import mpmath  # only where two expressions agree as floats

        # A context of its own, which no other thread sets to fewer digits.
        functions = mpmath.MPContext()
        functions.dps, number = _DIGITS, functions.mpf
    pi, i = functions.pi * 1, functions.mpc(0, 1) if precise else 1j
    constants = {r"\pi": pi, "e": functions.exp(number("1")), "i": i}

    def draw(name: str) -> Value:
        # Positive, so that \sqrt{x}\sqrt{y} and \sqrt{xy} agree; the same in every process.
        digest = hashlib.blake2b(f"{sample} {name}".encode(), digest_size=6).digest()
        return number("0.3") + number(str(int.from_bytes(digest, "big"))) / 2**48

    def power(base: Value, exponent: Value) -> Value:
        value = base**exponent
        # A fractional power of a negative number has several values.
        if type(value) not in (type(base), type(exponent)):
            raise NotArithmeticError
        return value

    def root(value: Value, degree: int) -> Value:
        if value < 0:
            if degree % 2 == 0 and degree > 2:
                raise NotArithmeticError
            return -root(-value, degree) if degree % 2 else i * functions.sqrt(-value)
        return functions.sqrt(value) if degree == 2 else value ** (number("1") / degree)

    ln = functions.ln if precise else math.log
    operations = _operations(number, power, root) | {
        "symbol": lambda name: constants[name] if name in constants else draw(name),
        "apply": lambda name, argument: draw(f"{name} {complex(argument) + 0:.9e}"),
        "°": lambda value: value * pi / 180,
        r"\ln": ln,
        r"\log": lambda value: ln(value) / ln(number("10")),
        "log": lambda base, value: ln(value) / ln(base),
    }
    operations |= {rf"\{name}": getattr(functions, name) for name in _FUNCTIONS}
    operations |= {name: getattr(functions, called) for name, called in _INVERSE.items()}
    operations |= {name: _reciprocal(getattr(functions, called)) for name, called in _RECIPROCAL.items()}
    return operations


def _reciprocal(function: Callable[[Value], Value]) -> Callable[[Value], Value]:
    return lambda value: 1 / function(value)
