"""Which problem of a benchmark each row of a file answers.

Files name problems in several ways: by the benchmark's own id, by another id, or by position. A wrong guess
would score every response against another problem's answer, so where a file holds known answers, they must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from eval_suite.answer_form import MATHEMATICS, AnswerForm, listed
from eval_suite.benchmarks.custom_data import held_out_items
from eval_suite.benchmarks.tasks import BENCHMARKS, parse_benchmarks
from eval_suite.reporter import counted
from eval_suite.responses.imports import (
    ID_COLUMNS,
    Imported,
    ResponseFile,
    as_items,
    as_responses,
    read_responses,
)
from mmcorl.errors import UserError
from mmcorl.grading import Grader
from mmcorl.grading.grade_by_relation import form_of
from mmcorl.grading.items import Item, Response

_CHECKED = 400
"""Known answers that are compared, at most."""
_AGREE = 0.9
"""Share of known answers that must agree: files spell some of them in ways of their own."""


@dataclass(frozen=True)
class AnsweredProblems:
    """A file of responses and the problems it answers: a benchmark's, or its own."""

    name: str
    items: list[Item]
    file: ResponseFile
    ids: Mapping[str, str] | None
    """The problem by the id of a row, where they differ."""
    notes: list[str]
    answers: AnswerForm = MATHEMATICS

    def responses(self) -> Iterator[Response]:
        """Yield the responses in the order of the file."""
        places = {item.id: item for item in self.items if form_of(item) is not None}

        def written(row: Imported, id: str) -> tuple[float, float, str] | None:
            if id not in places or row.coordinates is not None or self.answers.coordinates is None:
                return row.coordinates
            from model_adapters.images import upright_size

            size = row.size or (upright_size(places[id].images[0]) if places[id].images else None)
            how = self.answers.written(size, f"{self.file.path}, id {row.id!r}")
            return how.right, how.bottom, how.order

        return as_responses(self.file, self.name, self.ids, written)

    def as_vlmevalkit(self) -> Iterator[dict[str, Any]]:
        """Yield what VLMEvalKit's own rule says of each response, where it says anything, missing ones included."""
        for row in self.file:
            if row.as_vlmevalkit is not None:
                id = row.id if self.ids is None else self.ids[row.id]
                yield {"benchmark": self.name, "id": id, "sample": row.sample, "right": row.as_vlmevalkit}


def read_answers(
    path: Path,
    benchmark: str | None,
    *,
    golds: bool = True,
    own_name: bool = False,
    answers: AnswerForm = MATHEMATICS,
) -> AnsweredProblems:
    """Read a file of responses to the problems of `benchmark` (NAME[=PATH], or natural:KIND), or to those it brings.

    `golds`: its own problems need known answers. `own_name`: they may go by the name of the benchmark that the file
    states, instead of that of the file. `answers`: what these are, where they are no mathematics; a
    benchmark says so itself.
    `read_responses` and `join` say what is refused.
    """
    made = benchmark is not None and benchmark.startswith(("natural:", "synthetic:"))
    if benchmark and not made and answers.relation is not None:
        raise UserError(
            f"relation={answers.relation} is for rows of your own, and {benchmark} says itself how its answers are "
            "compared: leave one of them out"
        )
    rows, notes = read_responses(path, golds=golds and not benchmark, answers=answers)
    if benchmark:
        ((name, source),) = parse_benchmarks(benchmark, own_rows=made).items()
        whole = held_out_items(name, answers) if made else BENCHMARKS[name].load(source).items
        ids, how = join(rows, whole, name, str(path))
        notes.append(f"problems of {name} are found by {how}")
        answered = set(ids.values())
        items = [item for item in whole if item.id in answered]
    else:
        name, ids = (next(iter(rows)).benchmark if own_name else None) or path.stem, None
        items = as_items(rows, name, golds=golds, answers=answers)
    if answers.corners is not None and (benchmark or answers.form is None):
        raise UserError(f"corners={answers.corners} is for known boxes in {path}, which holds none: leave it out")
    if answers.coordinates is not None and all(form_of(item) is None for item in items):
        raise UserError(f"coordinates={answers.coordinates}: the answers of {path} are no places, so leave it out")
    return AnsweredProblems(name, items, rows, ids, notes, answers)


def join(rows: Iterable[Imported], items: Sequence[Item], name: str, where: str) -> tuple[dict[str, str], str]:
    """Return the item id for the id of each row, and a description of how rows were matched.

    Args:
        rows: rows of a file.
        items: all items of the benchmark `name`, in its order.
        where: what a sentence calls the file.

    Raises:
        UserError: no column names problems of the benchmark, or their known answers are not the benchmark's.
    """
    # Samples of one problem name it alike, and only its names matter here.
    named = {(row.id, row.gold, row.benchmark, *row.names.items()): replace(row, text=None) for row in rows}
    rows = list(named.values())
    other = next((row.benchmark for row in rows if row.benchmark not in (None, name)), None)
    if other is not None:
        raise UserError(
            f"{where} says that it answers {other}, not {name}: keep the rows of one benchmark and name that"
        )
    known = {item.id: item for item in items}
    closest: tuple[float, str] | None = None
    for how, find in _ways(rows, items):
        ids = {row.id: find(row) for row in rows}
        if len(set(ids.values())) < len(ids) or not all(item_id in known for item_id in ids.values()):
            continue
        agreement = _agreement(rows, ids, known)
        if agreement is None or agreement >= _AGREE:
            return {row: str(item_id) for row, item_id in ids.items()}, how
        if closest is None or agreement > closest[0]:
            closest = agreement, how
    if closest is not None:
        raise UserError(
            f"the known answers in {where} agree with those of {name} for only {closest[0]:.0%} of the problems that "
            f"{closest[1]} names: give it a column 'id' with the benchmark's own ids, or the right benchmark"
        )
    if not any(row.names for row in rows):
        raise UserError(
            f"{where} has no column that names problems: add one, {ID_COLUMNS[0]!r}, with the ids of {name}"
        )
    unknown = sorted({row.id for row in rows} - known.keys())
    column = next((c for row in rows for c, id in row.names.items() if id == row.id), ID_COLUMNS[0])
    raise UserError(
        f"{where} answers {counted(len(unknown), 'problem', 'problems')} that {name} does not have (first: "
        f"{unknown[0]!r} in column {column!r}): its ids must be those of the benchmark, such as {items[0].id!r}"
        if unknown
        else f"{where} names one problem of {name} in several ways: give every problem one id"
    )


def _ways(rows: Sequence[Imported], items: Sequence[Item]) -> list[tuple[str, Callable[[Imported], str | None]]]:
    """List how rows may name problems, the likeliest first: by an id, or by their place in the benchmark."""

    def named(column: str, row: Imported) -> str | None:
        return row.names[column]

    def placed(column: str, row: Imported) -> str | None:
        text = row.names[column]
        return items[int(text)].id if text.isascii() and text.isdigit() and int(text) < len(items) else None

    columns = [column for column in ID_COLUMNS if all(column in row.names for row in rows)]
    counting = [column for column in columns if column in ("doc_id", "index")]  # from 0, as harnesses and VLMEvalKit do
    ids = [(f"column {column!r}", partial(named, column)) for column in columns]
    places = [(f"the place in column {column!r}", partial(placed, column)) for column in counting]
    # The harnesses count documents; any other index is an id, unless known answers say otherwise.
    likely = [*(way for way in ids if "doc_id" not in way[0]), *(way for way in places if "doc_id" in way[0])]
    return [*likely, *(way for way in (*ids, *places) if way not in likely)]


def _agreement(rows: Sequence[Imported], ids: Mapping[str, str | None], items: Mapping[str, Item]) -> float | None:
    """Return the share of known answers in the file that are right for the problems they are joined to, if any."""
    golds = {
        key: row.gold
        for row in rows
        if row.gold and (key := ids[row.id]) and items[key].kind == "math" and form_of(items[key]) is None
    }
    if not golds:
        return None
    chosen = list(golds.items())[:: -(-len(golds) // _CHECKED)]
    with Grader() as grader:
        right = sum(
            any(
                grader.rule(items[key], Response(items[key].benchmark, key, 0, f"<answer>{answer}</answer>")).rule
                for answer in (listed(gold) if items[key].relation is not None else [gold])
            )
            for key, gold in chosen
        )
    return right / len(chosen)
