"""GSM8K: grade-school word problems.

Hub      openai/gsm8k, config main, split test (1,319 rows).
Columns  question, answer (a solution whose last line is `#### 18`).
Licence  MIT.
Metric   accuracy of one answer, zero-shot. The paper's column is lm-evaluation-harness's `gsm8k`, five-shot with the
         last number of the response taken as the answer; the two are not comparable.
Traps
- Golds have thousands separators (`#### 1,450`). Rows have no id: it is a hash of the question here.
"""

from __future__ import annotations

from eval_suite.benchmark import Benchmark, Row, content_ids
from eval_suite.grading.gold import clean_gold
from eval_suite.items import Item
from mmcorl.data.row_parsing import RowError


def read(row: Row) -> Item:
    _, mark, gold = row.text("answer").rpartition("####")
    if not mark or not gold.strip():
        raise RowError("no_gold", "the answer has no line `#### N`")
    return Item("gsm8k", row.text("_id"), row.text("question").strip(), clean_gold(gold).replace(",", ""))


GSM8K = Benchmark(
    name="gsm8k",
    title="GSM8K",
    group="text",
    place=7,
    suites=("mean of 7", "CoMAS mean of 7", "mean of 3"),
    hub_id="openai/gsm8k",
    config="main",
    split="test",
    rows=1319,
    columns=("question", "answer"),
    licence="MIT",
    read=read,
    arrange=content_ids("question"),
)
