"""MMStar: 1,500 multiple-choice questions that no model answers without the picture, in six capabilities of 250.

Hub      Lin-Chen/MMStar, split val (1,500 rows); VLMEvalKit's MMStar.tsv has the same rows with a column per option.
Columns  index, question, image, answer (a letter), category (6), l2_category (18), meta_info (source, split,
         image_path).
Licence  as published with the paper (2403.20330); rows come from six other benchmarks (`meta_info.source`).
Metric   accuracy, overall and by category and subcategory; the mean of the six is the accuracy overall.
Prompt   the question as stored, in which its options stand (`Options: A: ..., B: ...`). lmms-eval
         (lmms_eval/tasks/mmstar) asks for the letter alone and takes the mean over the 18 subcategories of
         unlike size, which is another number.
"""

from __future__ import annotations

from eval_suite.benchmarks.base import Benchmark, Row, lettered
from mmcorl.grading.items import Item


def read(row: Row) -> Item:
    asks = lettered(row.text("question").replace("<image 1>", ""), row.text("answer"))
    meta = {name: row.text(name) for name in ("category", "l2_category")}
    return Item("mmstar", row.text("index"), images=row.image("image"), meta=meta, **asks)


MMSTAR = Benchmark(
    name="mmstar",
    title="MMStar",
    group="pictures",
    place=28,
    hub_id="Lin-Chen/MMStar",
    split="val",
    rows=1500,
    columns=(
        *("index", "question", "image", "answer", "category", "l2_category"),
        *("meta_info.source", "meta_info.split", "meta_info.image_path"),
    ),
    licence="see the MMStar paper",
    read=read,
    optional=frozenset({"meta_info.source", "meta_info.split", "meta_info.image_path"}),
    fields=("category", "l2_category"),
)
