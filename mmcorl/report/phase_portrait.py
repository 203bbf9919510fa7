"""Phase portraits as one SVG that stands alone: where a pair of accuracies goes, with own votes and with a peer's.

No script; light and dark colours inside the file, so that the same text serves a page and a picture in a README.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from markupsafe import Markup, escape

from mmcorl.analysis.dynamics import Dynamics
from mmcorl.report.text import clean

SIDE = 400
"""Side of a plot; everything else is placed around it."""
LEFT, TOP, RIGHT, BOTTOM = 64, 78, 22, 60
ARROWS = 13
"""Arrows per row and column."""
ENDS = {(1.0, 1.0): "good", (0.0, 0.0): "bad"}
PALETTE = 8
SPREAD = 12.0
"""Least distance between the baselines of two labels, so that neighbours stay legible."""

STYLE = """
.portrait { --bg: #ffffff; --ink: #1d2026; --soft: #6a707b; --line: #c9ccd2; --good: #0b7a4b; --bad: #b3261e;
 --mixed: #a06a00; --wash: 0.1; --arrow: #8d939d;
 --c0: #0072b2; --c1: #d55e00; --c2: #6a4fb3; --c3: #b84a92; --c4: #3a9bd9; --c5: #8a5a00; --c6: #00806a; --c7: #6e6e6e;
 font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
@media (prefers-color-scheme: dark) { .portrait { --bg: #1b1e24; --ink: #e8eaee; --soft: #a4abb7; --line: #3a404b;
 --good: #4fd39a; --bad: #ff8a80; --mixed: #ffc24d; --wash: 0.13; --arrow: #727986;
 --c0: #5ab4f0; --c1: #ff8f54; --c2: #b6a1ff; --c3: #f09ad0; --c4: #a9dcff; --c5: #ffc24d;
 --c6: #3dd6a3; --c7: #b4b8c0; } }
.portrait .back { fill: var(--bg); } .portrait text { fill: var(--soft); }
.portrait .head { fill: var(--ink); font-size: 16px; font-weight: 700; } .portrait .sub { font-size: 12.5px; }
.portrait .axis { fill: var(--ink); font-size: 12.5px; } .portrait .frame { fill: none; stroke: var(--line); }
.portrait .half { stroke: var(--line); stroke-dasharray: 2 4; } .portrait .wash { opacity: var(--wash); }
.portrait .border { fill: none; stroke: var(--ink); stroke-width: 1.8; stroke-dasharray: 7 4; }
.portrait .field { stroke: var(--arrow); stroke-width: 1.1; fill: none; stroke-linecap: round; stroke-linejoin: round; }
.portrait .path { fill: none; stroke-width: 2.6; stroke-linejoin: round; stroke-linecap: round; }
.portrait .theory { stroke-width: 1.5; stroke-dasharray: 5 4; opacity: 0.9; }
.portrait .ring { fill: var(--bg); stroke-width: 2.4; }
.portrait .saddle { fill: var(--bg); stroke: var(--ink); stroke-width: 1.6; }
.portrait .halo { paint-order: stroke; stroke: var(--bg); stroke-width: 3.5px; stroke-linejoin: round; }
.portrait .note { fill: var(--ink); font-size: 12px; } .portrait .corner { font-weight: 700; font-size: 12px; }
.portrait .s-good { stroke: var(--good); } .portrait .s-bad { stroke: var(--bad); }
.portrait .s-mixed { stroke: var(--mixed); }
.portrait .f-good, .portrait text.f-good { fill: var(--good); }
.portrait .f-bad, .portrait text.f-bad { fill: var(--bad); }
.portrait .f-mixed, .portrait text.f-mixed { fill: var(--mixed); }
""" + "".join(
    f".portrait .s-{i} {{ stroke: var(--c{i}); }} .portrait .f-{i}, .portrait text.f-{i} {{ fill: var(--c{i}); }}\n"
    for i in range(PALETTE)
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One measured path: accuracies of both agents, window by window."""

    name: str
    p: Sequence[tuple[float, float]]
    said: Sequence[str]
    """What is shown on hover at each point."""


@dataclass(frozen=True)
class Panel:
    """One portrait: the arrows and basins of two agents, and what is drawn over them."""

    title: str
    note: str
    dynamics: Dynamics
    names: tuple[str, str] = ("agent A", "agent B")
    starts: Sequence[tuple[float, float]] = ()
    """Theory's paths from here, coloured by where they end."""
    lines: Sequence[Line] = field(default_factory=tuple)
    """Measured paths, each with theory's path from its first point."""


def portrait(panels: Sequence[Panel], label: str) -> Markup:
    """Draw panels side by side; `label` says in words what is seen. Two agents, own votes or each other's."""
    wide = LEFT + SIDE + RIGHT
    width, height = wide * len(panels), TOP + SIDE + BOTTOM
    parts = [f"<style>{STYLE}</style>", f'<rect class="back" width="{width}" height="{height}" rx="10"/>']
    for place, panel in enumerate(panels):
        if panel.dynamics.agents != 2:
            raise ValueError(f"a plane shows two agents, not {panel.dynamics.agents}")
        parts.append(f'<g transform="translate({place * wide + LEFT} {TOP})">{_panel(panel)}</g>')
    shown = width * 4 // 3 if len(panels) == 1 else width
    return Markup(
        f'<svg class="portrait" xmlns="http://www.w3.org/2000/svg" width="{shown}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(clean(label))}">{"".join(parts)}</svg>'
    )


def _panel(panel: Panel) -> str:
    placed: list[tuple[float, float]] = []
    return "".join(
        [
            f'<text class="head" x="0" y="-52">{_text(panel.title)}</text>',
            f'<text class="sub" x="0" y="-33">{_text(panel.note)}</text>',
            _basins(panel.dynamics),
            _halves(),
            _field(panel.dynamics),
            _border(panel.dynamics),
            f'<rect class="frame" width="{SIDE}" height="{SIDE}"/>',
            _axes(panel.names),
            _corners(panel),
            *(_theory(panel.dynamics, start, placed) for start in panel.starts),
            *(_measured(panel.dynamics, line, place % PALETTE) for place, line in enumerate(panel.lines)),
            *_names(panel.lines, placed),
        ]
    )


def _basins(dynamics: Dynamics) -> str:
    if not dynamics.is_pair:
        half = SIDE / 2
        return "".join(
            f'<rect class="wash f-{kind}" x="{x * half}" y="{y * half}" width="{half}" height="{half}"/>'
            for x, y, kind in ((0, 1, "bad"), (1, 0, "good"), (0, 0, "mixed"), (1, 1, "mixed"))
        )
    border = [(0.0, 1.0), *_border_points(dynamics), (1.0, 0.0)]
    return (
        f'<path class="wash f-good" d="{_path(border)}L{SIDE} 0Z"/>'
        f'<path class="wash f-bad" d="{_path(border)}L0 {SIDE}Z"/>'
    )


def _border_points(dynamics: Dynamics) -> list[tuple[float, float]]:
    at = np.linspace(0.004, 0.996, 125)
    return [(float(x), float(y)) for x, y in zip(at, dynamics.separatrix(at), strict=True)]


def _border(dynamics: Dynamics) -> str:
    if not dynamics.is_pair:
        half = SIDE / 2
        return (
            f'<path class="border" d="M{half} 0V{SIDE}M0 {half}H{SIDE}"/>'
            f'<text class="note halo" x="{half + 7}" y="{SIDE - 9}">each alone: p = ½</text>'
        )
    points = [(0.0, 1.0), *_border_points(dynamics), (1.0, 0.0)]
    low = "<tspan dy='3' font-size='9'>{}</tspan><tspan dy='-3'>{}</tspan>"
    said = "p" + low.format("A", " + p") + low.format("B", " = 1")
    if dynamics.eta[0] != dynamics.eta[1]:
        said = "the border"
    (x, y), (near_x, near_y), (far_x, far_y) = points[42], points[36], points[48]
    angle = math.degrees(math.atan2(near_y - far_y, far_x - near_x))
    return (
        f'<path class="border" d="{_path(points)}"/>'
        f'<text class="note halo" text-anchor="middle" dy="-7" '
        f'transform="translate({x * SIDE:.1f} {_y(y):.1f}) rotate({angle:.1f})">{said}</text>'
        f'<circle class="saddle" cx="{SIDE / 2}" cy="{SIDE / 2}" r="4.5">'
        "<title>saddle: both at one half</title></circle>"
    )


def _halves() -> str:
    half = SIDE / 2
    return f'<path class="half" d="M{half} 0V{SIDE}M0 {half}H{SIDE}"/>'


def _field(dynamics: Dynamics) -> str:
    places = (np.arange(ARROWS) + 0.5) / ARROWS
    grid = np.stack(np.meshgrid(places, places, indexing="ij"), axis=-1)
    velocity = dynamics.velocity(grid)
    speed = np.hypot(velocity[..., 0], velocity[..., 1])
    top = float(speed.max())
    reach = SIDE / ARROWS * 0.36
    parts = []
    for (x, y), (u, v), size in zip(grid.reshape(-1, 2), velocity.reshape(-1, 2), speed.ravel(), strict=True):
        if size < 1e-9 * top:
            continue
        # The slow are drawn longer than to scale: near the edges the direction still matters.
        length = reach * (0.35 + 0.65 * math.sqrt(size / top))
        a, b = u / size, -v / size
        middle_x, middle_y = x * SIDE, _y(float(y))
        tip_x, tip_y = middle_x + a * length, middle_y + b * length
        wing = 3.2
        parts.append(
            f"M{middle_x - a * length:.1f} {middle_y - b * length:.1f}L{tip_x:.1f} {tip_y:.1f}"
            f"M{tip_x - wing * (a - 0.6 * b):.1f} {tip_y - wing * (b + 0.6 * a):.1f}L{tip_x:.1f} {tip_y:.1f}"
            f"L{tip_x - wing * (a + 0.6 * b):.1f} {tip_y - wing * (b - 0.6 * a):.1f}"
        )
    return f'<path class="field" d="{"".join(parts)}"/>'


def _axes(names: tuple[str, str]) -> str:
    parts = []
    for value in (0, 0.5, 1):
        said = f"{value:g}"
        parts.append(f'<text x="{value * SIDE}" y="{SIDE + 18}" text-anchor="middle">{said}</text>')
        parts.append(f'<text x="-9" y="{_y(value) + 4:.0f}" text-anchor="end">{said}</text>')
    parts.append(
        f'<text class="axis" x="{SIDE / 2}" y="{SIDE + 42}" text-anchor="middle">accuracy of {_text(names[0])}</text>'
    )
    parts.append(
        f'<text class="axis" transform="translate(-44 {SIDE / 2}) rotate(-90)" text-anchor="middle">'
        f"accuracy of {_text(names[1])}</text>"
    )
    return "".join(parts)


def _corners(panel: Panel) -> str:
    """What the corners mean, outside the frame, where no path runs."""
    corners = [("good", SIDE, -9, "end", "both right"), ("bad", 10, SIDE + 18, "start", "both wrong")]
    if not panel.dynamics.is_pair:
        a, b = ("A", "B") if max(map(len, panel.names)) > 14 or "agent A" in panel.names else panel.names
        corners.append(("mixed", 0, -9, "start", f"only {b} right"))
        corners.append(("mixed", SIDE - 10, SIDE + 18, "end", f"only {a} right"))
    return "".join(
        f'<text class="corner f-{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{_text(said)}</text>'
        for kind, x, y, anchor, said in corners
    )


def _theory(dynamics: Dynamics, start: tuple[float, float], placed: list[tuple[float, float]]) -> str:
    kind = _kind(dynamics, start)
    path = _follow(dynamics, start)
    said = f"from ({start[0]:g}, {start[1]:g}): {_SAID[kind]}"
    end_x, end_y = path[-1]
    x, y = start[0] * SIDE, _y(start[1])
    # On the side away from where the path sets off.
    above = path[min(8, len(path) - 1)][1] <= start[1]
    placed.append((x, y + (-11 if above else 20)))
    return (
        f'<g><title>{said}</title><path class="path s-{kind}" d="{_path(path)}"/>{_heads(path, kind)}'
        f'<circle class="f-{kind}" cx="{end_x * SIDE:.1f}" cy="{_y(end_y):.1f}" r="4.5"/>'
        f'<circle class="ring s-{kind}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text class="note halo" x="{x:.1f}" y="{placed[-1][1]:.1f}" text-anchor="middle">'
        f"{start[0]:g}, {start[1]:g}</text></g>"
    )


def _measured(dynamics: Dynamics, line: Line, colour: int) -> str:
    start = tuple(min(0.995, max(0.005, value)) for value in line.p[0])
    path = _follow(dynamics, (start[0], start[1]))
    dots = []
    for place, (p, said) in enumerate(zip(line.p, line.said, strict=True)):
        title = f"<title>{_text(said)}</title>"
        x, y = p[0] * SIDE, _y(p[1])
        if place == 0:
            dots.append(f'<circle class="ring s-{colour}" cx="{x:.1f}" cy="{y:.1f}" r="5.5">{title}</circle>')
        else:
            radius = 6 if place == len(line.p) - 1 else 3
            dots.append(f'<circle class="f-{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{title}</circle>')
    return (
        f'<path class="path theory s-{colour}" d="{_path(path)}"/>'
        f'<path class="path s-{colour}" d="{_path(line.p)}"/>{"".join(reversed(dots))}'
    )


def _names(lines: Sequence[Line], placed: list[tuple[float, float]]) -> list[str]:
    """The name of each measured path beside its start, moved up or down where two would meet."""
    told = []
    for place, line in sorted(enumerate(lines), key=lambda pair: -pair[1].p[0][1]):
        p = line.p[0]
        wide = 8.0 * len(line.name) + 16.0
        ways = [1, -1] if p[0] < 0.5 else [-1, 1]
        inside = [way for way in ways if -LEFT / 2 < p[0] * SIDE + way * wide < SIDE + RIGHT]
        way = min(inside or ways, key=lambda way: _covered(line, lines, way * wide))
        right = way > 0
        x = p[0] * SIDE + 11 * way
        y = _y(p[1]) + 4
        while any(abs(x - other_x) < 80 and abs(y - other_y) < SPREAD for other_x, other_y in placed):
            y += SPREAD
        placed.append((x, y))
        anchor = "start" if right else "end"
        told.append(
            f'<text class="corner halo f-{place % PALETTE}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{_text(line.name)}</text>"
        )
    return told


def _covered(line: Line, lines: Sequence[Line], reach: float) -> int:
    """How much a label of this reach beside the start of a path would hide: points, and threefold other starts."""
    x, y = line.p[0]
    low, high = sorted((x, x + reach / SIDE))

    def hidden(p: tuple[float, float]) -> bool:
        return low <= p[0] <= high and abs(p[1] - y) < 12 / SIDE

    starts = sum(hidden(other.p[0]) for other in lines if other is not line)
    return 3 * starts + sum(hidden(p) for other in lines for p in other.p[1:])


_SAID = {"good": "both end right", "bad": "both end wrong", "mixed": "one ends right, or neither is decided"}


def _kind(dynamics: Dynamics, start: tuple[float, float]) -> str:
    finals = dynamics.finals([start])[0]
    return ENDS.get((float(finals[0]), float(finals[1])), "mixed")


def _follow(dynamics: Dynamics, start: tuple[float, float]) -> list[tuple[float, float]]:
    """Theory's path, at times that lie closer where it moves faster."""
    slowest = float(dynamics.eta.min())
    times = np.concatenate([np.linspace(0, 12, 97), np.geomspace(12.5, 300, 40)]) / slowest
    told = dynamics.run(start, times).p
    return [(float(x), float(y)) for x, y in told]


def _heads(path: Sequence[tuple[float, float]], kind: str) -> str:
    """Two arrow heads, at a third and at three quarters of the drawn length."""
    steps = [math.dist(a, b) for a, b in pairwise(path)]
    whole = sum(steps)
    parts, done, due = [], 0.0, [0.35, 0.75]
    for (a, b), step in zip(pairwise(path), steps, strict=True):
        done += step
        if due and whole > 0.08 and done >= due[0] * whole:
            due.pop(0)
            angle = math.degrees(math.atan2(-(b[1] - a[1]), b[0] - a[0]))
            parts.append(
                f'<path class="f-{kind}" d="M6 0L-5 -5L-2.5 0L-5 5Z" '
                f'transform="translate({b[0] * SIDE:.1f} {_y(b[1]):.1f}) rotate({angle:.1f})"/>'
            )
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x * SIDE:.1f} {_y(y):.1f}" for x, y in points)


def _y(p: float) -> float:
    return (1.0 - p) * SIDE


def _text(text: str) -> str:
    return str(escape(clean(text)))
