"""Problems from one's own data: any source that a config may train on, read by the same column settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from eval_suite.answer_form import MATHEMATICS, AnswerForm
from eval_suite.benchmarks import subset
from eval_suite.benchmarks.base import Loaded
from eval_suite.reporter import SILENT, Reporter
from mmcorl.data.columns import USUAL
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from mmcorl.synthetic.rows import SKILLS, SOURCES, distinct_rows

HELD_OUT = {source.replace(":", "_"): kind for source, kind in SOURCES.items()}
"""Problems that need no file, by name: `synthetic:visual` is the set of this kind that demo runs hold out."""


HELD_OUT_TOKENS = 256
"""Tokens of a response to them where nobody names another budget."""


def origin_of(name: str, source: str, rows: int, changes: Sequence[str]) -> str:
    """Say where the problems of an evaluation are from that are no benchmark's."""
    if name not in HELD_OUT:
        return f"your own rows, from {source}"
    which = f"with {' '.join(changes)!r}" if changes else "which demo runs hold out"
    return f"{rows:,} rows of {source}, {which}; short answers, so up to {HELD_OUT_TOKENS} tokens by default"


def held_out(name: str) -> tuple[str, ...]:
    """Return the data settings of a set of `HELD_OUT`; none for other rows."""
    kind = HELD_OUT.get(name)
    return () if kind is None else ("seed=1", f"size={min(400, distinct_rows(kind, SKILLS[kind]))}")


def held_out_items(name: str, answers: AnswerForm = MATHEMATICS) -> tuple[Item, ...]:
    """Return the problems of a set of `HELD_OUT`, as an evaluation asks them."""
    source = next(source for source in SOURCES if source.replace(":", "_") == name)
    rows, _ = open_rows(source, held_out(name), answers)
    return load_rows(rows, name, SILENT, answers).items


def data_settings(source: str, changes: Sequence[str]) -> Any:
    """Settings of a data source: what a config file trains on, or the source itself; `changes` are KEY=VALUE.

    Repeated rows are left out and counted, unless the settings say otherwise.
    """
    from mmcorl.config.errors import sentence
    from mmcorl.config.load import load, override
    from mmcorl.data.settings import DataSettings

    raw = {"source": source}
    if source.endswith((".yaml", ".yml")):
        raw = load(source).data.train.model_dump(exclude_unset=True, mode="json")
    raw.setdefault("duplicates", "skip")
    for change in changes:
        override(raw, change)
    try:
        return DataSettings.model_validate(raw)
    except ValidationError as error:
        raise UserError(sentence(error, raw, DataSettings)) from error


def open_rows(source: str, changes: Sequence[str], answers: AnswerForm = MATHEMATICS) -> tuple[Any, list[str]]:
    """Open a source, columns by their usual names where none are set; return it and what to note of that."""
    from mmcorl.data.sources import load_prompts

    settings = data_settings(source, changes)
    if settings.columns.tests is not None:
        raise UserError(
            f"{source} has coding problems, whose programs are only compared in training: evaluate on humaneval, mbpp "
            "or livecodebench, or leave columns.tests out"
        )
    if answers.form is None and settings.places is not None:
        raise UserError(f"answers of {source} are places in pictures: say how they are compared, such as relation=box")
    rows = load_prompts(settings, answers.form)
    if settings.synthetic or settings.recipe or source.endswith((".yaml", ".yml")):
        return rows, []
    guessed = {
        role: name
        for role in ("answer", "image", "choices", "id")
        if getattr(settings.columns, role) is None
        for name in [name for name in USUAL[role] if name in rows.stored and (role != "id" or name == role)][:1]
    }
    if not guessed:
        return rows, []
    columns = settings.columns.model_copy(update=guessed)
    taken = ", ".join(f"{role} from column {name!r}" for role, name in guessed.items())
    rows = load_prompts(settings.model_copy(update={"columns": columns}), answers.form)
    return rows, [f"{taken} (data_set=columns.ROLE=NAME)"]


def load_rows(
    rows: Any,
    name: str,
    reporter: Reporter,
    answers: AnswerForm = MATHEMATICS,
    *,
    size: int | None = None,
    seed: int = 0,
    limit: int | None = None,
) -> Loaded:
    """Read the rows of a source as items: all, or `size` drawn by a seed; of these the first `limit`.

    `answers`: what these are; texts that are compared by a relation are read from the whole response, where it commits
    to none.
    """
    from mmcorl.data.checks import check
    from model_adapters.base import VisionSettings

    # Drawn by row number, so that only the rows that are used are read.
    chosen = tuple(Item(name, str(k), "", "") for k in range(len(rows)))
    chosen = (chosen if size is None else subset.draw(chosen, size, seed))[:limit]
    prompts = rows.select([int(row.id) for row in chosen])
    with reporter.task(f"reading {name}", len(prompts)) as bar:
        checked = check(prompts, max_side=VisionSettings().max_side, on_progress=lambda *_: bar.advance())
    items = tuple(
        Item(
            *(name, prompt.row_id, prompt.text, prompt.gold or "", prompt.images, prompt.choices),
            question_for_eval=None if prompt.conversation == prompt.text else prompt.conversation,
            shots=prompt.turns,
            system=prompt.system,
            relation=answers.relation,
            accepted=prompt.accepted if answers.relation else (),
            threshold=answers.threshold,
            reading="commitment" if answers.relation is None or answers.form else "whole",
            meta={} if prompt.tag is None else {"tag": prompt.tag},
        )
        for prompt in prompts.select(checked.kept)
    )
    notes = []
    if checked.counts:
        notes.append(checked.summary())
    if size is not None and size < len(rows):
        notes.append(f"{min(size, len(rows))} of {len(rows)} problems, drawn with seed {seed}")
    if limit is not None and limit < min(len(rows), size or len(rows)):
        notes.append(f"limited: the first {limit}")
    return Loaded(items, None, checked.fingerprint, len(rows), tuple(notes))


def require_answers(items: Sequence[Item], name: str, instead: str = "") -> None:
    """Refuse rows without a known answer; `instead`: another way out."""
    unknown = [item.id for item in items if not item.gold]
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UserError(
            f"{len(unknown)} of {len(items)} problems of {name} have no known answer ({', '.join(unknown[:3])}{more}): "
            "name the column that holds them (data_set=columns.answer=NAME), or leave these out (data_set="
            f"answers=required data_set=on_bad_row=skip){instead}"
        )
