"""BLINK: fourteen tasks of perception that people solve at a glance, as multiple choice with one to four pictures.

Hub      BLINK-Benchmark/BLINK, a configuration per task, split val (1,901 rows together; answers of test are withheld).
         A copy is read as `blink='COPY/*/val-*.parquet'`.
Columns  idx, question, sub_task, image_1 to image_4, choices, answer (`(A)`), prompt, explanation.
Licence  Apache-2.0.
Metric   `official`: `Total`, the mean of the accuracies of the 14 tasks (eval/evaluate.py of zeyofu/BLINK_Benchmark),
         which needs rows of each; VLMEvalKit and lmms-eval report the accuracy over all rows.
Prompt   `prompt` as stored, which ends with the options, as the authors ask.
Traps
- Officially a model reads the option out of a response that names several; the rules read what it commits to.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from eval_suite.benchmarks.base import Benchmark, Row, SubScores, by_field, labels_of
from mmcorl.grading.items import Item

IMAGES = ("image_1", "image_2", "image_3", "image_4")
TASKS = (
    *("Art_Style", "Counting", "Forensic_Detection", "Functional_Correspondence", "IQ_Test", "Jigsaw"),
    *("Multi-view_Reasoning", "Object_Localization", "Relative_Depth", "Relative_Reflectance"),
    *("Semantic_Correspondence", "Spatial_Relation", "Visual_Correspondence", "Visual_Similarity"),
)


def read(row: Row) -> Item:
    choices = row.texts("choices")
    return Item(
        "blink",
        row.text("idx"),
        row.text("prompt").strip(),
        labels_of(row.text("answer"), choices),
        images=tuple(image for name in IMAGES for image in row.read_image(name)),
        choices=choices,
        meta={"sub_task": row.text("sub_task")},
    )


def official(items: Iterable[Item], correct: Mapping[str, float]) -> SubScores:
    """Return the mean of the accuracies by task, where all tasks are there."""
    tasks = by_field(items, correct, ("sub_task",)).get("sub_task", {})
    if len(tasks) < len(TASKS):
        return {}
    total = math.fsum(task["accuracy"] or 0.0 for task in tasks.values())
    return {"official": {"Total": {"n": len(TASKS), "correct": total, "accuracy": total / len(TASKS), "ratio": 1}}}


BLINK = Benchmark(
    name="blink",
    title="BLINK",
    group="pictures",
    place=33,
    hub_id="BLINK-Benchmark/BLINK",
    config="+".join(TASKS),
    split="val",
    rows=1901,
    columns=("idx", "question", "sub_task", *IMAGES, "choices", "answer", "prompt", "explanation"),
    licence="Apache-2.0",
    read=read,
    optional=frozenset({*IMAGES[1:], "question", "explanation"}),
    fields=("sub_task",),
    official=official,
)
