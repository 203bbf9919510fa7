"""Places in a picture as answers: points, boxes and sets of them, read from what a model writes, and compared.

An answer is text in one canonical form, whatever the family that wrote it: JSON in thousandths of the picture's width
and height, x before y, at most two decimals. A point is `[500, 250.5]`, a box `[x1, y1, x2, y2]` with its corners in
order, a set a sorted list of these, and `[]` says that there is nothing. The relations below compare canonical answers;
overlap, and distance in fractions of the sides, are the same in thousandths as in pixels.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mmcorl.answers.extract import Mode, extract
from mmcorl.errors import UserError

Form = Literal["point", "points", "box", "boxes"]
Place = tuple[float, ...]
"""A point (x, y) or a box (x1, y1, x2, y2) in thousandths."""
Canonical = Callable[[Sequence[float]], Sequence[float]]
"""Brings x and y as a model writes them, one or two pairs, to thousandths."""

Array = NDArray[np.float64]

SIDE = 1000.0
_BEYOND = 0.25 * SIDE
"""Distance by which corners of a box may lie outside of the picture, as those of models that see it resized do."""
MAX_REGIONS = 300
"""Places in one answer; what lists more is no answer."""
_NUMBER = r"[-+]?(?:\d{1,9}(?:\.\d{0,24})?|\.\d{1,24})"
# A gap matches in one way alone: several would be tried in all combinations of a list that never closes.
_GAP = r"(?:\s{0,8}[,;]\s{0,8}|\s{1,17})"
_LIST = rf"\s{{0,8}}{_NUMBER}(?:{_GAP}{_NUMBER}){{1,15}}\s{{0,8}}"
_IS = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?\s{0,4}"
_THEN = r"[\"'\s,;]{1,8}"


def _sides(*names: str) -> str:
    return _THEN.join(rf"(?:{name}){_IS}({_NUMBER})" for name in names)


_PLACES = re.compile(
    # {"x": 3, "y": 4, "width": 5, "height": 6}, {"xmin": 3, ...}, {"left": 3, ...}, <loc_3><loc_4> and <loc0003>
    rf"(?P<sides>\b{_sides('x', 'y', 'w|width', 'h|height')})|(?P<loc>(?:<loc_?\d{{1,4}}>){{2,4}})"
    # Molmo2: <points coords="1 1 073 160 2 173 600">, the number of the picture, then number, x and y of every point.
    r"|coords=[\"']\d{1,3}(?P<coords>(?:\s\d{1,4}\s\d{1,4}\s\d{1,4}){1,300})[\"']"
    rf"|(?P<corners>\b{_sides('x_?min|left', 'y_?min|top', 'x_?max|right', 'y_?max|bottom')})"
    rf"|\[(?P<square>{_LIST})\]|\((?P<round>{_LIST})\)"
    # {"x": 3, "y": 4} and <points x1="3" y1="4" x2="5" y2="6">
    rf"|\bx(?P<n>\d{{0,3}}){_IS}(?P<x>{_NUMBER})[\"'\s,;]{{1,8}}y(?P=n){_IS}(?P<y>{_NUMBER})"
)
_NUMBERS = re.compile(_NUMBER)
_BARE = re.compile(_LIST)
_EMPTY = re.compile(r"\[\s*\]")
_FENCE = re.compile(r"```(?:json|JSON)?(.*?)```", re.DOTALL)


def read_answer(
    response: str,
    finish_reason: Literal["stop", "length"],
    mode: Mode,
    form: Form,
    canonical: Canonical,
    *,
    thinking: bool = False,
) -> str | None:
    """Return the canonical answer that a response commits to, or None.

    What it commits to is extracted as every answer is (see `extract`). Models write places in a fenced block or as
    they stand, too: where `commit` finds no tags and no box in a finished response, the last fenced block, or all that
    is said after thinking, is the answer.
    """
    committed = extract(response, finish_reason, mode, thinking=thinking)
    text = committed.answer
    if text is None and mode == "commit" and committed.source == "none":
        whole = extract(response, finish_reason, "whole", thinking=thinking).answer or ""
        blocks = _FENCE.findall(whole)
        text = blocks[-1].strip() if blocks else whole
    return None if text is None else read_places(text, form, canonical)


def read_places(text: str, form: Form, canonical: Canonical) -> str | None:
    """Return the canonical form of what a model wrote as its answer, or None where that is no answer of this form.

    Places are lists of two or four numbers in brackets, `x=... y=...` attributes and JSON keys, which mean what they
    say even where lists begin with y, whatever labels stand beside them; `(x1, y1), (x2, y2)` is a box where boxes are
    asked for, and a box a point, its centre, where points are. Where one place is asked for, two are no answer; nor is
    a list of other lengths, a place outside of the picture or a box without area. A box that reaches beyond the
    picture by at most a quarter of its sides is cut at the edges; corners may come in any order. `canonical` brings the
    numbers to thousandths.
    """
    groups = _numbers(text, y_first=canonical((0.0, 1.0))[0] > 0)
    if groups is None or not all(len(numbers) in (2, 4) for numbers in groups):
        return None
    many = form in ("points", "boxes")
    if not groups:
        return "[]" if many and _EMPTY.search(text) else None
    if form in ("box", "boxes") and all(len(numbers) == 2 for numbers in groups):
        if len(groups) % 2:
            return None
        groups = [(*a, *b) for a, b in zip(groups[::2], groups[1::2], strict=True)]
    shape = _box if form in ("box", "boxes") else _point
    places = [shape(tuple(canonical(numbers))) for numbers in groups]
    if None in places or (len(places) > 1 and not many):
        return None
    known = [region for region in places if region is not None]
    return write_places(known if many else known[0])


def _numbers(text: str, y_first: bool) -> list[tuple[float, ...]] | None:
    """The groups of numbers of a text in reading order, those by name in the order of lists; None for too many."""
    if _BARE.fullmatch(text):
        return [tuple(float(number) for number in _NUMBERS.findall(text))]
    groups: list[tuple[float, ...]] = []
    for match in _PLACES.finditer(text):
        if listed := match["square"] or match["round"]:
            groups.append(tuple(float(number) for number in _NUMBERS.findall(listed)))
        elif match["coords"]:
            numbers = [float(number) for number in match["coords"].split()]
            groups += [(x, y) for x, y in zip(numbers[1::3], numbers[2::3], strict=True)]
        elif match["loc"]:
            groups.append(tuple(float(number) for number in re.findall(r"\d+", match["loc"])))
        elif named := match["sides"] or match["corners"]:
            a, b, c, d = (float(number) for number in match.groups() if number not in (None, named))
            c, d = (a + c, b + d) if match["sides"] else (c, d)
            groups.append((b, a, d, c) if y_first else (a, b, c, d))
        else:
            x, y = float(match["x"]), float(match["y"])
            groups.append((y, x) if y_first else (x, y))
        if len(groups) > MAX_REGIONS:
            return None
    return groups


def _point(region: Place) -> Place | None:
    x, y = region if len(region) == 2 else ((region[0] + region[2]) / 2, (region[1] + region[3]) / 2)
    return (x, y) if 0 <= x <= SIDE and 0 <= y <= SIDE else None


def _box(region: Place) -> Place | None:
    if len(region) != 4 or not all(-_BEYOND <= value <= SIDE + _BEYOND for value in region):
        return None
    left, right = sorted((region[0], region[2]))
    top, bottom = sorted((region[1], region[3]))
    cut = tuple(round(min(max(value, 0.0), SIDE), 2) for value in (left, top, right, bottom))
    return cut if cut[0] < cut[2] and cut[1] < cut[3] else None


def is_bare_place(value: Any) -> bool:
    """Whether a stored answer is a list of two or four numbers: a place, where several answers would be texts."""
    if not isinstance(value, list | tuple) or len(value) not in (2, 4):
        return False
    return all(isinstance(item, int | float) and not isinstance(item, bool) for item in value)


def write_places(places: Place | Sequence[Place]) -> str:
    """Return the canonical text of one place, or of a set of them."""
    return json.dumps([_short(item) for item in (sorted(places) if _is_set(places) else places)])


def _is_set(places: Any) -> bool:
    return not places or not isinstance(places[0], int | float)


def _short(value: Any) -> Any:
    if not isinstance(value, int | float):
        return [_short(item) for item in value]
    short = round(float(value), 2)
    return int(short) if short == int(short) else short


@lru_cache(1 << 16)
def parse_places(answer: str) -> tuple[Place, ...]:
    """Return the places of a canonical answer, one for a point or a box; UserError for any other text."""
    try:
        values = json.loads(answer)
        if values and all(isinstance(value, int | float) for value in values):
            values = [values]
        places = tuple(tuple(float(value) for value in region) for region in values)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{answer[:80]!r} is no place: write [x, y] or [x1, y1, x2, y2] in thousandths") from error
    if not all(len(region) in (2, 4) and all(map(math.isfinite, region)) for region in places):
        raise UserError(f"{answer[:80]!r} is no place: write [x, y] or [x1, y1, x2, y2] in thousandths")
    return places


def iou(a: Place, b: Place) -> float:
    """Intersection over union of two boxes, 0.0 to 1.0."""
    return float(_overlaps(np.array([a]), np.array([b]))[0, 0])


def _overlaps(a: Array, b: Array) -> Array:
    """IoU of every box of a (n, 4) with every one of b (m, 4): (n, m)."""
    width, height = (
        (np.minimum(a[:, None, i + 2], b[None, :, i + 2]) - np.maximum(a[:, None, i], b[None, :, i])).clip(0)
        for i in (0, 1)
    )
    shared = width * height
    area_a, area_b = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (a, b))
    return shared / (area_a[:, None] + area_b - shared)


def _nearness(a: Array, b: Array) -> Array:
    """1 - distance of every point of a (n, 2) and b (m, 2) in fractions of the sides, at least 0.0: (n, m)."""
    return (1.0 - np.hypot(*np.moveaxis(a[:, None] - b[None], -1, 0)) / SIDE).clip(0.0)


@lru_cache(1 << 12)
def _array(answer: str) -> Array:
    return np.array(parse_places(answer))


def _matched(a: str, b: str, alike: Callable[[Array, Array], Array]) -> float:
    """Similarity of two sets: 2 x the sum over the best matching / the number of places in both (a soft F1)."""
    left, right = _array(a), _array(b)
    if not len(left) or not len(right):
        return float(len(left) == len(right))
    table = alike(left, right)
    from scipy.optimize import linear_sum_assignment  # Half a second that most commands have no use for.

    rows, columns = linear_sum_assignment(table, maximize=True)
    return min(1.0, 2 * math.fsum(table[rows, columns]) / (len(left) + len(right)))


def most_of_sets(a: str, b: str) -> float:
    """What the similarity of two sets is at most, by their sizes alone."""
    n, m = len(parse_places(a)), len(parse_places(b))
    return 2 * min(n, m) / (n + m) if n + m else 1.0


def overlap(a: str, b: str) -> float:
    """Intersection over union of two boxes."""
    return float(_overlaps(_array(a), _array(b))[0, 0])


def overlap_of_sets(a: str, b: str) -> float:
    """Mean overlap of two sets of boxes, matched as well as can be; unmatched boxes count as 0 (a soft F1)."""
    return _matched(a, b, _overlaps)


def nearness(a: str, b: str) -> float:
    """1 - distance of two points in fractions of the picture's sides; a point and a box: 1.0 inside, else 0.0."""
    (x,), (y,) = parse_places(a), parse_places(b)
    point, other = (x, y) if len(x) == 2 else (y, x)
    if len(point) == len(other) == 2:
        return float(_nearness(_array(a), _array(b))[0, 0])
    return float(len(point) == 2 and other[0] <= point[0] <= other[2] and other[1] <= point[1] <= other[3])


def nearness_of_sets(a: str, b: str) -> float:
    """Mean nearness of two sets of points, matched as well as can be; unmatched points count as 0 (a soft F1)."""
    return _matched(a, b, _nearness)
