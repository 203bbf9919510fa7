"""Finished evaluations on disk, opened for reading side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_suite import pipeline
from eval_suite.folder import EvalFolder, key_of
from eval_suite.metrics.paired import Scored, scored_benchmarks
from mmcorl.errors import UserError
from mmcorl.labels.voting import Relation

_NEEDED = ("items", "total", "wilson", "judge_pending", "unasked", "sub_scores")
"""Entries of a score, the newest among them, that a summary of an older version may lack."""


@dataclass(frozen=True)
class Evaluation:
    """One evaluation that has been summed up."""

    label: str
    """Its folder's name, or as much of its path as tells it from the others."""
    folder: EvalFolder
    summary: dict[str, Any]

    def scored(self, relation: Relation) -> dict[str, Scored]:
        """Its benchmarks, as its summary scores them; `relation` says when two answers are one vote."""
        return scored_benchmarks(
            self.label,
            self.folder.items(),
            pipeline.outcomes(self.folder),
            self.summary,
            self.folder.fingerprints(),
            relation,
        )


def is_evaluation(path: Path) -> bool:
    """Whether a folder was written by `mmcorl eval` or `mmcorl grade`."""
    return (path / "manifest.json").is_file()


def unfinished(folder: EvalFolder) -> str | None:
    """What is left to do in a folder that `mmcorl eval` began and did not answer to the end; None when all is there.

    What is missing would be scored as wrong.
    """
    samples = {name: how["samples"] for name, how in folder.manifest.get("generation", {}).items()}
    if not samples:
        return None
    unasked = {(row["benchmark"], row["id"]) for row in folder.rows("unasked.jsonl")}
    items = {(row["benchmark"], row["id"]) for row in folder.rows("items.jsonl")}
    due = sum(samples[benchmark] for benchmark, _ in items - unasked)
    answered = len({key_of(row) for row in folder.rows("responses.jsonl")})
    waiting = [name for name in samples if name not in {benchmark for benchmark, _ in items}]
    if answered >= due and not waiting:
        return None
    left = f"{answered} of {due} answered" + "".join(f", {name} not begun" for name in waiting)
    return f"{str(folder.path)!r} is unfinished ({left}): give the `mmcorl eval` command again to finish it"


def open_evaluations(paths: Sequence[Path]) -> list[Evaluation]:
    """The evaluations in folders, in order.

    Raises:
        UserError: a folder that holds none, or one that is unfinished or not summed up; a folder given twice.
    """
    evaluations = []
    for label, path in zip(labels_of(paths), paths, strict=True):
        folder = EvalFolder(path)
        if left := unfinished(folder):
            raise UserError(left)
        summary = folder.facts("summary.json")
        if summary is None:
            raise UserError(f"{str(path)!r} holds no summary.json: finish it, or grade it with `mmcorl grade {path}`")
        scores = summary.get("benchmarks", {}).values()
        if any(entry not in told for told in scores for entry in _NEEDED):
            raise UserError(f"{str(path)!r} was summed up by another version: do it again with `mmcorl grade {path}`")
        evaluations.append(Evaluation(label, folder, summary))
    return evaluations


def labels_of(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, or as many of its last parts as no two paths share; refuses one given twice."""
    places = [path.resolve() for path in paths]
    twice = next((path for path, place in zip(paths, places, strict=True) if places.count(place) > 1), None)
    if twice is not None:
        raise UserError(f"{str(twice)!r} is given twice: name every evaluation once")
    for parts in range(1, max(len(place.parts) for place in places)):
        labels = ["/".join(place.parts[-parts:]) for place in places]
        if len(set(labels)) == len(labels):
            return labels
    return list(map(str, places))
