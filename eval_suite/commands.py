"""What `mmcorl eval`, `grade`, `compare` and `ensemble` do, given their arguments."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from eval_suite import pipeline, program_votes, subset
from eval_suite.evaluations import is_evaluation, open_evaluations, unfinished
from eval_suite.folder import EvalFolder, refuse_early
from eval_suite.imports import as_items, as_responses, read_responses
from eval_suite.items import Item, Response
from eval_suite.joining import join
from eval_suite.metrics.aggregate import default_aggregation, parse_aggregation
from eval_suite.tasks import BENCHMARKS, Loaded
from mmcorl.errors import UserError

if TYPE_CHECKING:
    from eval_suite.generate import Generation, Generator


DEFAULT_POLICY = "letter_or_value"


def evaluate(arguments: argparse.Namespace) -> int:
    """Answer benchmarks with a checkpoint, grade, judge, sum up."""
    judge = judge_of(arguments)
    sources = sources_of(arguments.benchmarks)
    part = subset.Subset(subset.parse(arguments.subset), arguments.subset_seed, arguments.limit)
    settings = settings_of(arguments, sources)
    check_early(arguments, arguments.out, settings)
    loaded = {name: subset.load(BENCHMARKS[name], source, part) for name, source in sources.items()}
    sandbox = sandbox_of(arguments, [item for one in loaded.values() for item in one.items])
    manifest = manifest_of(arguments, loaded, settings)
    if not is_evaluation(arguments.out):
        check_adapter(arguments)  # a finished one needs no model any more
    with EvalFolder(arguments.out, manifest) as folder, Checkpoint(arguments) as model:
        askable = {}
        for name, one in loaded.items():
            for note in one.notes:
                arguments.say(f"{name}: {note}")
            folder.keep_items(one.items)
            askable[name] = pipeline.askable(
                folder, one.items, partial(model.check, settings[name]), quiet=arguments.quiet
            )
        for name, items in askable.items():
            how = settings[name]
            pipeline.generate(folder, items, how.samples, how.chunk, partial(model.chunk, how), quiet=arguments.quiet)
        # A judge in this process needs the room.
        model.release()
        return _finish(folder, arguments, sandbox, judge)


def check_early(arguments: argparse.Namespace, out: Path, settings: Mapping[str, Generation]) -> None:
    """Refuse what needs neither data nor a model to be seen: settings, folder, device, the checkpoint's name."""
    import torch

    from mmcorl.tools import zoo

    refuse_early(out, _asked(arguments, settings))
    made = zoo.parse(arguments.model)  # refuses a name that the zoo does not have
    if is_evaluation(out):
        return
    if made is None:
        check_adapter(arguments)  # a checkpoint of the zoo would be made for it
    try:
        torch.empty(0, device=arguments.device)
    except (RuntimeError, AssertionError) as error:  # the latter where torch was built without CUDA
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"device {arguments.device!r} cannot be used ({reason}): give cpu or cuda:N") from error


def check_adapter(arguments: argparse.Namespace) -> None:
    """Refuse a checkpoint that has no adapter, before anything is written."""
    from eval_suite.generate import trained_with
    from mmcorl.tools.zoo import resolve
    from model_adapters.registry import adapter_for

    adapter_for(resolve(arguments.model), arguments.adapter or trained_with(arguments.model).get("adapter"))


class Checkpoint:
    """The checkpoint of an evaluation, loaded when it is first asked."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._generator: Generator | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def generator(self, settings: Generation) -> Generator:
        """The loaded checkpoint, set to answer in one way."""
        from eval_suite.generate import Generator, trained_with

        if self._generator is None:
            asked = self._arguments
            adapter = asked.adapter or trained_with(asked.model).get("adapter")
            self._generator = Generator(asked.model, settings, adapter, asked.device)
        self._generator.settings = settings
        return self._generator

    def chunk(self, settings: Generation, items: Sequence[Item], number: int) -> Iterable[Response]:
        """The responses to one chunk of items; `number` is its place."""
        return self.generator(settings).chunk(items, number)

    def check(self, settings: Generation, item: Item) -> str | None:
        """Why an item cannot be put to the checkpoint; None when it can."""
        return self.generator(settings).check(item)

    def release(self) -> None:
        """Let go of the weights."""
        self._generator = None


def settings_of(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Generation]:
    """How each benchmark is asked: what the options say, else the run a checkpoint comes from, else the benchmark."""
    from eval_suite.generate import Generation, trained_with

    told = trained_with(arguments.model)
    settings = {}
    for name in names:
        sampled = BENCHMARKS[name].samples if arguments.samples is None else arguments.samples
        temperature = arguments.temperature
        if temperature is None:
            temperature = BENCHMARKS[name].temperature if sampled == 1 else 0.6
        settings[name] = Generation(
            style=arguments.style or told.get("style") or BENCHMARKS[name].prompt_style,
            system=told.get("system"),
            samples=sampled,
            temperature=temperature,
            top_p=1.0 if arguments.top_p is None else arguments.top_p,
            max_new_tokens=16384 if arguments.max_new_tokens is None else arguments.max_new_tokens,
            vision=told.get("vision", {}),
            template=told.get("template", {}),
            seed=arguments.seed,
            dtype=arguments.dtype,
            engine=arguments.engine,
            chunk=256 if arguments.engine == "vllm" else 32,
        )
        if sampled > 1 and temperature == 0:
            raise UserError(f"{name} asks for {sampled} samples, all alike at temperature 0: raise --temperature")
    return settings


def manifest_of(
    arguments: argparse.Namespace, loaded: Mapping[str, Loaded], settings: Mapping[str, Generation]
) -> dict[str, Any]:
    """What an evaluation is about."""
    return {
        "benchmarks": {name: {"revision": one.revision, "schema": one.schema_hash, "rows": one.rows, "notes": one.notes}
                       for name, one in loaded.items()},
        **_asked(arguments, settings),
        "versions": _versions(),
    }  # fmt: skip


def _asked(arguments: argparse.Namespace, settings: Mapping[str, Generation]) -> dict[str, Any]:
    """What is known of an evaluation before its data are read; refuses an aggregation that cannot be."""
    samples = {name: one.samples for name, one in settings.items()}
    return {
        "model": str(arguments.model),
        "generation": {name: asdict(one) for name, one in settings.items()},
        "mcq_policy": arguments.mcq_policy,
        "samples_by_benchmark": samples,
        "aggregations": _aggregations(arguments, samples),
    }


def grade(arguments: argparse.Namespace) -> int:
    """Grade a file of responses, or an evaluation folder again."""
    judge = judge_of(arguments)
    if arguments.responses.is_dir():
        with EvalFolder(arguments.responses) as folder:
            _refuse_unfinished(folder)
            sandbox = sandbox_of(arguments, folder.items())
            _amend(folder, arguments)
            return _finish(folder, arguments, sandbox, judge)
    arguments.mcq_policy = arguments.mcq_policy or DEFAULT_POLICY
    read = read_responses(arguments.responses, golds=not arguments.benchmark)
    rows, notes = read.rows, list(read.notes)
    out: Path = arguments.out or arguments.responses.with_suffix(".graded")
    if arguments.benchmark:
        ((name, source),) = sources_of([arguments.benchmark]).items()
        whole = BENCHMARKS[name].load(source).items
        ids, how = join(rows, whole, name, str(arguments.responses))
        notes.append(f"problems of {name} are found by {how}")
        asked = set(ids.values())
        items = [item for item in whole if item.id in asked]
    else:
        name, ids = arguments.responses.stem, None
        items = as_items(rows, name)
    responses = as_responses(rows, name, ids)
    for note in notes:
        arguments.say(f"{arguments.responses}: {note}")
    samples = 1 + max(row.sample for row in rows)
    manifest = {
        "responses": arguments.responses.name,
        "mcq_policy": arguments.mcq_policy,
        "samples_by_benchmark": {name: samples},
        "aggregations": _aggregations(arguments, {name: samples}),
        "versions": _versions(),
    }
    sandbox = sandbox_of(arguments, items)
    with EvalFolder(out, manifest) as folder:
        folder.renew_items(items)
        fresh = [vars(response) for response in responses]
        if folder.rows("responses.jsonl") != fresh:
            folder.replace_rows("responses.jsonl", fresh)
            folder.replace_rows("rule.jsonl", [])
            folder.replace_rows("judge.jsonl", [])
            folder.replace_rows("behaviour.jsonl", [])
        return _finish(folder, arguments, sandbox, judge)


def _refuse_unfinished(folder: EvalFolder) -> None:
    if left := unfinished(folder):
        raise UserError(left)


def _amend(folder: EvalFolder, arguments: argparse.Namespace) -> None:
    """Grade and score a folder as asked, and where nothing is asked as it was."""
    held = folder.manifest
    arguments.mcq_policy = arguments.mcq_policy or held.get("mcq_policy", DEFAULT_POLICY)
    amended = held | {"mcq_policy": arguments.mcq_policy}
    if arguments.aggregation:
        amended["aggregations"] = _aggregations(arguments, held["samples_by_benchmark"])
    if amended != held:
        folder.write("manifest.json", json.dumps(amended, indent=1, ensure_ascii=True) + "\n")


def compare(arguments: argparse.Namespace) -> int:
    """Paired comparison of two evaluation folders."""
    from eval_suite.metrics.paired import compare as paired
    from eval_suite.tables import comparison_table
    from mmcorl.answers import Equivalence
    from mmcorl.report.table import terminal

    with Equivalence() as relation:
        first, second = (one.scored(relation) for one in open_evaluations([arguments.a, arguments.b]))
    shared = [name for name in first if name in second]
    if not shared:
        raise UserError(
            f"{arguments.a} and {arguments.b} have no benchmark in common: they hold {list(first)} and {list(second)}"
        )
    compared = [paired(first[name], second[name]) for name in shared]
    if arguments.json:
        print(json.dumps([one.as_dict() for one in compared]))
    else:
        _print(terminal([comparison_table(compared)]))
    return 0


def ensemble(arguments: argparse.Namespace) -> int:
    """Pool the responses of several evaluations of the same items and vote: maj@k across checkpoints."""
    from eval_suite.cohorts import evaluated, parse_teams
    from eval_suite.metrics.outcomes import pool
    from eval_suite.metrics.paired import check_alike
    from eval_suite.tables import score_tables
    from mmcorl.answers import Equivalence
    from mmcorl.report.table import terminal

    if bool(arguments.table) == bool(arguments.folders):
        raise UserError("give the folders of one pool, or teams to compare: --table NAME=DIR,DIR NAME=DIR,DIR")
    if arguments.table:
        return _matched(arguments, parse_teams(arguments.table))
    for option in ("votes", "format"):
        if getattr(arguments, option):
            raise UserError(f"--{option} {getattr(arguments, option)} is for --table NAME=DIR,DIR: leave it out")
    ((_, members),) = evaluated([("cohort", arguments.folders)], arguments.evaluation, arguments.out)
    evaluations = open_evaluations(members)
    folders = [one.folder for one in evaluations]
    _let_programs_vote(folders, arguments)
    with Equivalence() as relation:
        first, *others = (one.scored(relation) for one in evaluations)
    for other in others:
        for name in first:
            if name in other:
                check_alike(first[name], other[name])
    pooled = pool([pipeline.outcomes(folder) for folder in folders])
    votes: dict[str, int] = {}
    for outcome in pooled:
        votes[outcome.benchmark] = max(votes.get(outcome.benchmark, 0), 1 + outcome.sample)
    how = {name: arguments.aggregation or f"maj@{count}" for name, count in votes.items()}
    summary = pipeline.pooled_summary(folders[0], pooled, how)
    label = " + ".join(one.label for one in evaluations)
    if arguments.json:
        print(json.dumps(summary))
    else:
        _print(terminal(score_tables([(label, summary)])))
    return 0


def _matched(arguments: argparse.Namespace, teams: Sequence[tuple[str, Sequence[Path]]]) -> int:
    """Teams of agents side by side, alone and pooled, at matched budgets."""
    from eval_suite import cohorts, matched
    from eval_suite.tables import comparison_table
    from mmcorl.answers import Equivalence
    from mmcorl.report import table as grid

    if arguments.aggregation:
        raise UserError(f"--aggregation {arguments.aggregation} does not fit a table of avg and maj: leave it out")
    opened = matched.open_teams(cohorts.evaluated(teams, arguments.evaluation, arguments.out))
    _let_programs_vote([one.folder for team in opened for one in team.members], arguments)
    with Equivalence() as relation:
        told = matched.matched(opened, relation, arguments.votes)
    grids = [matched.grid(told), *(comparison_table(compared) for compared in told.against_first)]
    if arguments.json:
        print(json.dumps(matched.as_dict(told)))
    elif arguments.format in ("markdown", "latex"):
        print(getattr(grid, arguments.format)(grids))
    else:
        _print(grid.terminal(grids))
    return 0


def _let_programs_vote(folders: Sequence[EvalFolder], arguments: argparse.Namespace) -> None:
    """Run programs on public examples where their pooled vote is asked for and allowed."""
    if not arguments.run_code or not (arguments.aggregation or "maj").startswith("maj"):
        return
    sandbox = sandbox_of(arguments, [item for folder in folders for item in folder.items()])
    if sandbox is not None:
        for folder in folders:
            with folder:
                if program_votes.observe(folder, sandbox, quiet=True):
                    pipeline.sum_up(folder, _title(folder))


def table(arguments: argparse.Namespace) -> int:
    """One table of several evaluations."""
    from eval_suite import comas_table
    from eval_suite.tables import csv_text, score_tables
    from mmcorl.report import table as grid

    if any((path / comas_table.FILE).is_file() for path in arguments.runs):
        comas_table.show(comas_table.read_results(arguments.runs), arguments.format)
        return 0
    summaries = [(one.label, one.summary) for one in open_evaluations(arguments.runs)]
    if arguments.format == "csv":
        print(csv_text(summaries), end="")
    elif arguments.format == "markdown":
        print(grid.markdown(score_tables(summaries)))
    elif arguments.format == "latex":
        print(grid.latex(score_tables(summaries)))
    else:
        _print(grid.terminal(score_tables(summaries)))
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Tables and page of an evaluation, made again from its files; several become one table."""
    from eval_suite import results
    from mmcorl.report import table as grid

    if len(arguments.runs) > 1:
        arguments.format = "terminal"
        return table(arguments)
    with EvalFolder(arguments.runs[0]) as folder:
        _refuse_unfinished(folder)
        title = _title(folder)
        summary = pipeline.sum_up(folder, title)
    if arguments.json:
        print(json.dumps(summary))
    else:
        _print(grid.terminal(results.grids(title, summary)))
        _print_files(folder)
    return 0


def judge_of(arguments: argparse.Namespace) -> Any:
    """The judge that the options name, if any: refused before work starts if it cannot be."""
    from eval_suite.grading.judge import JudgeSettings, choose, with_options

    judge = choose(arguments.judge, arguments.judge_model, arguments.judge_key_env, arguments.judge_gpus)
    if judge is None and arguments.judge_again:
        raise UserError(f"--judge-again {arguments.judge_again} needs a judge to ask: add --judge")
    if isinstance(judge, JudgeSettings):
        judge = with_options(judge, arguments.judge_set)
        judge.api_key()
    elif arguments.judge_set:
        raise UserError(f"--judge-set {arguments.judge_set[0]} is for a judge at an endpoint: add --judge URL")
    return judge


def _finish(folder: EvalFolder, arguments: argparse.Namespace, sandbox: Any, judge: Any) -> int:
    """Grade, judge when one is named, sum up, print."""
    pipeline.grade(folder, arguments.mcq_policy, sandbox, quiet=arguments.quiet)
    program_votes.prepare(folder, sandbox, quiet=arguments.quiet)
    if judge is not None:
        pipeline.judge(folder, judge, again=arguments.judge_again, quiet=arguments.quiet)
    title = _title(folder)
    summary = pipeline.sum_up(folder, title)
    if arguments.json:
        print(json.dumps(summary))
        return 0
    from eval_suite.tables import score_tables
    from mmcorl.report.table import terminal

    _print(terminal(score_tables([(title, summary)])))
    _print_files(folder)
    return 0


def _print_files(folder: EvalFolder) -> None:
    for what, name in (("samples", "samples.html"), ("tables", "results.md"), ("summary", "summary.json")):
        print(f"{what + ':':<9}{folder.path / name}")


def _title(folder: EvalFolder) -> str:
    """What an evaluation is called: its model, or the file of responses it began with."""
    manifest = folder.manifest
    return title_of(manifest["model"]) if "model" in manifest else str(manifest.get("responses", folder.path.name))


def title_of(model: str) -> str:
    """What an evaluation is called: a hub id, or the last part of a path."""
    return Path(model).name if Path(model).exists() else model


def sources_of(names: Sequence[str]) -> dict[str, str | None]:
    """`name` or `name=path` to where each benchmark comes from."""
    sources: dict[str, str | None] = {}
    for text in names:
        name, equals, path = text.partition("=")
        BENCHMARKS[name]  # refuses an unknown name
        if name in sources:
            raise UserError(f"{name} is named twice: evaluate one copy of it, or two into two folders")
        if equals and not path:
            raise UserError(f"{text!r} names no path: write {name}=PATH, or {name} alone for the hub")
        sources[name] = path if equals else None
    return sources


def _aggregations(arguments: argparse.Namespace, samples: Mapping[str, int]) -> dict[str, str]:
    """How samples become one score: as asked, or as the benchmark says for that many, else pass@1 or avg@k."""
    told = {}
    for name, count in samples.items():
        official = name in BENCHMARKS and BENCHMARKS[name].samples == count
        own = BENCHMARKS[name].aggregation if official else default_aggregation(count)
        told[name] = arguments.aggregation or own
        parse_aggregation(told[name], count)  # refused before work starts
    return told


def sandbox_of(arguments: argparse.Namespace, items: Sequence[Item]) -> Any:
    """The sandbox when there is code to run; refused unless it was allowed."""
    if not any(item.kind == "code" for item in items):
        return None
    from eval_suite.sandbox.process import open_sandbox

    sandbox = open_sandbox(run_code=arguments.run_code, allow_unsafe=arguments.allow_unsafe_code)
    arguments.say(sandbox.describe())
    return sandbox


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("mmcorl", "torch", "transformers", "math-verify")}


def _print(renderable: Any) -> None:
    from rich.console import Console

    Console().print(renderable)
