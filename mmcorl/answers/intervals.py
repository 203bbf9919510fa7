"""Inequalities in one variable as intervals: `-2 < x \\le 7` is (-2, 7]."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmcorl.answers.parse import ParsedAnswer, parse

_VARIABLE = re.compile(r"[A-Za-z](?:_\w|\([A-Za-z]\))?|\\(?:theta|alpha|beta|lambda|mu)")
_SIGN = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_INFINITE = {r"\infty": 1, r"+\infty": 1, r"-\infty": -1}


@dataclass(frozen=True)
class Interval:
    """One interval; None is an infinite end."""

    low: ParsedAnswer | None
    high: ParsedAnswer | None
    closed_low: bool
    closed_high: bool
    variable: str | None
    """None when the interval names no variable."""


def interval(answer: ParsedAnswer) -> Interval | None:
    """Return the interval of an inequality, a membership or an interval; None for any other answer."""
    if answer.kind == "list":
        return _written(answer)
    return _inequality(answer.body) if answer.kind == "relation" else None


def _written(answer: ParsedAnswer) -> Interval | None:
    if len(answer.parts) != 2 or answer.brackets not in ("()", "[]", "(]", "[)"):
        return None
    ends: list[ParsedAnswer | None] = []
    for part, sign in zip(answer.parts, (-1, 1), strict=True):
        if part.body in _INFINITE:
            if _INFINITE[part.body] != sign:
                return None
            ends.append(None)
        else:
            ends.append(part)
    low, high = ends
    closed = answer.brackets
    # `x \in (0, 1)` is about x; the D of `D = (0, 1)` is the interval itself.
    variable = answer.name if answer.text.startswith(rf"{answer.name}\in ") else None
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
        return Interval(parse(low), parse(high), closed[0], closed[1], variable)
    left, right = sides
    # `y < x` bounds either variable.
    if _VARIABLE.fullmatch(left) and not _VARIABLE.fullmatch(right):
        return Interval(None, parse(right), False, closed[0], left)
    if _VARIABLE.fullmatch(right) and not _VARIABLE.fullmatch(left):
        return Interval(parse(left), None, closed[0], False, right)
    return None
