"""Charts as inline SVG: colours from the page's CSS variables, values on hover; report.js adds keys and toggles."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from mmcorl.apps.report.page import clean, render
from mmcorl.run.reader import Points

if TYPE_CHECKING:  # scipy takes a while to import
    from mmcorl.apps.analysis.dynamics import Dynamics

LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 32
MAX_POINTS, MAX_BARS, MAX_HOVER, MAX_TOLD = 300, 60, 40, 12
"""Longer series are averaged in buckets, so that the page of a long run stays small."""
COLOURS, DASHES, MARKERS = 8, 4, 4
SMALL, LARGE = (310, 190), (510, 270)
"""Width and height in the pixels at which a chart is shown, so that all text has one size."""
SIDE, MARGINS, ARROWS = 400, (64, 78, 22, 60), 13
"""Of a phase portrait: its side, its left, top, right and bottom margins, and its arrows per row and column."""
HoverPath = Sequence[tuple[tuple[float, float], str]]
"""Accuracies of two agents, each with its hover text."""
ENDS = {(1.0, 1.0): ("good", "both end right"), (0.0, 0.0): ("bad", "both end wrong")}


@dataclass(frozen=True)
class Series:
    """One line: its name, its points and its style."""

    name: str
    points: Points
    colour: int = 0
    dash: int = 0
    """0 is the run of the page, 1 and up are other runs."""
    run: str = ""
    """The run's label, where lines of several runs are drawn."""
    strong: bool = True
    marks: bool = False
    """Whether to mark each point: for evaluations, which are few."""
    marker: int = 0
    """The shape of these marks: a disc, a square, a triangle or a diamond."""
    smooth: bool = True
    """Whether to draw a long line as its moving average over a pale line of its steps."""
    band: Sequence[tuple[int, float, float]] = ()
    """(step, low, high) of a pale band behind the line, such as its spread over seeds."""

    @property
    def label(self) -> str:
        return f"{self.name}, {self.run}" if self.run and self.dash else self.name

    @property
    def groups(self) -> str:
        """What keys of a legend can hide: the line itself, its name in all runs, and its run; one a line."""
        named = {"line": self.label, "name": self.name, "run": self.run}
        return "\n".join(f"{kind}:{text}" for kind, text in named.items() if text)


@dataclass(frozen=True)
class Key:
    """A legend entry; without a colour it explains a dash pattern."""

    name: str
    colour: int | None
    dash: int = 0
    block: bool = False
    hides: str = ""
    """One of the `groups` of lines, which a click on the key hides; empty where it hides none."""


@dataclass(frozen=True)
class Chart:
    title: str
    note: str
    svg: Markup
    legend: Sequence[Key] = ()


@dataclass(frozen=True)
class IntervalRow:
    """One row of an interval chart."""

    name: str
    value: float
    low: float
    high: float
    colour: int
    right_text: str
    hover: str


@dataclass(frozen=True)
class Panel:
    """A phase portrait: the vector field and basins of two agents, with the theory's and measured paths."""

    title: str
    note: str
    dynamics: Dynamics
    names: tuple[str, str] = ("agent A", "agent B")
    starts: Sequence[tuple[float, float]] = ()
    """Starts of the theory's paths, coloured by where they end."""
    paths: Mapping[str, HoverPath] = field(default_factory=dict)
    """Measured paths by name, as accuracies and hover texts; each is drawn with the theory's path from its start."""


def line_chart(
    title: str, series: Iterable[Series], *, note: str = "", shares: bool = False, size: tuple[int, int] = SMALL
) -> Chart | None:
    """Draw lines over training steps, later ones on top; None when no series has a point.

    `shares`: values lie in 0..1, which fixes the axis so that charts can be compared by eye.
    """
    series = [line for line in series if line.points]
    if not series:
        return None
    if any(len(line.points) > MAX_POINTS for line in series):
        note = f"{note} Long series are averaged in buckets of steps.".strip()
    points = [[(b[-1][0], sum(v for _, v in b) / len(b)) for b in _buckets(s.points, MAX_POINTS)] for s in series]
    reach = max(1, max(map(len, points)) // 24)
    smooth = [_smoothed(line, own, reach) for line, own in zip(series, points, strict=True)]
    steps, values = zip(*(point for line in points for point in line), strict=True)
    bands = [[tuple(map(fmean, zip(*b, strict=True))) for b in _buckets(s.band, MAX_POINTS)] for s in series]
    values += tuple(value for band in bands for _, *edges in band for value in edges)
    ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if shares else nice_ticks(min(values), max(values))
    axes = _Axes(size, (min(0, *steps), max(1, *steps)), ticks)
    parts = [axes.grid(), *(_band(line, band, axes) for line, band in zip(series, bands, strict=True) if band)]
    parts += [_line(line, own, mean, axes) for line, own, mean in zip(series, points, smooth, strict=True)]
    shown = [bucket[-1] for bucket in _buckets(sorted(set(steps)), MAX_HOVER)]
    edges = [LEFT, *(axes.x((a + b) / 2) for a, b in pairwise(shown)), axes.right]
    known = sorted(zip(series, map(dict, points), map(dict, smooth), strict=True), key=lambda one: one[0].dash)
    averaged = f": mean of {2 * reach + 1} (this one)" if any(a != b for _, a, b in known) else ""
    for step, (left, right) in zip(shown, pairwise(edges), strict=True):
        cross = _tag("path", "cross t", d=f"M{axes.x(step):.1f} {TOP}V{axes.base}")
        rows = [_value(line, own[step], mean[step], shares) for line, own, mean in known if step in own]
        dots = [
            _tag("g", "series", _dot(line, axes.x(step), axes.y(mean[step])), data_of=line.groups)
            for line, own, mean in known
            if step in own
        ]
        parts.append(axes.column(left, right, axes.x(step), f"step {step}{averaged}", rows, cross + "".join(dots)))
    return Chart(title, note, _svg(f"{title}. {_in_words(series)}", parts, *size), legend_keys(series))


def stacked_chart(
    title: str, names: Sequence[str], stacks: Sequence[tuple[int, Sequence[float]]], *, note: str
) -> Chart | None:
    """Draw stacked bars of seconds over training steps; None without data."""
    if not stacks:
        return None
    buckets = [(b[0][0], b[-1][0], np.mean([values for _, values in b], axis=0)) for b in _buckets(stacks, MAX_BARS)]
    if len(buckets) < len(stacks):
        note = f"{note} Each bar is the mean of several steps.".strip()
    ticks = nice_ticks(0.0, max(float(values.sum()) for *_, values in buckets))
    axes = _Axes(SMALL, (buckets[0][0] - 1, buckets[-1][1]), ticks)
    parts = [axes.grid()]
    for first, last, values in buckets:
        left, right = axes.x(first - 1), axes.x(last)
        tops = [0.0, *np.cumsum(values)]
        bars = ""
        for index, (low, high) in enumerate(pairwise(axes.y(top) for top in tops)):
            box = f"M{left:.1f} {low:.1f}h{(right - left) * 0.86:.1f}V{high:.1f}H{left:.1f}Z"
            bars += _tag("path", _fill(index), d=box) if low > high else ""
        rows = [
            (_fill(i), f"{name} {v:.3g} s", "") for i, (name, v) in enumerate(zip(names, values, strict=True)) if v > 0
        ]
        heading = f"step {first}" if first == last else f"steps {first} to {last}"
        rows.append(("", f"total {tops[-1]:.3g} s", ""))
        parts.append(axes.column(left, right, (left + right) / 2, heading, rows, bars))
    legend = [Key(name, index, block=True) for index, name in enumerate(names)]
    means = [(name, fmean(float(values[place]) for *_, values in buckets)) for place, name in enumerate(names)]
    words = f"{title}. Means: {', '.join(f'{name} {value:.3g} s' for name, value in means)}."
    return Chart(title, note, _svg(words, parts, *SMALL), legend)


def interval_chart(
    title: str, rows: Sequence[IntervalRow], ticks: Sequence[float], left: float, axis: str, beside: str
) -> Chart:
    """Draw one value with its interval per row, joined by a dotted line; `left` is the width of the names."""
    width, top, tall = LARGE[0], 18.0, 30
    right, base = width - 62.0, top + tall * len(rows) + 4
    x = [_place(tick, ticks[0], ticks[-1], left, right) for tick in ticks]
    parts = [_text(right + 54, 10, beside, "end"), _text(right, base + 28, axis, "end")]
    parts += [_tag("path", "rule", d=f"M{at:.1f} {top}V{base}") for at in x]
    parts += [_text(at, base + 14, f"{tick:.1f}", "middle") for at, tick in zip(x, ticks, strict=True)]
    parts.append(_tag("path", "base", d=f"M{left} {base}H{right}"))
    dots = [(_place(row.value, ticks[0], ticks[-1], left, right), top + tall * (n + 0.5)) for n, row in enumerate(rows)]
    parts.append(_tag("path", "l thin step", d=_d(dots)))
    for row, (at, y) in zip(rows, dots, strict=True):
        low, high = (_place(value, ticks[0], ticks[-1], left, right) for value in (row.low, row.high))
        drawn = _text(left - 8, y + 4, row.name, "end") + _text(right + 54, y + 4, row.right_text, "end")
        drawn += _tag("path", f"l s{row.colour}", d=f"M{low:.1f} {y}H{high:.1f}")
        drawn += _tag("circle", f"f{row.colour}", cx=at, cy=y, r=5.5)
        parts.append(_tag("g", content=_tag("title", content=_escape(row.hover)) + drawn))
    return Chart(title, "", _svg(f"{title}. {'; '.join(row.hover for row in rows)}.", parts, width, base + 34))


def portrait(panels: Sequence[Panel], title: str) -> Markup:
    """Draw phase portraits side by side as one SVG file with its own light and dark colours.

    Raises ValueError for a cohort that is not of two agents.
    """
    left, top, right, bottom = MARGINS
    wide, height = left + SIDE + right, top + SIDE + bottom
    drawn = [_panel(panel) | {"left": left + n * wide, "top": top} for n, panel in enumerate(panels)]
    width = wide * len(panels)
    shown = width * 4 // 3 if len(panels) == 1 else width
    return Markup(render("portrait.svg", panels=drawn, title=title, side=SIDE, width=width, height=height, shown=shown))


def legend_keys(series: Sequence[Series]) -> list[Key]:
    """Return colours and, where several runs are drawn, dashes: one entry each rather than one per line."""
    if any(line.run for line in series):
        series = sorted(series, key=lambda line: line.dash)
    runs = dict.fromkeys((line.dash, line.run) for line in series if line.run)
    distinct = len({line.colour for line in series}) == len(series)
    if len(runs) > 1 and distinct and len({line.name for line in series}) == 1:
        return [Key(line.run, line.colour, line.dash, hides=f"run:{line.run}") for line in series]
    if len(runs) < 2 or distinct:
        return [
            Key(line.label, line.colour, line.dash, hides=f"line:{line.label}") for line in series if len(series) > 1
        ]
    names = dict.fromkeys((line.name, line.colour) for line in series)
    agents = [Key(name, colour, block=True, hides=f"name:{name}") for name, colour in names]
    return agents + [Key(run, None, dash, hides=f"run:{run}") for dash, run in runs]


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Return round values that cover low..high: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if high <= low:
        pad = abs(low) * 0.5 or 0.5
        low, high = low - pad if low != 0 else 0.0, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999999)
    return [index * step for index in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def short(name: str, length: int = 22) -> str:
    return name if len(name) <= length else f"{name[: length - 1]}…"


class _Axes:
    """The plot area of a chart over training steps."""

    def __init__(self, size: tuple[int, int], steps: tuple[float, float], ticks: Sequence[float]) -> None:
        self.width, self.height = size
        self.right, self.base = self.width - RIGHT, self.height - BOTTOM
        self.steps, self.ticks = steps, ticks

    def x(self, step: float) -> float:
        return _place(step, *self.steps, LEFT, self.right)

    def y(self, value: float) -> float:
        return _place(value, self.ticks[0], self.ticks[-1], self.base, TOP)

    def grid(self) -> str:
        """Return rules and their values, the step axis and its values."""
        parts = [_tag("path", "rule", d=f"M{LEFT} {self.y(tick):.1f}H{self.right}") for tick in self.ticks]
        parts += [_text(LEFT - 6, self.y(tick) + 3.6, f"{tick:.6g}", "end") for tick in self.ticks]
        parts.append(_tag("path", "base", d=f"M{LEFT} {self.base}H{self.right}"))
        low, high = self.steps
        whole = [tick for tick in nice_ticks(low, high) if low <= tick <= high and tick == int(tick)]
        parts += [_text(self.x(tick), self.base + 14, f"{tick:.0f}", "middle") for tick in whole]
        return "".join(parts) + _text(self.right, self.height - 4, "training step", "end")

    def column(
        self, left: float, right: float, at: float, heading: str, rows: Sequence[tuple[str, str, str]], marks: str
    ) -> str:
        """Return a column with its marks that shows a box of values under the pointer.

        Of each: the class of its dot, its text, and the `groups` of its line.
        """
        width = min(self.width - 4.0, 22 + 6.0 * max(len(text) for text in [heading, *(row[1] for row in rows)]))
        x = at + 8 if at < (LEFT + self.right) / 2 else at - 8 - width
        x = min(max(2.0, x), self.width - width - 2)
        tip = _tag("rect", "tipbox", x=x, y=TOP + 2, width=width, height=8 + 13 * (1 + len(rows)), rx=4)
        tip += _text(x + 7, TOP + 15, heading, "start", "tiphead")
        for number, (dot, text, groups) in enumerate(rows):
            y = TOP + 28 + 13 * number
            row = _tag("circle", dot, cx=x + 10, cy=y - 3.5, r=3) if dot else ""
            row += _text(x + 17, y, text, "start", "")
            tip += _tag("g", "series", row, data_of=groups) if groups else row
        hit = _tag("rect", "hit", x=left, y=TOP, width=max(0.1, right - left), height=self.base - TOP)
        return _tag("g", "h", hit + marks + _tag("g", "t tip", tip))


def _band(line: Series, band: Sequence[Sequence[float]], axes: _Axes) -> str:
    upper = [(axes.x(step), axes.y(high)) for step, _, high in band]
    lower = [(axes.x(step), axes.y(low)) for step, low, _ in band]
    drawn = _tag("path", f"band f{line.colour % COLOURS}", d=f"{_d([*upper, *reversed(lower)])}Z")
    return _tag("g", "series", drawn, data_of=line.groups)


def _smoothed(line: Series, points: Points, reach: int) -> Points:
    """Return a line's moving average over `reach` points on either side, or the line where it is drawn as it is."""
    if not line.smooth or line.marks or len(points) < 15:
        return points
    windows = [points[max(0, i - reach) : i + reach + 1] for i in range(len(points))]
    return [(step, fmean(v for _, v in own)) for (step, _), own in zip(points, windows, strict=True)]


def _line(line: Series, points: Points, mean: Points, axes: _Axes) -> str:
    classes = f"l s{line.colour % COLOURS} d{line.dash % DASHES}" + ("" if line.strong else " thin")
    places = [(axes.x(step), axes.y(value)) for step, value in mean]
    drawn = ""
    if mean is not points and line.strong:
        drawn += _tag("path", f"{classes} raw", d=_d([(axes.x(step), axes.y(value)) for step, value in points]))
    if len(points) > 1:
        drawn += _tag("path", classes, d=_d(places))
    if len(points) == 1 or (line.marks and len(points) <= 40):
        drawn += "".join(_mark(line, x, y) for x, y in places)
    return _tag("g", "series", drawn, data_of=line.groups)


def _dot(line: Series, x: float, y: float) -> str:
    return _tag("circle", f"{_fill(line.colour)} t", cx=x, cy=y, r=3.5)


def _mark(line: Series, x: float, y: float) -> str:
    if (shape := line.marker % MARKERS) == 0:
        return _tag("circle", _fill(line.colour), cx=x, cy=y, r=2 if line.dash and line.run else 3)
    outline = ("h6v6h-6Z", "l3.6 6h-7.2Z", "l3.8 3.8l-3.8 3.8l-3.8 -3.8Z")[shape - 1]
    left, top = (3.0, 3.0) if shape == 1 else (0.0, 3.6)
    return _tag("path", _fill(line.colour), d=f"M{x - left:.1f} {y - top:.1f}{outline}")


def _value(line: Series, own: float, mean: float, shares: bool) -> tuple[str, str, str]:
    """Return a row of a box of values: what is drawn, and behind it the step's own value where that is another."""
    form = ".3f" if shares else ".3g"
    more = f" ({own:{form}})" if own != mean else ""
    label = short(line.label, 34) if shares else line.label
    return _fill(line.colour), f"{label} {mean:{form}}{more}", line.groups


def _in_words(series: Sequence[Series]) -> str:
    """Return where each line starts and ends, for those who do not see the chart."""
    told = [
        f"{line.label}: {line.points[0][1]:.3g} at step {line.points[0][0]}"
        + (f", {line.points[-1][1]:.3g} at step {line.points[-1][0]}" if len(line.points) > 1 else "")
        for line in series[:MAX_TOLD]
    ]
    more = f"; {len(series) - MAX_TOLD} more lines" if len(series) > MAX_TOLD else ""
    return f"{'; '.join(told)}{more}."


def _panel(panel: Panel) -> dict[str, Any]:
    """Return what the template draws, in pixels of the plot."""
    dynamics, half = panel.dynamics, SIDE / 2
    if dynamics.agents != 2:
        raise ValueError(f"a plane shows two agents, not {dynamics.agents}")
    corners = [("good", SIDE, -9, "end", "both right"), ("bad", 10, SIDE + 18, "start", "both wrong")]
    if dynamics.is_pair:
        line = _xy([(0.0, 1.0), *dynamics.border(), (1.0, 0.0)])
        border, washes = _d(line), [("good", f"{_d(line)}L{SIDE} 0Z"), ("bad", f"{_d(line)}L0 {SIDE}Z")]
        before, middle, after = (line[len(line) * n // 18] for n in (5, 6, 7))
        place = _turned(middle, before, after)
        name = "p_A + p_B = 1" if dynamics.eta[0] == dynamics.eta[1] else "the border"
    else:
        squares = (("bad", 0, half), ("good", half, 0), ("mixed", 0, 0), ("mixed", half, half))
        washes = [(kind, f"M{x} {y}h{half}v{half}h-{half}Z") for kind, x, y in squares]
        border, name = f"M{half} 0V{SIDE}M0 {half}H{SIDE}", "each alone: p = ½"
        place = f"translate({half + 60} {SIDE - 2})"
        a, b = ("A", "B") if max(map(len, panel.names)) > 14 or "agent A" in panel.names else panel.names
        corners.append(("mixed", 0, -9, "start", f"only {b} right"))
        corners.append(("mixed", SIDE - 10, SIDE + 18, "end", f"only {a} right"))
    labels: list[tuple[float, float]] = []
    theory = [_theory(dynamics, start, labels) for start in panel.starts]
    measured = [_measured(dynamics, name, path, labels) for name, path in panel.paths.items()]
    drawn = {"panel": panel, "corners": corners, "washes": washes, "arrows": _arrows(dynamics)}
    return drawn | {"border": border, "place": place, "name": name, "theory": theory, "measured": measured}


def _arrows(dynamics: Dynamics) -> str:
    places = (np.arange(ARROWS) + 0.5) / ARROWS
    grid = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1).reshape(-1, 2)
    velocity = dynamics.velocity(grid) * (1, -1)
    speed = np.hypot(*velocity.T)[:, None]
    moving = speed[:, 0] > 1e-9 * speed.max()
    way, middle = velocity[moving] / speed[moving], np.array(_xy(grid))[moving]
    # Slow arrows are drawn longer than to scale: near the edges the direction still matters.
    reach = way * (SIDE / ARROWS * 0.36 * (0.35 + 0.65 * np.sqrt(speed[moving] / speed.max())))
    across = 0.6 * way[:, ::-1] * (-1, 1)
    tip, wings = middle + reach, [middle + reach - 3.2 * (way + side) for side in (across, -across)]
    form = "M%.1f %.1fL%.1f %.1fM%.1f %.1fL%.1f %.1fL%.1f %.1f"
    return "".join(form % tuple(row) for row in np.hstack([middle - reach, tip, wings[0], tip, wings[1]]))


def _theory(dynamics: Dynamics, start: tuple[float, float], labels: list[tuple[float, float]]) -> dict[str, Any]:
    final = dynamics.finals([start])[0]
    kind, words = ENDS.get((float(final[0]), float(final[1])), ("mixed", "one ends right, or neither is decided"))
    path, name = _xy(dynamics.path(start)), f"{start[0]:g}, {start[1]:g}"
    lengths = np.cumsum([math.dist(a, b) for a, b in pairwise(path)])
    at = [int(np.searchsorted(lengths, share * lengths[-1])) for share in (0.35, 0.75) if lengths[-1] > 0.08 * SIDE]
    labels.append((path[0][0], path[0][1] + (-11 if path[8][1] >= path[0][1] else 20)))
    drawn = {"d": _d(path), "start": path[0], "end": path[-1], "label": labels[-1], "kind": kind}
    return drawn | {
        "heads": [_turned(path[i + 1], path[i], path[i + 1]) for i in at],
        "name": name,
        "hover": f"from ({name}): {words}",
    }


def _measured(dynamics: Dynamics, name: str, path: HoverPath, labels: list[tuple[float, float]]) -> dict[str, Any]:
    points = _xy(p for p, _ in path)
    # The name is beside the start, on the side the path does not take and clear of other labels.
    (x, y), middle = points[0], sum(x for x, _ in points) / len(points)
    way = -1 if (middle > x and x - 8 * len(name) > -MARGINS[0] / 2) or x > SIDE * 0.8 else 1
    x, y = x + 11 * way, y + 4
    while any(abs(x - other_x) < 80 and abs(y - other_y) < 12 for other_x, other_y in labels):
        y += 12
    labels.append((x, y))
    a, b = (min(0.995, max(0.005, value)) for value in path[0][0])
    drawn = {"d": _d(points), "theory": _d(_xy(dynamics.path((a, b)))), "name": name, "label": (x, y)}
    texts = [hover for _, hover in path]
    return drawn | {"anchor": "start" if way > 0 else "end", "points": list(zip(points, texts, strict=True))}


def _turned(at: tuple[float, float], before: tuple[float, float], after: tuple[float, float]) -> str:
    turn = math.degrees(math.atan2(after[1] - before[1], after[0] - before[0]))
    return f"translate({at[0]:.1f} {at[1]:.1f}) rotate({turn:.1f})"


def _xy(p: Iterable[Sequence[float]]) -> list[tuple[float, float]]:
    return [(float(a) * SIDE, (1 - float(b)) * SIDE) for a, b in p]


def _d(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _place(value: float, low: float, high: float, start: float, stop: float) -> float:
    return start + min(1.0, max(0.0, (value - low) / (high - low))) * (stop - start)


def _buckets(values: Sequence[Any], most: int) -> list[Sequence[Any]]:
    size = max(1, math.ceil(len(values) / most))
    return [values[start : start + size] for start in range(0, len(values), size)]


def _fill(colour: int) -> str:
    return f"f{colour % COLOURS}"


def _text(x: float, y: float, text: str, anchor: str, look: str = "tick", **attributes: object) -> str:
    return _tag("text", look, _escape(text), x=x, y=y, text_anchor=anchor, **attributes)


def _tag(name: str, look: str = "", content: str = "", **attributes: object) -> str:
    """Return an element of class `look`; floats are rounded to tenths and `_` in attribute names becomes `-`."""
    known = {"class": look} if look else {}
    written = "".join(
        f' {key.replace("_", "-")}="{f"{value:.1f}" if isinstance(value, float) else _escape(str(value))}"'
        for key, value in (known | attributes).items()
    )
    return f"<{name}{written}>{content}</{name}>" if content else f"<{name}{written}/>"


def _escape(text: str) -> str:
    return str(escape(clean(text)))


def _svg(title: str, parts: Sequence[str], width: float, height: float) -> Markup:
    shown = {"viewBox": f"0 0 {width:.0f} {height:.0f}", "style": f"max-width: {1.15 * width:.0f}px"}
    look = "chart large" if width == LARGE[0] and height == LARGE[1] else "chart"
    return Markup(_tag("svg", look, "".join(parts), **shown, role="img", aria_label=title))
