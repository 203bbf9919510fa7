"""The page of `mmcorl diversity`: heat maps of all pairs and, for every model as anchor, the ladder of its partners."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import jinja2
from markupsafe import Markup, escape

from mmcorl.analysis.diversity import KINDS, Draw, Kind, Pair, anchors, ladder, measures
from mmcorl.report.svg import Chart, Key, nice_ticks, swatch
from mmcorl.report.text import clean

COLOURS: Mapping[Kind, int] = {"seed": 7, "same_family": 5, "different_family": 0, "unstated": 3}
"""Colour of each kind of pair: the palette of the reports."""
_NAME = 22
"""Characters of a name that fit beside a chart; the whole name is shown on hover."""
_CELL, _ROW, _LETTER = 62, 30, 6.2
_DARKEST = 0.62
"""Opacity at the end of a heat map's scale: numbers on it stay readable in both colour schemes."""


def page(draws: Sequence[Draw], pairs: Sequence[Pair], facts: Sequence[tuple[str, str]], notes: Sequence[str]) -> str:
    """One page without scripts; `pairs` as `all_pairs` gives them, `facts` and `notes` as told beside the table."""
    names = anchors(pairs)
    heat = [
        heat_map(
            "Kappa",
            "Likeness of errors beyond chance: the stronger the colour, the more alike.",
            names,
            pairs,
            _kappa,
            _two,
        ),
        heat_map(
            "Complementarity c, %",
            "Problems that exactly one of the two gets right: the stronger the colour, the more.",
            names,
            pairs,
            _complementarity,
            _percent,
        ),
    ]
    ladders = ladder_charts(pairs)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mmcorl.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.globals.update(swatch=swatch)
    rows = [(pair, KINDS[pair.kind], measures(pair.cells) if pair.cells else {}) for pair in pairs]
    return environment.get_template("diversity.html").render(
        title=f"Error decoupling of {len(names)} models" if len(names) > 1 else f"Error decoupling of {names[0]}",
        problems=pairs[0].problems,
        draws=draws,
        facts=facts,
        notes=notes,
        heat=heat,
        ladders=ladders,
        rows=rows,
        number=_number,
    )


def heat_map(
    title: str,
    note: str,
    names: Sequence[str],
    pairs: Sequence[Pair],
    value: Callable[[Pair], float],
    tell: Callable[[float], str],
) -> Chart:
    """A square of all pairs; a model with itself, drawn anew, on the diagonal. Undefined and absent cells are empty."""
    known: dict[tuple[str, str], Pair] = {}
    for pair in pairs:
        a, b = (pair.a, pair.a) if pair.kind == "seed" else (pair.a, pair.b)
        known.setdefault((a, b), pair)
        known.setdefault((b, a), pair)
    values = [value(pair) for pair in known.values() if not math.isnan(value(pair))]
    low, high = (math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10) if values else (0.0, 1.0)
    left = 14 + _LETTER * max(len(_short(name)) for name in names)
    # Names of columns stand slanted above them.
    top = 16 + 0.72 * _LETTER * max(len(_short(name)) for name in names)
    slant = 0.72 * _LETTER * len(_short(names[-1]))
    width, height = left + _CELL * len(names) + max(0.0, slant - _CELL / 2), top + _CELL * 0.62 * len(names) + 4
    parts = []
    for row, a in enumerate(names):
        y = top + row * _CELL * 0.62
        parts.append(_text(left - 8, y + _CELL * 0.31 + 4, a, anchor="end"))
        for column, b in enumerate(names):
            x = left + column * _CELL
            found = known.get((a, b))
            shade, said, hover = 0.0, "–", f"{a} × {b}: not measured"
            if found is not None:
                number = value(found)
                with_whom = "itself, new seed" if a == b else b
                said = "undef." if math.isnan(number) else tell(number)
                hover = f"{a} × {with_whom} ({KINDS[found.kind]}): {said}"
                if not math.isnan(number):
                    shade = 0.06 + (_DARKEST - 0.06) * ((number - low) / (high - low) if high > low else 1)
            parts.append(
                f'<g><title>{escape(clean(hover))}</title><rect class="f0 cell" x="{x + 1:.1f}" y="{y + 1:.1f}" '
                f'width="{_CELL - 2}" height="{_CELL * 0.62 - 2:.1f}" rx="4" fill-opacity="{shade:.3f}"/>'
                f'<text class="value" x="{x + _CELL / 2:.1f}" y="{y + _CELL * 0.31 + 4:.1f}" '
                f'text-anchor="middle">{said}</text></g>'
            )
    for column, name in enumerate(names):
        x, y = left + (column + 0.42) * _CELL, top - 6
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{y:.1f}" transform="rotate(-45 {x:.1f} {y:.1f})">'
            f"{_short_xml(name)}</text>"
        )
    scale = f"{note} Shades run from {tell(low)} to {tell(high)}." if values else note
    return Chart(title, scale, _svg(title, parts, width, height), [])


def ladder_charts(pairs: Sequence[Pair]) -> list[Chart]:
    """For every model as anchor: kappa of its partners, itself with a new seed first; one scale for all."""
    told = [(name, [rung for rung in ladder(pairs, name) if not math.isnan(_kappa(rung))]) for name in anchors(pairs)]
    # One rung is no ladder; where there is none at all, the rungs are shown.
    told = [(name, rungs) for name, rungs in told if len(rungs) > 1] or [(name, rungs) for name, rungs in told if rungs]
    bounds = [bound for _, rungs in told for rung in rungs if rung.cells for bound in measures(rung.cells)["kappa"][1]]
    if not told:
        return []
    ticks = nice_ticks(min(0.0, *bounds), max(bounds), 5)
    longest = max(len(_short(_partner(rung))) for _, rungs in told for rung in rungs)
    return [_ladder(name, rungs, ticks, 16 + _LETTER * longest) for name, rungs in told]


def _ladder(anchor: str, rungs: Sequence[Pair], ticks: Sequence[float], left: float) -> Chart:
    width, top = 510.0, 18.0
    right = width - 62
    base = top + _ROW * len(rungs) + 4

    def x(value: float) -> float:
        return left + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (right - left)

    parts = [_text(right + 54, 10, "c, %", anchor="end")]
    for tick in ticks:
        parts.append(f'<line class="rule" x1="{x(tick):.1f}" y1="{top}" x2="{x(tick):.1f}" y2="{base}"/>')
        parts.append(_text(x(tick), base + 14, f"{tick:.1f}", anchor="middle"))
    parts.append(f'<line class="base" x1="{left}" y1="{base}" x2="{right}" y2="{base}"/>')
    told = "kappa, with its 95 % interval"
    parts.append(f'<text class="tick" x="{right}" y="{base + 28}" text-anchor="end">{told}</text>')
    places = []
    for number, rung in enumerate(rungs):
        assert rung.cells is not None
        y = top + _ROW * (number + 0.5)
        kappa, (low, high) = measures(rung.cells)["kappa"]
        colour = COLOURS[rung.kind]
        places.append(f"{x(kappa):.1f} {y:.1f}")
        c = 100 * rung.cells.complementarity
        hover = (
            f"{anchor} × {_partner(rung)} ({KINDS[rung.kind]}): kappa {kappa:.2f} [{low:.2f}, {high:.2f}], "
            f"c {c:.1f} %, w {100 * rung.cells.wrong_agreement:.1f} %"
        )
        parts.append(
            f"<g><title>{escape(clean(hover))}</title>{_text(left - 8, y + 4, _partner(rung), anchor='end')}"
            f'<line class="l s{colour}" x1="{x(low):.1f}" y1="{y:.1f}" x2="{x(high):.1f}" y2="{y:.1f}"/>'
            f'<circle class="f{colour}" cx="{x(kappa):.1f}" cy="{y:.1f}" r="5.5"/>'
            f"{_text(right + 54, y + 4, f'{c:.1f}', anchor='end')}</g>"
        )
    if len(places) > 1:
        parts.insert(1, f'<path class="l thin step" d="M{"L".join(places)}"/>')
    kinds = dict.fromkeys(rung.kind for rung in rungs)
    keys = [Key(KINDS[kind], COLOURS[kind], block=True) for kind in kinds]
    return Chart(f"Anchor: {anchor}", "", _svg(f"Ladder of {anchor}", parts, width, base + 34), keys)


def _partner(rung: Pair) -> str:
    return "itself, new seed" if rung.kind == "seed" else rung.b


def _kappa(pair: Pair) -> float:
    return pair.cells.kappa if pair.cells else math.nan


def _complementarity(pair: Pair) -> float:
    return pair.cells.complementarity if pair.cells else math.nan


def _two(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _number(name: str, told: tuple[float, tuple[float, float]]) -> tuple[str, str]:
    """A number of the table and its interval as they are printed."""
    value, (low, high) = told
    if math.isnan(value):
        return "undefined", ""
    tell = _two if name == "kappa" else _percent
    return tell(value), f"{tell(low)} to {tell(high)}"


def _short(name: str) -> str:
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _short_xml(name: str) -> str:
    return str(escape(clean(_short(name))))


def _text(x: float, y: float, text: str, *, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_short_xml(text)}</text>'


def _svg(title: str, parts: Sequence[str], width: float, height: float) -> Markup:
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" style="max-width: {1.15 * width:.0f}px" role="img" '
        f'aria-label="{escape(clean(title))}">{"".join(parts)}</svg>'
    )
