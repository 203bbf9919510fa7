"""What `mmcorl diversity` and `mmcorl pair` do, given their arguments."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from eval_suite.response_sources import Gathered, gather
from mmcorl.analysis import pairing
from mmcorl.analysis.diversity import (
    HOW_INTERVALS,
    KINDS,
    Draw,
    Interval,
    Pair,
    all_pairs,
    anchors,
    by_kind,
    ladder,
    measures,
    wilson,
)
from mmcorl.answers import Equivalence
from mmcorl.errors import RunError, UserError
from mmcorl.report import diversity_page
from mmcorl.report.table import Align, Cell, Table, markdown, terminal

NOT_APART = (
    "c and kappa mix accuracy and dependence, c = (1 - p_e)(1 - kappa) and c >= |p_A - p_B|: a strong with a weak "
    "model can show a large c and little mutual help, so read them beside the accuracies"
)
MEASURES = ("kappa", "complementarity", "wrong_agreement", "oracle", "accuracy_a", "accuracy_b")


def diversity(arguments: argparse.Namespace) -> int:
    """Measure every pair of models, and of every model its draws; print, and write tables and page."""
    found = gather(arguments, labels=True)
    with Equivalence() as relation:
        pairs = all_pairs(found.draws, relation, found.choices)
    grids = diversity_grids(found.draws, pairs, found.notes)
    told = as_dict(found, pairs)
    if arguments.out is not None:
        # The cells of what is undefined are empty, as JSON has no NaN.
        _write(arguments.out, "diversity.json", json.dumps(told, indent=1, allow_nan=False) + "\n")
        asked = Table("What was measured", [("", "left"), ("", "left")], [[Cell(a), Cell(b)] for a, b in found.facts])
        _write(arguments.out, "diversity.md", markdown([*grids, asked]))
        _write(arguments.out, "diversity.csv", csv_text(pairs))
        page = diversity_page.page(found.draws, pairs, found.facts, [*found.notes, NOT_APART, HOW_INTERVALS])
        _write(arguments.out, "diversity.html", page)
    if arguments.json:
        print(json.dumps(told, allow_nan=False))
        return 0
    _print(diversity_grids(found.draws, pairs, found.notes, narrow=True))
    if arguments.out is not None:
        for what, name in (("page", "diversity.html"), ("table", "diversity.md"), ("numbers", "diversity.json")):
            print(f"{what + ':':<9}{arguments.out / name}")
    return 0


def pair(arguments: argparse.Namespace) -> int:
    """Rank the candidates for an anchor and say why."""
    arguments.sources = [arguments.anchor, *arguments.candidates]
    found = gather(arguments, labels=not arguments.label_free)
    anchor = found.draws[0]
    seen: set[str] = set()
    candidates = []
    for draw in found.draws[1:]:
        # Of every other model the first draw; of the anchor one more.
        if draw.model not in seen:
            seen.add(draw.model)
            candidates.append(draw)
    if not candidates:
        raise UserError(f"{anchor.name} is the only model: give candidates for it, or draw it twice with --repeat 2")
    rank = pairing.labelled if found.labelled else pairing.label_free
    with Equivalence() as relation:
        ranking = rank(anchor, candidates, relation, found.choices)
    grid = ranking_grid(anchor, ranking, found.notes)
    told = ranking.as_dict() | {"facts": dict(found.facts), "notes": list(found.notes)}
    if arguments.out is not None:
        stem = f"pair-{re.sub(r'[^A-Za-z0-9_.-]+', '-', anchor.name)}"
        _write(arguments.out, f"{stem}.json", json.dumps(told, indent=1, allow_nan=False) + "\n")
        _write(arguments.out, f"{stem}.md", markdown([grid]) + "\n" + "\n\n".join(_paragraphs(ranking)) + "\n")
    if arguments.json:
        print(json.dumps(told, allow_nan=False))
        return 0
    _print([ranking_grid(anchor, ranking, found.notes, narrow=True)])
    for paragraph in _paragraphs(ranking):
        print(f"\n{paragraph}")
    return 0


def diversity_grids(
    draws: Sequence[Draw], pairs: Sequence[Pair], notes: Sequence[str], *, narrow: bool = False
) -> list[Table]:
    """The table of pairs, in the order and with the columns of the paper, and that of models.

    `narrow` is for terminals: one number tells an interval, the larger distance to its bounds.
    """
    columns: list[tuple[str, Align]] = [("Pair", "left"), ("Differ in", "left")]
    columns += [(head, "right") for head in ("κ ↓", "c ↑ %", "w ↓ %", "u ↑ %", "acc A %", "acc B %")]
    rows = [[*_names(one, narrow), *_numbers(one, narrow)] for one in pairs]
    means = [
        f"mean of {count} {KINDS[kind]} pairs: κ {kappa:.2f}, c {100 * c:.1f} %"
        for kind, (count, kappa, c) in by_kind(pairs).items()
        if count > 1
    ]
    n = pairs[0].problems
    table = Table(f"Error decoupling on {n} problems", columns, rows, [*means, *notes, NOT_APART, HOW_INTERVALS])
    models = Table(
        "Models",
        [("Draw", "left"), ("Family", "left"), ("Accuracy %", "right"), ("No answer", "right")],
        [
            [
                Cell(draw.name),
                Cell(draw.family or "not stated"),
                _percent(draw.accuracy, wilson(round(draw.accuracy * n), n), narrow),
                Cell(str(draw.unanswered)),
            ]
            for draw in draws
        ],
    )
    return [table, models]


def _names(one: Pair, narrow: bool) -> list[Cell]:
    if not narrow:
        return [Cell(pair_name(one)), Cell(KINDS[one.kind])]
    # Set one below the other where the line is short.
    first, _, rest = KINDS[one.kind].partition(" ")
    return [Cell(one.a, pair_name(one).removeprefix(f"{one.a} ")), Cell(first, rest)]


def _numbers(one: Pair, narrow: bool) -> list[Cell]:
    assert one.cells is not None
    told = measures(one.cells)
    kappa, interval = told["kappa"]
    if math.isnan(kappa):
        cells = [Cell("undefined")]
    elif narrow:
        cells = [Cell(f"{kappa:.2f}", f"±{max(kappa - interval.low, interval.high - kappa):.2f}")]
    else:
        cells = [Cell(f"{kappa:.2f}", f"[{interval.low:.2f}, {interval.high:.2f}]")]
    shares = [_percent(*told[name], narrow) for name in MEASURES[1:4]]
    return [*cells, *shares, *(Cell(_bare(told[name][0])) for name in MEASURES[4:])]


def pair_name(one: Pair) -> str:
    """`A x B`, or `A x itself` with the number of its draw."""
    if one.kind == "seed":
        number = one.b.rpartition("#")[2]
        return f"{one.a} × itself" + ("" if number == "2" else f" (draw {number})")
    return f"{one.a} × {one.b}"


def ranking_grid(anchor: Draw, ranking: pairing.Ranking, notes: Sequence[str], *, narrow: bool = False) -> Table:
    """Candidates, the best first; `narrow` leaves out what the sentences below the table say again."""
    head: list[tuple[str, Align]] = [("Partner", "left")] if narrow else [("Partner", "left"), ("Differ in", "left")]
    names: tuple[str, ...] = ("Agree %", "Strength %")
    if ranking.labelled:
        names = ("Corrects %", "Confirms %", "κ ↓", "Right %") + (() if narrow else ("Denies %", "c ↑ %"))
    rows = []
    for one in ranking.candidates:
        kind = KINDS[one.pair.kind]
        row = [Cell(one.name, kind)] if narrow else [Cell(one.name), Cell(kind)]
        row += [_points(one.benefit, one.interval, narrow), Cell(f"{one.first:.0%}")]
        cells = one.pair.cells
        if cells is None:
            assert one.strength is not None
            row += [Cell(_bare(one.pair.agreement)), Cell(_bare(one.strength))]
        else:
            n = cells.problems
            row += [Cell(_bare(cells.only_b / n)), Cell(_bare(cells.same_wrong / n))]
            row += [
                Cell("undefined" if math.isnan(cells.kappa) else f"{cells.kappa:.2f}"),
                Cell(_bare(cells.accuracy_b)),
            ]
            row += [] if narrow else [Cell(_bare(cells.only_a / n)), Cell(_bare(cells.complementarity))]
        rows.append(row)
    known = f", {100 * anchor.accuracy:.1f} % right," if ranking.labelled else ""
    problems = len(anchor.answers)
    meaning = (
        "benefit: problems the partner corrects minus those on which it repeats the anchor's error, in points"
        if ranking.labelled
        else "benefit: strength minus agreement with the anchor, in points; an estimate without known answers"
    )
    first = "first: share of resamples of the problems in which the partner has the largest benefit"
    title = f"Partners for {anchor.name}{known} on {problems} problems"
    columns = [*head, ("Benefit", "right"), ("First", "right"), *((name, "right") for name in names)]
    return Table(title, columns, rows, [meaning, first, *notes])


def _paragraphs(ranking: pairing.Ranking) -> list[str]:
    why = [f"{one.name}: {' '.join(one.why)}" for one in ranking.candidates]
    return [ranking.verdict, *why, "Limits: " + " ".join(ranking.limits)]


def as_dict(found: Gathered, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Everything as JSON: null where a number is undefined."""
    return {
        "problems": pairs[0].problems,
        "facts": dict(found.facts),
        "models": [
            {
                "name": draw.name,
                "model": draw.model,
                "family": draw.family,
                "accuracy": draw.accuracy,
                "unanswered": draw.unanswered,
            }
            for draw in found.draws
        ],
        "pairs": [one.as_dict() for one in pairs],
        "ladders": {name: [rung.b for rung in ladder(pairs, name)] for name in anchors(pairs)},
        "intervals": HOW_INTERVALS,
        "notes": [*found.notes, NOT_APART],
    }


def csv_text(pairs: Sequence[Pair]) -> str:
    """One unrounded row per pair; empty where a number is undefined."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    bounds = [f"{name}{end}" for name in (*MEASURES, "agreement") for end in ("", "_low", "_high")]
    cells = ("both", "only_a", "only_b", "neither", "same_wrong")
    rows.writerow(["a", "b", "kind", "problems", *cells, *bounds])
    for one in pairs:
        told = one.as_dict()
        values = [told[name][end] for name in (*MEASURES, "agreement") for end in ("value", "low", "high")]
        rows.writerow([one.a, one.b, one.kind, one.problems, *(told["cells"][name] for name in cells), *values])
    return out.getvalue()


def _percent(share: float, interval: Interval, narrow: bool) -> Cell:
    if narrow:
        return Cell(_bare(share), f"±{100 * max(share - interval.low, interval.high - share):.1f}")
    return Cell(_bare(share), f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]")


def _points(share: float, interval: Interval, narrow: bool) -> Cell:
    if narrow:
        return Cell(f"{100 * share:+.1f}", f"±{100 * max(share - interval.low, interval.high - share):.1f}")
    return Cell(f"{100 * share:+.1f}", f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]")


def _bare(share: float) -> str:
    return f"{100 * share:.1f}"


def _write(folder: Path, name: str, text: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{folder / name} cannot be written ({error.strerror}): choose another --out") from error


def _print(grids: Sequence[Table]) -> None:
    Console().print(terminal(grids))
