"""Results: what every job returns, finished evaluations on disk, and their tables as files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_suite.benchmarks.tasks import BENCHMARKS
from eval_suite.metrics.aggregate import aggregate
from eval_suite.metrics.outcomes import Outcome
from eval_suite.metrics.paired import Paired, Scored, compare, in_hundredths
from eval_suite.metrics.prompt_protocol import asked_of, protocol_of, sentence
from eval_suite.metrics.sampled import right_samples
from eval_suite.metrics.summary import items_hash
from eval_suite.results.folder import EvalFolder, RenamedFolder
from eval_suite.results.sampled_tables import sampled_tables
from eval_suite.results.tables import comparison_table, csv_text, grader_text, score_tables, sub_score_tables, title
from mmcorl.answers import Equivalence
from mmcorl.answers.relation_base import Relation
from mmcorl.errors import UserError
from mmcorl.grading.grade_by_relation import Relations
from mmcorl.grading.items import Keys, item_key, key_of
from mmcorl.run.table import Table, cells, latex, markdown

_REQUIRED = ("items", "total", "wilson", "judge_pending", "unasked", "sub_scores", "unclosed", "out_of_time")
"""Entries of a score without which a summary is one of another version."""
OWN_PROBLEMS = "responses"
"""Name of the problems of several files."""
CHECK = "judge_check.json"
"""How the judge of an evaluation did on labelled rows, as `judge_check` left it there."""


class Result(ABC):
    """Result of a job: numbers for programs, tables for people, files for later."""

    @abstractmethod
    def as_dict(self) -> Any:
        """Return all numbers, as JSON takes them."""

    @abstractmethod
    def tables(self) -> list[Table]:
        """Return the tables to show, in order."""

    def paragraphs(self) -> list[str]:
        """Text to show below the tables."""
        return []

    def csv(self) -> str:
        """Return one unrounded row per score.

        Raises:
            UserError: this result has no such form.
        """
        raise UserError(f"a {type(self).__name__} has no CSV form: take another `format`, or `json`")

    def files(self) -> dict[str, Path]:
        """Return the files that were written, by what they hold."""
        return {}


@dataclass(frozen=True)
class Evaluation(Result):
    """One evaluation that has been summed up."""

    label: str
    """Name in tables: the title, or as much of the folder's path as tells it from the others."""
    folder: EvalFolder
    summary: dict[str, Any]

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def scores(self) -> dict[str, dict[str, Any]]:
        """Scores by benchmark: `accuracy`, `correct`, `total`, `wilson`, ... as in summary.json."""
        scores: dict[str, dict[str, Any]] = self.summary["benchmarks"]
        return scores

    def as_dict(self) -> dict[str, Any]:
        return self.summary

    def tables(self, *, sub_scores: bool = False) -> list[Table]:
        """Scores and how they came about; with `sub_scores` also the official ones of every benchmark."""
        summaries = [(self.label, self.summary)]
        tables = [*score_tables(summaries), *sampled_tables(summaries)]
        for name, scores in self.scores.items() if sub_scores else ():
            tables += sub_score_tables(self.label, name, scores)
        return tables

    def write(self) -> None:
        """Write results.md (everything), results.tex (scores) and results.csv (one unrounded row per benchmark)."""
        how = [cells(*fact) for fact in facts(self.folder)]
        settings = Table("How they were asked", [("", "left"), ("", "left")], how)
        scores, origins, *parts = self.tables(sub_scores=True)
        self.folder.write("results.md", markdown([scores, origins, settings, *parts]))
        self.folder.write("results.tex", latex([scores, origins]))
        self.folder.write("results.csv", self.csv())

    def csv(self) -> str:
        return csv_text([(self.label, self.summary)])

    def beside(self, blind: Evaluation) -> SeenAndBlind:
        """Return it beside one of the same problems with every picture hidden."""
        return SeenAndBlind(self.label, self.folder, self.summary, blind)

    def paragraphs(self) -> list[str]:
        checked = judge_checked(self.folder)
        return [f"Judge, {checked}."] if checked else []

    def files(self) -> dict[str, Path]:
        names = {"samples": "samples.html", "tables": "results.md", "summary": "summary.json"}
        return {what: self.path / name for what, name in names.items()}

    def scored(self, relation: Relation) -> dict[str, Scored]:
        """Score its benchmarks as its summary does; `relation` decides when two answers are one vote."""
        return scored_benchmarks(self.label, self.folder, self.folder.outcomes(), self.summary, relation)


@dataclass(frozen=True)
class SeenAndBlind(Evaluation):
    """An evaluation beside one with every picture hidden: what the pictures add to its accuracy."""

    blind: Evaluation

    def paired(self) -> list[Paired]:
        """Return accuracy with the picture against that without it, of every benchmark that has pictures."""
        with Equivalence() as relation:
            seen, unseen = self.scored(relation), self.blind.scored(relation)
        unseen = {name: replace(scored, label="picture hidden") for name, scored in unseen.items()}
        return [compare(scored, seen[name], asked_differently=True) for name, scored in unseen.items()]

    def as_dict(self) -> dict[str, Any]:
        return self.summary | {"seen_against_blind": [paired.as_dict() for paired in self.paired()]}

    def tables(self, *, sub_scores: bool = False) -> list[Table]:
        alike = [replace(paired, asked_differently=()) for paired in self.paired()]
        return [*super().tables(sub_scores=sub_scores), comparison_table(alike)]


def is_evaluation(path: Path) -> bool:
    """Return whether a folder was written by `mmcorl eval` or `mmcorl grade`."""
    return (path / "manifest.json").is_file()


def unfinished(folder: EvalFolder) -> str | None:
    """Return what is left to answer in a folder of `mmcorl eval`; None when it is complete.

    Missing responses would be scored as wrong.
    """
    samples = {name: how["samples"] for name, how in folder.manifest.get("generation", {}).items()}
    if not samples:
        return None
    unasked = set(map(item_key, folder.lines("unasked.jsonl")))
    items = set(map(item_key, folder.lines("items.jsonl")))
    due = sum(samples[benchmark] for benchmark, _ in items - unasked)
    answered = len(Keys(map(key_of, folder.stream("responses.jsonl"))))
    waiting = [name for name in samples if name not in {benchmark for benchmark, _ in items}]
    if answered >= due and not waiting:
        return None
    left = f"{answered} of {due} answered" + "".join(f", {name} not begun" for name in waiting)
    return f"{str(folder.path)!r} is unfinished ({left}): give the `mmcorl eval` command again to finish it"


def require_finished(folder: EvalFolder) -> None:
    """Refuse a folder that `unfinished` says something about."""
    if left := unfinished(folder):
        raise UserError(left)


def open_evaluations(paths: Sequence[Path]) -> list[Evaluation]:
    """Open the evaluations in folders, in order.

    Raises:
        UserError: a folder without an evaluation, one that is unfinished or not summed up, or one given twice.
    """
    evaluations = []
    for label, path in zip(labels_of(paths), paths, strict=True):
        folder = EvalFolder(path)
        require_finished(folder)
        summary = folder.document("summary.json")
        if summary is None:
            raise UserError(f"{str(path)!r} holds no summary.json: finish it, or grade it with `mmcorl grade {path}`")
        folder.import_benchmarks()
        scores = summary.get("benchmarks", {}).values()
        if any(entry not in score for score in scores for entry in _REQUIRED):
            raise UserError(f"{str(path)!r} was summed up by another version: do it again with `mmcorl grade {path}`")
        evaluations.append(Evaluation(label, folder, summary))
    return _under_one_name(evaluations)


def _under_one_name(evaluations: list[Evaluation]) -> list[Evaluation]:
    """Let graded files of different names that answer the same problems, their own, go by one name.

    Where some answer others, those of the problems that most of them answer do.
    """
    names = [name for evaluation in evaluations for name in evaluation.scores]
    files = ["responses" in evaluation.folder.manifest for evaluation in evaluations]
    if not all(files) or any(name in BENCHMARKS for name in names) or len(names) > len(files) or len({*names}) == 1:
        return evaluations
    renamed = []
    for evaluation, name in zip(evaluations, names, strict=True):
        folder = RenamedFolder(evaluation.path, OWN_PROBLEMS)
        marks = {id: mark for (_, id), mark in folder.fingerprints().items()}
        scores = evaluation.scores[name] | {"items": items_hash(marks)}
        renamed.append(replace(evaluation, folder=folder, summary={"benchmarks": {OWN_PROBLEMS: scores}}))
    problems = [evaluation.scores[OWN_PROBLEMS]["items"] for evaluation in renamed]
    usual, count = Counter(problems).most_common(1)[0]
    return [
        new if count > 1 and items == usual else old
        for old, new, items in zip(evaluations, renamed, problems, strict=True)
    ]


def labels_of(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path, or as many last parts as tell them apart; refuses a path given twice."""
    if not paths:
        raise UserError("no evaluation is given: name the folder of at least one")
    places = [path.resolve() for path in paths]
    twice = next((path for path, folder in zip(paths, places, strict=True) if places.count(folder) > 1), None)
    if twice is not None:
        raise UserError(f"{str(twice)!r} is given twice: name every evaluation once")
    for parts in range(1, max(len(folder.parts) for folder in places)):
        labels = ["/".join(folder.parts[-parts:]) for folder in places]
        if len(set(labels)) == len(labels):
            return labels
    return list(map(str, places))


def facts(folder: EvalFolder) -> list[tuple[str, str]]:
    """Return what produced the responses and their verdicts, as far as the folder records it."""
    manifest, grader, judge = folder.manifest, folder.document("rule.json") or {}, folder.document("judge.json")
    rows: list[tuple[str, str]] = [(name, str(manifest[name])) for name in ("model", "responses") if name in manifest]
    if protocol := protocol_of(manifest):
        rows.append(("protocol", protocol))
    for name, how in manifest.get("generation", {}).items():
        revision = manifest.get("benchmarks", {}).get(name, {}).get("revision")
        copy = "a local copy" if revision is None else f"hub revision {revision}"
        rows.append((title(name), f"{sentence(how)}, {how['dtype']}; rows from {copy}"))
    rows.append(("grader", grader_text(grader)))
    rows.append(("judge", "none" if judge is None else f"{judge['model']}, prompt {judge['prompt_version']}"))
    if checked := judge_checked(folder):
        rows.append(("judge checked", checked))
    versions = ", ".join(f"{name} {version}" for name, version in manifest.get("versions", {}).items())
    return [*rows, ("versions", versions)] if versions else rows


def judge_checked(folder: EvalFolder) -> str:
    """Return how its judge did on labelled rows; empty where that is not known, or known of another judge."""
    check = folder.document(CHECK)
    return str(check["says"]) if check and check["judge"] == folder.document("judge.json") else ""


def scored_benchmarks(
    label: str, folder: EvalFolder, outcomes: Sequence[Outcome], summary: Mapping[str, Any], relation: Relation
) -> dict[str, Scored]:
    """Score every benchmark of outcomes over the items of `folder` for comparison, as their summary does.

    `relation`: of items that name none.
    """
    items, fingerprints = folder.items(), folder.fingerprints()
    scored = {}
    for name, scores in summary["benchmarks"].items():
        members = [item for item in items if item.benchmark == name]
        graded = [outcome for outcome in outcomes if outcome.benchmark == name]
        with Relations(relation) as relations:
            score = aggregate(
                members,
                graded,
                scores["aggregation"],
                relation=relations.of(members[0]),
                tie=scores["tie_rule"] or "lexicographic",
            )
        if scores.get("headline"):
            score = in_hundredths(score)
        marks = {item.id: fingerprints[name, item.id] for item in members}
        unsettled = scores["missing"] + scores["judge_failed"] + scores["judge_pending"]
        scored[name] = Scored(
            *(label, name, score, members, marks, scores["grader"], scores["judge"], unsettled),
            asked=asked_of(folder.manifest, name),
            samples=len(graded) // len(members),
            right=right_samples(members, graded),
        )
    return scored
