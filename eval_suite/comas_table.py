"""Tables of the CoMAS protocol: one per checkpoint, one column per aggregation of its responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_suite.metrics.aggregate import SIXTH_CALL
from eval_suite.results import Result, labels_of
from eval_suite.tables import check_one_table, csv_text, mean_cell, score_cell, score_tables, title
from mmcorl.errors import UserError
from mmcorl.report.table import Align, Cell, Table
from mmcorl.run.folder import read_json

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
    contents = [read_json(folder / FILE, "give the command that made it again") or {} for folder in folders]
    return list(zip(labels_of(folders), contents, strict=True))


@dataclass(frozen=True)
class ComasTable(Result):
    """Results of the protocol for one checkpoint or several."""

    results: Results

    def as_dict(self) -> Mapping[str, Any]:
        """Content of comas.json by label."""
        return dict(self.results)

    def tables(self) -> list[Table]:
        """The scores of every checkpoint, then how its drafts and its sixth calls came about.

        Raises:
            UserError: checkpoints that differ in grader, judge, items or number of drafts.
        """
        _check(self.results)
        tables = []
        for label, content in self.results:
            columns = content["columns"]
            average = next(name for name in columns if name.startswith("avg@"))
            tables.append(_scores(label, columns, _notes(label, content)))
            for name, what in ((average, "drafts"), (SIXTH_CALL, "sixth calls")):
                origins = score_tables([(label, columns[name])])[1]
                tables.append(replace(origins, title=f"{label}: how the {what} came about"))
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


def _scores(label: str, columns: Mapping[str, Mapping[str, Any]], notes: Sequence[str]) -> Table:
    # pass@1 of several drafts is their mean: one column under both names.
    shown = [name for name in columns if name != "pass@1"]
    heads: list[tuple[str, Align]] = [("", "left"), ("n", "right"), *((_head(name), "right") for name in shown)]
    names = list(columns[shown[0]]["benchmarks"])
    rows = []
    for name in names:
        scores = [columns[column]["benchmarks"][name] for column in shown]
        rows.append([Cell(title(name)), Cell(f"{scores[0]['n']:,}"), *map(score_cell, scores)])
    if len(names) > 1:
        means = [mean_cell(list(columns[column]["benchmarks"].values())) for column in shown]
        rows.append([Cell(f"mean of {len(names)}"), Cell(""), *means])
    return Table(f"{label}: CoMAS protocol, accuracy %", heads, rows, notes)


def _head(aggregation: str) -> str:
    if aggregation == SIXTH_CALL:
        return "sixth call"
    return f"{aggregation} (pass@1)" if aggregation.startswith("avg@") else aggregation


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
