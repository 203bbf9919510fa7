"""The journal of a run: writes its logs, evaluates and checkpoints when due, and continues after a checkpoint.

Logs hold no clock readings (those are in timings.jsonl), so that a run that was killed and resumed ends with the same
bytes as one that was not.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

from mmcorl.agent import Agent, Parallel, results
from mmcorl.cotrain import StepRecord, in_turn
from mmcorl.errors import RunError
from mmcorl.interactions.records import agent_metrics, reply_records
from mmcorl.labels.teaching_rules import RULES
from mmcorl.rewards import REWARDS
from mmcorl.run import checkpoints, profile_table
from mmcorl.run.diagnosis import Watch
from mmcorl.run.evaluation import HeldOut, evaluation_records, is_best, scores
from mmcorl.run.gallery import gallery_records
from mmcorl.run.metrics import step_metrics, votes_records
from mmcorl.run.probes import Probes
from mmcorl.run.progress import Progress
from mmcorl.run.results_folder import atomic_write
from mmcorl.run.run_folder import FINAL, PROFILE, RunFolder
from mmcorl.run.summary import write_summary
from mmcorl.run.trackers import Trackers
from mmcorl.system import rss
from mmcorl.trainer.parity import Parity
from mmcorl.types import Prompt


class PhaseClock:
    """Add up the seconds of each phase of a step until they are taken."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._running: tuple[str, float] | None = None

    def start(self, phase: str) -> None:
        """End the running phase and begin another; its first word is its name."""
        self.stop()
        self._running = (phase.split()[0], time.perf_counter())

    def stop(self) -> None:
        if self._running is not None:
            phase, since = self._running
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - since
            self._running = None

    def move_to_update(self, slowest: float) -> None:
        """Count as `update` what of the slowest update ran while this process already waited for the next rollouts."""
        waited, counted = self.seconds.get("rollout", 0.0), self.seconds.get("update", 0.0)
        moved = min(waited, max(0.0, slowest - counted))
        self.seconds |= {"rollout": waited - moved, "update": counted + moved}

    def take(self) -> dict[str, float]:
        """Return seconds by phase and their `total` since the last call."""
        self.stop()
        seconds = {phase: round(value, 4) for phase, value in self.seconds.items()}
        seconds["total"] = round(sum(self.seconds.values()), 4)
        self.seconds = {}
        return seconds


def comparisons(relation: Any) -> dict[str, int]:
    """Return how many comparisons of answers took algebra so far, and how many of them ran out of time.

    The latter count as "not the same", so they may have changed a vote. The counts depend on what the process compared
    before, so they are in timings.jsonl: metrics.jsonl is written byte for byte by a resumed run.
    """
    return {"symbolic": relation.symbolic, "timed_out": relation.timeouts}


class Recorder:
    """Record what `cotrain` did in the run's folder, evaluate and checkpoint. Implements `mmcorl.cotrain.Journal`.

    As a context manager it closes the trackers at the end. The folder is begun; `start` is the checkpoint that the run
    continues from; `parallel` starts one call per agent; `rates`, by agent, return throughput and memory of a finished
    step; `compared` is what engines and trainers differed by before the first step; `probes` are the probe
    prompts, each with the name of its set.
    """

    def __init__(
        self,
        folder: RunFolder,
        steps: int,
        validation: Sequence[HeldOut],
        relation: Any,
        progress: Progress,
        start: checkpoints.Committed | None,
        parallel: Parallel = in_turn,
        rates: Mapping[str, Callable[[int], Mapping[str, Any]]] | None = None,
        compared: Sequence[Parity] = (),
        probes: Sequence[tuple[str, Prompt]] = (),
    ):
        self.folder, self.steps = folder, steps
        self.config = config = folder.config
        self.validation, self.relation, self.progress, self.parallel = validation, relation, progress, parallel
        self.rates = rates or {}
        self._parity = {parity.agent: parity for parity in compared}
        """Comparisons by agent; removed once its drift has been reported."""
        self.step = self._kept = start.step if start else 0
        self.stop_requested = False
        self.names = [agent.name for agent in config.agents]
        self.probes = Probes(folder, self.names, probes, relation)
        self.trackers = Trackers(folder.path, config.logging.trackers, config.model_dump(mode="json"), self.step)
        self._clock = PhaseClock()
        self._compared = comparisons(relation)
        self._unwritten: StepRecord | None = None
        """The recorded step whose updates are still running."""
        self._best_step: int | None = None
        """Step of the last evaluation if it was the best so far."""
        lines = folder.lines("metrics.jsonl") if start else ()
        self._watch = Watch(config.logging.alarms, lines, folder.source_of_rewards, folder.lines("validation.jsonl"))
        self._profiled = self.step + config.profile.steps[1] if config.profile else None
        """The step after which the profile is complete."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # Where the run's folder is gone its trackers cannot be closed either: what ended the run comes first.
        with contextlib.suppress(Exception) if kind else contextlib.nullcontext():
            self.trackers.close()

    # -- Journal --------------------------------------------------------------------------------------------------

    def phase(self, name: str, more: str = "") -> None:
        """Begin a phase of the step; the step before is written now if its updates are done.

        `more` is added to the log line of a slow phase.
        """
        if self._unwritten is not None and all(update.done() for update in self._unwritten.updates):
            self._write_step()
        self._clock.start(name)
        done = self._unwritten.step if self._unwritten else self.step
        if name == "rollout" and self.config.episode is None:
            count, limit = self.config.sampled_prompts * self.config.batch.completions, self.config.sampling
            more = f": {count:,} completions of each agent, up to {limit.max_new_tokens:,} tokens"
        self.progress.phase(name, f"step {done + (name in ('rollout', 'vote', 'update'))}: {name}{more}")

    def record(self, record: StepRecord) -> None:
        """Write one step to logs, trackers, progress and gallery; in a later call if its updates are still running.

        Agents whose updates are done need not wait for the others then.
        """
        self._write_step()
        self._unwritten = record
        if all(update.done() for update in record.updates):
            self._write_step(overlapping=False)

    def evaluate_when_due(self, step: int, agents: Sequence[Agent]) -> None:
        """Sample the probes and evaluate every set, before step 1, every `validation.every` steps and at the end."""
        if not (step == 0 or self._due(step, self.config.validation.every)):
            return
        if self.probes.prompts:
            self._write_step()
            self.phase("evaluate probes")
            self.probes.sample(step, agents, self.parallel)
            self._clock.stop()
        if not self.validation:
            return
        self._write_step()
        # A resumed run did this, or some of it, before it was interrupted.
        known = {line["set"] for line in self.folder.lines("validation.jsonl") if line["step"] == step}
        if not (left := [held_out for held_out in self.validation if held_out.name not in known]):
            return
        for held_out in left:
            tokens = self.config.validation.max_new_tokens or self.config.sampling.max_new_tokens
            more = f": {len(held_out.prompts):,} completions of each agent, up to {tokens:,} tokens"
            self.phase(f"evaluate {held_out.name}", more)
            completions = results(self.parallel(partial(agent.evaluate, held_out.prompts) for agent in agents))
            record, responses = evaluation_records(held_out, step, self.names, completions, self.relation)
            self.folder.append("validation.jsonl", [record])
            self.folder.append("responses.jsonl", responses)
            self.trackers.log(record)
            self.progress.validation(record)
        if step == 0:
            for finding in self._watch.begin(self.folder.lines("validation.jsonl")):
                self.progress.message(finding.as_line())
        self._clock.stop()
        if self.config.checkpoint.best and step > 0 and is_best(self.folder.lines("validation.jsonl"), step):
            self._best_step = step

    def checkpoint_when_due(self, step: int, agents: Sequence[Agent]) -> None:
        """Write all agents at this step, or nothing; then remove the oldest checkpoints."""
        stopping = self.stop_requested or self._watch.stopped
        if not (self._due(step, self.config.checkpoint.every) or self._best_step == step or stopping):
            return
        self._checkpoint(step, agents)
        if self.stop_requested and step < self.steps:
            raise KeyboardInterrupt
        if step < self.steps:
            self._watch.raise_if_collapsed()

    def keep_finished_step(self, agents: Sequence[Agent]) -> None:
        """Write all agents as they are after the last finished step, where the next one failed before it moved them."""
        self._write_step()
        averages = "ema" in (self.config.supervision.voter, self.config.objective.kl_reference)  # moved by the rollout
        if self.step > self._kept and not averages:
            self._checkpoint(self.step, agents)

    def _checkpoint(self, step: int, agents: Sequence[Agent]) -> None:
        self._write_step()
        self.phase("checkpoint")

        def save(directory: Path) -> None:
            moved = results(self.parallel(partial(agent.save, directory / agent.name) for agent in agents))
            for finding in self._watch.see_weights(dict(zip(self.names, moved, strict=True))):
                self.progress.message(f"step {step}: {finding.as_line()}")

        measured = scores(self.folder.lines("validation.jsonl"), step)
        code = {"code": self.folder.code, "changed": self.folder.changed}
        checkpoints.commit(self.folder.checkpoints, step, save, self.folder.log_sizes(), measured, **code)
        checkpoints.prune(self.folder.checkpoints, self.config.checkpoint.keep_last)
        self._kept = step
        self._clock.stop()

    # -- the end --------------------------------------------------------------------------------------------------

    def export(self, agents: Sequence[Agent]) -> None:
        """Write the final weights of every agent to final/, all or nothing."""
        final, unfinished = self.folder.path / FINAL, self.folder.path / ".partial_final"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        moved = results(self.parallel(partial(agent.export, unfinished / agent.name) for agent in agents))
        self._watch.see_weights(dict(zip(self.names, moved, strict=True)))
        checkpoints.seal(unfinished, self.step)
        checkpoints.publish(unfinished, final)

    def write_summary(self, agents: Mapping[str, Mapping[str, Any]]) -> None:
        """Write summary.json from the logs and the facts of each agent."""
        self._clock.stop()
        # The clock holds what came after the last line: its evaluation, checkpoint and the export.
        seconds = sum(self._clock.seconds.values())
        write_summary(self.folder, agents, steps=self.step, last_seconds=seconds, moved=self._watch.moved)

    # -- one step -------------------------------------------------------------------------------------------------

    def _due(self, step: int, every: int) -> bool:
        return step > 0 and (step % every == 0 or step == self.steps)

    def _write_step(self, overlapping: bool = True) -> None:
        """Wait for the updates of the unwritten step, if there is one, and write it.

        `overlapping`: whether they ran on after the step was recorded.
        """
        if self._unwritten is None:
            return
        record, self._unwritten = self._unwritten, None
        updates = results(record.updates)
        self._clock.start("log")
        metrics = self._log_step(record, updates)
        self.trackers.log(metrics)
        self._watch_drift(metrics)
        for alarm in self._watch.see(metrics):
            if not self._watch.stopped:  # which says it as it ends the run
                self.progress.message(f"step {alarm.step}: {alarm.as_line()}")
        self.step = record.step
        self._log_timing(metrics, overlapping)
        if record.step == self._profiled:
            table = profile_table.table(self.folder.path / PROFILE, self.folder.lines("timings.jsonl"), self.names)
            atomic_write(self.folder.path / PROFILE / "summary.txt", table)
            self.progress.message(table)

    def _log_step(self, record: StepRecord, updates: Sequence[dict[str, float]]) -> dict[str, Any]:
        """Append a step to metrics.jsonl, votes.jsonl, episodes.jsonl and gallery.jsonl; return its metrics."""
        step, batch, groups, names = record.step, record.batch, record.groups, self.names
        reports: dict[str, Mapping[str, float | None]] = dict(zip(names, updates, strict=True))
        rewards = [{uid: tuple(values) for uid, values in earned.items()} for earned in record.rewards]
        if (episode := record.episode) is not None:
            # By problem, as votes and labels are, rather than by request.
            rewards = [episode.solution_rewards(number, batch) for number in range(len(names))]
            for number, name in enumerate(names):
                reports[name] = {**reports[name], **agent_metrics(number, episode, self.relation)}
            self.folder.append("episodes.jsonl", reply_records(step, names, episode))
        given = [uids if agent.learns else () for agent, uids in zip(self.config.agents, record.trained, strict=True)]
        trained = given if self.config.batch.refill else None
        metrics = step_metrics(step, names, batch, groups, record.labels, rewards, reports, self.relation, trained)
        soft = REWARDS.find(self.config.reward.kind).uses_shares or RULES.find(self.config.supervision.kind).weighted
        votes = votes_records(step, names, batch, groups, record.labels, rewards, soft, trained)
        self.folder.append("metrics.jsonl", [metrics])
        self.folder.append("votes.jsonl", votes)
        if (count := self.config.logging.gallery) and (step == 1 or self._due(step, self.config.validation.every)):
            kept = gallery_records(step, names, batch, groups, votes, self.relation, count, self.folder.path, episode)
            self.folder.append("gallery.jsonl", kept)
            self.trackers.log_gallery(kept)
        return metrics

    def _log_timing(self, metrics: Mapping[str, Any], overlapping: bool) -> None:
        """Append the step's line of timings.jsonl; evaluation and checkpoint of the step before are part of it."""
        rates = {name: take(self.step) for name, take in self.rates.items()}
        self._clock.stop()
        if overlapping and rates:
            self._clock.move_to_update(max(rate["update_seconds"] + rate["sync_seconds"] for rate in rates.values()))
        before, self._compared = self._compared, comparisons(self.relation)
        since = {name: count - before[name] for name, count in self._compared.items()}
        if since["timed_out"]:
            self.progress.message(
                f"step {self.step}: {since['timed_out']} comparisons of answers ran out of time and count as different"
            )
        timing = {
            "step": self.step,
            "seconds": self._clock.take(),
            "peak_rss_gb": round(rss.peak() / 1e9, 3),
            "comparisons": since,
            **({"agents": rates} if rates else {}),
        }
        self.folder.append("timings.jsonl", [timing])
        self.trackers.log(timing)
        self.progress.step(metrics)

    def _watch_drift(self, metrics: Mapping[str, Any]) -> None:
        """Raise RunError, or report once, where an engine is much further from its trainer than before the run."""
        for name, parity in list(self._parity.items()):
            drift = metrics["agents"][name].get("importance_drift_abs_mean")
            if drift is None or not (growth := parity.grown(drift)):
                continue
            sentence = f"step {metrics['step']}: {growth}"
            if self.config.engine.parity == "stop":
                raise RunError(f"{sentence}; engine.parity=warn goes on all the same")
            self.progress.message(sentence)
            del self._parity[name]
