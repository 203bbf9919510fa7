"""How often a judge is right: its verdicts on rows whose verdict is known, for one judge or several side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval_suite.evaluation.pipeline import open_judge
from eval_suite.options import JudgeCheckOptions
from eval_suite.reporter import SILENT, Reporter, counted, nth_row
from eval_suite.responses.row_files import read_rows
from eval_suite.results.finished import CHECK, Result, open_evaluations
from eval_suite.results.folder import EvalFolder, save
from eval_suite.results.tables import bounds
from mmcorl.apps.analysis.statistics import wilson
from mmcorl.errors import RunError, UserError
from mmcorl.grading import judge as judges
from mmcorl.grading.judge import JudgeRequest
from mmcorl.run.table import Align, Cell, Table, cells

SAMPLE = Path(judges.__file__).with_name("labelled.jsonl")
"""Rows of our writing: 132 in 13 families, right and wrong, which mostly no rule decides."""
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
_MEASURES = ("accuracy", "false credit", "missed")


@dataclass(frozen=True)
class Labelled:
    """A row whose verdict is known."""

    id: str
    family: str
    request: JudgeRequest
    """Its ending is the whole response, where the row has one."""
    right: bool


@dataclass(frozen=True)
class Checked:
    """The verdicts of one judge, by the id of the row: `yes`, `no`, `unclear` or `failed`."""

    model: str
    prompt_version: str
    verdicts: Mapping[str, str]

    def share(self, measure: str, rows: Sequence[Labelled]) -> tuple[int, int]:
        """Return a measure as part and whole; rows whose request failed say nothing of a judge."""
        pairs = [(row.right, verdict) for row in rows if (verdict := self.verdicts[row.id]) != "failed"]
        match measure:
            case "accuracy":
                return sum(verdict == ("yes" if right else "no") for right, verdict in pairs), len(pairs)
            case "false credit":
                wrong = [verdict for right, verdict in pairs if not right]
                return wrong.count("yes"), len(wrong)
        right_ones = [verdict for right, verdict in pairs if right]
        return len(right_ones) - right_ones.count("yes"), len(right_ones)

    def as_dict(self, rows: Sequence[Labelled]) -> dict[str, Any]:
        words = [self.verdicts[row.id] for row in rows]
        facts: dict[str, Any] = {"rows": len(rows), "unclear": words.count("unclear"), "failed": words.count("failed")}
        for measure in _MEASURES:
            part, whole = self.share(measure, rows)
            interval = list(wilson(part, whole)) if whole else None
            facts[measure.replace(" ", "_")] = {"part": part, "whole": whole, "wilson": interval}
        return facts

    def sentence(self, rows: Sequence[Labelled], file: str) -> str:
        """Return the measures in a line, to stand beside scores."""
        shares = [f"{measure} {' '.join(_shown(*self.share(measure, rows)))}" for measure in _MEASURES]
        return f"on {len(rows):,} labelled rows of {file}: {', '.join(shares)} %, 95 % Wilson"


@dataclass(frozen=True)
class JudgeCheck(Result):
    """Judges on the same labelled rows."""

    file: str
    rows: Sequence[Labelled]
    judges: Sequence[Checked]
    out: Path

    @property
    def families(self) -> dict[str, list[Labelled]]:
        """The rows by family."""
        families: dict[str, list[Labelled]] = {}
        for row in self.rows:
            families.setdefault(row.family, []).append(row)
        return families

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "rows": len(self.rows),
            "judges": [
                {"model": judge.model, "prompt_version": judge.prompt_version}
                | judge.as_dict(self.rows)
                | {"families": {name: judge.as_dict(rows) for name, rows in self.families.items()}}
                for judge in self.judges
            ],
        }

    def tables(self) -> list[Table]:
        """Each judge over all rows, then its measures by family; judges have numbers where there are several."""
        many, right = len(self.judges) > 1, sum(row.right for row in self.rows)
        head: list[tuple[str, Align]] = [("Judge", "left"), ("Prompt", "left")]
        head += [(f"{measure} %", "right") for measure in _MEASURES] + [("unclear", "right"), ("failed", "right")]
        lines = []
        for number, judge in enumerate(self.judges, start=1):
            facts = judge.as_dict(self.rows)
            measures = [Cell(*_shown(*judge.share(measure, self.rows))) for measure in _MEASURES]
            name = f"{number}. {judge.model}" if many else judge.model
            lines.append([
                *cells(name, judge.prompt_version), *measures, *cells(facts["unclear"], facts["failed"])
            ])  # fmt: skip
        columns: list[tuple[str, Align]] = [("Family", "left")]
        columns += [
            (measure + (f" {number}" if many else ""), "right")
            for measure in _MEASURES
            for number in range(1, len(self.judges) + 1)
        ]
        by_family = [
            [Cell(name), *(_part(*judge.share(measure, rows)) for measure in _MEASURES for judge in self.judges)]
            for name, rows in self.families.items()
        ]
        notes = [
            "accuracy: verdicts as labelled, unclear ones count against it; false credit: wrong answers credited; "
            "missed: right ones not credited; brackets: 95 % Wilson interval in percent"
        ]
        title = f"{len(self.rows):,} labelled rows, {right:,} right: {self.file}"
        return [Table(title, head, lines, notes), Table("By family", columns, by_family)]

    def files(self) -> dict[str, Path]:
        return {"judges": self.out / "judges.json"}


def judge_check(
    labelled: Path | str, options: JudgeCheckOptions | None = None, *, reporter: Reporter = SILENT, **changes: Any
) -> JudgeCheck:
    """Ask a judge about labelled rows; the result has all judges that were asked about the same rows, this one first.

    Rows have `gold`, `answer` and `correct` (whether the answer is right), and may have `question`, `choices`,
    `response`, `family` and `id`. Verdicts are kept in `out`; what is known is not asked again. Without a judge those
    known are shown. With `beside` the measures are kept in evaluations that this judge took part in.

    Raises:
        UserError: a row without what it needs, a judge that cannot work, or an evaluation with another judge.
        RunError: the judge answered nothing.
    """
    options = JudgeCheckOptions.build(options, changes)
    path = SAMPLE if str(labelled) == "sample" and not Path(labelled).exists() else Path(labelled)
    rows = _read(path)
    out = options.out or Path(labelled).with_suffix(".judges")
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    kept = out / "judges.json"
    checked, others = _known(kept, content, rows)
    judge = open_judge(options)
    if judge is None:
        if not checked or options.beside:
            raise UserError(f"no judge is named, and {out} knows none for these rows: add judge=URL or vllm:MODEL")
        return JudgeCheck(path.name, rows, checked, out)
    facts = {"model": judge.name, "prompt_version": judge.format.recorded(options.judge_end)}
    beside = [_with_judge(folder, facts) for folder in options.beside]
    shown = judge.format.shows(options.judge_end)
    texts = [row.request.ending or row.request.answer for row in rows]
    requests = [
        replace(row.request, ending=text[-shown:] if shown else "") for row, text in zip(rows, texts, strict=True)
    ]
    verdicts: dict[str, str] = {}
    with judges.VerdictCache(out / "verdicts.sqlite") as cache, reporter.task("judging", len(rows)) as bar:
        if (coming := judges.due(requests, judge, cache)).requests:
            reporter.note(f"judge: {coming}")

        def keep(number: int, verdict: str, words: str) -> None:
            verdicts[rows[number].id] = verdict
            bar.advance()

        counts = judges.judge_all(requests, judge, keep, cache=cache)
    if counts.asked:
        reporter.note(f"judge: {counts.usage}")
    for sentence in dict.fromkeys([counts.stopped, *(failure.sentence for failure in counts.failures.values())]):
        if sentence:
            reporter.warn(f"judge: {sentence}")
    if counts.failed == len(rows):
        raise RunError(f"the judge answered none of {counted(len(rows), 'row', 'rows')}: correct what is said above")
    result = Checked(facts["model"], facts["prompt_version"], verdicts)
    checked = [result, *(old for old in checked if (old.model, old.prompt_version) != tuple(facts.values()))]
    documents = [*(vars(each) | {"rows": content} for each in checked), *others]
    save(kept, json.dumps(documents, indent=1) + "\n")
    for folder in beside:
        note = {"judge": facts, "says": result.sentence(rows, path.name), **result.as_dict(rows)}
        save(folder.path / CHECK, json.dumps(note, indent=1) + "\n")
        open_evaluations([folder.path])[0].write()
    return JudgeCheck(path.name, rows, checked, out)


def _known(file: Path, content: str, rows: Sequence[Labelled]) -> tuple[list[Checked], list[dict[str, Any]]]:
    """Return the judges that a file knows of rows with this content, and its entries of others."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []
        others = [entry for entry in entries if entry["rows"] != content]
        checked = [
            Checked(entry["model"], entry["prompt_version"], {row.id: entry["verdicts"][row.id] for row in rows})
            for entry in entries
            if entry["rows"] == content
        ]
    except (ValueError, LookupError, TypeError, OSError) as error:
        raise UserError(f"{file} holds no judges that were checked ({error!r}): move it away") from error
    return checked, others


def _read(path: Path) -> list[Labelled]:
    """Return the labelled rows of a file."""
    rows: list[Labelled] = []
    ids = set()
    shown: dict[str, tuple[str, bool]] = {}
    for number, row in enumerate(read_rows(path), start=1):
        truth = _TRUTH.get(str(row.get("correct")).strip().lower())
        texts = {name: "" if row.get(name) is None else str(row[name]) for name in ("gold", "answer")}
        if truth is None or not all(text.strip() for text in texts.values()):
            raise UserError(
                f"{nth_row(number - 1, path)} has gold {texts['gold']!r}, answer {texts['answer']!r} and correct "
                f"{row.get('correct')!r}: give a known answer, an answer, and true or false"
            )
        choices = row.get("choices")
        if choices is not None and not (isinstance(choices, list) and all(isinstance(each, str) for each in choices)):
            raise UserError(f"{nth_row(number - 1, path)} has choices {choices!r:.60}: give a list of texts, or none")
        name = str(row.get("id", number))
        if name in ids:
            raise UserError(f"id {name!r} stands twice in {path}: give each row its own")
        ids.add(name)
        request = JudgeRequest(str(row.get("question") or ""), choices, **texts, ending=str(row.get("response") or ""))
        first, label = shown.setdefault(repr(request), (name, truth))
        if first != name:
            labels = "the same label" if label is truth else "two labels"
            raise UserError(f"rows {first} and {name} of {path} are the same answer, with {labels}: keep one of them")
        rows.append(Labelled(name, str(row.get("family") or "rows"), request, truth))
    if not rows:
        raise UserError(f"{path} holds no rows: give one labelled answer a row")
    return rows


def _with_judge(path: Path, facts: Mapping[str, str]) -> EvalFolder:
    """Return an evaluation that had this judge."""
    folder = EvalFolder(path)
    its = folder.document("judge.json")
    if its != facts:
        had = "no judge" if its is None else f"{its['model']}, prompt {its['prompt_version']}"
        raise UserError(
            f"beside={path} is no evaluation with {facts['model']}, prompt {facts['prompt_version']} (it had {had}): "
            "check the judge that it had"
        )
    open_evaluations([path])
    return folder


def _shown(part: int, whole: int) -> tuple[str, str]:
    """Return a share in percent, and its interval."""
    return (f"{100 * part / whole:.1f}", bounds(wilson(part, whole))) if whole else ("-", "")


def _part(part: int, whole: int) -> Cell:
    if not whole:
        return Cell("-")
    low, high = wilson(part, whole)
    return Cell(f"{part}/{whole}", f"[{100 * low:.0f}, {100 * high:.0f}]")
