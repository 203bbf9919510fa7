"""MMMU-Pro: the questions of MMMU that text alone does not answer, with more options, and as photos and screenshots.

Hub      MMMU/MMMU_Pro, split test (1,730 rows each): configurations `standard (10 options)` (mmmu_pro), `standard (4
         options)` (mmmu_pro_4) and `vision` (mmmu_pro_vision).
Columns  id, question, options (a Python list as text), explanation, image_1 to image_7, img_type, answer,
         topic_difficulty, subject; of `vision` id, image, options, answer, subject.
Licence  Apache-2.0.
Metric   accuracy; `official` has the keys of MMMU's table. The score of MMMU-Pro is the mean of mmmu_pro and
         mmmu_pro_vision, which tables print where both are there; the four options are an ablation.
Prompt   as MMMU; of `vision` a pointer to the picture, since question and options stand in it. Officially options are
         `A. value` lines, and an answer is asked for "directly" or step by step with a last line `Answer: $LETTER`.
Traps
- Options number 1 to 12, ten on 1,214 rows; nine rows give an option twice, one is a list in a list (Accounting_29).
- Options are shuffled: `<image 2>` may come before `<image 1>`, and each names its own column. Four rows name an image
  several times, Geography_252 its seven in 35 places.
- Ids begin with test_ or validation_, as the question does in MMMU, of which 577 rows are.
- The official parser draws an option by chance where it finds none; here no answer is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eval_suite.benchmarks.base import READ_THE_PICTURE, Benchmark, Row, labels_of, with_options
from eval_suite.benchmarks.tasks.mmmu import IMAGES, asked, listed, official, subject_of
from eval_suite.items import Item


def _reader(name: str) -> Callable[[Row], Item]:
    def read(row: Row) -> Item:
        choices = listed(row, "options")
        meta = {"subject": subject_of(row)}
        if (difficulty := row.maybe_text("topic_difficulty")) is not None:
            meta["topic_difficulty"] = difficulty
        asks: dict[str, Any]
        if name == "mmmu_pro_vision":
            asks = {
                "question": READ_THE_PICTURE,
                "question_for_eval": with_options(READ_THE_PICTURE, choices),
                "images": row.image("image"),
                "choices": choices,
            }
        else:
            asks = asked(row, row.text("question"), choices)
        return Item(name, row.text("id"), gold=labels_of(row.text("answer"), choices), **asks, meta=meta)

    return read


def _benchmark(name: str, config: str, columns: tuple[str, ...], **facts: Any) -> Benchmark:
    return Benchmark(
        name=name,
        group="pictures",
        hub_id="MMMU/MMMU_Pro",
        config=config,
        split="test",
        rows=1730,
        columns=columns,
        licence="Apache-2.0",
        read=_reader(name),
        optional=frozenset({*IMAGES, "explanation", "img_type", "topic_difficulty", "subject"}),
        fields=("topic_difficulty",),
        official=official,
        **facts,
    )


_STANDARD = (
    *("id", "question", "options", "explanation", *IMAGES, "img_type", "answer", "topic_difficulty", "subject"),
)
_WHOLE = ("MMMU-Pro mean of 2",)
MMMU_PRO = _benchmark("mmmu_pro", "standard (10 options)", _STANDARD, title="MMMU-Pro", place=21, suites=_WHOLE)
MMMU_PRO_4 = _benchmark("mmmu_pro_4", "standard (4 options)", _STANDARD, title="MMMU-Pro 4 options", place=23)
MMMU_PRO_VISION = _benchmark(
    "mmmu_pro_vision",
    "vision",
    ("id", "image", "options", "answer", "subject"),
    title="MMMU-Pro vision",
    place=22,
    suites=_WHOLE,
)
