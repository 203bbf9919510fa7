"""MMK12: multiple-choice questions of secondary school, 500 each of mathematics, physics, chemistry and biology.

Hub      FanqingM/MMK12, split test (2,000 rows); the split train asks for values.
Columns  id, question, answer (a letter), subject, image.
Licence  Apache-2.0.
Metric   accuracy, overall and by subject (MM-Eureka, 2503.07365). lmms-eval has a model compare the whole response
         (lmms_eval/tasks/k12, which is another set of 500 rows).
Prompt   the question as stored, in which its options stand on lines `A. ...`.
Traps
- Where the question does not give each letter a text, an option is its letter alone.
"""

from __future__ import annotations

from eval_suite.benchmarks.base import Benchmark, Row, lettered
from mmcorl.data.row_parsing import strip_markers
from mmcorl.grading.items import Item


def read(row: Row) -> Item:
    asks = lettered(strip_markers(row.text("question")), row.text("answer"))
    return Item("mmk12", row.text("id"), images=row.image("image"), meta={"subject": row.text("subject")}, **asks)


MMK12 = Benchmark(
    name="mmk12",
    title="MMK12",
    group="pictures",
    place=31,
    hub_id="FanqingM/MMK12",
    split="test",
    rows=2000,
    columns=("id", "question", "answer", "subject", "image"),
    licence="Apache-2.0",
    read=read,
    fields=("subject",),
)
