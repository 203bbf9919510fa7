"""AI2D: multiple-choice questions about diagrams of primary-school science, whose labels are masked by letters.

Hub      lmms-lab/ai2d (lmms-lab-encoder/ai2d is the same), split test (3,088 rows); Efficient-Large-Model/ai2d-no-mask
         has the diagrams with their labels, which is easier: VLMEvalKit's AI2D_TEST and AI2D_TEST_NO_MASK.
Columns  question, options (four), answer (the number of the option, from 0, as text), image.
Licence  CC BY-SA 4.0 (allenai.org/data/diagrams).
Metric   accuracy.
Prompt   question, then `Choices:` and `(A) value` lines. lmms-eval (lmms_eval/tasks/ai2d) writes `A. value` and asks
         for the letter directly.
Traps
- Options may be letters of the diagram, such as `c`, `D`, `b`, `a`: a letter is read as an option's first.
- There are no ids: they are hashes of question, options and answer. Questions about one diagram are one group.
"""

from __future__ import annotations

import hashlib

from eval_suite.benchmarks.base import LETTERS, Benchmark, Row, content_ids, with_options
from mmcorl.data.row_parsing import RowError
from mmcorl.grading.items import Item


def read(row: Row) -> Item:
    choices, answer, image = row.texts("options"), row.integer("answer"), row.image("image")
    if not 0 <= answer < len(choices):
        raise RowError("no_such_option", f"answer {answer} is none of {len(choices)} options, counted from 0")
    return Item(
        "ai2d",
        row.text("_id"),
        with_options(row.text("question").strip(), choices),
        LETTERS[answer],
        images=image,
        choices=choices,
        group=hashlib.sha256(image[0]).hexdigest()[:12],
    )


AI2D = Benchmark(
    name="ai2d",
    title="AI2D",
    group="pictures",
    place=32,
    hub_id="lmms-lab/ai2d",
    split="test",
    rows=3088,
    columns=("question", "options", "answer", "image"),
    licence="CC BY-SA 4.0",
    read=read,
    arrange=content_ids("question", "options", "answer"),
)
