"""Tables of the CoMAS protocol: one per checkpoint, one column per aggregation of its responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.results import Result, labels_of
from eval_suite.tables import DASH, check_one_table, csv_text, mean, percent, score_tables, shown_interval, title
from mmcorl.errors import UserError
from mmcorl.report.table import Align, Cell, Table

FILE = "comas.json"
Results = Sequence[tuple[str, Mapping[str, Any]]]
"""(label, content of comas.json), in the order of the tables."""


def read_results(folders: Sequence[Path]) -> Results:
    """The results of protocol folders; refuses a folder that holds none."""
    without = [folder for folder in folders if not (folder / FILE).is_file()]
    if without:
        raise UserError(
            f"{str(without[0])!r} holds no results of the CoMAS protocol, and its tables stand alone: make another "
            "table of plain evaluations (of a protocol's folder these are DIR/drafts and DIR/sixth)"
        )
    return [(label, _read(folder / FILE)) for label, folder in zip(labels_of(folders), folders, strict=True)]


def _read(file: Path) -> Mapping[str, Any]:
    try:
        content: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r} cannot be read ({error}): give the command that made it again") from error
    return content


@dataclass(frozen=True)
class ComasTable(Result):
    """Results of the protocol for one checkpoint or several."""

    results: Results

    def as_dict(self) -> Mapping[str, Any]:
        """Content of comas.json by label."""
        return dict(self.results)

    def tables(self, *, digits: int = 2) -> list[Table]:
        """The scores of every checkpoint, then how its drafts and its sixth calls came about.

        Raises:
            UserError: checkpoints that differ in grader, judge, items or number of drafts.
        """
        _check(self.results)
        tables = []
        for label, content in self.results:
            tables += [_scores(label, content, digits), *_origins(label, content, digits)]
        return tables

    def csv(self) -> str:
        """All columns of all checkpoints, one row per benchmark and aggregation, unrounded."""
        _check(self.results)
        texts = [
            csv_text([(label, column)]) for label, content in self.results for column in content["columns"].values()
        ]
        return texts[0] + "".join(text.partition("\n")[2] for text in texts[1:])


def _check(results: Results) -> None:
    shapes = {tuple(content["columns"]) for _, content in results}
    if len(shapes) > 1:
        raise UserError("the evaluations differ in their number of drafts: sample as many for all, or make two tables")
    for aggregation in next(iter(shapes)):
        check_one_table([(label, content["columns"][aggregation]) for label, content in results])


def _scores(label: str, content: Mapping[str, Any], digits: int) -> Table:
    columns: Mapping[str, Mapping[str, Any]] = content["columns"]
    # pass@1 of several drafts is their mean: one column under both names.
    shown = [name for name in columns if name != "pass@1"]
    heads: list[tuple[str, Align]] = [("", "left"), ("n", "right"), *((_head(name), "right") for name in shown)]
    names = list(columns[shown[0]]["benchmarks"])
    rows = []
    for name in names:
        scores = [columns[column]["benchmarks"][name] for column in shown]
        cells = [Cell(percent(score["correct"], score["total"], digits), _bounds(score)) for score in scores]
        rows.append([Cell(title(name)), Cell(f"{scores[0]['n']:,}"), *cells])
    if len(names) > 1:
        means = [mean(list(columns[column]["benchmarks"].values())) for column in shown]
        rows.append(
            [Cell(f"mean of {len(names)}"), Cell(""), *(Cell(percent(share, digits=digits)) for share in means)]
        )
    return Table(f"{label}: CoMAS protocol, accuracy %", heads, rows, _notes(label, content))


def _head(aggregation: str) -> str:
    if aggregation == SIXTH_CALL:
        return "sixth call"
    return f"{aggregation} (pass@1)" if aggregation.startswith("avg@") else aggregation


def _bounds(scores: Mapping[str, Any]) -> str:
    interval = shown_interval(scores)
    return DASH if interval is None else f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def _notes(label: str, content: Mapping[str, Any]) -> list[str]:
    notes: dict[str, None] = {}
    for aggregation, summary in content["columns"].items():
        # pass@1 and avg@k have the same notes.
        if aggregation != "pass@1":
            notes |= dict.fromkeys(score_tables([(label, summary)])[0].notes)
    for name, by in content["programs_compared_by"].items():
        notes[
            f"{title(name)} maj: programs that act alike on public examples are one vote (problems: {by['behaviour']:,}"
            f"; by syntax tree, as no example runs: {by['syntax']:,}; without a program: {by['nothing']:,})."
        ] = None
    if content["programs_compared_by"]:
        notes[
            "Sixth call of coding problems: one program, the last block. CoMAS' grader runs every block, which is "
            "nearer to pass@k for a text that quotes its drafts."
        ] = None
    return list(notes)


def _origins(label: str, content: Mapping[str, Any], digits: int) -> list[Table]:
    average = next(name for name in content["columns"] if name.startswith("avg@"))
    titles = {average: f"{label}: how the drafts came about", SIXTH_CALL: f"{label}: how the sixth calls came about"}
    return [
        replace(score_tables([(label, content["columns"][name])], digits=digits)[1], title=head)
        for name, head in titles.items()
    ]
