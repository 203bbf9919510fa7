"""The page of `mmcorl diversity`: heat maps of all pairs, and for every model as anchor the ladder of its partners."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmcorl.apps.analysis.diversity import PAIR_KINDS, ModelResponses, Pair, PairKind, anchors, ladder, measures
from mmcorl.apps.report import links
from mmcorl.apps.report.charts import Chart, IntervalRow, Key, interval_chart, nice_ticks, short
from mmcorl.apps.report.page import render
from mmcorl.run.provenance import written

FILES = ("diversity.md", "diversity.csv", "diversity.json")
COLOURS: Mapping[PairKind, int] = {"seed": 7, "same_family": 5, "different_family": 0, "unstated": 3}
"""Colour of each kind of pair: the palette of the reports."""


def page(
    draws: Sequence[ModelResponses],
    pairs: Sequence[Pair],
    facts: Sequence[tuple[str, str]],
    notes: Sequence[str],
    out: Path = Path(),
) -> str:
    """Return the page; `pairs` as from `all_pairs`, `facts` and `notes` as printed with the table.

    `out`: the folder that it will be in, with the files of the same numbers.
    """
    names = anchors(pairs)
    return render(
        "diversity.html",
        kind="diversity",
        title=f"Error decoupling of {f'{len(names)} models' if len(names) > 1 else names[0]}",
        origin=links.origin(out, written()),
        links=links.known([(name, out / name) for name in FILES], out / "diversity.html"),
        problems=pairs[0].problems,
        draws=draws,
        facts=facts,
        notes=notes,
        heat=[_heat_map(pairs, *rest) for rest in HEAT],
        ladders=_ladders(pairs),
        rows=[(pair, PAIR_KINDS[pair.kind], measures(pair.cells) if pair.cells else {}) for pair in pairs],
        number=_number,
        short=short,
    )


def _value(pair: Pair, name: str) -> float:
    return float(getattr(pair.cells, name)) if pair.cells else math.nan


def _shown(name: str, value: float) -> str:
    return f"{value:.2f}" if name == "kappa" else f"{100 * value:.1f}"


HEAT = (
    (
        "Kappa",
        "Likeness of errors beyond chance: orange where errors are more alike than chance, blue where they are less.",
        "kappa",
    ),
    (
        "Complementarity c, %",
        "Problems that exactly one of the two gets right: the stronger the colour, the more.",
        "complementarity",
    ),
)
"""Title, note and number of each heat map."""


def _heat_map(pairs: Sequence[Pair], title: str, note: str, measure: str) -> dict[str, Any]:
    """Return title, note and rows of (name, [(text, hover text, colour, shade in percent)]).

    On the diagonal a new seed.
    """
    known: dict[tuple[str, str], tuple[Pair, str]] = {}
    for pair in pairs:
        other = pair.a if pair.kind == "seed" else pair.b
        known.setdefault((pair.a, other), (pair, f"{pair.a} × {_partner(pair)}"))
        known.setdefault((other, pair.a), (pair, f"{other} × {_partner(pair, pair.a)}"))
    values = [number for pair, _ in known.values() if not math.isnan(number := _value(pair, measure))]
    low, high = (math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10) if values else (0.0, 1.0)
    reach = max(abs(low), abs(high))

    def cell(a: str, b: str) -> tuple[str, str, str, float]:
        if (a, b) not in known:
            return "–", f"{a} × {b}: not measured", "s0", 0
        pair, both = known[a, b]
        number = _value(pair, measure)
        if math.isnan(number):
            return "undef.", f"{both} ({PAIR_KINDS[pair.kind]}): undefined", "s0", 0
        # Kappa diverges at 0, as far on either side; complementarity begins at its least. Blue is what one wants of a
        # partner. The darkest shade leaves the numbers readable in both colour schemes.
        diverging = measure == "kappa"
        part = abs(number) / reach if diverging and reach else (number - low) / (high - low) if high > low else 1
        hover = f"{both} ({PAIR_KINDS[pair.kind]}): {_shown(measure, number)}"
        return _shown(measure, number), hover, "s1" if diverging and number > 0 else "s0", round(6 + 50 * part, 1)

    names = anchors(pairs)
    note = f"{note} Shades run from {_shown(measure, low)} to {_shown(measure, high)}." if values else note
    return {"title": title, "note": note, "rows": [(a, [cell(a, b) for b in names]) for a in names]}


def _ladders(pairs: Sequence[Pair]) -> list[Chart]:
    """Return for every model as anchor the kappa of its partners, itself with a new seed first, on one scale."""
    rungs = {
        name: [rung for rung in ladder(pairs, name) if not math.isnan(_value(rung, "kappa"))] for name in anchors(pairs)
    }
    # One rung is no ladder; where no anchor has more, single rungs are shown.
    shown = {name: own for name, own in rungs.items() if len(own) > 1} or {n: own for n, own in rungs.items() if own}
    rows = {name: [_rung(name, rung) for rung in own] for name, own in shown.items()}
    every = [row for own in rows.values() for row in own]
    if not every:
        return []
    ticks = nice_ticks(min(0.0, *(row.low for row in every)), max(row.high for row in every), 5)
    left = 16 + 6.2 * max(len(row.name) for row in every)
    charts = []
    for name, own in rows.items():
        chart = interval_chart(f"Anchor: {name}", own, ticks, left, "kappa, with its 95 % interval", "c, %")
        kinds = dict.fromkeys(rung.kind for rung in shown[name])
        charts.append(replace(chart, legend=[Key(PAIR_KINDS[kind], COLOURS[kind], block=True) for kind in kinds]))
    return charts


def _rung(anchor: str, rung: Pair) -> IntervalRow:
    assert rung.cells is not None
    kappa, (low, high) = measures(rung.cells)["kappa"]
    c = f"{100 * rung.cells.complementarity:.1f}"
    hover = (
        f"{anchor} × {_partner(rung)} ({PAIR_KINDS[rung.kind]}): kappa {kappa:.2f} [{low:.2f}, {high:.2f}], c {c} %, "
        + ("w not counted" if rung.cells.same_wrong is None else f"w {100 * rung.cells.wrong_agreement:.1f} %")
    )
    return IntervalRow(short(_partner(rung)), kappa, low, high, COLOURS[rung.kind], c, hover)


def _partner(pair: Pair, name: str | None = None) -> str:
    return "itself, new seed" if pair.kind == "seed" else name or pair.b


def _number(name: str, measure: tuple[float, tuple[float, float]]) -> tuple[str, str]:
    """Return a number of the table and its interval as they are printed."""
    value, (low, high) = measure
    if math.isnan(value):
        return "undefined", ""
    return _shown(name, value), f"{_shown(name, low)} to {_shown(name, high)}"
