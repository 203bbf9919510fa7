"""The command that grades responses: grade."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from eval_suite.options import GradeOptions
from mmcorl.cli.arguments import Arguments, Flag, Output, Progress, command
from mmcorl.cli.output import show

COLUMNS = """columns, by the first of a few usual names:
  response       what the model wrote (or prediction, output, ...); a list holds several samples
  gold           the known answer (or answer, target, ground_truth, label, solution); not with --benchmark
  id             the problem (or index, doc_id, pid, ...); without ids every row is a problem
  sample         which of several responses to one problem; without it every id must appear equally often
  question       its text (or problem, prompt, ...), for the judge
  choices        options (or options, option, or columns A, B, C, ...): a list as JSON or Python (["40", "45"]),
                 {"A": "40", "B": "45"}, or `A. 40; B. 45`
  finish_reason  `length` where the token limit ended the response
Sample logs of lmms-eval and lm-evaluation-harness and tables of VLMEvalKit are read as they are.
"""


class GradeArguments(Arguments):
    responses: Annotated[Path, Flag(positional=True, metavar="FILE")]
    """.jsonl, .json, .csv, .tsv, .parquet, or a folder"""


@command(
    "grade",
    "grade a file of responses, or an evaluation folder again",
    epilog=COLUMNS,
    after_interrupt=": the same command continues where it stopped",
)
def grade(file: GradeArguments, options: GradeOptions, progress: Progress, output: Output) -> int:
    import eval_suite

    result = eval_suite.grade_file(file.responses, options, reporter=eval_suite.Reporter(quiet=progress.quiet))
    return show(result, as_json=output.as_json)
