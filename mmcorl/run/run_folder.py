"""The folder of a run on disk: logs, committed checkpoints, resolved config; what a resume may change."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmcorl import config as settings
from mmcorl.config import Config
from mmcorl.errors import UserError
from mmcorl.registry import KEPT, user_files
from mmcorl.run import checkpoints
from mmcorl.run.folder import Folder, atomic_write, read_json

LOGS = (
    "metrics.jsonl",
    "validation.jsonl",
    "responses.jsonl",
    "votes.jsonl",
    "episodes.jsonl",
    "gallery.jsonl",
    "timings.jsonl",
)
CONFIG, DATA_CHECK, SUMMARY, FINAL, PROFILE = "config.yaml", "data_check.json", "summary.json", "final", "profile"


class RunFolder(Folder):
    """The folder of one run.

    Opening only looks: it refuses a folder in use by another process, one that holds something else or a run with
    other settings, and a place that cannot be written. `begin` makes or takes over the folder, so that whatever is
    refused in between leaves no trace.
    """

    MARKER = CONFIG
    KIND = "run"
    ELSEWHERE = "choose another --run-dir"

    def __init__(self, path: Path, config: Config):
        super().__init__(path)
        self.config = config
        self.checkpoints = path / "checkpoints"
        named = [config.reward.kind, config.supervision.kind, config.answers.relation, config.objective.kind or ""]
        named += [config.engine.kind, *(agent.adapter or "" for agent in config.agents)]
        named += [benchmark.name for benchmark in config.validation.benchmarks]
        self.user_files = {name: file.read_bytes() for name, file in user_files(named).items()}
        self._check()

    def _check(self) -> None:
        if self.path.is_dir() and self.begun:
            self.lock()
            try:
                # Through Config, so that a setting added to the program since has its default on both sides.
                held = settings.load_kept(self.path).model_dump(mode="json")
            except UserError as error:
                raise UserError(
                    f"{str(self.path / CONFIG)!r}, the settings of the run in this folder, cannot be read ({error}): "
                    f"restore it, or {self.ELSEWHERE}"
                ) from error
            self.require_same_settings(settings.changes_to_refuse(held, self.config.model_dump(mode="json")))
            for name, content in self.user_files.items():
                kept = self.path / KEPT / name
                if kept.is_file() and (before := kept.read_bytes()) != content:
                    raise UserError(
                        f"the run in {str(self.path)!r} began with another {name} ({_change(before, content)}): "
                        f"restore it from {str(kept)!r}, put yours there to go on with it, or {self.ELSEWHERE}"
                    )
        self.require_usable()

    def begin(self, data_check: Mapping[str, Any]) -> checkpoints.Committed | None:
        """Create the folder, or take it over; return the last committed checkpoint, None where there is none.

        Logs are cut back to what that checkpoint has seen; without one they are emptied.
        """
        try:
            self.lock()
            self._check()  # Another process may have begun a run here since.
            start = self._last_checkpoint()
            self.write(CONFIG, settings.dump(self.config))
            for name, content in self.user_files.items():
                (self.path / KEPT / name).parent.mkdir(parents=True, exist_ok=True)
                atomic_write(self.path / KEPT / name, content)
            self.write(DATA_CHECK, json.dumps(data_check, indent=1) + "\n")
            for name in LOGS:
                if (self.path / name).exists():
                    os.truncate(self.path / name, start.meta["logs"].get(name, 0) if start else 0)
            if start:
                checkpoints.prune(self.checkpoints, self.config.checkpoint.keep_last)
        except OSError as error:
            raise self.unwritable(error) from error
        return start

    def finished(self, steps: int) -> dict[str, Any] | None:
        """Return the summary of a run that did all its steps and exported its weights; None when work is left."""
        last = self._last_checkpoint()
        if last is None or last.step < steps or not (self.path / FINAL).is_dir():
            return None
        return self.document(SUMMARY)

    def data_check(self) -> dict[str, Any]:
        """Return the record of the run's first data check; empty before there was one."""
        return read_json(self.path / DATA_CHECK, "remove it to have the data checked again") or {}

    def log_sizes(self) -> dict[str, int]:
        """Return the bytes of each log, all of them on disk, for the COMMIT file."""
        sizes = {}
        for name in LOGS:
            if (self.path / name).exists():
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())
                    sizes[name] = os.fstat(file.fileno()).st_size
        return sizes

    def _last_checkpoint(self) -> checkpoints.Committed | None:
        """The newest committed checkpoint, verified, with the logs that belong to it."""
        committed = checkpoints.committed(self.checkpoints)
        if not committed:
            return None
        last = committed[-1]
        last.verify()
        for name, size in last.meta["logs"].items():
            self._require_intact(self.path / name, size, last.step)
        return last

    def _require_intact(self, log: Path, size: int, step: int) -> None:
        """Refuse a log that lost lines its checkpoint has seen, or in which one of them is not JSON."""
        way_out = f"restore it, or {self.ELSEWHERE}"
        present = log.stat().st_size if log.is_file() else 0
        if present < size:
            raise UserError(
                f"{str(log)!r} has {present} bytes, fewer than the {size} it had at the checkpoint of step {step}: "
                f"{way_out}"
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
                    raise UserError(f"line {number} of {str(log)!r} is damaged ({error}): {way_out}") from error


def _change(old: bytes, new: bytes) -> str:
    """Return the first line in which two texts differ, as `line N: old -> new`."""
    lines = zip_longest(*(text.decode(errors="replace").split("\n") for text in (old, new)), fillvalue="")
    number, pair = next(((number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]), (0, ("", "")))
    return f"line {number}: " + " -> ".join(repr(line.strip()[:60]) for line in pair)
