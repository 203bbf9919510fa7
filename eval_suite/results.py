"""The tables of an evaluation as files: markdown for people, CSV for programs, LaTeX for papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval_suite.grid import Grid, latex, markdown
from eval_suite.store import EvalFolder
from eval_suite.tables import csv_text, score_grids, sub_score_grids


def grids(title: str, summary: Mapping[str, Any]) -> list[Grid]:
    """Scores, how they came about, and the official sub-scores of every benchmark."""
    told = score_grids([(title, summary)])
    for name, scores in summary["benchmarks"].items():
        told += sub_score_grids(title, name, scores)
    return told


def write_tables(folder: EvalFolder, title: str, summary: Mapping[str, Any]) -> None:
    """results.md and results.tex with all tables, results.csv with one unrounded row per benchmark."""
    tables = grids(title, summary)
    folder.write("results.md", markdown(tables))
    folder.write("results.tex", latex(tables))
    folder.write("results.csv", csv_text([(title, summary)]))
