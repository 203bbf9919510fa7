"""A run is a folder: everything that happened, and all that is needed to go on.

The journal of `cotrain`: writes the logs, evaluates, checkpoints, and takes up where the last committed
checkpoint stands. Logs hold no clock readings (those are in timings.jsonl), so that a run that was killed and
resumed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from mmcorl.agent import Agent, Parallel, in_turn, results
from mmcorl.answers import RELATIONS
from mmcorl.config import Config
from mmcorl.interactions.base import Episode
from mmcorl.interactions.records import agent_metrics, call_records
from mmcorl.labels.supervision import Labels
from mmcorl.report import profile_table
from mmcorl.run import checkpoints
from mmcorl.run.folder import atomic_write
from mmcorl.run.metrics import Comparisons, step_metrics, validation_metrics, votes_records
from mmcorl.run.progress import Progress
from mmcorl.run.run_folder import FINAL, PROFILE, SUMMARY, RunFolder
from mmcorl.run.throughput import overall, peak_memory
from mmcorl.run.trackers import Trackers
from mmcorl.system import rss
from mmcorl.types import Completion, Group, Prompt
from model_adapters.images import load_image

MUTE_SHARE, MUTE_STEPS = 0.9, 5
"""An agent whose completions lack an answer to this share for so many steps is worth a warning."""
GALLERY_SIDE = 512


@dataclass(frozen=True)
class HeldOut:
    """A validation set in memory."""

    name: str
    prompts: Sequence[Prompt]
    grade: Callable[[Prompt, Completion], bool] | None = None
    """How a benchmark grades; None compares answers by the run's relation."""
    grader: Mapping[str, str] | None = None
    """Name and version of that grader, for the record."""


class Run:
    """The journal of one run: `cotrain` tells it what happened, it records, evaluates and checkpoints."""

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        steps: int,
        validation: Sequence[HeldOut],
        relation: Any,
        progress: Progress,
        start: checkpoints.Committed | None,
        parallel: Parallel = in_turn,
        rates: Mapping[str, Callable[[int], Mapping[str, Any]]] | None = None,
    ):
        self.folder, self.config, self.steps = folder, config, steps
        self.validation, self.relation, self.progress, self.parallel = validation, relation, progress, parallel
        self.rates = rates or {}
        self.step = start.step if start else 0
        self.names = [agent.name for agent in config.agents]
        self.trackers = Trackers(
            folder.path, ("tensorboard", *config.logging.trackers), config.model_dump(mode="json"), self.step
        )
        self._clock: dict[str, float] = {}
        self._mark: tuple[str, float] | None = None
        self._open: Callable[[], None] | None = None
        """Writes the step whose updates still run: agents that are done go on meanwhile."""
        self._updates: Sequence[Future[dict[str, float]]] = ()
        """Those updates."""
        self._new_best: int | None = None
        """Step of the last evaluation if it was the best so far."""
        self._mute: dict[str, int] = {}
        self._profiled = self.step + config.profile.steps[1] if config.profile else None
        """The step after which the profile is there."""
        self._comparisons = Comparisons(relation)
        self.stop_requested = False

    # -- what cotrain calls --------------------------------------------------------------------------------

    def phase(self, what: str) -> None:
        """A part of the step begins."""
        if all(update.done() for update in self._updates):
            self._settle()
        self._tick(what)
        self.progress.phase(what)

    def record(
        self,
        step: int,
        batch: Sequence[Prompt],
        groups: Sequence[Sequence[Group]],
        labels: Labels,
        rewards: Sequence[Mapping[str, Sequence[float]]],
        updates: Sequence[Future[dict[str, float]]],
        episode: Episode | None = None,
    ) -> None:
        """One step: logs, trackers, progress, gallery; `episode` where the step was one.

        Written at once where the updates are done; otherwise as soon as they are and this journal is called again.
        """
        self._settle()
        self._updates = updates
        late = not all(update.done() for update in updates)
        self._open = partial(self._write, step, batch, groups, labels, rewards, updates, late, episode)
        if not late:
            self._settle()

    def _settle(self) -> None:
        """Wait for the updates of the open step, if there is one, and write it."""
        write, self._open = self._open, None
        if write is not None:
            write()
        self._updates = ()

    def _write(
        self,
        step: int,
        batch: Sequence[Prompt],
        groups: Sequence[Sequence[Group]],
        labels: Labels,
        rewards: Sequence[Mapping[str, Sequence[float]]],
        updates: Sequence[Future[dict[str, float]]],
        late: bool,
        episode: Episode | None,
    ) -> None:
        done = results(updates)
        self._tick("log")
        own = [{uid: tuple(values) for uid, values in one.items()} for one in rewards]
        reports: dict[str, Mapping[str, float | None]] = dict(zip(self.names, done, strict=True))
        if episode is not None and self.config.episode is not None:
            for number, name in enumerate(self.names):
                reports[name] = {**reports[name], **agent_metrics(number, episode, self.relation)}
            kept = self.config.episode.logged_characters
            self.folder.append("episodes.jsonl", call_records(step, self.names, episode, kept))
        metrics = step_metrics(step, self.names, batch, groups, labels, own, reports, self.relation)
        votes = votes_records(step, self.names, batch, groups, labels, own)
        self.folder.append("metrics.jsonl", [metrics])
        self.folder.append("votes.jsonl", votes)
        if self.config.logging.gallery and (step == 1 or self._due(step, self.config.validation.every)):
            self._keep_for_gallery(step, batch, groups, votes)
        self.trackers.log(metrics)
        self._watch(metrics)
        self.step = step
        rates = {name: take(step) for name, take in self.rates.items()}
        self._timing(step, metrics, rates, late)
        if step == self._profiled:
            told = profile_table.table(self.folder.path / PROFILE, self.folder.lines("timings.jsonl"), self.names)
            atomic_write(self.folder.path / PROFILE / "summary.txt", told)
            self.progress.message(told)

    def evaluate_when_due(self, step: int, agents: Sequence[Agent]) -> None:
        """Greedy accuracy and agreement on every validation set: before step 1, every so often, at the end."""
        if not self.validation or not (step == 0 or self._due(step, self.config.validation.every)):
            return
        self._settle()
        if any(line["step"] == step for line in self.folder.lines("validation.jsonl")):
            return  # A resumed run did this before it was interrupted.
        for held_out in self.validation:
            self.phase(f"evaluate {held_out.name}")
            answers = results(self.parallel(partial(agent.evaluate, held_out.prompts) for agent in agents))
            record = validation_metrics(
                self.names, held_out.prompts, answers, self.relation, held_out.name, step, held_out.grade
            )
            if held_out.grader:
                record["grader"] = dict(held_out.grader)
            self.folder.append("validation.jsonl", [record])
            self.folder.append("responses.jsonl", self._responses(step, held_out, answers))
            self.trackers.log(record)
            self.progress.validation(record)
        self._tick(None)
        self._note_best(step)

    def checkpoint_when_due(self, step: int, agents: Sequence[Agent]) -> None:
        """All agents at this step, or nothing; then the oldest sets go."""
        if not (self._due(step, self.config.checkpoint.every) or self._new_best == step or self.stop_requested):
            return
        self._settle()
        self.phase("checkpoint")

        def write(directory: Path) -> None:
            results(self.parallel(partial(agent.save, directory / agent.name) for agent in agents))

        meta = {"logs": self.folder.log_sizes(), "scores": self._scores(step)}
        checkpoints.commit(self.folder.checkpoints, step, write, meta)
        checkpoints.prune(self.folder.checkpoints, self.config.checkpoint.keep_last)
        self._tick(None)
        if self.stop_requested and step < self.steps:
            raise KeyboardInterrupt

    # -- the end ---------------------------------------------------------------------------------------------

    def export(self, agents: Sequence[Agent]) -> Path:
        """Final weights of every agent under final/, whole or not at all."""
        final, unfinished = self.folder.path / FINAL, self.folder.path / ".partial_final"
        shutil.rmtree(unfinished, ignore_errors=True)
        results(self.parallel(partial(agent.export, unfinished / agent.name) for agent in agents))
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
        return final

    def write_summary(self, agents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """summary.json: start and end of every agent and set, and what produced the numbers."""
        lines = self.folder.lines("validation.jsonl")
        self._tick(None)
        # The clock holds what came after the last line: its evaluation, checkpoint and the export.
        timings = self.folder.lines("timings.jsonl")
        seconds = [line["seconds"]["total"] for line in timings] + [*self._clock.values()]
        summary: dict[str, Any] = {
            "name": self.config.name,
            "supervision": self.config.supervision.kind,
            "reward": self.config.reward.kind,
            **({"episode": self.config.episode.kind} if self.config.episode else {}),
            "steps": self.step,
            "seconds": round(sum(seconds), 2),
            "seed": self.config.seed,
            "agents": {},
            "agreement": {},
            "grader": dict(zip(("name", "version"), RELATIONS.find(self.config.answers.relation).version, strict=True)),
            "notes": list(self.config.notes),
        }
        for name, facts in agents.items():
            summary["agents"][name] = {
                **facts,
                **({"throughput": rates} if (rates := overall(timings, name)) else {}),
                **({"memory": facts.get("memory", {}) | taken} if (taken := peak_memory(timings, name)) else {}),
                "start": {line["set"]: line["agents"][name]["accuracy"] for line in reversed(lines)},
                "end": {line["set"]: line["agents"][name]["accuracy"] for line in lines},
            }
        for line in lines:
            known = summary["agreement"].setdefault(line["set"], {"start": line["cohort"]["agreement"]})
            known["end"] = line["cohort"]["agreement"]
        self.folder.write(SUMMARY, json.dumps(summary, indent=1) + "\n")
        return summary

    # -- inside ----------------------------------------------------------------------------------------------

    def _responses(self, step: int, held_out: HeldOut, answers: Sequence[Sequence[Completion]]) -> list[dict[str, Any]]:
        """Every response of one evaluation, to read and to grade again."""
        return [
            {
                "step": step,
                "set": held_out.name,
                "agent": name,
                "id": prompt.row_id,
                "uid": prompt.uid,
                "response": completion.text,
                "answer": completion.answer,
                "gold": prompt.gold,
                "finish_reason": completion.finish_reason,
            }
            for name, own in zip(self.names, answers, strict=True)
            for prompt, completion in zip(held_out.prompts, own, strict=True)
        ]

    def _watch(self, metrics: Mapping[str, Any]) -> None:
        """Say so when an agent has given hardly any readable answer for a while: then nobody learns from it."""
        for name, values in metrics["agents"].items():
            mute = values["unparsed_share"] is not None and values["unparsed_share"] >= MUTE_SHARE
            self._mute[name] = self._mute.get(name, 0) + 1 if mute else 0
            if self._mute[name] == MUTE_STEPS:
                self.progress.message(
                    f"{name} commits to an answer in hardly any completion of the last {MUTE_STEPS} steps, so nobody "
                    "can learn from it: look at prompt.style, sampling.max_new_tokens and its samples in the report"
                )

    def _due(self, step: int, every: int) -> bool:
        return step > 0 and (step % every == 0 or step == self.steps)

    def _scores(self, step: int) -> dict[str, float | None]:
        """Mean accuracy and mean agreement over agents and sets at one step; None where not evaluated."""
        lines = [line for line in self.folder.lines("validation.jsonl") if line["step"] == step]
        accuracy = [agent["accuracy"] for line in lines for agent in line["agents"].values()]
        agreement = [line["cohort"]["agreement"] for line in lines]
        return {"validation": _mean(accuracy), "agreement": _mean(agreement)}

    def _note_best(self, step: int) -> None:
        """Remember an evaluation that no earlier one equals, by accuracy or by agreement; step 0 does not count."""
        if self.config.checkpoint.best and step > 0 and self._is_best(step):
            self._new_best = step

    def _is_best(self, step: int) -> bool:
        steps = {line["step"] for line in self.folder.lines("validation.jsonl") if 0 < line["step"] < step}
        earlier = [self._scores(other) for other in sorted(steps)]

        def beats_all(name: str, score: float) -> bool:
            return all(known is None or known < score for known in (other[name] for other in earlier))

        return any(score is not None and beats_all(name, score) for name, score in self._scores(step).items())

    def _keep_for_gallery(
        self,
        step: int,
        batch: Sequence[Prompt],
        groups: Sequence[Sequence[Group]],
        votes: Sequence[Mapping[str, Any]],
    ) -> None:
        """Keep some prompts with pictures for the report, those on which votes differ first."""
        by_uid = [{group.uid: group for group in own} for own in groups]

        def dissent(index: int) -> tuple[int, float]:
            cast = [one for name in self.names if (one := votes[index]["agents"][name]["votes"])]
            winners = self.relation.classes([one[0][0] for one in cast], batch[index].choices)
            shares = [one[0][1] / sum(count for _, count in one) for one in cast]
            return (-len(set(winners)), min(shares, default=1.0))

        records = []
        for index in sorted(range(len(batch)), key=dissent)[: self.config.logging.gallery]:
            prompt, vote = batch[index], votes[index]
            agents = {}
            for name, own in zip(self.names, by_uid, strict=True):
                kept = {key: vote["agents"][name][key] for key in ("answers", "votes", "tie", "label", "teacher")}
                agents[name] = {**kept, "sample": own[prompt.uid].completions[0].text}
            files = [self._picture(prompt.uid, i, data) for i, data in enumerate(prompt.images)]
            records.append(
                {
                    "step": step,
                    "uid": prompt.uid,
                    "row": prompt.row_id,
                    "text": prompt.text,
                    "gold": prompt.gold,
                    "tag": prompt.tag,
                    "images": files,
                    "agents": agents,
                }
            )
        self.folder.append("gallery.jsonl", records)

    def _picture(self, uid: str, number: int, data: bytes) -> str:
        """A thumbnail file for the report; its path within the run folder."""
        name = f"gallery/{uid}_{number}.png"
        image: Image.Image = load_image(data, GALLERY_SIDE)
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        path = self.folder.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(buffer.getvalue())
        return name

    def _tick(self, what: str | None) -> None:
        """Close the running part of the step and open the next; None: nothing is running."""
        now = time.perf_counter()
        if self._mark is not None:
            part, since = self._mark
            self._clock[part.split()[0]] = self._clock.get(part.split()[0], 0.0) + now - since
        self._mark = (what, now) if what else None

    def _timing(self, step: int, metrics: Mapping[str, Any], rates: Mapping[str, Any], late: bool) -> None:
        # Evaluation and checkpoint of the step before are on this step's line: they ran since the last one.
        self._tick(None)
        if late and rates:
            # The updates ran while this process already waited for the next rollouts: that part of it is theirs.
            slowest = max(rate["update_seconds"] + rate["sync_seconds"] for rate in rates.values())
            waited, counted = self._clock.get("rollout", 0.0), self._clock.get("update", 0.0)
            moved = min(waited, max(0.0, slowest - counted))
            self._clock |= {"rollout": waited - moved, "update": counted + moved}
        seconds = {part: round(value, 4) for part, value in self._clock.items()}
        seconds["total"] = round(sum(self._clock.values()), 4)
        self._clock = {}
        comparisons = self._comparisons.take()
        if comparisons["timed_out"]:
            self.progress.message(
                f"step {step}: {comparisons['timed_out']} comparisons of answers ran out of time and count as different"
            )
        timing = {
            "step": step,
            "seconds": seconds,
            "peak_rss_gb": round(rss.peak() / 1e9, 3),
            "comparisons": comparisons,
            **({"agents": dict(rates)} if rates else {}),
        }
        self.folder.append("timings.jsonl", [timing])
        self.trackers.log(timing)
        self.progress.step(metrics, timing)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
