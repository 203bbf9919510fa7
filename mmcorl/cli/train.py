"""Commands on training runs: train, sweep, report, doctor."""

from __future__ import annotations

import hashlib
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from mmcorl import config as settings
from mmcorl.cli.arguments import Arguments, Config, Flag, Folders, Output, Overrides, Progress, command
from mmcorl.cli.output import show, show_comparison
from mmcorl.config import methods
from mmcorl.config.load import about
from mmcorl.errors import RunError, UserError
from mmcorl.system.needed import require

if TYPE_CHECKING:
    from mmcorl.apps.doctor.paper_settings import Comparison
    from mmcorl.apps.sweep.sweep import Planned, Scoring
    from mmcorl.run.table import Table

EVALUATION_FILES = ("manifest.json", "comas.json", "drafts/manifest.json")
"""Files that mark a folder as an evaluation, or as one of the CoMAS protocol."""


class RunArguments(Arguments):
    config: Config
    """YAML file (`mmcorl init` makes one), or a shipped config by name, such as quickstart"""
    overrides: Overrides = ()
    """settings that differ from the file"""


class TrainArguments(RunArguments):
    run_dir: Path | None = None
    """folder of the run (default: runs/NAME)"""
    method: Annotated[str | None, Flag(metavar="NAME[+NAME]")] = None
    """a named method laid over the config, such as ttrl, rent+kl0 or ttrl@original; see sweep"""
    dry: bool = False
    """train nothing and read no data: compare the settings with those of the paper's runs, and call functions of your
    own once on made-up answers (`doctor` checks a run)"""


TRAIN = """examples:
  mmcorl train quickstart                                      a shipped config
  mmcorl train quickstart steps=30 optimizer.lr=3e-4           with other settings (`mmcorl settings` lists them)
  mmcorl train quickstart name=slow agents.qwen.lr=1e-5        one agent's learning rate
  mmcorl train my_run.yaml --method ttrl --run-dir runs/ttrl   a baseline on your own config
"""


def _shipped() -> str:
    listed = ""
    for name, path in settings.shipped().items():
        listed += textwrap.fill(about(path), 118, initial_indent=f"  {name:<34}", subsequent_indent=" " * 36) + "\n"
    return f"{TRAIN}\nshipped configs:\n{listed}"


@command(
    "train",
    "train a config; re-run the same command to resume",
    epilog=_shipped,
    after_interrupt=": re-run the same command to resume from the last checkpoint",
)
def train(run: TrainArguments, progress: Progress, output: Output) -> int:
    config = settings.load(run.config, run.overrides, run.method)
    _show_overruled([run.method or ""], progress)
    if run.dry:
        from mmcorl.apps.doctor.paper_settings import beside_the_paper, kind_of, tables

        rows = beside_the_paper(config)
        shown = tables(rows, config.name, kind_of(config.data.train))
        _show_beside_the_paper(rows, shown, as_json=output.as_json)
        named = config.answers.relation, config.supervision.kind, config.reward.kind, config.objective.kind or ""
        if any(":" in name for name in (*named, config.episode.kind if config.episode else "")):
            require("torch")
            from mmcorl.apps.doctor.check_user_code import called_once, questions

            try:
                called = ", ".join(called_once(config, questions(config.supervision.pair)))
            except (UserError, RunError) as error:
                raise UserError(f"on made-up answers to made-up questions, {error}") from error
            print(f"called once on made-up answers: {called}", file=sys.stderr)
        return 0
    run_dir = run.run_dir or Path("runs") / config.name

    from mmcorl.run.progress import waiting
    from mmcorl.run.run_folder import RunFolder

    with RunFolder(run_dir, config) as folder:
        finished = folder.about_finished()
    if finished:
        if not progress.quiet:
            print(finished, file=sys.stderr)
    else:
        _require(config.engine.kind, config.launcher, config.device, config.logging.trackers)
        if not progress.quiet:
            agents = [agent.name for agent in config.agents]
            about_run = _about(config.name, agents, config.steps, config.epochs, run_dir)
            print(about_run, file=sys.stderr, flush=True)
        with waiting("loading torch and transformers", quiet=progress.quiet):
            from mmcorl import training
            from mmcorl.apps.demos.zoo import open_models
            from mmcorl.apps.doctor.agents_memory import forecast_memory
        suite: Any = None
        if config.validation.benchmarks:
            from eval_suite.evaluation.periodic import held_out

            suite = held_out
        try:
            training.train(
                config, run_dir, quiet=progress.quiet, suite=suite, open_models=open_models, forecast=forecast_memory
            )
        except KeyboardInterrupt as interrupt:
            raise KeyboardInterrupt(_onward(run_dir)) from interrupt
    from mmcorl.api import Run, finish

    finish(run_dir)
    if output.as_json:
        print(json.dumps(Run(run_dir).summary))
    else:
        show_comparison([run_dir])
        page = (run_dir / "report.html").resolve().as_uri()
        print(f"report: {page}\nlook: mmcorl view {run_dir}\nweights: {run_dir / 'final'}")
    return 0


def _show_overruled(given: Sequence[str], progress: Progress) -> None:
    """Print where a method of several parts sets what another part of it sets otherwise."""
    for method in given if not progress.quiet else ():
        for line in methods.overruled(method) if "+" in method else ():
            print(f"note: {line}", file=sys.stderr)


def _require(engine: str, launcher: str, device: str, trackers: Sequence[str]) -> None:
    """Refuse a run whose packages or GPU are not here before seconds are spent on importing torch."""
    from mmcorl.run.trackers import require_trackers
    from mmcorl.system import needed

    require("torch")
    if engine == "vllm":
        needed.require_vllm()
    if launcher == "ray":
        needed.require_ray()
    else:
        needed.require_gpu(device)
    require_trackers(trackers)


def _onward(run_dir: Path) -> str:
    """Return what to say after Ctrl-C: from where the same command goes on."""
    from mmcorl.run.checkpoints import committed
    from mmcorl.run.run_folder import SETS

    if not (safe := committed(run_dir / SETS)):
        return ": re-run the same command, which starts over, as there is no checkpoint yet"
    return (
        f": re-run the same command to resume from the checkpoint of step {safe[-1].step}; the folder {run_dir} may "
        "be moved, to another machine as well (docs/moving.md)"
    )


def _about(name: str, agents: Sequence[str], steps: int | None, epochs: float | None, run_dir: Path) -> str:
    """Say what a run is about to do, and how to look while it runs."""
    *others, last = agents
    listed = f"{', '.join(others)} and {last}" if others else last
    length = f"{steps} steps" if steps else f"{epochs or 1:g} epochs"
    return (
        f"{name}: {length} with {listed}, into {run_dir}\n"
        f"while it runs: `mmcorl view {run_dir}`, or `mmcorl report {run_dir}` for a page"
    )


def _show_beside_the_paper(rows: list[Comparison], tables: list[Table], *, as_json: bool) -> None:
    from rich.console import Console

    from mmcorl.run.table import terminal

    if as_json:
        print(json.dumps([asdict(row) | {"equal": row.equal} for row in rows]))
    else:
        Console().print(terminal(tables))


class SweepArguments(Arguments):
    config: Config
    """YAML file or shipped config: data, models, steps, batch"""
    overrides: Overrides = ()
    """settings of every run; {seed} is replaced by its seed"""
    methods: Annotated[tuple[str, ...], Flag(several=True, metavar="METHOD")] = ()
    """methods to run; their names are listed below (default: the config as it is)"""
    grid: Annotated[tuple[str, ...], Flag(metavar="key.sub=A,B")] = ()
    """values of a setting, each of which is run; repeat it for all combinations of several settings"""
    seeds: Annotated[tuple[int, ...], Flag(several=True, metavar="S")] = (0,)
    """one run of each per seed (default: 0)"""
    out: Path | None = None
    """folder of the runs and the table (default: sweeps/NAME, or NAME_2 where another sweep's runs are there)"""
    jobs: Annotated[int, Flag(metavar="N")] = 1
    """runs at a time"""
    evaluate: Annotated[str | None, Flag(metavar="'NAME ...'")] = None
    """benchmarks and options of `eval`, for every model before and after training"""


def _methods() -> str:
    listed = "".join(f"  {name:<22}{line}\n" for name, line in methods.names().items())
    return f"""methods (a name, your own FILE.yaml, or several joined by +; later ones win, and notes say where;
NAME@original adds what the method's own script sets besides, such as batch and learning rate, where its file says so):
{listed}
examples, the toy cohort with two learning rates, and from three different starts:
  mmcorl sweep quickstart --grid optimizer.lr=1e-4,3e-4 --seeds 0 1
  mmcorl sweep quickstart --methods co_rl ttrl gt rent+kl0 --seeds 0 1 2 \\
    agents.qwen.model=zoo:qwen2.5-vl@{{seed}} agents.intern.model=zoo:internvl3.5@{{seed}}
"""


@command(
    "sweep",
    "run several methods from the same starting weights and compare them in one table",
    epilog=_methods,
    after_interrupt=": re-run the same command to resume",
)
def sweep(plan: SweepArguments, progress: Progress, output: Output) -> int:
    from mmcorl.apps.sweep import sweep as tool

    require("torch")
    if plan.jobs < 1:
        raise UserError(f"--jobs is {plan.jobs}, but runs need a process: give 1 or more")
    first = [text.replace("{seed}", str(plan.seeds[0])) for text in plan.overrides]
    default = Path("sweeps") / settings.load(plan.config, first).name
    out, number = plan.out or default, 1
    planned = tool.plan(plan.config, plan.methods, plan.seeds, plan.overrides, out, plan.grid)
    while plan.out is None and (others := tool.others_in(out, planned)):
        if not progress.quiet:
            print(f"note: {out} holds runs of another sweep ({others[0]}), so it stays as it is", file=sys.stderr)
        number += 1
        out = default.with_name(f"{default.name}_{number}")
        planned = tool.plan(plan.config, plan.methods, plan.seeds, plan.overrides, out, plan.grid)
    _show_overruled(plan.methods, progress)
    if not progress.quiet:
        print(tool.describe(planned), file=sys.stderr)

    from mmcorl.apps.sweep import page as sweep_page
    from mmcorl.run import provenance

    facts: dict[str, str] = {}
    score = _scoring(plan.evaluate, planned, out, facts) if plan.evaluate else None
    # The page is there from the beginning, so that those of the runs can link to it and it can be looked at.
    out.mkdir(parents=True, exist_ok=True)
    provenance.begin(out)
    draw = partial(sweep_page.write_page, out, planned)
    draw()
    failed = tool.run(planned, plan.jobs, quiet=progress.quiet, ended=draw)
    # Other benchmarks, or the same ones asked otherwise, are other evaluations of the same runs.
    name = hashlib.sha256((plan.evaluate or "").encode()).hexdigest()[:8]
    ends = tool.evaluate(planned, out, name, score, trained=True) if score else {}
    bases = tool.evaluate(planned, out, name, score, trained=False) if score else {}
    rows = tool.compared(planned, tool.rows(planned, bases, ends))
    scored = "; ".join([plan.evaluate, *facts.values()]) if plan.evaluate else None
    page = sweep_page.write(out, planned, rows, scored)
    if output.as_json:
        print(json.dumps(tool.record(rows)))
    else:
        sweep_page.print_tables(planned, rows, scored)
        files = ", ".join(str(out / f"sweep.{form}") for form in ("md", "tex", "csv", "json"))
        print(f"tables: {files}\npage: {page.resolve().as_uri()}")
        if len(planned) - len(failed) > 1:
            print(f"run against run: mmcorl report {out}")
    if failed:
        reasons = "; ".join(f"{run.label} ({why})" for run, why in failed.items())
        raise RunError(f"{len(failed)} of {len(planned)} runs failed: {reasons}")
    return 0


def _scoring(text: str, planned: Sequence[Planned], out: Path, facts: dict[str, str]) -> Scoring:
    """Return what evaluates a checkpoint as one argument of benchmarks and options asks; refused now if it cannot.

    `facts` is filled with what belongs to the scores: the problems of each benchmark, and the grader.
    """
    import eval_suite
    from eval_suite.evaluation.pipeline import prepare
    from mmcorl.cli.eval import evaluation_of

    names, options, reporter = evaluation_of(text, "sweep --evaluate")
    # Before training nothing says how it will have been trained.
    now = options.model_copy(update={"style": None}) if options.style == "as-trained" else options
    for model in dict.fromkeys(agent.model for run in planned for agent in run.config.local_agents):
        prepare(model, out / "base", names, now, reporter)

    def score(model: str, folder: Path, like: str | None) -> dict[str, float]:
        reporter.note(f"evaluating {model}")
        result = eval_suite.evaluate(model, names, folder, options, reporter=reporter, like=like)
        for name, scored in result.scores.items():
            facts[name] = f"{name}: {scored['n']:,} problems, {scored['grader']['name']} {scored['grader']['version']}"
        return {name: scored["accuracy"] for name, scored in result.scores.items()}

    return score


class ReportArguments(Arguments):
    runs: Folders
    """folders of runs, sweeps or evaluations; the first run is what others are compared with"""
    out: Annotated[Path | None, Flag(metavar="FILE.html")] = None
    """where the page goes (default: report.html in the run, comparison_A_B.html in the first of several,
    comparison.html in a sweep)"""
    format: Literal["terminal", "markdown", "csv", "latex"] = "terminal"
    """form of the tables"""
    png: Annotated[Path | None, Flag(metavar="FILE")] = None
    """also draw the overview as a picture"""
    questions: bool = False
    """instead: answer what reviewers ask of the first run, with the others as its controls (docs/reviewers.md)"""


REPORTS = """examples:
  mmcorl report runs/quickstart                       table, findings and runs/quickstart/report.html
  mmcorl report runs/quickstart runs/self             what differs and by how much, and a page of both
  mmcorl report sweeps/quickstart                     the same of all runs of a sweep
  mmcorl report runs/a runs/b --format latex          the same as tables for a paper
  mmcorl report runs/quickstart runs/frozen --questions     ten questions, or the commands that answer them
  mmcorl report evals/qwen                            tables and samples.html of an evaluation again
"""


@command("report", "table and page of a run, beside others if given, or of an evaluation", epilog=REPORTS)
def report(folders: ReportArguments, output: Output) -> int:
    sweep_of = folders.runs[0] if len(folders.runs) == 1 and (folders.runs[0] / "sweep.html").is_file() else None
    folders = folders.model_copy(update={"runs": tuple(run for path in folders.runs for run in _runs_in(path))})
    if not folders.runs:
        raise UserError("only files beside runs were given: give folders of runs, such as METHOD/seed_0 of a sweep")
    for path in folders.runs:
        if not any((path / name).is_file() for name in ("config.yaml", "metrics.jsonl", *EVALUATION_FILES)):
            raise UserError(
                f"{str(path)!r} is neither a run nor an evaluation: give a folder of `mmcorl train`, `eval` or `grade` "
                "or of `mmcorl sweep`, whose runs are METHOD/seed_S in it"
            )
    if any((path / name).is_file() for path in folders.runs for name in EVALUATION_FILES):
        return _report_evaluations(folders, as_json=output.as_json)
    if folders.out and folders.out.suffix not in (".html", ".htm"):
        raise UserError(f"--out {folders.out} is no page: give a file that ends in .html")

    if folders.questions:
        from mmcorl.apps.report.questions import questions
        from mmcorl.cli.reviewers import commands

        form = None if folders.format == "terminal" else folders.format
        if form == "csv" or folders.out or folders.png:
            raise UserError("--questions is a table of words: leave --out, --png and --format csv out")
        return show(questions(folders.runs, commands), as_json=output.as_json, form=form)

    from mmcorl.apps.report import runs_compared
    from mmcorl.apps.report.overview import overview_png
    from mmcorl.apps.report.run_page import COMPARISON, build_report
    from mmcorl.run import table

    plain = sweep_of / COMPARISON if sweep_of and len(folders.runs) > 1 else None
    page = build_report(folders.runs[0], folders.runs[1:], folders.out or plain)
    if folders.png:
        overview_png(folders.runs[0], folders.runs[1:], folders.png)
    if output.as_json:
        print(json.dumps(runs_compared.comparison(folders.runs)))
    elif folders.format == "csv":
        print(table.csv(runs_compared.numbers(folders.runs)), end="")
    elif folders.format != "terminal":
        print(getattr(table, folders.format)(runs_compared.tables(folders.runs)))
    else:
        from rich.console import Console

        from mmcorl.apps.analysis.run_files import read_run

        show_comparison(folders.runs)
        Console().print(table.terminal(runs_compared.between([read_run(path) for path in folders.runs])))
        print(f"{'comparison' if len(folders.runs) > 1 else 'report'}: {page.resolve().as_uri()}")
    return 0


def _runs_in(path: Path) -> list[Path]:
    """Return the runs of a sweep's folder; of what a sweep keeps beside its runs nothing; and any other path itself."""
    if (path / "sweep.html").is_file():
        return sorted(config.parent for config in path.glob("*/seed_*/config.yaml")) or [path]
    beside = path.suffix in (".log", ".yaml", ".eval") and (path.with_suffix("") / "config.yaml").is_file()
    return [] if beside else [path]


def _report_evaluations(folders: ReportArguments, *, as_json: bool) -> int:
    for option, given in (("png", folders.png), ("out", folders.out), ("questions", folders.questions)):
        if given:
            raise UserError(f"--{option} is for training runs, but {folders.runs[0]} is an evaluation: leave it out")
    import eval_suite

    form = None if folders.format == "terminal" else folders.format
    if len(folders.runs) > 1:
        return show(eval_suite.table(*folders.runs), form=form)
    result = eval_suite.sum_up_again(folders.runs[0])
    return show(result, as_json=as_json, form=form, tables=result.tables(sub_scores=True))


MARKS: dict[Literal["ok", "note", "problem"], str] = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


class DoctorArguments(Arguments):
    config: Annotated[str | None, Flag(positional=True, metavar="CONFIG")] = None
    """YAML file or shipped config; without one, only this machine is described, as reports of bugs need it"""
    overrides: Overrides = ()
    """settings that differ from the file"""
    steps: Annotated[int | None, Flag(metavar="N")] = Field(default=None, ge=2)
    """train N real steps in a scratch folder, and say how many hours the run takes"""
    price: float | None = Field(default=None, gt=0)
    """price of a GPU hour, for the cost of the run"""
    gpu: str | None = None
    """GPU that hours are estimated for (default: this machine's, else H100)"""
    tokens: float | None = Field(default=None, gt=0)
    """mean tokens of a completion in that estimate (default: half of sampling.max_new_tokens)"""
    rows: int | None = Field(default=None, ge=1)
    """training rows in that estimate, where the data are not here"""
    blind: bool = False
    """also ask the agents 256 training rows with the picture hidden: how many need none"""
    blind_rows: Annotated[Path | None, Flag(metavar="FILE.jsonl")] = None
    """the same of all rows, and write those that need no picture into a file"""


DOCTOR = """examples:
  mmcorl doctor paper/vlm_3b_open_r1          will it work on this machine?
  mmcorl doctor my_run.yaml training.tokens_per_microbatch=4096
  mmcorl doctor my_run.yaml --steps 3 --price 2.50        time three steps; hours and cost of the run
  mmcorl doctor paper/vlm_3b_open_r1 --gpu A100 --rows 7689     estimated hours, nothing is timed
  mmcorl doctor quickstart --blind            is the picture needed?
  mmcorl doctor --json                        versions and machine, for a bug report
"""


@command(
    "doctor", "check a config on this machine: packages, GPUs, memory, data, engines; hours and cost", epilog=DOCTOR
)
def doctor(run: DoctorArguments, progress: Progress, output: Output) -> int:
    """Print the findings as they come; exit status 1 for a problem."""
    config = None
    if run.config is None:
        for option, given in (("steps", run.steps), ("blind", run.blind), ("blind-rows", run.blind_rows)):
            if given:
                raise UserError(f"--{option} needs a config: name one, such as quickstart")
    else:
        config = settings.load(run.config, run.overrides)

    from mmcorl.apps.doctor.blind import BlindCheck
    from mmcorl.apps.doctor.doctor import DoctorOptions, Examination, machine

    blind = BlindCheck(config.answers, run.blind_rows) if config and (run.blind or run.blind_rows) else None
    options = DoctorOptions(run.steps, run.gpu, run.tokens, run.rows, run.price, blind)
    quiet = progress.quiet or output.as_json
    findings = []
    for finding in machine() if config is None else Examination(config, quiet=quiet, options=options).findings():
        findings.append(finding)
        if not output.as_json:
            print(f"{MARKS[finding.level]}  {finding.what}: {finding.sentence}", flush=True)
    if output.as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    return 1 if any(finding.level == "problem" for finding in findings) else 0
