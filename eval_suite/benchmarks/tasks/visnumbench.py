"""VisNumBench: number sense, such as estimates of angles, lengths and quantities, as multiple choice.

Hub      GML-FMGroup/VisNumBench, split train (1,913 rows, all of it the benchmark).
Columns  class (1,011 rows on synthetic, 902 on real images), id, question, option (`(a) ... (b) ...`, one text),
         answer, task_class (4), Attributes (7), image.
Licence  MIT.
Metric   accuracy, overall and by class, attribute and task (2503.14939).
Prompt   question, then `Choices:` and `(A) value` lines; officially options are `(a) value`.
Traps
- Officially a model reads the option out of the response; the rules read what it commits to, in either case.
- Ranges are options (`(a) (90, 100) degrees`): only letters in brackets mark an option.
- Ids are unique within a class only, so items have hashes of class, id, question and options.
"""

from __future__ import annotations

import re

from eval_suite.benchmarks.base import Benchmark, Row, content_ids, labels_of, with_options
from mmcorl.data.row_parsing import RowError
from mmcorl.grading.items import Item

_MARK = re.compile(r"(?<!\w)\(([a-z])\)", re.IGNORECASE)
_FIELDS = ("class", "Attributes", "task_class")


def options(text: str) -> tuple[str, ...]:
    """Return the options of a text `(a) 1 (b) 2`; RowError for one whose marks are not a, b, c, ..."""
    _, *parts = _MARK.split(text)
    marks, values = [mark.lower() for mark in parts[::2]], parts[1::2]
    if len(marks) < 2 or marks != [chr(ord("a") + n) for n in range(len(marks))]:
        raise RowError("no_options", f"column 'option' holds {text!r:.80}, not (a) ... (b) ...")
    return tuple(value.strip(" \t\n,;") for value in values)


def read(row: Row) -> Item:
    choices, answer = options(row.text("option")), row.text("answer").strip()
    letter = re.match(r"\(([a-zA-Z])\)|([a-zA-Z])[.)]?\Z", answer)
    gold = (letter[1] or letter[2]).upper() if letter else answer
    return Item(
        "visnumbench",
        row.text("_id"),
        with_options(row.text("question").strip(), choices),
        labels_of(gold, choices),
        images=row.image("image"),
        choices=choices,
        meta={name: row.text(name) for name in _FIELDS if row.maybe_text(name)},
    )


VISNUMBENCH = Benchmark(
    name="visnumbench",
    title="VisNumBench",
    group="pictures",
    place=35,
    hub_id="GML-FMGroup/VisNumBench",
    split="train",
    rows=1913,
    columns=("class", "id", "question", "option", "answer", "task_class", "Attributes", "image"),
    licence="MIT",
    read=read,
    optional=frozenset({"class", "id", "task_class", "Attributes"}),
    arrange=content_ids("class", "id", "question", "option"),
    fields=_FIELDS,
)
