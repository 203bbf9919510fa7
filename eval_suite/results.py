"""What stands beside the numbers of an evaluation, and its tables as files for people, programs and papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eval_suite.folder import EvalFolder
from eval_suite.tables import csv_text, score_tables, sub_score_tables, title
from mmcorl.report.table import Cell, Table, latex, markdown


def grids(label: str, summary: Mapping[str, Any]) -> list[Table]:
    """Scores, how they came about, and the official sub-scores of every benchmark."""
    told = score_tables([(label, summary)])
    for name, scores in summary["benchmarks"].items():
        told += sub_score_tables(label, name, scores)
    return told


def write_tables(folder: EvalFolder, label: str, summary: Mapping[str, Any]) -> None:
    """results.md with everything, results.tex with the scores, results.csv with one unrounded row per benchmark."""
    asked = Table("How they were asked", [("", "left"), ("", "left")], [[Cell(a), Cell(b)] for a, b in facts(folder)])
    scores, origins, *parts = grids(label, summary)
    folder.write("results.md", markdown([scores, origins, asked, *parts]))
    folder.write("results.tex", latex([scores, origins]))
    folder.write("results.csv", csv_text([(label, summary)]))


def facts(folder: EvalFolder) -> list[tuple[str, str]]:
    """What produced the responses and their verdicts, as far as the folder says."""
    manifest, grader, judge = folder.manifest, folder.facts("rule.json") or {}, folder.facts("judge.json")
    told: list[tuple[str, str]] = [(name, str(manifest[name])) for name in ("model", "responses") if name in manifest]
    for name, how in manifest.get("generation", {}).items():
        sampling = "greedy"
        if how["temperature"]:
            sampling = f"temperature {how['temperature']:g}, top-p {how['top_p']:g}, seed {how['seed']}"
        revision = manifest.get("benchmarks", {}).get(name, {}).get("revision")
        rows = "a local copy" if revision is None else f"hub revision {revision}"
        budget = f"up to {how['max_new_tokens']:,} tokens"
        told.append((title(name), f"{how['style']} prompt, {sampling}, {budget}, {how['dtype']}; rows from {rows}"))
    told.append(("grader", f"{grader.get('name')} {grader.get('version')}, multiple choice {grader.get('mcq_policy')}"))
    told.append(("judge", "none" if judge is None else f"{judge['model']}, prompt {judge['prompt_version']}"))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    return [*told, ("versions", versions)] if versions else told
