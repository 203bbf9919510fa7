"""Commands that evaluate, grade, check judges, and pool or compare evaluations."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from eval_suite.options import EvalOptions, GradeOptions, JudgeCheckOptions, PoolOptions
from mmcorl.cli.arguments import COMMANDS, Arguments, Flag, Folders, Output, Progress, add_arguments, build, command
from mmcorl.cli.output import show
from mmcorl.errors import UserError

Folder = Annotated[Path, Flag(positional=True)]


class EvalProblems(Arguments):
    benchmarks: Annotated[tuple[str, ...], Flag(positional=True, metavar="NAME[=PATH]")]
    """benchmarks from the hub, or from a local copy: mathvision=DIR; the names are listed below. Any other name is for
    your own rows: mine=rows.jsonl"""


class EvalArguments(Arguments):
    model: Annotated[str, Flag(positional=True, metavar="MODEL")]
    """checkpoint folder, hub id, zoo:NAME or natural:NAME; RUN/final/AGENT of a run"""


class EvalFolder(Arguments):
    out: Path | None = None
    """folder of the evaluation (default: evals/MODEL-BENCHMARKS); re-run the same command to resume"""

    def of(self, model: str, benchmarks: Sequence[str]) -> Path:
        """Return the folder, by default evals/MODEL-BENCHMARKS: evals/RUN-AGENT-math500 for RUN/final/AGENT."""
        parts = [part for part in Path(model).parts if part != "/"]
        parts = [parts[-3], parts[-1]] if len(parts) >= 3 and parts[-2] == "final" else parts[-1:]
        return self.out or Path("evals") / re.sub(
            r"[^\w.@-]", "_", "-".join([*parts, *(name.partition("=")[0] for name in benchmarks)])
        )


EVALUATIONS = """examples:
  mmcorl eval runs/quickstart/final/qwen natural:handwriting          no download: what the demo run held out
  mmcorl eval Qwen/Qwen2.5-VL-3B-Instruct mathvista --engine vllm     a benchmark and a model from the hub
  mmcorl eval runs/mine/final/a mathvista=path/to/copy --limit 100    the first 100 problems of a local copy
  mmcorl eval runs/mine/final/a mine=rows.jsonl --style as-trained    your own rows: question, answer, image
  mmcorl eval MODEL gsm8k math500 --protocol paper-text               as in the paper
"""


def _benchmarks() -> str:
    from eval_suite.benchmarks.tasks import listing

    return COMMANDS["eval"].as_typed(f"{EVALUATIONS}\n{listing()}")


@command(
    "eval",
    "evaluate a checkpoint on benchmarks: sample, grade, judge, summarise",
    epilog=_benchmarks,
    after_interrupt=": re-run the same command to resume",
)
def evaluate(
    checkpoint: EvalArguments,
    problems: EvalProblems,
    folder: EvalFolder,
    options: EvalOptions,
    progress: Progress,
    output: Output,
) -> int:
    """Evaluate benchmark by benchmark, or under a protocol that has several calls per problem."""
    import eval_suite

    run: Any = eval_suite.evaluate_comas if options.protocol == "comas" else eval_suite.evaluate
    reporter = eval_suite.Reporter(progress.quiet, COMMANDS["eval"].as_typed)
    result = run(
        checkpoint.model,
        problems.benchmarks,
        folder.of(checkpoint.model, problems.benchmarks),
        options,
        reporter=reporter,
    )
    return show(result, as_json=output.as_json)


COLUMNS = """examples:
  mmcorl grade sample                            ten responses that come with mmcorl, into sample.graded/
  mmcorl grade responses.jsonl                   results into responses.graded/
  mmcorl grade responses.jsonl --judge http://localhost:8000/v1 --judge-model Qwen/Qwen2.5-32B-Instruct
  mmcorl grade responses.jsonl --benchmark math500          reference answers of a benchmark, joined by id
  mmcorl grade evals/qwen --aggregation maj@8               grade an evaluation again

columns, by the first of a few usual names:
  response       what the model wrote (or prediction, output, ...); a list holds several samples
  gold           the reference answer (or answer, target, ground_truth, label, solution, answers); not with --benchmark
  id             the problem (or index, doc_id, pid, ...); without ids every row is a problem
  sample         which of several responses to one problem; without it each id must occur the same number of times
  question       its text (or problem, prompt, ...), for the judge
  choices        options (or options, option, or columns A, B, C, ...): a list as JSON or Python (["40", "45"]),
                 {"A": "40", "B": "45"}, or `A. 40; B. 45`
  finish_reason  `length`, `max_tokens`, ... where the token limit ended the response
  thinking       true where the prompt opened a thought, as the rendered prompt says, too (prompt, input, arguments)
Sample logs of lmms-eval and lm-evaluation-harness, tables of VLMEvalKit and completions of APIs are read as they are.
"""


class GradeArguments(Arguments):
    responses: Annotated[Path, Flag(positional=True, metavar="FILE")]
    """.jsonl, .json, .csv, .tsv, .xlsx, .parquet, or a folder; `sample`: ten responses that come with mmcorl"""


@command(
    "grade",
    "grade a file of responses, or re-grade an evaluation folder",
    epilog=COLUMNS,
    after_interrupt=": re-run the same command to resume",
)
def grade(file: GradeArguments, options: GradeOptions, progress: Progress, output: Output) -> int:
    import eval_suite

    responses = file.responses
    if str(responses) == "sample" and not responses.exists():
        responses = Path(eval_suite.__file__).parent / "sample.jsonl"
        options = options if options.out else options.model_copy(update={"out": Path("sample.graded")})
    reporter = eval_suite.Reporter(progress.quiet, COMMANDS["grade"].as_typed)
    result = eval_suite.grade_file(responses, options, reporter=reporter)
    return show(result, as_json=output.as_json)


CHECKS = """examples:
  mmcorl judge-check sample --judge http://localhost:8000/v1            rows that come with mmcorl, into sample.judges/
  mmcorl judge-check rows.jsonl --judge vllm:IAAR-Shanghai/xVerify-8B-I --judge-format xverify=judge_prompt.py
  mmcorl judge-check rows.jsonl                                         the judges so far, side by side
  mmcorl judge-check rows.jsonl --judge URL --beside evals/qwen         and beside the scores that this judge gave

columns: gold, answer, correct (true or false); question, choices, response (what formats that show the whole response
read), family and id where there are any. Verdicts are kept: a repeated command asks what is missing.
"""


class JudgeCheckArguments(Arguments):
    labelled: Annotated[Path, Flag(positional=True, metavar="LABELLED")]
    """answers labelled right or wrong: .jsonl, .json, .csv, ...; `sample` is a file that comes with mmcorl"""


@command(
    "judge-check",
    "how often a judge is right, on labelled answers: accuracy, false credit, missed",
    epilog=CHECKS,
    after_interrupt=": re-run the same command to resume",
)
def judge_check(file: JudgeCheckArguments, options: JudgeCheckOptions, progress: Progress, output: Output) -> int:
    import eval_suite

    reporter = eval_suite.Reporter(progress.quiet, COMMANDS["judge-check"].as_typed)
    return show(eval_suite.judge_check(file.labelled, options, reporter=reporter), as_json=output.as_json)


TEAMS = """examples:
  mmcorl ensemble evals/qwen evals/llama                    one pool of the responses of both

matched budgets, as in the paper: two agents trained alone against two trained together
  mmcorl ensemble --table TTRL=evals/ttrl_a,evals/ttrl_b Co-RL=evals/corl_a,evals/corl_b
  mmcorl ensemble --table TTRL=runs/self Co-RL=runs/corl --out evals/matched \\
    --evaluate 'gsm8k math500 --samples 4 --temperature 0.6 --top-p 0.95 --max-new-tokens 3072'
"""


def evaluation_of(text: str, where: str) -> tuple[tuple[str, ...], EvalOptions, Any]:
    """Parse benchmarks and options of `eval` from one argument; return names, options and a reporter."""
    import eval_suite

    parser = argparse.ArgumentParser(prog=f"mmcorl {where}")
    for model in (EvalProblems, EvalOptions, Progress):
        add_arguments(parser, model)
    namespace = parser.parse_args(shlex.split(text))
    reporter = eval_suite.Reporter(build(Progress, namespace).quiet, COMMANDS["eval"].as_typed)
    return build(EvalProblems, namespace).benchmarks, build(EvalOptions, namespace), reporter


class EnsembleArguments(Arguments):
    folders: Folders = ()
    """evaluations of the same problems, or a run: its agents"""
    table: Annotated[tuple[str, ...], Flag(several=True, metavar="NAME=DIR,DIR")] = ()
    """compare teams of agents, each agent alone and pooled"""
    evaluate: Annotated[str | None, Flag(metavar="'NAME ...'")] = None
    """benchmarks and options of `eval`, for checkpoints"""
    format: Literal["terminal", "markdown", "latex"] | None = None
    """form of a table"""


@command("ensemble", "pool samples of several checkpoints and vote, at matched budgets", epilog=TEAMS)
def ensemble(teams: EnsembleArguments, options: PoolOptions, output: Output) -> int:
    """Pool folders, or compare teams; checkpoints are evaluated first, with the options of `eval` that are given."""
    import eval_suite
    from eval_suite.comparisons.compare import parse_teams

    if bool(teams.table) == bool(teams.folders):
        raise UserError("give the folders of one pool, or teams to compare: --table NAME=DIR,DIR NAME=DIR,DIR")
    more: dict[str, Any] = {"options": options, "reporter": eval_suite.Reporter(quiet=True)}
    if teams.evaluate:
        names, evaluation, reporter = evaluation_of(teams.evaluate, "ensemble --evaluate")
        more |= {"benchmarks": names, "evaluation": evaluation, "reporter": reporter}
    if teams.table:
        return show(eval_suite.match_teams(parse_teams(teams.table), **more), as_json=output.as_json, form=teams.format)
    if teams.format:
        raise UserError(f"--format {teams.format} is for --table NAME=DIR,DIR: leave it out")
    return show(eval_suite.pool(*teams.folders, **more), as_json=output.as_json)


class CompareArguments(Arguments):
    a: Folder
    """evaluation folder"""
    b: Folder
    """evaluation folder"""
    asked_differently: bool = False
    """compare even if prompts or sampling differ as well"""


COMPARE = """examples:
  mmcorl compare evals/base evals/trained
Two training runs are compared by `mmcorl report RUN RUN`.
"""


@command("compare", "paired comparison of two evaluations: difference, interval, McNemar's test", epilog=COMPARE)
def compare(folders: CompareArguments, output: Output) -> int:
    import eval_suite

    return show(
        eval_suite.compare(folders.a, folders.b, asked_differently=folders.asked_differently), as_json=output.as_json
    )


class BoundaryArguments(Arguments):
    evaluations: Annotated[tuple[str, ...], Flag(positional=True, metavar="BASE TRAINED | NAME=BASE,TRAINED")]
    """evaluations with several samples per problem of one agent, or of several agents by name: folders, or files of
    responses as `mmcorl grade` reads them, which are graded into FILE.boundary"""
    ids: Annotated[int, Field(ge=0), Flag(metavar="N")] = 0
    """list the first N problems that are newly reached, and that are lost"""
    format: Literal["terminal", "markdown", "latex"] = "terminal"
    """form of the tables"""
    png: Annotated[Path | None, Flag(metavar="FILE")] = None
    """also draw both curves before and after"""


BOUNDARY = """examples, the second with the team of both agents as well:
  mmcorl boundary evals/base evals/trained --ids 10 --png boundary.png
  mmcorl boundary qwen=evals/base_qwen,evals/qwen intern=evals/base_intern,evals/intern

The evaluations of an agent, its base asked as the trained model is:
  mmcorl eval runs/mine/final/qwen math500 --samples 16 --temperature 1 --out evals/qwen
  mmcorl eval BASE math500 --samples 16 --temperature 1 --like runs/mine/final/qwen --out evals/base_qwen
"""


@command("boundary", "sharper or wider: pass@k and Cover@tau before and after training", epilog=BOUNDARY)
def boundary(agents: BoundaryArguments, output: Output) -> int:
    import eval_suite
    from eval_suite.comparisons.compare import parse_teams

    paths = agents.evaluations
    if any("=" in text and not Path(text).exists() for text in paths):
        pairs: dict[str, list[Path]] = dict(parse_teams(paths))
    elif len(paths) == 2:
        pairs = {Path(paths[1]).resolve().stem: [Path(path) for path in paths]}
    else:
        raise UserError(f"{len(paths)} evaluations are given: give BASE TRAINED, or NAME=BASE,TRAINED of each agent")
    reporter = eval_suite.Reporter(quiet=True)
    result = eval_suite.boundary(pairs, listed=agents.ids, reporter=reporter)
    if agents.png:
        from eval_suite.comparisons.boundary_png import draw

        draw(result.reaches, agents.png)
    return show(result, as_json=output.as_json, form=agents.format)


class TableArguments(Arguments):
    runs: Folders
    """evaluation folders"""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """form of the table"""


TABLES = """examples:
  mmcorl table evals/base evals/ttrl evals/co_rl
  mmcorl table evals/base evals/co_rl --format latex > table.tex
"""


@command("table", "one table of several evaluations, also as Markdown, CSV or LaTeX", epilog=TABLES)
def table(folders: TableArguments) -> int:
    import eval_suite

    return show(eval_suite.table(*folders.runs), form=folders.format)
