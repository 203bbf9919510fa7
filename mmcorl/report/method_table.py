"""Methods by backbone and benchmark in the layout of the paper's tables 1 and 4.

One block of rows per backbone, in percent: the model before training, then the methods. The best label-free method of a
column is bold and the second best underlined, equal ones alike; the start and methods with known answers are
references and not ranked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from mmcorl.report.table import Align, Cell, Table
from mmcorl.tools.sweep import Row, Spread

BASE = "Base"
NOTE = (
    "Percent; ± is the standard deviation over the seeds. Bold is the best and underlined the second best method "
    "without known answers, equal ones alike; Base and methods with known answers are not ranked."
)


def method_table(rows: Sequence[Row], backbones: Mapping[str, str], references: Collection[str]) -> Table:
    """Return the table of a sweep's rows.

    Args:
        rows: of `mmcorl.tools.sweep.rows`, at least one.
        backbones: headings by agent.
        references: methods that are not ranked.
    """
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("accuracy/") and key.count("/") == 1)
    sets = [key.removeprefix("accuracy/") for key in keys]
    columns: list[tuple[str, Align]] = [("Method", "left"), *((name, "right") for name in sets)]
    columns += [("Avg", "right")] * (len(sets) > 1)
    body: list[list[Cell]] = []
    groups = {}
    for agent, heading in backbones.items():
        groups[len(body)] = heading
        most = max(rows, key=lambda row: len(row["seeds"]))
        lines = {BASE: _scores(most, "start", sets, agent)}
        lines |= {row["method"]: _scores(row, "accuracy", sets, agent) for row in rows}
        ranked = [line for name, line in lines.items() if name not in (BASE, *references)]
        ranks = [
            sorted({_shown(value) for value in column} - {""}, reverse=True)[:2] for column in zip(*ranked, strict=True)
        ]
        for name, line in lines.items():
            places = ranks if name not in (BASE, *references) else [[]] * len(line)
            body.append([Cell(name), *(_cell(value, rank) for value, rank in zip(line, places, strict=True))])
    return Table("Methods by backbone", columns, body, (NOTE,), groups=groups)


def _scores(row: Row, what: str, sets: Sequence[str], agent: str) -> list[Spread | None]:
    """Return the numbers of one line, their mean last where there are several."""
    line = [row.get(f"{what}/{name}/{agent}") for name in sets]
    if len(line) < 2:
        return line
    known = [one.mean for one in line if one is not None]
    # A mean over other benchmarks than the line above is no mean to compare.
    return [*line, Spread(fmean(known), None, 1) if len(known) == len(line) else None]


def _shown(value: Spread | None) -> str:
    return "" if value is None else f"{100 * value.mean:05.1f}"


def _cell(value: Spread | None, rank: Sequence[str]) -> Cell:
    if value is None:
        return Cell("–")
    shown = _shown(value)
    style = ("bold", "underline")[rank.index(shown)] if shown in rank else ""
    small = "" if value.deviation is None else f"±{100 * value.deviation:.1f}"
    return Cell(f"{100 * value.mean:.1f}", small, style)
