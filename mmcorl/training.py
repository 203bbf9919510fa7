"""From a config to a trained cohort: everything is checked first, then `cotrain` runs in its folder."""

from __future__ import annotations

import atexit
import gc
import json
import math
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import transformers

import mmcorl
from mmcorl.agent import Agent, Cohort, results
from mmcorl.answers import open_relation
from mmcorl.config import BenchmarkSet, Config
from mmcorl.cotrain import cotrain
from mmcorl.data import check_cache
from mmcorl.data.batches import Batches
from mmcorl.data.checks import DataCheck, DataError, check
from mmcorl.data.overlap import warnings as overlap_warnings
from mmcorl.data.row_parsing import BadRow
from mmcorl.data.sources import PromptSource, load_prompts
from mmcorl.engines import ENGINES, require_engine
from mmcorl.errors import RunError, UserError
from mmcorl.interactions.train import train_on_episodes
from mmcorl.interactions.workflows import workflows
from mmcorl.labels.supervision import Supervision
from mmcorl.launch import launcher
from mmcorl.launch.health import RankError
from mmcorl.launch.process_setup import prepare_process
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.report.run_page import build_report
from mmcorl.rewards import Reward
from mmcorl.run.checkpoints import Committed, committed, no_room
from mmcorl.run.progress import Progress, task
from mmcorl.run.recorder import HeldOut, Run
from mmcorl.run.run_folder import PROFILE, RunFolder
from mmcorl.run.throughput import memory_sentence
from mmcorl.run.trackers import require_trackers
from mmcorl.tools.zoo import parse, resolve
from mmcorl.trainer import memory, parity
from mmcorl.types import Prompt, twins
from model_adapters.images import ImageError, load_image

# Python's last collection would look through all of torch and transformers, a second or two after all is done.
atexit.register(gc.freeze)


class TrainingPrompts:
    """Batches of the kept training rows, a function of the step alone; the next is read while one is worked on."""

    def __init__(self, source: Any, kept: Sequence[int], batch_size: int, seed: int, pair: str | None = None):
        self.source, self.kept, self.pair = source, kept, pair
        self.batches = Batches(len(kept), batch_size, seed)
        self.last: float = math.inf
        """No step beyond it is read ahead."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reads-ahead")
        self._reading: dict[int, Future[list[Prompt]]] = {}

    def batch(self, step: int) -> list[Prompt]:
        """The B prompts of a step, each followed by its twin where wordings are paired."""
        wanted = [step, step + 1] if step < self.last else [step]
        self._reading = {
            one: self._reading.get(one) or self._thread.submit(self._read, self.batches.rows(one)) for one in wanted
        }
        return self._reading[step].result()

    def ahead(self, step: int) -> Sequence[Prompt]:
        """The prompts of the step after the present one; none behind the last, or where `batch` will raise."""
        reading = self._reading.get(step)
        return () if reading is None or reading.exception() else reading.result()

    def _read(self, numbers: Sequence[int]) -> list[Prompt]:
        rows = [self.source[self.kept[number]] for number in numbers]
        return [wording for row in rows for wording in (twins(row, self.pair) if self.pair else (row,))]


LOOKED_AT = 8
"""Training prompts that are encoded to learn how much of a prompt its images are."""

Suite = Callable[[BenchmarkSet], HeldOut]
"""Loads a benchmark as a validation set; `eval_suite.periodic.held_out` is one."""


def train(config: Config, run_dir: Path, *, quiet: bool = False, suite: Suite | None = None) -> dict[str, Any]:
    """Run or resume `config` in `run_dir`; returns the summary.

    Raises UserError before work starts on anything that cannot work, and leaves the folder then as it was; raises
    RunError where the disk has no room.
    """
    prepare_process(config)
    require_engine(config)
    require_trackers(config.logging.trackers)
    with (
        RunFolder(run_dir, config) as folder,
        launcher(config) as launch,
        open_relation(config.answers.relation) as relation,
    ):
        sources = _sources(config)
        readers = open_encoders(config, quiet)
        checks, record = _check(config, sources, readers, folder.data_check(), quiet)
        prompts, validation = _prompts(config, sources, checks)
        validation += _benchmarks(config, readers, suite)
        steps = config.steps or math.ceil((config.epochs or 1.0) * len(prompts.kept) / config.batch.prompts)
        if (summary := folder.finished(steps)) is not None:
            build_report(run_dir)
            return summary
        supervision = Supervision(
            config.supervision.kind,
            [reader.name for reader in readers],
            relation=relation,
            tie=config.supervision.tie,
            min_votes=config.supervision.min_votes,
            min_share=config.supervision.min_share,
            teachers=config.supervision.teachers,
            seed=config.seed,
        )
        needed = _memory(config, readers, prompts, checks["train"], str(launch.device), quiet)
        cohort = launch.cohort(readers, steps)
        start = folder.begin(record)
        try:
            cohort.keep_logs(run_dir / "logs")
            predicted = _predicted(config, needed, cohort)
            return _work(
                config, folder, start, cohort, prompts, validation, supervision, relation, steps, quiet, predicted
            )
        except Exception as error:
            reason = no_room(error)
            if reason is None and not isinstance(error, RankError):
                raise
            raise RunError(_stopped(run_dir, committed(folder.checkpoints), reason, error)) from error


def _stopped(run_dir: Path, safe: Sequence[Committed], no_room: str | None, error: Exception) -> str:
    """What a run that had to stop leaves, and what the same command will do."""
    kept = f"the run is safe up to step {safe[-1].step}" if safe else "nothing was committed yet"
    onward = "the same command goes on from there" if safe else "the same command starts over"
    if no_room is None:
        return f"the run stopped, {kept}, {onward}: {error}"
    return f"no room is left to write into {str(run_dir)!r} ({no_room}): {kept}, make room and {onward}"


def _work(
    config: Config,
    folder: RunFolder,
    start: Committed | None,
    cohort: Cohort,
    prompts: TrainingPrompts,
    validation: Sequence[HeldOut],
    supervision: Supervision,
    relation: Any,
    steps: int,
    quiet: bool,
    predicted: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Everything after the checks: take up the last checkpoint, train, export, sum up."""
    agents = cohort.agents
    if start:
        results(cohort.parallel(partial(agent.load, start.path / agent.name) for agent in agents))
    facts = {agent.name: agent.facts() | {"memory": predicted.get(agent.name, {})} for agent in agents}

    prompts.last = steps
    talk = workflows(config, relation, folder.path) if config.episode else None
    reward = Reward(relation, **config.reward.model_dump(), style=config.prompt.style)
    with Progress(config.name, list(facts), steps, start.step if start else 0, quiet=quiet) as progress:
        for name, fact in facts.items():
            progress.message(
                f"{name}: {fact['family']}, {fact['trainable_parameters']:,} of {fact['parameters']:,} "
                "parameters trained"
            )
        for place in cohort.places:
            progress.message(place)
        if start:
            progress.message(f"resuming after step {start.step} of {steps}")
            lines = folder.lines("metrics.jsonl")
            supervision.recall(lines)
            progress.restore(lines, folder.lines("validation.jsonl"))
        if ENGINES.find(config.engine.kind).own_weights:
            progress.phase("compare engines")
            _compare_engines(config, agents, prompts, folder, progress)
        if config.profile is not None:
            _profile(config, agents, folder.path / PROFILE, steps - (start.step if start else 0), progress)
        rates = {agent.name: agent.take_rates for agent in agents}
        run = Run(folder, config, steps, validation, relation, progress, start, cohort.parallel, rates)
        # A scheduler's SIGTERM is a Ctrl-C that nobody typed.
        stops = (signal.SIGINT, signal.SIGTERM)
        previous = [signal.signal(stop, lambda *_: _ask_to_stop(run)) for stop in stops]
        try:
            if talk is not None:
                train_on_episodes(agents, prompts, talk, supervision, run, steps, cohort.parallel)
            else:
                for agent in agents:
                    agent.coming = prompts.ahead
                cotrain(agents, prompts, supervision, reward, run, steps, cohort.parallel)
            progress.phase("export")
            run.export(agents)
        finally:
            for stop, handler in zip(stops, previous, strict=True):
                signal.signal(stop, handler)
            run.trackers.close()
    summary = run.write_summary(facts)
    for name, fact in summary["agents"].items() if not quiet else ():
        if fact.get("memory"):
            print(f"{name}: {memory_sentence(fact['memory'])}", file=sys.stderr)
    build_report(folder.path)
    return summary


def _memory(
    config: Config,
    readers: Sequence[PromptEncoder],
    prompts: TrainingPrompts,
    check: DataCheck,
    device: str,
    quiet: bool,
) -> dict[str, memory.Budget]:
    """What each agent will need, with the prompts of these data, told before anything is loaded."""
    gpu = device.startswith("cuda")
    some = [prompts.source[row] for row in prompts.kept[:: max(1, len(prompts.kept) // LOOKED_AT)][:LOOKED_AT]]
    budgets = {}
    for number, reader in enumerate(readers):
        shape = memory.shape_of(reader)
        if shape is None:
            continue
        # What agents say to each other may make prompts as long as they may be.
        limit = reader.longest_prompt()
        longest = limit if config.episode else min(limit, check.longest[reader.name])
        found = memory.prompts_of(reader, longest, some)
        budgets[reader.name] = memory.budget(config, number, shape, prompts=found, cpu=not gpu)
        if not quiet:
            print(f"{reader.name}: {budgets[reader.name].sentence('GPU' if gpu else 'rank')}", file=sys.stderr)
    return budgets


def _predicted(config: Config, needed: Mapping[str, memory.Budget], cohort: Cohort) -> dict[str, dict[str, Any]]:
    """What is to be measured of each agent: of all together where they share a process, and on GPUs that is one GPU."""
    if not (cohort.one_process and len(cohort.agents) > 1):
        return {name: {"predicted_gb": round(one.tensors / 1e9, 3)} for name, one in needed.items()}
    if len(needed) < len(cohort.agents):
        return {}
    total = memory.together(list(needed.values()), config.time_sliced)
    return {name: {"predicted_gb": round(total / 1e9, 3), "together": True} for name in needed}


def _profile(config: Config, agents: Sequence[Agent], folder: Path, steps: int, progress: Progress) -> None:
    """Let the agents profile themselves, in a folder of the run that is empty then; `steps` are left to do."""
    assert config.profile is not None
    if steps < config.profile.steps[1]:
        progress.message(f"nothing is profiled: {steps} steps are left, profile.steps is {list(config.profile.steps)}")
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for agent in agents:
        agent.profile(folder)


def _compare_engines(
    config: Config, agents: Sequence[Agent], prompts: TrainingPrompts, folder: RunFolder, progress: Progress
) -> None:
    """Stop before the first step where an engine samples from something else than its trainer trains."""
    rows = [prompts.source[row] for row in prompts.kept[: parity.PROMPTS]]
    measured = [parity.measure(agent, rows, config) for agent in agents]
    folder.write("engines.json", json.dumps([one.record() for one in measured], indent=1) + "\n")
    for one in measured:
        if one.fault and config.engine.parity == "stop":
            raise RunError(f"{one.fault}; engine.parity=warn goes on all the same")
        progress.message(one.fault or one.sentence())


def _ask_to_stop(run: Run) -> None:
    """First Ctrl-C: finish the step, checkpoint, leave. Second: leave at once."""
    if run.stop_requested:
        raise KeyboardInterrupt
    run.stop_requested = True
    run.progress.message("stopping after this step (Ctrl-C again to stop at once)")


def _sources(config: Config) -> dict[str, PromptSource]:
    """Every data set of the run, opened: `train` and the validation sets by name."""
    parts = {"train": config.data.train} | {part.name: part.data for part in config.validation.sets}
    return {name: load_prompts(data) for name, data in parts.items()}


def open_encoders(config: Config, quiet: bool) -> list[PromptEncoder]:
    """One reader per agent. What the zoo may first have to build comes last, so that a wrong path is told at once."""
    readers = {}
    for agent in sorted(config.agents, key=lambda agent: parse(agent.model) is not None):
        readers[agent.name] = PromptEncoder(config, agent, resolve(agent.model, quiet=quiet))
    return [readers[agent.name] for agent in config.agents]


def _check(
    config: Config,
    sources: Mapping[str, PromptSource],
    readers: Sequence[PromptEncoder],
    before: Mapping[str, Any],
    quiet: bool,
) -> tuple[dict[str, DataCheck], dict[str, Any]]:
    """Check every row of every data set, or recall the check of the first start; and what to write down of it."""
    limits = {reader.name: reader.longest_prompt() for reader in readers}
    lengths = {
        reader.name: (partial(_longest, reader, config.supervision.pair), limits[reader.name]) for reader in readers
    }
    seen_by = [
        limits,
        config.model_dump(mode="json", include={"agents", "prompt", "vision"}) | {"pair": config.supervision.pair},
        [mmcorl.__version__, transformers.__version__],
    ]
    _images_have_readers(sources, readers)
    checks: dict[str, DataCheck] = {}
    record: dict[str, Any] = {}
    for name, source in sources.items():
        key = check_cache.circumstances(source, *seen_by)
        known = check_cache.from_record(before.get(name, {}), source, key)
        if known is None:
            with task(f"checking {name} data", len(source), quiet=quiet) as bar:
                try:
                    known = check(
                        source, max_side=config.vision.max_side, lengths=lengths, on_progress=lambda *_: bar.advance()
                    )
                except DataError as refused:
                    raise _with_engine_limit(refused, readers) from refused
            if name in before and check_cache.is_of_other_data(before[name], known, source):
                raise UserError(
                    f"the {name} data ({source.name}) are not those this run began with: restore them, or choose "
                    "another --run-dir"
                )
        if not quiet:
            print(known.summary(), file=sys.stderr)
        checks[name], record[name] = known, check_cache.to_record(known, source, key)
    for sentence in overlap_warnings(checks):
        print(sentence, file=sys.stderr)
    return checks, record


def _with_engine_limit(refused: DataError, readers: Sequence[PromptEncoder]) -> DataError:
    """The same refusal; where rows are too long for the engine alone, it says so."""
    tight = next((reader for reader in readers if reader.limited_by_engine()), None)
    if tight is None or "too_long" not in refused.report.counts:
        return refused
    setting = tight.config.engine.max_model_len
    return DataError(f"{refused}; engine.max_model_len is {setting}: raise it, or leave it out", refused.report)


def _longest(reader: PromptEncoder, pair: str | None, prompt: Prompt) -> int:
    """Tokens of a prompt, or of the longer of two paired wordings."""
    wordings = twins(prompt, pair) if pair and pair in prompt.views else (prompt,)
    return max(reader.length(wording) for wording in wordings)


def _images_have_readers(sources: Mapping[str, PromptSource], readers: Sequence[PromptEncoder]) -> None:
    """Refuse text models on pictures before every row is refused one by one."""
    blind = [reader.name for reader in readers if not reader.adapter.multimodal]
    for name, source in sources.items() if blind else ():
        first = next((prompt for row in range(min(8, len(source))) if (prompt := _readable(source, row))), None)
        if first is not None and first.images:
            raise UserError(
                f"agent {blind[0]!r} is a text model but the {name} data ({source.name}) have images: "
                "give it a vision-language model, or leave data.train.columns.image out"
            )


def _readable(source: PromptSource, row: int) -> Prompt | None:
    """A row, or None where the check will find fault with it or its images."""
    try:
        prompt = source[row]
        for image in prompt.images:
            load_image(image)
    except (BadRow, ImageError):
        return None
    return prompt


def _benchmarks(config: Config, readers: Sequence[PromptEncoder], suite: Suite | None) -> list[HeldOut]:
    """The benchmarks among the validation sets; each of their problems must fit every agent."""
    if config.validation.benchmarks and suite is None:
        raise UserError("validation.benchmarks needs the evaluation suite: start the run with `mmcorl train`")
    loaded = [suite(one) for one in config.validation.benchmarks] if suite else []
    for held_out in loaded:
        for reader in readers:
            limit = reader.longest_prompt()
            for prompt in held_out.prompts:
                if (length := reader.length(prompt)) > limit:
                    raise UserError(
                        f"problem {prompt.row_id!r} of {held_out.name} has {length} tokens for agent {reader.name!r}, "
                        f"limit {limit}: raise data.max_prompt_tokens or engine.max_model_len, or lower "
                        "sampling.max_new_tokens"
                    )
    return loaded


def _prompts(
    config: Config, sources: Mapping[str, PromptSource], checks: Mapping[str, DataCheck]
) -> tuple[TrainingPrompts, list[HeldOut]]:
    """The usable rows: training batches, read when their step comes, and validation sets in memory."""
    kept, answers = checks["train"].kept, checks["train"].answers
    if config.supervision.kind == "gold" and answers < len(kept):
        raise UserError(
            f"supervision.kind is 'gold' but {len(kept) - answers} of {len(kept)} rows of {sources['train'].name} have "
            "no answer: name the answer column in data.train.columns, leave those rows out with "
            "data.train.answers=required data.train.on_bad_row=skip, or use supervision.kind=ring, which needs none"
        )
    if config.episode and config.episode.verifier.kind == "gold" and answers < len(kept):
        raise UserError(
            f"episode.verifier.kind is 'gold' but {len(kept) - answers} of {len(kept)} rows of {sources['train'].name} "
            "have no answer: name the answer column in data.train.columns, leave those rows out with "
            "data.train.answers=required data.train.on_bad_row=skip, or use episode.verifier.kind=majority"
        )
    if len(kept) < config.batch.prompts:
        raise UserError(
            f"{checks['train'].summary()}, too few to fill a batch of {config.batch.prompts} prompts: "
            "lower batch.prompts or mend the rows"
        )
    validation = [
        HeldOut(name, [source[row] for row in checks[name].kept]) for name, source in sources.items() if name != "train"
    ]
    pair = config.supervision.pair
    return TrainingPrompts(sources["train"], kept, config.batch.prompts, config.data_seed, pair), validation
