"""A run is a folder: everything that happened, and all that is needed to go on.

The journal of `cotrain`: writes the logs, evaluates, checkpoints, and takes up where the last committed
checkpoint stands. Logs hold no clock readings (those are in timings.jsonl), so that a run that was killed and
resumed ends with the same bytes as one that was not.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import yaml
from PIL import Image

from mmcorl import config as settings
from mmcorl.agent import Agent, Parallel, in_turn, results
from mmcorl.answers import RELATION, Equivalence
from mmcorl.config import Config
from mmcorl.errors import UserError
from mmcorl.interactions.base import Episode
from mmcorl.interactions.records import agent_metrics, call_records
from mmcorl.labels.supervision import Labels
from mmcorl.report import profile_table
from mmcorl.run import checkpoints
from mmcorl.run.metrics import Comparisons, step_metrics, validation_metrics, votes_records
from mmcorl.run.progress import Progress
from mmcorl.run.throughput import overall, peak_memory
from mmcorl.run.trackers import Trackers
from mmcorl.system import rss
from mmcorl.types import Completion, Group, Prompt
from model_adapters.images import load_image

LOGS = (
    "metrics.jsonl",
    "validation.jsonl",
    "responses.jsonl",
    "votes.jsonl",
    "episodes.jsonl",
    "gallery.jsonl",
    "timings.jsonl",
)
LOCK, DATA_CHECK, PROFILE = ".lock", "data_check.json", "profile"
CHANGEABLE = (
    "logging.",
    "checkpoint.",
    "notes",
    "device",
    "threads",
    "validation.every",
    "training.tokens_per_microbatch",
    "training.gradient_checkpointing",
    "training.sharding",
    "training.offload",
    "engine.",
    "launcher",
    "ray.",
    "time_sliced",
    "profile",
)
"""Settings that may differ when a run is resumed, so that it can go on after running out of memory or on another
machine; so may an agent's `ranks`. They leave the method alone; a run that changes device, threads, engine or ranks
draws other samples from there."""
CHANGEABLE_OF_AGENTS = re.compile(r"agents\[\d+\]\.ranks:")
MUTE_SHARE, MUTE_STEPS = 0.9, 5
"""An agent whose completions lack an answer to this share for so many steps is worth a warning."""
GALLERY_SIDE = 512


class RunFolder:
    """The folder on disk: lock, logs, committed checkpoints. A context manager that holds the lock.

    Opening only looks: it refuses a folder in use by another process, one that holds something else or a run
    with other settings, and a place that cannot be written. `begin` makes or takes over the folder, so that
    whatever is refused in between leaves no trace.
    """

    def __init__(self, path: Path, config: Config):
        self.path, self.config = path, config
        self.checkpoints = path / "checkpoints"
        self._lock: IO[str] | None = None
        self._look()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()

    def begin(self, data_check: Mapping[str, Any]) -> checkpoints.Committed | None:
        """Make the folder, or take it over; returns the last committed set, None where there is none.

        Logs written after that set are cut off, and without one they are emptied.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._take()
            self._look()  # Another process may have begun a run here since.
            start = self._last_set()
            write_file(self.path / "config.yaml", settings.dump(self.config))
            write_file(self.path / DATA_CHECK, json.dumps(data_check, indent=1) + "\n")
            for name in LOGS:
                if (self.path / name).exists():
                    os.truncate(self.path / name, start.meta["logs"].get(name, 0) if start else 0)
            if start:
                checkpoints.prune(self.checkpoints, self.config.checkpoint.keep_last)
        except OSError as error:
            raise UserError(
                f"the run folder {str(self.path)!r} cannot be written ({error.strerror}): choose another --run-dir"
            ) from error
        return start

    def finished(self, steps: int) -> dict[str, Any] | None:
        """The summary of a run that has done all its steps and exported its weights; None when work is left."""
        summary, last = self.path / "summary.json", self._last_set()
        if last is None or last.step < steps or not summary.is_file() or not (self.path / "final").is_dir():
            return None
        told: dict[str, Any] = json.loads(summary.read_text())
        return told

    def data_check(self) -> dict[str, Any]:
        """What the run's first check of its data found; empty before there was one."""
        file = self.path / DATA_CHECK
        if not file.is_file():
            return {}
        try:
            return dict(json.loads(file.read_text()))
        except (ValueError, TypeError) as error:
            raise UserError(f"{str(file)!r} is damaged ({error}): remove it to have the data checked again") from error

    def append(self, name: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Add lines to one log."""
        with (self.path / name).open("a", encoding="utf-8") as file:
            for record in records:
                # Lone surrogates in a model's text survive as escapes.
                file.write(json.dumps(record, allow_nan=False) + "\n")

    def log_sizes(self) -> dict[str, int]:
        """Bytes of each log, all of them on disk, for the COMMIT file."""
        sizes = {}
        for name in LOGS:
            if (self.path / name).exists():
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())
                    sizes[name] = os.fstat(file.fileno()).st_size
        return sizes

    def lines(self, name: str) -> list[dict[str, Any]]:
        """Records of one log."""
        file = self.path / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _look(self) -> None:
        path, held = self.path, self.path / "config.yaml"
        if not path.exists():
            _require_room_for(path)
            return
        if not path.is_dir():
            raise UserError(f"--run-dir {str(path)!r} is a file: choose a folder")
        if held.is_file():
            self._take()
            self._same_settings(held)
        elif any(file.name not in (LOCK, fresh(held).name) for file in path.iterdir()):
            raise UserError(f"{str(path)!r} is not empty and holds no run: choose another --run-dir")
        if not os.access(path, os.W_OK | os.X_OK):
            raise UserError(f"the run folder {str(path)!r} may not be written: choose another --run-dir")

    def _take(self) -> None:
        """Lock the folder for as long as this process lives."""
        if self._lock is not None:
            return
        try:
            lock = (self.path / LOCK).open("a")
        except OSError as error:
            raise UserError(
                f"the run folder {str(self.path)!r} cannot be written ({error.strerror}): choose another --run-dir"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise UserError(
                f"another process is working in {str(self.path)!r}: wait for it or choose another --run-dir"
            ) from None
        self._lock = lock

    def _same_settings(self, held: Path) -> None:
        try:
            # Through Config, so that a setting added to the program since has its default on both sides.
            old = settings.parse(yaml.safe_load(held.read_text())).model_dump(mode="json")
        except (yaml.YAMLError, UnicodeDecodeError, UserError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"{str(held)!r}, the settings of the run held there, cannot be read ({reason}): restore it, or choose "
                "another --run-dir"
            ) from error
        changed = [
            change
            for change in settings.differences(old, self.config.model_dump(mode="json"))
            if not (change.startswith(CHANGEABLE) or CHANGEABLE_OF_AGENTS.match(change))
        ]
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            raise UserError(
                f"{str(self.path)!r} holds a run with other settings ({'; '.join(changed[:3])}{more}): "
                "give back the old ones to resume it, or choose another --run-dir"
            )

    def _last_set(self) -> checkpoints.Committed | None:
        """The newest committed set, found whole, with the logs that belong to it."""
        sets = checkpoints.committed(self.checkpoints)
        if not sets:
            return None
        last = sets[-1]
        last.verify()
        for name, size in last.meta["logs"].items():
            _require_whole(self.path / name, size, last.step)
        return last


def _require_whole(log: Path, size: int, step: int) -> None:
    """Refuse a log that lost lines its checkpoint has seen, or in which one of them is no JSON."""
    found = log.stat().st_size if log.is_file() else 0
    if found < size:
        raise UserError(
            f"{str(log)!r} has {found} bytes, fewer than the {size} it had at the checkpoint of step {step}: "
            "restore it, or choose another --run-dir"
        )
    read = 0
    with log.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            read += len(line)
            if read > size:
                return
            try:
                json.loads(line)
            except ValueError as error:
                raise UserError(
                    f"line {number} of {str(log)!r} is damaged ({error}): restore it, or choose another --run-dir"
                ) from error


def _require_room_for(path: Path) -> None:
    """Refuse a folder that cannot be made, without making it."""
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if not above.is_dir():
        raise UserError(f"--run-dir {str(path)!r} would lie inside the file {str(above)!r}: choose another folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise UserError(
            f"--run-dir {str(path)!r} cannot be made, {str(above)!r} may not be written: choose another one"
        )


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
        relation: Equivalence,
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
            write_file(self.folder.path / PROFILE / "summary.txt", told)
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
        final, unfinished = self.folder.path / "final", self.folder.path / ".partial_final"
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
            "grader": {"name": RELATION[0], "version": RELATION[1]},
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
        write_file(self.folder.path / "summary.json", json.dumps(summary, indent=1) + "\n")
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


def write_file(path: Path, text: str) -> None:
    """Replace a small file at once."""
    with fresh(path).open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh(path), path)


def fresh(path: Path) -> Path:
    """Where a file is written before it takes its name."""
    return path.with_name(f".{path.name}.new")
