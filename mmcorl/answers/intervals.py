"""Inequalities in one variable as intervals: `-2 < x \\le 7` is (-2, 7]."""

from __future__ import annotations

import re
from collections.abc import Callable
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


Same = Callable[[ParsedAnswer, ParsedAnswer], bool]
_REALS = re.compile(
    r"(?:[A-Za-z]\\in ?)?(?:\\mathbb ?\{?R\}?|(?:the )?(?:set of )?(?:all )?real numbers|all reals)"
    r"(?:\\(?:setminus|backslash) ?\\\{([^,{}]{1,40})\\\}|,? (?:except|other than)(?: for)? (?:x ?= ?)?(\S{1,40}))?",
    re.IGNORECASE,
)


def region(answer: ParsedAnswer) -> tuple[Interval, ...] | None:
    """Return the intervals that an answer unites: of `x < 1 or x > 2`, `(1, 2) \\cup (3, 4)`, `x \\ne 3`, the reals."""
    if (reals := _REALS.fullmatch(answer.text)) is not None:
        gap = reals.group(1) or reals.group(2)
        return _without(parse(gap), None) if gap else (Interval(None, None, False, False, None),)
    if (alone := interval(answer)) is not None:
        return (alone,)
    if answer.kind == "relation" and r"\ne" in answer.body:
        variable, _, value = answer.body.partition(r"\ne")
        if not _VARIABLE.fullmatch(variable.strip()):
            return None
        return _without(parse(value.strip()), variable.strip())
    if answer.kind == "union" or (answer.kind == "list" and answer.joined in ("or", "and") and not answer.brackets):
        parts = [interval(part) for part in answer.parts]
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts):
            return None
        return _overlap(*known) if answer.joined == "and" else known
    return None


def _without(gap: ParsedAnswer, variable: str | None) -> tuple[Interval, ...]:
    """Return the real line but one number."""
    return Interval(None, gap, False, False, variable), Interval(gap, None, False, False, variable)


def same_region(a: tuple[Interval, ...], b: tuple[Interval, ...], same: Same) -> bool:
    """Return whether two unions of intervals about one variable pair up."""
    if len({part.variable for part in (*a, *b)} - {None}) > 1 or len(a) != len(b):
        return False
    rest = list(b)
    for part in a:
        index = next((i for i, other in enumerate(rest) if _same_interval(part, other, same)), None)
        if index is None:
            return False
        del rest[index]
    return True


def _same_interval(a: Interval, b: Interval, same: Same) -> bool:
    if (a.closed_low, a.closed_high) != (b.closed_low, b.closed_high):
        return False
    return all(
        (x is None) == (y is None) and (x is None or y is None or same(x, y))
        for x, y in ((a.low, b.low), (a.high, b.high))
    )


def _overlap(a: Interval, b: Interval | None = None, *more: Interval) -> tuple[Interval, ...] | None:
    """Return `1 < x < 2` for `x > 1 and x < 2`; None for other conditions."""
    if b is None or more or a.variable != b.variable:
        return None
    if a.low is None and b.high is None:
        a, b = b, a
    if a.high is not None or b.low is not None or a.low is None or b.high is None:
        return None
    return (Interval(a.low, b.high, a.closed_low, b.closed_high, a.variable),)


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
