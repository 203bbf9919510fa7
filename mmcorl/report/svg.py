"""Charts as inline SVG: no script, colours from the page's CSS variables, values shown on hover."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from mmcorl.report.text import clean
from mmcorl.run.reader import Points

LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 32
MAX_POINTS = 300
"""Longer series are averaged in buckets, so that a page of a long run stays small."""
MAX_HOVER = 40
COLOURS = 8
DASHES = 4


@dataclass(frozen=True)
class Frame:
    """The size of a chart in its own units, about the pixels it is shown at: text then has one size."""

    width: int
    height: int

    @property
    def right(self) -> int:
        """Where the plot ends."""
        return self.width - RIGHT

    @property
    def base(self) -> int:
        """Where the lowest value lies."""
        return self.height - BOTTOM


SMALL, LARGE = Frame(310, 190), Frame(510, 270)


@dataclass(frozen=True)
class Series:
    """One line: its name, its points and how it is told apart."""

    name: str
    points: Points
    colour: int = 0
    dash: int = 0
    """0 is this run, 1 and up are other runs."""
    run: str = ""
    """The run's label, where lines of several runs are drawn."""
    strong: bool = True
    marks: bool = False
    """Whether each point is drawn: for evaluations, which are few."""
    smooth: bool = True
    """Whether a long line is drawn as its moving average over the pale line of its steps."""


@dataclass(frozen=True)
class Key:
    """One entry of a legend; without a colour it explains a dash pattern."""

    name: str
    colour: int | None
    dash: int = 0
    block: bool = False


@dataclass(frozen=True)
class Chart:
    """A drawn chart with its caption's parts."""

    title: str
    note: str
    svg: Markup
    legend: Sequence[Key]


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    note: str = "",
    shares: bool = False,
    frame: Frame = SMALL,
) -> Chart | None:
    """Draw lines over training steps; None when no series has a point.

    Args:
        title: what the values are.
        series: the lines; those drawn first lie below.
        note: one sentence on how to read the chart.
        shares: whether values lie in 0..1, which fixes the axis so that charts can be compared by eye.
        frame: the size.
    """
    series = [one for one in series if one.points]
    if not series:
        return None
    tell = _tell_share if shares else _tell
    bucketed = [_bucket(one.points) for one in series]
    if any(len(one.points) > MAX_POINTS for one in series):
        note = f"{note} Long series are averaged in buckets of steps.".strip()
    steps = [step for points in bucketed for step, _ in points]
    values = [value for points in bucketed for _, value in points]
    x = _Scale(min(0, min(steps)), max(1, max(steps)), LEFT, frame.right)
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if shares else nice_ticks(min(values), max(values))
    y = _Scale(y_ticks[0], y_ticks[-1], frame.base, TOP)
    parts = [
        _rules(y, y_ticks, _tell_share if shares else _tick_teller(y_ticks), frame),
        _step_axis(x, frame),
    ]
    for one, points in zip(series, bucketed, strict=True):
        parts.append(_line(one, points, x, y))
    parts.append(_hover(series, bucketed, x, y, tell, frame))
    return Chart(title, note, _svg(title, parts, frame), legend_keys(series))


def stacked_chart(
    title: str, names: Sequence[str], stacks: Sequence[tuple[int, Sequence[float]]], *, note: str
) -> Chart | None:
    """Draw stacked bars over training steps, such as the seconds of each phase; None without data."""
    if not stacks:
        return None
    frame = SMALL
    buckets = _bucket_stacks(stacks, 60)
    top = max(sum(values) for _, _, values in buckets)
    y_ticks = nice_ticks(0.0, top)
    y = _Scale(y_ticks[0], y_ticks[-1], frame.base, TOP)
    x = _Scale(buckets[0][0] - 1, buckets[-1][1], LEFT, frame.right)
    if len(buckets) < len(stacks):
        note = f"{note} Each bar is the mean of several steps.".strip()
    parts = [_rules(y, y_ticks, _tick_teller(y_ticks), frame), _step_axis(x, frame)]
    columns = []
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
        rows = [
            (f"f{index % COLOURS}", f"{name} {value:.3g} s")
            for index, (name, value) in enumerate(zip(names, values, strict=True))
            if value > 0
        ]
        tip = _tip(said, [*rows, ("", f"total {base:.3g} s")], (left + right) / 2, frame)
        hit = _hit(left, right, frame)
        columns.append(f'<g class="h">{hit}{"".join(bars)}{tip}</g>')
    legend = [Key(name, index, block=True) for index, name in enumerate(names)]
    return Chart(title, note, _svg(title, [*parts, *columns], frame), legend)


def legend_keys(series: Sequence[Series]) -> list[Key]:
    """Colours and, where several runs are drawn, dashes: one entry each rather than one per line."""
    runs = dict.fromkeys((one.dash, one.run) for one in sorted(series, key=lambda one: one.dash) if one.run)
    colours = {one.colour for one in series}
    if len(runs) > 1 and len(colours) == len(series) and len({one.name for one in series}) == 1:
        return [Key(one.run, one.colour, one.dash) for one in sorted(series, key=lambda one: one.dash)]
    if len(runs) < 2 or len(colours) == len(series):
        return [
            Key(_told(one), one.colour, one.dash) for one in sorted(series, key=lambda one: one.dash) if len(series) > 1
        ]
    names = dict.fromkeys((one.name, one.colour) for one in sorted(series, key=lambda one: one.dash))
    return [
        *(Key(name, colour, block=True) for name, colour in names),
        *(Key(run, None, dash) for dash, run in runs),
    ]


def dumbbell(start: float | None, end: float | None, colour: int, label: str) -> Markup:
    """A small scale 0..1 with a ring at the start and a dot at the end, for a table cell."""
    scale = _DUMBBELL
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
        f'<svg class="dumbbell" viewBox="0 0 180 20" role="img" aria-label="{escape(clean(label))}">'
        f"{''.join(parts)}</svg>"
    )


def scale_header() -> Markup:
    """The numbers of the scale of `dumbbell`, for a table's head."""
    texts = [
        f'<text x="{_DUMBBELL(value):.1f}" y="15" text-anchor="middle">{said}</text>'
        for value, said in ((0, "0"), (0.5, "0.5"), (1, "1"))
    ]
    return Markup(f'<svg class="dumbbell" viewBox="0 0 180 20" aria-hidden="true">{"".join(texts)}</svg>')


def swatch(key: Key) -> Markup:
    """The mark of a legend entry."""
    colour = "ink" if key.colour is None else f"s{key.colour % COLOURS}"
    block = " block" if key.block else f" d{key.dash % DASHES}"
    width = 14 if key.block else 28
    return Markup(
        f'<svg class="swatch" width="{width}" height="10" viewBox="0 0 {width} 10" aria-hidden="true">'
        f'<line class="l {colour}{block}" x1="1" y1="5" x2="{width - 1}" y2="5"/></svg>'
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


_DUMBBELL = _Scale(0, 1, 8, 172)


def _svg(title: str, parts: Sequence[str], frame: Frame) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-label="{escape(clean(title))}">{"".join(parts)}</svg>'
    )


def _rules(y: _Scale, ticks: Sequence[float], tell: Callable[[float], str], frame: Frame) -> str:
    lines = []
    for tick in ticks:
        place = y(tick)
        lines.append(f'<line class="rule" x1="{LEFT}" y1="{place:.1f}" x2="{frame.right}" y2="{place:.1f}"/>')
        lines.append(f'<text class="tick" x="{LEFT - 6}" y="{place + 3.6:.1f}" text-anchor="end">{tell(tick)}</text>')
    return "".join(lines)


def _step_axis(x: _Scale, frame: Frame) -> str:
    ticks = [tick for tick in nice_ticks(x.low, x.high, 4) if x.low <= tick <= x.high and tick == int(tick)]
    base = frame.base
    parts = [f'<line class="base" x1="{LEFT}" y1="{base}" x2="{frame.right}" y2="{base}"/>']
    parts += [f'<text class="tick" x="{x(t):.1f}" y="{base + 14}" text-anchor="middle">{int(t)}</text>' for t in ticks]
    parts.append(f'<text class="tick" x="{frame.right}" y="{frame.height - 4}" text-anchor="end">training step</text>')
    return "".join(parts)


def _line(one: Series, points: Points, x: _Scale, y: _Scale) -> str:
    classes = f"l s{one.colour % COLOURS} d{one.dash % DASHES}" + ("" if one.strong else " thin")
    drawn = ""
    if one.smooth and not one.marks and len(points) >= 15:
        if one.strong:
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
    """Mean over a centred window of a twelfth of the points, cut at both ends."""
    reach = max(1, len(points) // 24)
    smoothed = []
    for index, (step, _) in enumerate(points):
        window = points[max(0, index - reach) : index + reach + 1]
        smoothed.append((step, sum(value for _, value in window) / len(window)))
    return smoothed


def _bucket(points: Points) -> Points:
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(len(points) / MAX_POINTS)
    buckets = [points[i : i + size] for i in range(0, len(points), size)]
    return [(bucket[-1][0], sum(v for _, v in bucket) / len(bucket)) for bucket in buckets]


def _bucket_stacks(stacks: Sequence[tuple[int, Sequence[float]]], most: int) -> list[tuple[int, int, list[float]]]:
    """(first step, last step, mean of each part), at most `most` of them."""
    size = max(1, math.ceil(len(stacks) / most))
    buckets = []
    for start in range(0, len(stacks), size):
        chunk = stacks[start : start + size]
        means = [sum(values[i] for _, values in chunk) / len(chunk) for i in range(len(chunk[0][1]))]
        buckets.append((chunk[0][0], chunk[-1][0], means))
    return buckets


def _hover(
    series: Sequence[Series],
    bucketed: Sequence[Points],
    x: _Scale,
    y: _Scale,
    tell: Callable[[float], str],
    frame: Frame,
) -> str:
    steps = sorted({step for points in bucketed for step, _ in points})
    if len(steps) > MAX_HOVER:
        stride = (len(steps) - 1) / (MAX_HOVER - 1)
        steps = sorted({steps[round(i * stride)] for i in range(MAX_HOVER)})
    known = [dict(points) for points in bucketed]
    columns = []
    for index, step in enumerate(steps):
        left = LEFT if index == 0 else (x(steps[index - 1]) + x(step)) / 2
        right = frame.right if index == len(steps) - 1 else (x(step) + x(steps[index + 1])) / 2
        rows, dots = [], []
        for one, values in sorted(zip(series, known, strict=True), key=lambda pair: pair[0].dash):
            if step in values:
                rows.append((f"f{one.colour % COLOURS}", f"{_short(_told(one))} {tell(values[step])}"))
                place = f'cx="{x(step):.1f}" cy="{y(values[step]):.1f}"'
                dots.append(f'<circle class="f{one.colour % COLOURS} t" {place} r="3.5"/>')
        columns.append(
            f'<g class="h">{_hit(left, right, frame)}<line class="cross t" x1="{x(step):.1f}" y1="{TOP}" '
            f'x2="{x(step):.1f}" y2="{frame.base}"/>{"".join(dots)}'
            f"{_tip(f'step {step}', rows, x(step), frame)}</g>"
        )
    return "".join(columns)


def _hit(left: float, right: float, frame: Frame) -> str:
    """The invisible column that the pointer meets."""
    width, height = max(0.1, right - left), frame.base - TOP
    return f'<rect class="hit" x="{left:.1f}" y="{TOP}" width="{width:.1f}" height="{height}"/>'


def _tip(heading: str, rows: Sequence[tuple[str, str]], place: float, frame: Frame) -> str:
    """A box of values beside a place; hidden until its column is hovered."""
    width = 22 + 6.0 * max(len(text) for text in [heading, *(text for _, text in rows)])
    height = 8 + 13 * (1 + len(rows))
    left = place + 8 if place < (LEFT + frame.right) / 2 else place - 8 - width
    left = min(max(2.0, left), frame.width - width - 2)
    top = TOP + 2
    lines = [f'<text class="tiphead" x="{left + 7:.1f}" y="{top + 13}">{escape(clean(heading))}</text>']
    for index, (dot, text) in enumerate(rows):
        base = top + 26 + 13 * index
        if dot:
            lines.append(f'<circle class="{dot}" cx="{left + 10:.1f}" cy="{base - 3.5:.1f}" r="3"/>')
        lines.append(f'<text x="{left + 17:.1f}" y="{base}">{escape(clean(text))}</text>')
    box = f'<rect class="tipbox" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{height}" rx="4"/>'
    return f'<g class="t tip">{box}{"".join(lines)}</g>'


def _told(one: Series) -> str:
    """The line's name; with its run's label when it is another run's."""
    return f"{one.name}, {one.run}" if one.run and one.dash else one.name


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
