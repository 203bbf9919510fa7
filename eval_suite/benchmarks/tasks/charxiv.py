"""CharXiv: reasoning questions about charts of scientific papers, one for each of 1,000 charts.

Hub      princeton-nlp/CharXiv, split validation (1,000 rows; answers of test are withheld). The descriptive questions
         of the same rows, four each, are not asked here.
Columns  image, category, year, original_figure_path, original_id, figure_path, num_subplots, subplot_row, subplot_col,
         subplot_loc, descriptive_q1 to descriptive_a4, reasoning_q, reasoning_q_source, reasoning_a, reasoning_a_type
         (1 text in the chart, 2 text in general, 3 number in the chart, 4 number in general; 440, 99, 232, 229 rows).
Licence  CC BY-SA 4.0; figures keep their own.
Metric   accuracy, overall and by type of answer. Officially a model reads and compares every answer (GPT-4o,
         src/reasoning_utils.py of princeton-nlp/CharXiv): terms in other notation and order are right, numbers must be
         equal in value. Rules decide numbers and terms as they are spelled; without a judge the others are wrong, and
         an evaluation says so.
Prompt   the question, then the authors' instruction for its type of answer.
Traps
- lmms-eval (lmms_eval/tasks/charxiv) takes `reasoning_q_source` for the type, and so asks with another instruction.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from eval_suite.benchmarks.base import Benchmark, Row
from mmcorl.data.row_parsing import RowError
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.items import Item

TYPES = {1: "text in chart", 2: "text in general", 3: "number in chart", 4: "number in general"}
INSTRUCTIONS = {
    1: """* Your final answer must be grounded to some text that is explicitly written and relevant to the question in \
the chart.
* If you need to answer multiple terms, separate them with commas.
* Unless specified in the question (such as answering with a letter), you are required to answer the full names of \
subplots and/or labels by default.""",
    2: """* If there are options in the question, your final answer must conform to one of the options.
* If there are additional instructions in the question, follow them accordingly.
* If there are neither options nor additional instructions, you are allowed to respond with a short phrase only.""",
    3: """* Your final answer must be grounded to a number that is explicitly written and relevant to the question in \
the chart, even if it's an approximate value.
* You are allowed to extract numbers within some text when needed.""",
}
"""What the authors ask of answers of a type (src/constants.py; a letter that is missing there is added)."""
_DESCRIPTIVE = tuple(f"descriptive_{kind}{number}" for number in range(1, 5) for kind in "qa")
_ABOUT = ("category", "year", "original_figure_path", "original_id", "figure_path", "num_subplots")
_SUBPLOT = ("subplot_row", "subplot_col", "subplot_loc")


def instruction(kind: int, answer: str) -> str:
    """Return what the authors ask of an answer; of a number in general, how many decimal places it has."""
    if kind in INSTRUCTIONS:
        return INSTRUCTIONS[kind]
    _, point, decimals = answer.partition(".")
    form = f"a number with {len(decimals)} decimal places" if point else "an exact integer"
    return f"* Your final answer must be {form}."


def read(row: Row) -> Item:
    kind, answer, question = row.integer("reasoning_a_type"), row.text("reasoning_a"), row.text("reasoning_q").strip()
    if kind not in TYPES:
        raise RowError("unknown_kind", f"reasoning_a_type {kind} is none of {', '.join(map(str, TYPES))}")
    return Item(
        "charxiv",
        PurePosixPath(row.text("figure_path")).stem,
        f"{question}\n{instruction(kind, answer)}",
        clean_gold(answer),
        images=row.image("image"),
        question_for_eval=question,
        meta={"answer_type": TYPES[kind]} | {name: row.text(name) for name in ("category",) if row.maybe_text(name)},
    )


CHARXIV = Benchmark(
    name="charxiv",
    title="CharXiv reasoning",
    group="pictures",
    place=44,
    hub_id="princeton-nlp/CharXiv",
    split="validation",
    rows=1000,
    columns=(
        *("image", *_ABOUT, *_SUBPLOT, *_DESCRIPTIVE),
        *("reasoning_q", "reasoning_q_source", "reasoning_a", "reasoning_a_type"),
    ),
    licence="CC BY-SA 4.0",
    read=read,
    optional=frozenset({*_ABOUT, *_SUBPLOT, *_DESCRIPTIVE, "reasoning_q_source"}) - {"figure_path"},
    names_all_columns=False,
    fields=("answer_type", "category"),
    judged=True,
)
