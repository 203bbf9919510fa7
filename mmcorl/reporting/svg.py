"""Charts as inline SVG: no script, colours from the page's CSS variables, values shown on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from mmcorl.reporting.run_files import Points
from mmcorl.reporting.text import clean

WIDTH, HEIGHT = 420, 218
LEFT, RIGHT, TOP, BOTTOM = 42, 14, 10, 30
MAX_POINTS = 300
"""Longer series are averaged in buckets, so that a page of a long run stays small."""
MAX_HOVER = 40
COLOURS = 8
DASHES = 4


@dataclass(frozen=True)
class Series:
    """One line: its name, its points and how it is told apart."""

    name: str
    points: Points
    colour: int = 0
    dash: int = 0
    """0 is this run, 1 and up are other runs."""
    strong: bool = True
    marks: bool = False
    """Whether each point is drawn: for evaluations, which are few."""


@dataclass(frozen=True)
class Chart:
    """A drawn chart with its caption's parts."""

    title: str
    note: str
    svg: Markup
    legend: Sequence[Series]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    note: str = "",
    shares: bool = False,
    format_value: Callable[[float], str] | None = None,
) -> Chart | None:
    """Draw lines over training steps; None when no series has a point.

    Args:
        title: what the values are.
        series: the lines; those drawn first lie below.
        note: one sentence on how to read the chart.
        shares: whether values lie in 0..1, which fixes the axis so that charts can be compared by eye.
        format_value: how a value is written; three significant digits when not given.
    """
    series = [one for one in series if one.points]
    if not series:
        return None
    tell = format_value or (_tell_share if shares else _tell)
    bucketed = [_bucket(one.points) for one in series]
    if any(len(one.points) > MAX_POINTS for one in series):
        note = f"{note} Long series are averaged in buckets of steps.".strip()
    steps = [step for points in bucketed for step, _ in points]
    values = [value for points in bucketed for _, value in points]
    x = _Scale(min(0, min(steps)), max(1, max(steps)), LEFT, WIDTH - RIGHT)
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if shares else nice_ticks(min(values), max(values))
    y = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = [_grid(y, y_ticks, _tell_share if shares else _tick_teller(y_ticks)), _step_axis(x)]
    for one, points in zip(series, bucketed, strict=True):
        parts.append(_line(one, points, x, y))
    parts.append(_hover(series, bucketed, x, y, tell))
    return Chart(title, note, _svg(title, parts), series)


def stacked_chart(title: str, names: Sequence[str], stacks: Sequence[tuple[int, Sequence[float]]], *, note: str) -> Chart | None:
    """Draw stacked bars over training steps, such as the seconds of each phase; None without data."""
    if not stacks:
        return None
    buckets = _bucket_stacks(stacks, 60)
    top = max(sum(values) for _, _, values in buckets)
    y_ticks = nice_ticks(0.0, top)
    y = _Scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    x = _Scale(buckets[0][0] - 1, buckets[-1][1], LEFT, WIDTH - RIGHT)
    if len(buckets) < len(stacks):
        note = f"{note} Each bar is the mean of several steps.".strip()
    parts = [_grid(y, y_ticks, _tick_teller(y_ticks)), _step_axis(x)]
    for first, last, values in buckets:
        left, right = x(first - 1), x(last)
        width = max(0.5, (right - left) * 0.86)
        base = 0.0
        bars = []
        for index, value in enumerate(values):
            upper, lower = y(base + value), y(base)
            if lower - upper > 0.05:
                bars.append(
                    f'<rect class="f{index % COLOURS}" x="{left:.1f}" y="{upper:.1f}" width="{width:.1f}" '
                    f'height="{lower - upper:.1f}"/>'
                )
            base += value
        said = f"step {first}" if first == last else f"steps {first} to {last}"
        rows = [(f"f{i % COLOURS}", f"{name} {value:.3g} s") for i, (name, value) in enumerate(zip(names, values, strict=True)) if value > 0]
        hit = f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{HEIGHT - TOP - BOTTOM}"/>'
        parts.append(
            f'<g class="h">{hit}{"".join(bars)}{_tip(said, [*rows, ("", f"total {base:.3g} s")], (left + right) / 2)}</g>'
        )
    legend = [Series(name, [(0, 0.0)], index) for index, name in enumerate(names)]
    return Chart(title, note, _svg(title, parts), legend)


def dumbbell(start: float | None, end: float | None, colour: int, label: str) -> Markup:
    """A small scale 0..1 with a ring at the start and a dot at the end, for a table cell."""
    scale = _Scale(0, 1, 8, 172)
    parts = ['<line class="axis" x1="8" y1="10" x2="172" y2="10"/>']
    parts += [f'<line class="axis" x1="{scale(t):.1f}" y1="7" x2="{scale(t):.1f}" y2="13"/>' for t in (0, 0.5, 1)]
    if start is not None and end is not None:
        parts.append(
            f'<line class="s{colour % COLOURS} bar" x1="{scale(start):.1f}" y1="10" x2="{scale(end):.1f}" y2="10"/>'
        )
    if start is not None:
        parts.append(f'<circle class="s{colour % COLOURS} ring" cx="{scale(start):.1f}" cy="10" r="4.5"/>')
    if end is not None:
        parts.append(f'<circle class="f{colour % COLOURS}" cx="{scale(end):.1f}" cy="10" r="5"/>')
    return Markup(
        f'<svg class="dumbbell" viewBox="0 0 180 20" role="img" aria-label="{escape(clean(label))}">{"".join(parts)}</svg>'
    )


def swatch(series: Series) -> Markup:
    """The line of a legend entry."""
    return Markup(
        f'<svg class="swatch" viewBox="0 0 26 10" aria-hidden="true">'
        f'<line class="l s{series.colour % COLOURS} d{series.dash % DASHES}" x1="1" y1="5" x2="25" y2="5"/></svg>'
    )


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round tick values that cover low..high: steps of 1, 2, 2.5 or 5 times a power of ten."""
    if high <= low:
        pad = abs(low) * 0.5 or 0.5
        low, high = low - pad if low != 0 else 0.0, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999999)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


class _Scale:
    """A linear map from values to places."""

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, share)) * (self.stop - self.start)


def _svg(title: str, parts: Sequence[str]) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(clean(title))}">'
        f"{''.join(parts)}</svg>"
    )


def _grid(y: _Scale, ticks: Sequence[float], tell: Callable[[float], str]) -> str:
    lines = []
    for tick in ticks:
        place = y(tick)
        lines.append(f'<line class="rule" x1="{LEFT}" y1="{place:.1f}" x2="{WIDTH - RIGHT}" y2="{place:.1f}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 6}" y="{place + 3.6:.1f}" text-anchor="end">{tell(tick)}</text>')
    return "".join(lines)


def _step_axis(x: _Scale) -> str:
    ticks = [tick for tick in nice_ticks(x.low, x.high, 5) if x.low <= tick <= x.high and tick == int(tick)]
    base = HEIGHT - BOTTOM
    parts = [f'<line class="base" x1="{LEFT}" y1="{base}" x2="{WIDTH - RIGHT}" y2="{base}"/>']
    parts += [
        f'<text class="tick" x="{x(tick):.1f}" y="{base + 14}" text-anchor="middle">{int(tick)}</text>' for tick in ticks
    ]
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">training step</text>')
    return "".join(parts)


def _line(one: Series, points: Points, x: _Scale, y: _Scale) -> str:
    classes = f"l s{one.colour % COLOURS} d{one.dash % DASHES}" + ("" if one.strong else " thin")
    drawn = ""
    smooth = one.strong and not one.marks and len(points) >= 15
    if smooth:
        drawn += f'<path class="{classes} raw" d="{_path(points, x, y)}"/>'
        points = _smooth(points)
    if len(points) > 1:
        drawn += f'<path class="{classes}" d="{_path(points, x, y)}"/>'
    if len(points) == 1 or (one.marks and len(points) <= 40):
        radius = 3 if one.dash == 0 else 2
        drawn += "".join(
            f'<circle class="f{one.colour % COLOURS}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="{radius}"/>' for s, v in points
        )
    return drawn


def _path(points: Points, x: _Scale, y: _Scale) -> str:
    return "M" + "L".join(f"{x(step):.1f} {y(value):.1f}" for step, value in points)


def _smooth(points: Points) -> Points:
    """Mean over a window of a twelfth of the points, centred, shorter at both ends."""
    reach = max(1, len(points) // 24)
    smoothed = []
    for index, (step, _) in enumerate(points):
        half = min(reach, index, len(points) - 1 - index)
        window = points[index - half : index + half + 1]
        smoothed.append((step, sum(value for _, value in window) / len(window)))
    return smoothed


def _bucket(points: Points) -> Points:
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / MAX_POINTS)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(bucket[-1][0], sum(v for _, v in bucket) / len(bucket)) for bucket in buckets]


def _bucket_stacks(
    stacks: Sequence[tuple[int, Sequence[float]]], most: int
) -> list[tuple[int, int, list[float]]]:
    """(first step, last step, mean of each part), at most `most` of them."""
    size = max(1, math.ceil(len(stacks) / most))
    buckets = []
    for start in range(0, len(stacks), size):
        chunk = stacks[start : start + size]
        means = [sum(values[i] for _, values in chunk) / len(chunk) for i in range(len(chunk[0][1]))]
        buckets.append((chunk[0][0], chunk[-1][0], means))
    return buckets


def _hover(
    series: Sequence[Series], bucketed: Sequence[Points], x: _Scale, y: _Scale, tell: Callable[[float], str]
) -> str:
    steps = sorted({step for points in bucketed for step, _ in points})
    if len(steps) > MAX_HOVER:
        stride = (len(steps) - 1) / (MAX_HOVER - 1)
        steps = sorted({steps[round(i * stride)] for i in range(MAX_HOVER)})
    known = [dict(points) for points in bucketed]
    columns = []
    for index, step in enumerate(steps):
        left = LEFT if index == 0 else (x(steps[index - 1]) + x(step)) / 2
        right = WIDTH - RIGHT if index == len(steps) - 1 else (x(step) + x(steps[index + 1])) / 2
        rows, dots = [], []
        for one, values in zip(series, known, strict=True):
            if step in values:
                rows.append((f"f{one.colour % COLOURS}", f"{_short(one.name)} {tell(values[step])}"))
                dots.append(
                    f'<circle class="f{one.colour % COLOURS} t" cx="{x(step):.1f}" cy="{y(values[step]):.1f}" r="3.5"/>'
                )
        columns.append(
            f'<g class="h"><rect class="hit" x="{left:.1f}" y="{TOP}" width="{max(0.1, right - left):.1f}" '
            f'height="{HEIGHT - TOP - BOTTOM}"/><line class="cross t" x1="{x(step):.1f}" y1="{TOP}" '
            f'x2="{x(step):.1f}" y2="{HEIGHT - BOTTOM}"/>{"".join(dots)}{_tip(f"step {step}", rows, x(step))}</g>'
        )
    return "".join(columns)


def _tip(heading: str, rows: Sequence[tuple[str, str]], place: float) -> str:
    """A box of values beside a place; hidden until its column is hovered."""
    width = 22 + 5.9 * max(len(text) for text in [heading, *(text for _, text in rows)])
    height = 8 + 13 * (1 + len(rows))
    left = place + 8 if place < (LEFT + WIDTH - RIGHT) / 2 else place - 8 - width
    left = min(max(2.0, left), WIDTH - width - 2)
    top = TOP + 2
    lines = [f'<text class="tiphead" x="{left + 7:.1f}" y="{top + 13}">{escape(clean(heading))}</text>']
    for index, (dot, text) in enumerate(rows):
        base = top + 26 + 13 * index
        if dot:
            lines.append(f'<circle class="{dot}" cx="{left + 10:.1f}" cy="{base - 3.5:.1f}" r="3"/>')
        lines.append(f'<text x="{left + 17:.1f}" y="{base}">{escape(clean(text))}</text>')
    box = f'<rect class="tipbox" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="4"/>'
    return f'<g class="t tip">{box}{"".join(lines)}</g>'


def _short(name: str, length: int = 34) -> str:
    return name if len(name) <= length else name[: length - 1] + "…"


def _tell(value: float) -> str:
    return f"{value:.3g}"


def _tell_share(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") if value in (0.0, 0.25, 0.5, 0.75, 1.0) else f"{value:.3f}"


def _tick_teller(ticks: Sequence[float]) -> Callable[[float], str]:
    """Writes ticks with just the decimals that tell them apart."""
    step = abs(ticks[1] - ticks[0])
    largest = max(abs(tick) for tick in ticks)
    if largest >= 1e5 or largest < 1e-3:
        return lambda value: f"{value:.1e}" if value else "0"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    if round(step, decimals) != round(step, 9):
        decimals += 1
    return lambda value: f"{value:.{decimals}f}"
