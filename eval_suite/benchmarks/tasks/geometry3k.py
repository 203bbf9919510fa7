"""Geometry3K: problems of high-school textbooks about a diagram.

Hub      hiyouga/geometry3k, split test (601 rows), made of the problems of lupantech/InterGPS.
Columns  images (one), problem (`<image>Find x.`), answer (the value), id, choices (four), ground_truth (a letter).
         Copies of early 2025 have images, problem and answer alone.
Licence  MIT.
Metric   accuracy. geometry3k asks for the value, as papers on RL do (EasyR1 compares with `answer`);
         geometry3k_choices offers the four options, as the authors and lmms-eval do (lmms_eval/tasks/geometry3k).
Prompt   the problem; of geometry3k_choices then `Choices:` and `(A) value` lines.
Traps
- The authors' solvers that find no option draw one by chance; here no answer is wrong.
- Answers are decimals or LaTeX with blanks (`8 \\sqrt { 2 }`).
"""

from __future__ import annotations

from dataclasses import replace

from eval_suite.benchmarks.base import Benchmark, Row, content_ids, labels_of, with_options
from mmcorl.data.row_parsing import strip_markers
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.items import Item


def read(row: Row) -> Item:
    problem = strip_markers(row.text("problem"))
    return Item("geometry3k", row.text("_id"), problem, clean_gold(row.text("answer")), images=row.image("images"))


def read_choices(row: Row) -> Item:
    choices = row.texts("choices")
    return Item(
        "geometry3k_choices",
        row.text("_id"),
        with_options(strip_markers(row.text("problem")), choices),
        labels_of(row.text("ground_truth"), choices),
        images=row.image("images"),
        choices=choices,
    )


GEOMETRY3K = Benchmark(
    name="geometry3k",
    title="Geometry3K",
    group="pictures",
    place=29,
    hub_id="hiyouga/geometry3k",
    split="test",
    rows=601,
    columns=("images", "problem", "answer", "id", "choices", "ground_truth"),
    licence="MIT",
    read=read,
    optional=frozenset({"id", "choices", "ground_truth"}),
    arrange=content_ids("id", "problem", "answer"),
)
GEOMETRY3K_CHOICES = replace(
    GEOMETRY3K,
    name="geometry3k_choices",
    title="Geometry3K choices",
    place=30,
    form_of="geometry3k",
    read=read_choices,
    optional=frozenset({"id"}),
)
