"""Train a cohort from a config: check everything first, then run `cotrain` in the run's folder."""

from __future__ import annotations

import atexit
import gc
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mmcorl.agent import Agent, Cohort, results
from mmcorl.algo.settings import ObjectiveSettings
from mmcorl.answers import open_relation
from mmcorl.config import Config
from mmcorl.cotrain import Select, cotrain, every_group
from mmcorl.data.settings import BatchSettings
from mmcorl.engines import require_engine
from mmcorl.engines.settings import ENGINES, EngineSettings
from mmcorl.errors import EndpointError, RunError
from mmcorl.interactions.base import (
    EPISODE_PROBES,
    AfterServed,
    Conversing,
    Independent,
    Interaction,
    Workflow,
    start_conversations,
)
from mmcorl.interactions.debate import Verifier
from mmcorl.interactions.settings import EpisodeSettings
from mmcorl.interactions.verifiers import by_label
from mmcorl.interactions.workflows import WORKFLOWS
from mmcorl.labels.settings import SupervisionSettings
from mmcorl.labels.supervision import Supervision
from mmcorl.labels.voting import Vote, majority
from mmcorl.launch import launcher_of
from mmcorl.launch.process_setup import prepare_process, threads_back_to
from mmcorl.likelihoods import Likelihoods, Scoring, unscored
from mmcorl.policy.settings import AgentSettings
from mmcorl.prompts.settings import PromptSettings
from mmcorl.prompts.styles import STYLES
from mmcorl.registry import shown
from mmcorl.rewards import REWARDS, Reward, RewardSettings, with_signal
from mmcorl.run.checkpoints import Committed
from mmcorl.run.prepare import Inputs, OpenModels, Suite, as_named, prepare_inputs
from mmcorl.run.progress import Progress, waiting
from mmcorl.run.recorder import Recorder
from mmcorl.run.run_folder import PROFILE, RunFolder
from mmcorl.run.stopping import resumable_errors, stop_on_signals
from mmcorl.run.trackers import require_trackers
from mmcorl.trainer import parity
from mmcorl.trainer.optimizer import warmup_steps
from mmcorl.trainer.settings import TrainingSettings
from mmcorl.types import Prompt

# Python's last collection would look through all of torch and transformers, a second or two after all is done.
atexit.register(gc.freeze)

MemoryOf = Callable[[Cohort], Mapping[str, Mapping[str, Any]]]
"""Returns what is known of the memory of each agent of a cohort."""

Forecast = Callable[[Config, Inputs, bool, bool], MemoryOf]
"""Predicts memory from config and inputs, on a GPU or not, and prints it or not; `mmcorl.apps.doctor.agents_memory`."""


def train(
    config: Config,
    path: Path,
    *,
    quiet: bool = False,
    suite: Suite | None = None,
    open_models: OpenModels = as_named,
    forecast: Forecast | None = None,
) -> None:
    """Train a cohort in a folder, or resume its run there. `mmcorl.train` does so, and writes the report.

    Args:
        config: the settings of the run.
        path: its folder.
        quiet: print no progress.
        suite: loads `validation.benchmarks`; `eval_suite.evaluation.periodic.held_out`.
        open_models: from the models that the config names to their folders, those that are there first.
        forecast: predicts the memory of the agents before they are loaded.

    Raises:
        UserError: something cannot work; raised before work starts, with the folder left as it was.
        RunError: the run stopped: the disk is full or a worker died. The same call resumes it.
    """
    threads = torch.get_num_threads()
    with threads_back_to(threads), RunFolder(path, config) as folder:
        if finished := folder.about_finished():
            if not quiet:
                print(finished, file=sys.stderr)
            return
        prepare_process(config.training, device=config.device, threads=config.threads)
        require_engine(config.engine, config.sampling)
        require_trackers(config.logging.trackers)
        answers = config.answers
        if served := any(agent.served for agent in config.agents):
            from mmcorl.launch import served_agent

            with waiting("asking endpoints", quiet=quiet):
                served_agent.require_endpoints(config.agents, config.sampling)
        with (
            launcher_of(config.launcher)(config) as launch,
            open_relation(answers.relation, answers.vote_by, answers.threshold) as relation,
        ):
            inputs = prepare_inputs(folder, suite, open_models, quiet)
            if folder.finished(inputs.steps) is not None:
                return
            gpu = str(launch.device).startswith("cuda")
            memory_of = forecast(config, inputs, gpu, quiet) if forecast else None
            with waiting(f"loading {', '.join(agent.name for agent in config.local_agents)}", quiet=quiet):
                loaded = launch.cohort(inputs.encoders, inputs.steps)
            start = folder.begin(inputs.data_check)
            batch, talks = config.batch.completions, config.episode is not None
            beside: AbstractContextManager[Cohort] = nullcontext(loaded)
            if served:
                how = served_agent.ServedSampling(
                    config.prompt,
                    answers,
                    config.sampling,
                    greedy_tokens=config.validation.max_new_tokens or config.sampling.max_new_tokens,
                    rewarded=1 if talks else batch,
                    votes=1 if talks else config.supervision.votes or batch,
                    probed=max(batch, EPISODE_PROBES) if talks else batch,
                    seed=config.seed,
                )
                beside = served_agent.beside_served(loaded, config.agents, how, path)
            with resumable_errors(path), beside as cohort:
                cohort.keep_logs(path / "logs")
                predicted = memory_of(cohort) if memory_of else {}
                _run(folder, inputs, cohort, start=start, relation=relation, predicted=predicted, quiet=quiet)


def supervision_of(
    settings: SupervisionSettings, agents: Sequence[AgentSettings], relation: Any, *, seed: int
) -> Supervision:
    """Return the supervision of a run, whose answers `relation` compares."""
    return Supervision(
        settings.kind,
        [agent.name for agent in agents],
        relation=relation,
        tie=settings.tie,
        min_votes=settings.min_votes,
        min_share=settings.min_share,
        teachers=settings.teachers,
        seed=seed,
    )


def reward_of(settings: RewardSettings, prompt: PromptSettings, relation: Any) -> Reward:
    """Return the reward of a run, whose answers `relation` compares."""
    return Reward(relation, **settings.model_dump(), form=STYLES[prompt.style].form)


def interaction_of(
    episode: EpisodeSettings | None,
    relation: Any,
    folder: Path,
    *,
    agents: Sequence[AgentSettings],
    batch: BatchSettings,
    objective: ObjectiveSettings,
    supervision: SupervisionSettings,
    seed: int,
) -> Interaction:
    """Return how agents talk; a served verifier's replies are kept in `folder`."""
    if episode is None:
        return Independent()
    if episode.verifier.kind == "served":
        from mmcorl.interactions.served_verifier import Served

        verifier: Verifier = Served(episode.verifier, folder / "verifier.sqlite")
    else:
        verifier = by_label(relation, episode.verifier.kind, supervision.tie)

    def elect(answers: Sequence[str | None], problem: Prompt) -> Vote:
        return majority(
            answers,
            relation,
            choices=problem.choices,
            tie=supervision.tie,
            min_votes=supervision.min_votes,
            min_share=supervision.min_share,
        )

    row = WORKFLOWS.find(episode.kind)
    learners = [number for number, agent in enumerate(agents) if agent.learns]
    fixed = {"agents": len(agents), "learners": learners, "settings": episode, "seed": seed}
    fixed |= {"relation": relation, "verifier": verifier, "elect": elect}

    def workflow(problems: Sequence[Prompt], step: int) -> Workflow:
        talks = start_conversations(problems, batch.completions)
        return row.start(problems=problems, conversations=talks, step=step, **fixed)

    name, compared = f"workflow {shown(episode.kind)!r}", objective.advantage != "reinforce_pp"
    return Conversing(workflow, name, compared, learners)


def scoring_of(reward: RewardSettings, objective: ObjectiveSettings, agents: Sequence[AgentSettings]) -> Scoring:
    """Return what works out the likelihoods that a run's reward and objective need."""
    names, distil = REWARDS.find(reward.kind).scored, objective.distil > 0
    frozen = [number for number, agent in enumerate(agents) if not agent.learns]
    return Likelihoods(names, distil, frozen) if names or distil else unscored


def selection_of(batch: BatchSettings, supervision: SupervisionSettings) -> Select:
    """Return which groups a run trains of those that it samples; both wordings of a prompt are groups."""
    return partial(with_signal, groups=batch.prompts * (2 if supervision.pair else 1)) if batch.refill else every_group


def _run(
    folder: RunFolder,
    inputs: Inputs,
    cohort: Cohort,
    *,
    start: Committed | None,
    relation: Any,
    predicted: Mapping[str, Mapping[str, Any]],
    quiet: bool,
) -> None:
    """Continue from the last checkpoint, train, export, summarize."""
    config = folder.config
    agents, prompts, steps, done = cohort.agents, inputs.prompts, inputs.steps, start.step if start else 0
    if start:
        results(cohort.parallel(partial(agent.load, start.path / agent.name) for agent in agents))
    facts = {agent.name: agent.facts() | {"memory": predicted.get(agent.name, {})} for agent in agents}
    supervision = supervision_of(config.supervision, config.agents, relation, seed=config.seed)
    supervision.disagreements = prompts.disagreements
    reward = reward_of(config.reward, config.prompt, relation)
    interplay = interaction_of(
        config.episode,
        relation,
        folder.path,
        agents=config.agents,
        batch=config.batch,
        objective=config.objective,
        supervision=config.supervision,
        seed=config.seed,
    )
    served = [number for number, agent in enumerate(config.agents) if agent.served]
    with Progress(config.name, list(facts), steps, done, quiet=quiet) as progress:
        for agent, fact in ((agent, facts[agent.name]) for agent in config.local_agents):
            trained = f"{fact['trainable_parameters']:,} of {fact['parameters']:,} parameters trained"
            rate = _peak_rate(agent.lr or config.optimizer.lr, warmup_steps(steps, config.optimizer))
            does = f"{trained}, {rate}" if agent.learns else f"{fact['parameters']:,} parameters, frozen: votes only"
            progress.message(f"{agent.name}: {fact['family']}, {does}")
        for line in cohort.places:
            progress.message(line)
        if start:
            progress.message(f"resuming after step {done} of {steps}")
            supervision.recall(folder.stream)
            progress.restore(folder.lines("metrics.jsonl"), folder.lines("validation.jsonl"))
        compared = _compare_engines(
            cohort,
            inputs,
            folder,
            progress,
            engine=config.engine,
            training=config.training,
            objective=config.objective,
            complete=config.sampling.top_p == 1 and not config.sampling.top_k,
        )
        if config.profile is not None:
            _profile(config.profile.steps, cohort, folder.path / PROFILE, steps - done, progress)
        recorder = Recorder(
            folder,
            steps,
            inputs.validation,
            relation,
            progress,
            start=start,
            parallel=cohort.parallel,
            rates={agent.name: agent.take_rates for agent in agents},
            compared=compared,
            probes=inputs.probes,
        )
        with recorder, stop_on_signals(recorder):
            if config.episode is None:
                for member in agents:
                    member.upcoming_prompts = prompts.ahead
            interplay = AfterServed(interplay, served) if served else interplay
            scoring = scoring_of(config.reward, config.objective, config.agents)
            select = selection_of(config.batch, config.supervision)
            try:
                cotrain(
                    agents, prompts, interplay, supervision, reward, recorder, steps, cohort.parallel, scoring, select
                )
            except EndpointError:
                recorder.keep_finished_step(agents)
                raise
            progress.phase("export")
            recorder.export(agents)
        for name, usage, used in _usages(agents) if served else ():
            facts[name]["usage"] = usage
            progress.message(f"{name}: {used}")
    recorder.write_summary(facts)


def _usages(agents: Sequence[Agent]) -> Iterator[tuple[str, Mapping[str, int], str]]:
    from mmcorl.launch.served_agent import usages  # with its client, which most runs do without

    return usages(agents)


def _peak_rate(lr: float, warmup: int) -> str:
    rising = f", {warmup} step{'s' * (warmup != 1)} of warm-up" if warmup else ""
    return f"lr {lr:g}{rising}".replace("e-0", "e-")


def _compare_engines(
    cohort: Cohort,
    inputs: Inputs,
    folder: RunFolder,
    progress: Progress,
    *,
    engine: EngineSettings,
    training: TrainingSettings,
    objective: ObjectiveSettings,
    complete: bool,
) -> list[parity.Parity]:
    """Stop before the first step where an engine does not sample from the policy that its trainer trains.

    Returns what later steps are compared with: nothing where weights are shared and tokens are left out on purpose.
    """
    own_weights = ENGINES.find(engine.kind).own_weights
    progress.phase("compare engines")
    prompts = inputs.prompts
    rows = [prompts.source[row] for row in prompts.kept[: parity.PROMPTS]]
    measured = [
        parity.measure(
            agent,
            rows,
            engine=engine,
            training=training,
            objective=objective,
            expected=encoder.adapter.needs_importance_correction,
            needs_images=encoder.adapter.needs_images,
        )
        for agent in cohort.agents
        for encoder in inputs.encoders
        if encoder.name == agent.name
    ]
    if own_weights:
        folder.write("engines.json", json.dumps([comparison.record() for comparison in measured], indent=1) + "\n")
    for comparison in measured:
        if comparison.fault and engine.parity == "stop":
            raise RunError(f"{comparison.fault}; engine.parity=warn goes on all the same")
        if own_weights or comparison.fault:
            progress.message(comparison.fault or comparison.sentence())
    return measured if own_weights or complete else []


def _profile(profiled: tuple[int, int], cohort: Cohort, folder: Path, left: int, progress: Progress) -> None:
    """Let the agents profile their next steps into an empty folder, if the run still has that many."""
    if left < profiled[1]:
        progress.message(f"nothing is profiled: {left} steps are left, profile.steps is {list(profiled)}")
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for agent in cohort.agents:
        agent.profile(folder)
