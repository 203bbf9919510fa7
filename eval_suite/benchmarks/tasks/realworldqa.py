"""RealWorldQA: questions about photographs, most of them taken from vehicles, published with Grok-1.5 Vision.

Hub      lmms-lab/RealWorldQA (xai-org/RealworldQA has the same questions), split test (765 rows).
Columns  image, question, answer, image_path.
Licence  CC BY-ND 4.0.
Metric   accuracy; no official grader is published. lmms-eval (lmms_eval/tasks/realworldqa) compares letters, and other
         answers as texts, case and a final point aside.
Prompt   the question with its options `A. ...`, without its last sentence `Please answer directly with ...`, which
         would contradict the instruction for the form of an answer.
Traps
- Where the question has no options, the answer is a word or a number (`Yes`, `2`, `Downhill`).
"""

from __future__ import annotations

import re
from typing import Any

from eval_suite.benchmarks.base import Benchmark, Row, content_ids, lettered
from mmcorl.grading.items import Item
from mmcorl.grading.options import parse_options

_DIRECTLY = re.compile(r"\s*Please answer directly with [^\n]*\Z")


def read(row: Row) -> Item:
    question, answer = _DIRECTLY.sub("", row.text("question").strip()), row.text("answer").strip()
    has_options = parse_options(question) is not None
    asks: dict[str, Any] = lettered(question, answer) if has_options else {"question": question, "gold": answer}
    return Item("realworldqa", row.text("_id"), images=row.image("image"), **asks)


REALWORLDQA = Benchmark(
    name="realworldqa",
    title="RealWorldQA",
    group="pictures",
    place=34,
    hub_id="lmms-lab/RealWorldQA",
    split="test",
    rows=765,
    columns=("image", "question", "answer", "image_path"),
    licence="CC BY-ND 4.0",
    read=read,
    optional=frozenset({"image_path"}),
    arrange=content_ids("image_path", "question", "answer"),
)
