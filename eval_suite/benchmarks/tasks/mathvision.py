"""MathVision (MATH-V): competition problems in pictures.

Hub      MathLLMs/MathVision, splits test (3,040 rows) and testmini (304 of them); also mathllm/MATH-V data/*.jsonl.
Columns  id, question, options, image, decoded_image, answer, solution (often null), level 1-5, subject (16).
Licence  MIT.
Metric   accuracy; by level, subject and both, under the official keys `-all`, `-level3`, `algebra`, `algebra_level3`.
Prompt   question, then `Choices:` and `(A) value` lines. The instruction for the answer format is not part of it.
Traps
- 1,532 rows have five options and a letter as answer. 415 of them have letters as options; in five (654, 742,
  761, 941, 1893) an option's value is another option's letter, so letters are read first. 1843 and 1893 repeat a value.
- One image file per row, though the text names up to seven (`<image1>`, ...): they are parts of that one picture
  and stay in the text where several are named; five rows have nothing but such names as options.
- Free-form golds carry dollars, boxes, `69{degrees}`, a form feed where `\\frac` lost its backslash (2830); 59 and
  434 have a letter as answer but no options.
- The text of 528 is nothing but `<image1>`: its question is in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eval_suite.benchmarks.base import READ_THE_PICTURE, Benchmark, Row, SubScores, labels_of, tally, with_options
from eval_suite.grading.gold import clean_gold
from eval_suite.items import Item
from mmcorl.data.row_parsing import names_pictures, strip_markers


def _reader(name: str) -> Callable[[Row], Item]:
    def read(row: Row) -> Item:
        stored = row.text("question")
        options = row.texts("options")
        named = names_pictures(stored, options, images=1)
        choices = tuple(strip_markers(option, named) for option in options) or None
        question = strip_markers(stored, named) or READ_THE_PICTURE
        answer = row.text("answer")
        return Item(
            benchmark=name,
            id=row.text("id"),
            question=with_options(question, choices),
            gold=labels_of(answer, choices) if choices else clean_gold(answer),
            images=row.image("decoded_image"),
            choices=choices,
            meta={"subject": row.text("subject"), "level": row.integer("level")},
        )

    return read


def official(items: Iterable[Item], correct: Mapping[str, float]) -> SubScores:
    """Accuracies under the official keys: `-all`, `-level3`, `algebra` and `algebra_level3`."""

    def keys(item: Item) -> tuple[str, ...]:
        level, subject = f"level{item.meta['level']}", item.meta["subject"]
        return "-all", f"-{level}", subject, f"{subject}_{level}"

    return {"official": tally(items, correct, keys)}


def _benchmark(name: str, split: str, rows: int, **facts: Any) -> Benchmark:
    return Benchmark(
        name=name,
        group="pictures",
        hub_id="MathLLMs/MathVision",
        config=None,
        split=split,
        rows=rows,
        columns=("id", "question", "options", "image", "decoded_image", "answer", "solution", "level", "subject"),
        licence="MIT",
        read=_reader(name),
        optional=frozenset({"image", "solution"}),
        aliases={"decoded_image": ("image",)},
        fields=("level", "subject"),
        official=official,
        **facts,
    )


MATHVISION = _benchmark("mathvision", "test", 3040, title="MathVision", place=1, suites=("mean of 4",))
MATHVISION_TESTMINI = _benchmark("mathvision_testmini", "testmini", 304, title="MathVision testmini", place=2)
