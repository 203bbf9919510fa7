"""Decimals that stand for a value they cannot write out in full: 0.333333 is 1/3, 0.33 is not."""

from __future__ import annotations

from fractions import Fraction

from mmcorl.answers.numbers import Exact, constant_value, is_rounding
from mmcorl.answers.parse import ParsedAnswer

ROUNDED_PLACES = 6
"""A decimal with at least this many places stands for every value that rounds to it."""


def same_number(a: ParsedAnswer, b: ParsedAnswer) -> bool:
    """Return whether two numbers are equal, or one is the other rounded or in percent; units are ignored."""
    assert a.number is not None
    assert b.number is not None
    if (a.unit == "%") == (b.unit == "%"):
        return _close(a.number, b.number)
    # 28% is 0.28, and people write 28 for it; a share that is no more than 1 leaves open which is meant.
    percent, plain = (a.number, b.number) if a.unit == "%" else (b.number, a.number)
    return _close(percent, plain) if abs(plain.value) > 1 else percent.value == plain.value * 100


def rounds_to(a: ParsedAnswer, b: ParsedAnswer) -> bool | None:
    """Return whether a long decimal is the rounding of a constant such as `\\sqrt{2}`; None: no such pair."""
    if (a.number is None) == (b.number is None):
        return None
    number, other = (a.number, b) if a.number is not None else (b.number, a)
    assert number is not None
    if not _stands_for_others(number):
        return None
    value = constant_value(other.body)
    if value is None:
        return None
    assert number.places is not None
    if is_rounding(number, value):
        return True
    # Truncated rather than rounded; beyond a dozen digits a float cannot tell.
    return (
        not value.imag
        and number.places < 14
        and 10.0 ** (number.places + 1) * abs(value) < 1e14
        and int(value.real * 10**number.places) == number.value * 10**number.places
    )


def _close(x: Exact, y: Exact) -> bool:
    if x.value == y.value:
        return True
    if x.places == y.places:
        return False
    # A decimal and a value it cannot write out in full, or two decimals of different length.
    places = min((number.places or 0 for number in (x, y) if _stands_for_others(number)), default=None)
    if places is None:
        return False
    if abs(x.value - y.value) <= Fraction(1, 2 * 10**places):
        return True
    # Models truncate as often as they round: 0.666666 is 2/3, though not 0.6666667.
    number, other = (x, y) if x.places is not None else (y, x)
    return other.places is None and int(other.value * 10**places) == number.value * 10**places != 0


def _stands_for_others(number: Exact) -> bool:
    """Return whether a decimal has enough places, and enough significant digits, to stand for what it rounds."""
    if number.places is None or number.places < ROUNDED_PLACES:
        return False
    return abs(number.value) * 10**number.places >= 10 ** (ROUNDED_PLACES - 1)
