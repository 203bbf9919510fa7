"""The `mmcorl` command. Heavy imports wait until the arguments are understood.

Results go to stdout, progress and errors to stderr. Exit status: 0 done, 1 failed in work, 2 refused input,
130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmcorl import __version__
from mmcorl.cli import diversity, dynamics, pair, rephrase, sweep
from mmcorl.cli.options import command
from mmcorl.engines import ENGINES
from mmcorl.errors import RunError, UserError

WITH_OPTIONS: tuple[Any, ...] = (sweep, diversity, dynamics, pair, rephrase)
_EVALUATIONS = ("manifest.json", "comas.json", "drafts/manifest.json")
"""By these a folder is known as an evaluation, or as one of the CoMAS protocol."""
EPILOG = """examples:
  mmcorl train configs/quickstart.yaml                     co-train two tiny families on images, no labels
  mmcorl train configs/quickstart.yaml name=self supervision.kind=self     the self-rewarding baseline
  mmcorl report runs/quickstart runs/self                  compare runs, write report.html into the first
  mmcorl eval runs/quickstart/final/qwen math500 --out evals/qwen     score a checkpoint
  mmcorl eval MODEL gsm8k humaneval --protocol comas --run-code --out evals/comas     drafts, votes, sixth call
  mmcorl grade responses.jsonl                             score a file of responses
  mmcorl rephrase configs/paper/text_3b_plus.yaml --model Qwen/Qwen3-32B     other wordings for one agent
  mmcorl families                                          which model families are supported
  mmcorl doctor configs/paper/vlm_3b_open_r1.yaml          will a run work on this machine?
  mmcorl pair evals/qwen evals/llama evals/phi              which of these makes qwen the best partner, and why
  mmcorl dynamics --run runs/quickstart                    the theory, and what a run did
  mmcorl check-adapter path/to/checkpoint                  does a checkpoint work with its adapter?
"""


TEAMS = """matched budgets, as in the paper: two agents trained each for itself beside two trained together
  mmcorl ensemble --table TTRL=evals/ttrl_a,evals/ttrl_b Co-RL=evals/corl_a,evals/corl_b
  mmcorl ensemble --table TTRL=runs/self Co-RL=runs/corl --out evals/matched \\
    --evaluate 'gsm8k math500 --samples 4 --temperature 0.6 --top-p 0.95 --max-new-tokens 3072'
"""
COLUMNS = """columns, by the first of a few usual names:
  response       what the model wrote (or prediction, output, ...); a list holds several samples
  gold           the known answer (or answer, target, ground_truth, label, solution); not with --benchmark
  id             the problem (or index, doc_id, pid, ...); rows without one are problems of their own
  sample         which of several responses to one problem; without it every id must stand equally often
  question       its text (or problem, prompt, ...), for the judge
  choices        options (or options, option, or columns A, B, C, ...): a list as JSON or Python (["40", "45"]),
                 {"A": "40", "B": "45"}, or `A. 40; B. 45`
  finish_reason  `length` where the token limit ended the response
Sample logs of lmms-eval and lm-evaluation-harness and tables of VLMEvalKit are read as they are.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    parser = _parser(_benchmarks() if list(sys.argv[1:] if argv is None else argv)[:1] == ["eval"] else "")
    # argparse takes no positional arguments after an option that follows others; overrides may stand anywhere.
    arguments, rest = parser.parse_known_args(argv)
    if any(item.startswith("-") for item in rest) or (rest and not hasattr(arguments, "overrides")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if rest:
        arguments.overrides += rest
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        print(f"mmcorl: interrupted{arguments.after_interrupt}", file=sys.stderr)
        return 130
    except RunError as error:
        print(f"mmcorl: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        if _is_for_the_user(error):
            print(f"mmcorl: {error}", file=sys.stderr)
            # Data that were refused bring the list of their rows; a single one stands in the sentence.
            findings = getattr(getattr(error, "report", None), "findings", ())
            for finding in findings if len(findings) > 1 else ():
                print(f"  row {finding.row_id}: {finding.reason}", file=sys.stderr)
            return 2
        traceback.print_exc()
        return 1


def _is_for_the_user(error: Exception) -> bool:
    """Whether an error is a sentence about the input. Adapters import torch, so theirs is looked up late."""
    if isinstance(error, UserError):
        return True
    base = sys.modules.get("model_adapters.base")
    return base is not None and isinstance(error, base.AdapterError)


def _benchmarks() -> str:
    from eval_suite.tasks import listing

    return listing()


def _parser(listing: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mmcorl",
        description="Co-train models of different families with reinforcement learning and no labels: "
        "each agent votes over its own samples and is rewarded for agreeing with a peer's vote.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"mmcorl {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    train = command(commands, "train", _train, "run a config, or resume it: the same command goes on")
    train.set_defaults(after_interrupt=": the same command goes on from the last checkpoint")
    train.add_argument("config", metavar="CONFIG", help="YAML file, see configs/")
    train.add_argument(
        "overrides", nargs="*", default=[], metavar="key.sub=value", help="settings that differ from the file"
    )
    train.add_argument("--run-dir", type=Path, help="folder of the run (default: runs/NAME)")
    train.add_argument(
        "--method",
        metavar="NAME[+NAME]",
        help="a named method laid over the config, such as ttrl or rent+kl0; see sweep",
    )
    train.add_argument("--quiet", action="store_true", help="no progress on stderr")
    train.add_argument("--json", action="store_true", help="print the summary as JSON")

    report = command(
        commands, "report", _report, "table and page of a run, beside others if given, or of an evaluation"
    )
    report.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="DIR",
        help="folders of runs or of evaluations; a page goes into the first",
    )
    report.add_argument("--png", type=Path, help="also draw the overview as a picture")
    report.add_argument("--json", action="store_true", help="print the table as JSON")

    evaluate = command(
        commands, "eval", _evaluate, "answer benchmarks with a checkpoint, grade, judge, sum up", listing
    )
    evaluate.add_argument(
        "model", metavar="MODEL", help="checkpoint folder, hub id, or zoo:NAME; RUN/final/AGENT of a run"
    )
    evaluate.add_argument(
        "benchmarks",
        nargs="+",
        metavar="NAME[=PATH]",
        help="benchmark from the hub, or from a local copy: mathvision=DIR; the names stand below",
    )
    evaluate.add_argument("--out", type=Path, required=True, help="folder of the evaluation; the same command goes on")
    evaluate.add_argument("--style", choices=("answer_tags", "boxed", "plain"), help="default: as trained, else boxed")
    evaluate.add_argument(
        "--protocol",
        choices=("comas",),
        help="comas: five drafts at temperature 0.7 and a sixth call that reads them, on the subsets of CoMAS' tables; "
        "reports pass@1, avg@5, maj@5, pass@5 and the sixth call",
    )
    evaluate.add_argument("--samples", type=int, help="responses per problem (default: what the benchmark reports)")
    evaluate.add_argument("--temperature", type=float, help="0 is greedy (default: 0 for one sample, else 0.6)")
    evaluate.add_argument("--top-p", type=float, help="nucleus mass (default: 1; comas: 0.95)")
    evaluate.add_argument("--max-new-tokens", type=int, help="budget of a response (default: 16384; comas: 2048)")
    evaluate.add_argument(
        "--subset", metavar="N", help="N problems of each benchmark, drawn by a seed; `all` (the default but for comas)"
    )
    evaluate.add_argument("--subset-seed", type=int, default=0, help="seed of that draw (default: 0)")
    evaluate.add_argument("--limit", type=int, help="only the first so many problems of each benchmark")
    evaluate.add_argument("--seed", type=int, default=0, help="seed of the sampling noise (default: 0)")
    evaluate.add_argument("--adapter", metavar="PKG.MODULE:CLASS", help="an adapter from outside")
    evaluate.add_argument("--device", default="cpu", help="cpu or cuda:N (default: cpu)")
    evaluate.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32", help="arithmetic (default: fp32)")
    evaluate.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default="transformers",
        help="what samples; vllm is many times faster on a GPU (default: transformers)",
    )
    _grading_options(evaluate)

    grade = command(commands, "grade", _grade, "grade a file of responses, or an evaluation folder again", COLUMNS)
    grade.add_argument("responses", type=Path, metavar="FILE", help=".jsonl, .json, .csv, .tsv, .parquet, or a folder")
    grade.add_argument("--benchmark", metavar="NAME[=PATH]", help="where the golds are, if the file holds none")
    grade.add_argument("--out", type=Path, help="folder of the results (default: r.graded beside r.jsonl)")
    _grading_options(grade)

    compare = command(commands, "compare", _compare, "paired comparison of two evaluations")
    compare.add_argument("a", type=Path, metavar="A", help="evaluation folder")
    compare.add_argument("b", type=Path, metavar="B", help="evaluation folder")
    compare.add_argument("--json", action="store_true", help="print as JSON")

    ensemble = command(
        commands, "ensemble", _ensemble, "pool the samples of several checkpoints and vote; matched budgets", TEAMS
    )
    ensemble.add_argument(
        "folders", nargs="*", type=Path, metavar="DIR", help="evaluations of the same problems, or a run: its agents"
    )
    ensemble.add_argument(
        "--table", nargs="+", metavar="NAME=DIR,DIR", help="compare teams of agents, each alone and pooled"
    )
    ensemble.add_argument("--votes", type=int, metavar="K", help="responses each agent puts into a pool (default: all)")
    ensemble.add_argument("--evaluate", metavar="'NAME ...'", help="benchmarks and options of `eval`, for checkpoints")
    ensemble.add_argument("--out", type=Path, metavar="DIR", help="folder of these evaluations: OUT/TEAM/AGENT")
    ensemble.add_argument("--aggregation", help="maj@K or pass@K (default: maj over all pooled samples)")
    _code_options(ensemble)
    ensemble.add_argument("--format", choices=("terminal", "markdown", "latex"), help="form of a table")
    ensemble.add_argument("--json", action="store_true", help="print as JSON")

    table = command(commands, "table", _table, "one table of several evaluations")
    table.add_argument("runs", nargs="+", type=Path, metavar="DIR", help="evaluation folders")
    table.add_argument("--format", choices=("terminal", "markdown", "csv", "latex"), default="terminal", help="form")

    families = command(commands, "families", _families, "the supported model families and what each needs")
    families.add_argument("--json", action="store_true", help="print as JSON")

    check = command(commands, "check-adapter", _check_adapter, "run the adapter contract on a checkpoint")
    check.add_argument("model", metavar="MODEL", help="checkpoint folder or hub id")
    check.add_argument("--adapter", metavar="PKG.MODULE:CLASS", help="an adapter from outside")
    check.add_argument("--json", action="store_true", help="print as JSON")

    doctor = command(commands, "doctor", _doctor, "does a config fit this machine? packages, GPUs, memory, engines")
    doctor.add_argument("config", metavar="CONFIG", help="YAML file, see configs/")
    doctor.add_argument("overrides", nargs="*", default=[], metavar="key.sub=value", help="as for train")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")

    zoo = command(commands, "zoo", _zoo, "tiny warm-started checkpoints for demonstrations; list or build them")
    zoo.add_argument("names", nargs="*", metavar="NAME[@SEED]", help="build these and print their folders")
    for module in WITH_OPTIONS:
        module.add(commands)
    return parser


def _grading_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(after_interrupt=": the same command goes on where it stood")
    parser.add_argument(
        "--mcq-policy",
        choices=("letter_or_value", "letter_only"),
        help="credit an option by letter or value, or by letter alone as older graders do",
    )
    parser.add_argument(
        "--judge",
        metavar="URL|vllm[:MODEL]",
        help="judge of what the rules reject: an OpenAI-compatible endpoint, or a model that vLLM runs in this process",
    )
    parser.add_argument("--judge-model", help="name of the judge (default: Qwen/Qwen2.5-32B-Instruct, or the MODEL)")
    parser.add_argument("--judge-key-env", metavar="NAME", help="environment variable that holds an endpoint's key")
    parser.add_argument("--judge-gpus", type=int, metavar="N", help="GPUs for a judge in this process (default: 1)")
    parser.add_argument(
        "--judge-set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="concurrency, timeout (seconds), max_tokens, ... of an endpoint, or extra.NAME for a field of a request",
    )
    parser.add_argument(
        "--judge-again",
        choices=("unclear", "all"),
        help="ask again what the judge answered off its menu, or everything (what failed is always asked again)",
    )
    parser.add_argument("--aggregation", help="pass@K, avg@K or maj@K (default: what the benchmark reports)")
    _code_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")


def _code_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--run-code", action="store_true", help="allow running code that a model wrote, in a sandbox")


def _options(arguments: argparse.Namespace, model: str) -> Any:
    """The options of `eval_suite` that the arguments of a command hold."""
    import eval_suite

    options = getattr(eval_suite, model)
    return options.build(
        None, {k: v for k, v in vars(arguments).items() if k in options.model_fields and v is not None}
    )


def _reporter(arguments: argparse.Namespace) -> Any:
    from eval_suite import Reporter

    return Reporter(quiet=getattr(arguments, "quiet", True))


def show(result: Any, arguments: argparse.Namespace, tables: Any = None) -> int:
    """Print a result as JSON, or as tables, paragraphs and files."""
    from rich.console import Console

    from mmcorl.report import table

    form = getattr(arguments, "format", None) or "terminal"
    if getattr(arguments, "json", False):
        print(json.dumps(result.as_dict(), allow_nan=False))
    elif form == "csv":
        print(result.csv(), end="")
    elif form != "terminal":
        print(getattr(table, form)(result.tables()))
    else:
        Console().print(table.terminal(result.tables() if tables is None else tables))
        for paragraph in result.paragraphs():
            print(f"\n{paragraph}")
        files = result.files()
        width = max([8, *(len(what) + 1 for what in files)])
        for what, path in files.items():
            print(f"{what + ':':<{width}} {path}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    """`eval`: benchmark by benchmark, or under a protocol that has several calls per problem."""
    import eval_suite

    evaluate: Any = eval_suite.evaluate_comas if arguments.protocol else eval_suite.evaluate
    options = _options(arguments, "EvalOptions")
    names = arguments.model, arguments.benchmarks, arguments.out
    return show(evaluate(*names, options, reporter=_reporter(arguments)), arguments)


def _grade(arguments: argparse.Namespace) -> int:
    import eval_suite

    options = _options(arguments, "GradeOptions")
    return show(eval_suite.grade_file(arguments.responses, options, reporter=_reporter(arguments)), arguments)


def _compare(arguments: argparse.Namespace) -> int:
    import eval_suite

    return show(eval_suite.compare(arguments.a, arguments.b), arguments)


def _table(arguments: argparse.Namespace) -> int:
    import eval_suite

    return show(eval_suite.table(*arguments.runs), arguments)


def _ensemble(arguments: argparse.Namespace) -> int:
    """`ensemble`: checkpoints are evaluated first, with the options of `eval` that the user gives."""
    import eval_suite
    from eval_suite.comparison import parse_teams

    if bool(arguments.table) == bool(arguments.folders):
        raise UserError("give the folders of one pool, or teams to compare: --table NAME=DIR,DIR NAME=DIR,DIR")
    more: dict[str, Any] = {"options": _options(arguments, "PoolOptions"), "reporter": _reporter(arguments)}
    if arguments.evaluate:
        parsed = _parser().parse_args(["eval", "MODEL", *shlex.split(arguments.evaluate), "--out", "OUT"])
        more |= {"benchmarks": parsed.benchmarks, "evaluation": _options(parsed, "EvalOptions")}
        more["reporter"] = _reporter(parsed)
    if arguments.table:
        return show(eval_suite.match_teams(parse_teams(arguments.table), **more), arguments)
    if arguments.format:
        raise UserError(f"--format {arguments.format} is for --table NAME=DIR,DIR: leave it out")
    return show(eval_suite.pool(*arguments.folders, **more), arguments)


def _train(arguments: argparse.Namespace) -> int:
    from mmcorl import config as settings

    config = settings.load(arguments.config, arguments.overrides, arguments.method)
    run_dir: Path = arguments.run_dir or Path("runs") / config.name

    from mmcorl.training import train

    if config.validation.benchmarks:
        from eval_suite.periodic import held_out

        run = train(config, run_dir, quiet=arguments.quiet, suite=held_out)
    else:
        run = train(config, run_dir, quiet=arguments.quiet)
    if arguments.json:
        print(json.dumps(run.summary))
    else:
        _print_comparison([run_dir])
        print(f"report: {run_dir / 'report.html'}\nweights: {run_dir / 'final'}")
    return 0


def _report(arguments: argparse.Namespace) -> int:
    for path in arguments.runs:
        if not any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl", *_EVALUATIONS)):
            raise UserError(
                f"{str(path)!r} is neither a run nor an evaluation: give a folder of `mmcorl train`, `eval` or `grade` "
                "(of a sweep, METHOD/seed_S in it; its own page is sweep.html)"
            )
    if any((path / name).is_file() for path in arguments.runs for name in _EVALUATIONS):
        if arguments.png:
            raise UserError(
                f"--png {arguments.png} draws training runs, and {arguments.runs[0]} is an evaluation: leave it out"
            )
        import eval_suite

        if len(arguments.runs) > 1:
            arguments.json = False
            return _table(arguments)
        result = eval_suite.sum_up_again(arguments.runs[0])
        return show(result, arguments, result.tables(sub_scores=True))
    from mmcorl.report.compare import comparison
    from mmcorl.report.overview import overview_png
    from mmcorl.report.run_page import build_report

    page = build_report(arguments.runs[0], arguments.runs[1:])
    if arguments.png:
        overview_png(arguments.runs[0], arguments.runs[1:], arguments.png)
    if arguments.json:
        print(json.dumps(comparison(arguments.runs)))
    else:
        _print_comparison(arguments.runs)
        print(f"report: {page}")
    return 0


def _print_comparison(runs: Sequence[Path]) -> None:
    from rich.console import Console

    from mmcorl.report.compare import comparison, comparison_table
    from mmcorl.report.table import terminal

    Console().print(terminal([comparison_table(comparison(runs))]))


def _families(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from model_adapters.registry import families

    rows = families()
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    for row in rows:
        name, *facts = asdict(row).items()
        print(_cell(name[1]))
        for key, value in facts:
            if _cell(value):
                print(f"  {key.replace('_', ' ') + ':':<24}{_cell(value)}")
    return 0


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _check_adapter(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from mmcorl.tools.zoo import resolve
    from model_adapters.contract import check_adapter

    checks = check_adapter(resolve(arguments.model), arguments.adapter)
    if arguments.json:
        print(json.dumps([asdict(check) for check in checks]))
    else:
        for check in checks:
            mark = "skip" if check.skipped_reason else "ok  " if check.passed else "FAIL"
            print(f"{mark}  {check.name}: {check.skipped_reason or check.detail}")
    return 0 if all(check.passed or check.skipped_reason for check in checks) else 1


def _doctor(arguments: argparse.Namespace) -> int:
    from mmcorl import config as settings

    config = settings.load(arguments.config, arguments.overrides)

    from mmcorl.tools.doctor import examine

    marks = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}
    findings = []
    for finding in examine(config, quiet=arguments.json):
        findings.append(finding)
        if not arguments.json:
            print(f"{marks[finding.level]}  {finding.what}: {finding.sentence}", flush=True)
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    return 1 if any(finding.level == "problem" for finding in findings) else 0


def _zoo(arguments: argparse.Namespace) -> int:
    from mmcorl.tools import zoo

    if not arguments.names:
        for name, entry in zoo.ZOO.items():
            print(f"zoo:{name:<22} {entry.describe()}")
        print(
            f"\nBuilt on first use and kept in {zoo.cache_folder()} ($MMCORL_CACHE). They know\n"
            "short prompts only: prompt.style=plain sampling.max_new_tokens=14 training.dtype=fp32, as in "
            "configs/quickstart.yaml."
        )
    for name in arguments.names:
        print(zoo.resolve(f"zoo:{name.removeprefix('zoo:')}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
