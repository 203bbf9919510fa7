"""Inequalities for one variable as the intervals they say: `-2 < x \\le 7` is (-2, 7]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmcorl.answers.parse import Reading, read

_VARIABLE = re.compile(r"[A-Za-z](?:_\w)?|\\(?:theta|alpha|beta|lambda|mu)")
_SIGN = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_ENDLESS = {r"\infty": 1, r"+\infty": 1, r"-\infty": -1}


@dataclass(frozen=True)
class Interval:
    """One interval; an end that is None is endless."""

    low: Reading | None
    high: Reading | None
    closed_low: bool
    closed_high: bool
    variable: str | None
    """None when the interval is written without one."""


def interval(reading: Reading) -> Interval | None:
    """The interval that a reading says, as an inequality, a membership or itself; None when it says none."""
    if reading.kind == "list":
        return _written(reading)
    return _inequality(reading.body) if reading.kind == "relation" else None


def _written(reading: Reading) -> Interval | None:
    if len(reading.parts) != 2 or reading.brackets not in ("()", "[]", "(]", "[)"):
        return None
    ends: list[Reading | None] = []
    for part, endless in zip(reading.parts, (-1, 1), strict=True):
        if part.body in _ENDLESS:
            if _ENDLESS[part.body] != endless:
                return None
            ends.append(None)
        else:
            ends.append(part)
    low, high = ends
    closed = reading.brackets
    # `x \in (0, 1)` speaks of x; the D of `D = (0, 1)` is the interval.
    variable = reading.name if reading.text.startswith(rf"{reading.name}\in ") else None
    return Interval(low, high, closed[0] == "[" and low is not None, closed[1] == "]" and high is not None, variable)


def _inequality(text: str) -> Interval | None:
    signs = _SIGN.findall(text)
    sides = [side.strip() for side in _SIGN.split(text)]
    if len(sides) not in (2, 3) or not all(sides):
        return None
    rising = [sign in ("<", r"\le") for sign in signs]
    if len(set(rising)) > 1:
        return None
    if not rising[0]:
        signs, sides = signs[::-1], sides[::-1]
    closed = [sign in (r"\le", r"\ge") for sign in signs]
    if len(sides) == 3:
        low, variable, high = sides
        if not _VARIABLE.fullmatch(variable):
            return None
        return Interval(read(low), read(high), closed[0], closed[1], variable)
    left, right = sides
    # `y < x` could be said of either.
    if _VARIABLE.fullmatch(left) and not _VARIABLE.fullmatch(right):
        return Interval(None, read(right), False, closed[0], left)
    if _VARIABLE.fullmatch(right) and not _VARIABLE.fullmatch(left):
        return Interval(read(left), None, closed[0], False, right)
    return None
