"""A list of methods from the same starting weights: plan the runs, run them, put their numbers side by side.

Each method and seed is an ordinary run in a folder of its own, OUT/METHOD/seed_S, made by `mmcorl train` in a process
of its own; the same command goes on where it was interrupted and leaves finished runs alone. Benchmarks may be run on
all checkpoints before and after.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from mmcorl import config as settings
from mmcorl.config import Config
from mmcorl.errors import UserError
from mmcorl.run.progress import task
from mmcorl.run.reader import RunFiles, dig, mapping, number, read_run
from mmcorl.system.lifetime import how_it_ended, owned
from mmcorl.tools.zoo import parse, resolve

LAST = 10
"""Training metrics are means over the last so many steps."""
TRAINED = ("pseudo_label_accuracy", "sampled_accuracy", "reward_mean", "reward_std", "completion_length", "entropy")
AMOUNTS = {
    "prompts": ("prompts",),
    "completions": ("sampled_completions",),
    "tokens": ("sampled_tokens",),
    "agent_seconds": ("rollout_seconds", "update_seconds", "sync_seconds"),
}
"""Columns of what all agents together sampled and worked, with their keys in timings.jsonl."""


@dataclass(frozen=True, eq=False)
class Planned:
    """One run of the sweep."""

    method: str
    seed: int
    path: Path
    config: Config

    @property
    def done(self) -> bool:
        """Whether the folder holds this run, finished; how it logs, checkpoints and computes may be another matter."""
        if not (self.path / "summary.json").is_file():
            return False
        run = read_run(self.path)
        try:
            # Through Config, so that a setting added to the program since has its default on both sides.
            held = settings.parse(dict(run.config)).model_dump(mode="json")
        except UserError:
            return False
        return run.finished and not settings.changes_to_refuse(held, self.config.model_dump(mode="json"))

    def command(self) -> list[str]:
        """The config is written beside the run, so that the run can be repeated by hand."""
        file = self.path.with_suffix(".yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(settings.dump(self.config))
        return [sys.executable, "-m", "mmcorl.cli", "train", str(file), "--run-dir", str(self.path), "--quiet"]


def plan(
    file: Path, methods: Sequence[str], seeds: Sequence[int], overrides: Sequence[str], out: Path
) -> list[Planned]:
    """All runs, seed by seed, every config checked; UserError before any work where one cannot be.

    `{seed}` in an override stands for the seed: `agents.qwen.model=zoo:qwen2.5-vl@{seed}` starts every seed, and in it
    every method, from other weights. The seed is that of sampling noise and of the order of prompts.
    """
    for what, given in (("methods", methods), ("seeds", seeds)):
        twice = [one for one in given if list(given).count(one) > 1]
        if twice:
            raise UserError(f"--{what} names {twice[0]} twice: name each once")
    # Files are called by their names alone in folders, tables and names of runs.
    labels = {}
    for method in methods:
        parts = [Path(part).stem if part.endswith((".yaml", ".yml")) else part for part in method.split("+")]
        labels[method] = "+".join(re.sub(r"[^A-Za-z0-9_.-]+", "_", part.strip()).lstrip("_.-") for part in parts)
    for method, label in labels.items():
        first = next(one for one, other in labels.items() if other == label)
        if first != method:
            raise UserError(f"--methods {first} and {method} would both be called {label!r}: rename one of the files")
    planned = []
    for seed in seeds:
        for method in methods:
            own = [text.replace("{seed}", str(seed)) for text in overrides]
            label = labels[method]
            told = [f"name={label.replace('+', '.')}.seed{seed}", f"seed={seed}", f"data_seed={seed}"]
            try:
                config = settings.load(file, [*own, *told], method)
            except UserError as error:
                raise UserError(f"method {method!r}: {error}") from error
            planned.append(Planned(label, seed, out / label / f"seed_{seed}", config))
    return planned


def run(planned: Sequence[Planned], jobs: int, quiet: bool = False) -> dict[Planned, str]:
    """Run what is not finished, `jobs` processes at a time, behind a progress bar; returns why some failed.

    What a run prints is added to OUT/METHOD/seed_S.log. A failure does not stop the others; an interrupt reaches all,
    which then save and leave, and a second one makes them leave at once. They do not outlive this process.
    """
    waiting = [one for one in planned if not one.done]
    failed: dict[Planned, str] = {}
    # Build what the zoo lacks once, before several runs would each build it.
    for model in dict.fromkeys(agent.model for one in waiting for agent in one.config.agents):
        if parse(model) is not None:
            resolve(model, quiet=quiet)
    running: dict[Planned, subprocess.Popen[bytes]] = {}
    printed: dict[Planned, int] = {}
    """Bytes of each log before this session."""
    # A scheduler's SIGTERM and the loss of the terminal are a Ctrl-C that nobody typed; nohup ignores the latter.
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is not signal.SIG_IGN]
    before = {number: signal.signal(number, signal.getsignal(signal.SIGINT)) for number in numbers}
    try:
        with task("sweep", len(planned), quiet=quiet) as bar:
            bar.advance(len(planned) - len(waiting))
            while waiting or running:
                while waiting and len(running) < jobs:
                    one = waiting.pop(0)
                    command = one.command()
                    with one.path.with_suffix(".log").open("a") as log:
                        printed[one] = log.tell()
                        # In a process group of its own: a terminal's Ctrl-C would come on top of the one that `_stop`
                        # sends, and two of them end a run at once.
                        running[one] = subprocess.Popen(
                            command,
                            stdin=subprocess.DEVNULL,
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            process_group=0,
                            env=owned(),
                        )
                    bar.update(f"{one.method} seed {one.seed} begins")
                time.sleep(0.2)
                for one, process in list(running.items()):
                    if process.poll() is not None:
                        del running[one]
                        if process.returncode:
                            failed[one] = _why(one, process.returncode, printed[one])
                        bar.update(f"{one.method} seed {one.seed} {'failed' if process.returncode else 'done'}", 1)
    finally:
        _stop(list(running.values()))
        for number, handler in before.items():
            signal.signal(number, handler)
    return failed


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupt runs and wait for them; interrupted meanwhile, interrupt them again."""
    while any(process.poll() is None for process in processes):
        try:
            for process in processes:
                process.send_signal(signal.SIGINT)
            for process in processes:
                process.wait()
        except KeyboardInterrupt:
            continue


def _why(one: Planned, code: int, printed: int) -> str:
    """Return why a run failed: the signal that ended it, or the last line that it added to its log."""
    lines = one.path.with_suffix(".log").read_bytes()[printed:].decode(errors="replace").strip().splitlines()
    return how_it_ended(code) if code < 0 or not lines else lines[-1]


@dataclass(frozen=True)
class Spread:
    """A number over the seeds."""

    mean: float
    deviation: float | None
    """With n - 1; None of a single seed."""
    n: int

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Spread | None:
        """None where no seed has it."""
        known = [value for value in values if value is not None]
        return cls(fmean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None


Row = dict[str, Any]
Scoring = Callable[[str, Path, str | None], Mapping[str, float]]
"""From a checkpoint, a folder for its evaluation and the checkpoint that it is to be asked like, to its accuracy by
benchmark."""
Benchmarked = dict[tuple[Planned, str, str], float]
"""Accuracy by run, benchmark and agent."""


def evaluate(planned: Sequence[Planned], out: Path, name: str, score: Scoring, *, trained: bool) -> Benchmarked:
    """Score the checkpoints that finished runs end with, or those that they start from, each once and asked alike.

    Evaluations are in OUT/METHOD/seed_S.eval/NAME/AGENT and OUT/base/NAME/MODEL, where work goes on after an interrupt.
    """
    known: dict[str, Mapping[str, float]] = {}
    found: Benchmarked = {}
    for one in planned:
        for agent in one.config.agents if one.done else ():
            end = str(one.path / "final" / agent.name)
            model = end if trained else agent.model
            own = Path(f"{one.path}.eval") / name / agent.name
            folder = own if trained else out / "base" / name / re.sub(r"[^A-Za-z0-9_.@-]+", "_", model)
            if model not in known:
                known[model] = score(model, folder, None if trained else end)
            for benchmark, accuracy in known[model].items():
                found[one, benchmark, agent.name] = accuracy
    return found


def rows(planned: Sequence[Planned], bases: Benchmarked | None = None, ends: Benchmarked | None = None) -> list[Row]:
    """One row per method: `Spread` of every column over its finished seeds.

    Columns: `accuracy/SET`, `start/SET` and `agreement/SET` (means over agents), `accuracy/SET/AGENT` and
    `start/SET/AGENT`, the training metrics of `TRAINED` (means over agents and the last steps), and `AMOUNTS`. None
    where nothing is on record. Benchmarks that `evaluate` scored at the start and at the end are sets like any other.
    """
    table = []
    for method in dict.fromkeys(one.method for one in planned):
        own = [one for one in planned if one.method == method]
        numbers = []
        for one in own:
            if one.done:
                accuracies = {"start": bases or {}, "accuracy": ends or {}}
                scores = {
                    (what, benchmark, agent): score
                    for what, benchmarked in accuracies.items()
                    for (scored, benchmark, agent), score in benchmarked.items()
                    if scored is one
                }
                numbers.append(numbers_of(read_run(one.path)) | _benchmark_columns(scores))
        columns = dict.fromkeys(name for found in numbers for name in found)
        table.append(
            {
                "method": method,
                "seeds": [one.seed for one in own if one.done],
                **{name: Spread.of([found.get(name) for found in numbers]) for name in columns},
            }
        )
    return table


def _benchmark_columns(scores: Mapping[tuple[str, str, str], float]) -> dict[str, float | None]:
    """The columns of `start` and `accuracy` by (which, benchmark, agent): each agent's, and their mean."""
    columns: dict[str, float | None] = {"/".join(key): score for key, score in scores.items()}
    for what, benchmark in dict.fromkeys(key[:2] for key in scores):
        columns[f"{what}/{benchmark}"] = fmean(score for key, score in scores.items() if key[:2] == (what, benchmark))
    return columns


def numbers_of(run: RunFiles) -> dict[str, float | None]:
    """The columns of one run; see `rows`."""
    found: dict[str, float | None] = {}
    for name in run.sets:
        ends = {agent: run.accuracy(name, agent) for agent in run.agents}
        found[f"start/{name}"] = _mean([one.start for one in ends.values()])
        found[f"accuracy/{name}"] = _mean([one.end for one in ends.values()])
        found |= {f"start/{name}/{agent}": one.start for agent, one in ends.items()}
        found |= {f"accuracy/{name}/{agent}": one.end for agent, one in ends.items()}
        found[f"agreement/{name}"] = run.agreement(name).end
    for key in TRAINED:
        found[key] = _mean([value for agent in run.agents for _, value in run.agent_series(agent, key)[-LAST:]])
    of_agents = [agent for line in run.timings for agent in mapping(line.get("agents")).values()]
    for column, keys in AMOUNTS.items():
        # None where no line has any of it.
        values = [value for key in keys for agent in of_agents if (value := number(dig(agent, key))) is not None]
        found[column] = sum(values) if values else None
    return found


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def record(table: Sequence[Row]) -> list[Row]:
    """The rows as plain data: each number as {mean, deviation, n}."""
    return [{key: vars(one) if isinstance(one, Spread) else one for key, one in row.items()} for row in table]


def describe(planned: Sequence[Planned]) -> str:
    methods = dict.fromkeys(one.method for one in planned)
    seeds = dict.fromkeys(one.seed for one in planned)
    left = sum(not one.done for one in planned)
    return f"{len(methods)} methods x {len(seeds)} seeds = {len(planned)} runs, {left} to do"
