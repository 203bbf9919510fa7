"""Sends a run's numbers to TensorBoard, always, and to wandb or trackio when asked."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from mmcorl.errors import UserError
from mmcorl.run.folder import atomic_write

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

NAMES = ("tensorboard", "wandb", "trackio")
PROJECT = "mmcorl"
STATE_FILE = "trackers.json"


def require_trackers(names: Sequence[str]) -> None:
    """Refuse names that are unknown or whose package is not installed; imports none of them.

    Raises:
        UserError: see above.
    """
    for name in names:
        if name not in NAMES:
            raise UserError(f"trackers has {name!r}, which is not one of {', '.join(NAMES)}; remove or correct it.")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"trackers asks for {name}, which is not installed; run `pip install {name}` or leave it out."
            )


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record of metrics.jsonl, validation.jsonl or timings.jsonl by tag, NaN included.

    `agents/qwen/reward_mean`, `cohort/agreement`, `validation/held_out/qwen/accuracy`,
    `validation/held_out/cohort/agreement`, `timings/rollout`. Null and text are left out.
    """
    if "set" in record:
        base = f"validation/{record['set']}"
        agents = {f"{base}/{agent}": told for agent, told in (record.get("agents") or {}).items()}
        tree: dict[str, Any] = {**agents, f"{base}/cohort": record.get("cohort")}
    elif "seconds" in record:
        rest = {key: value for key, value in record.items() if key not in ("step", "seconds")}
        tree = {"timings": {**(record["seconds"] or {}), **rest}}
    else:
        tree = {key: value for key, value in record.items() if key != "step"}
    return dict(_leaves(tree, ""))


class Sink(Protocol):
    """One place that numbers go to."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one record."""

    def close(self) -> None:
        """Finish what is buffered."""


class Trackers:
    """Every tracker of a run; open it once per session, also when the run is resumed.

    TensorBoard is written below `run_dir/tensorboard` whether it is named or not. On a resume it purges
    what an earlier session wrote after `start_step`, and all of it when no step is done. wandb and
    trackio continue the run whose id is kept in `run_dir/trackers.json`; a record that they already have
    is not sent again, since a resumed run repeats it number for number. Their own settings hold:
    WANDB_MODE, WANDB_PROJECT, TRACKIO_DIR, TRACKIO_PROJECT.

    Args:
        run_dir: the run folder.
        names: trackers asked for, of `NAMES`.
        config: the resolved config, shown by wandb and trackio.
        start_step: training steps done when this session starts; 0 for a new run.

    Raises:
        UserError: a name is unknown, its package is missing, or it cannot start.
    """

    def __init__(
        self,
        run_dir: Path,
        names: Sequence[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
        start_step: int = 0,
    ) -> None:
        require_trackers(names)
        config = dict(config or {})
        self._sinks: list[Sink] = [TensorBoardSink(Path(run_dir) / "tensorboard", start_step)]
        openers: dict[str, Callable[[Path, dict[str, Any], str], Sink]] = {
            "wandb": _WandbSink,
            "trackio": _TrackioSink,
        }
        asked = [name for name in dict.fromkeys(names) if name in openers]
        self._memory = _Memory(Path(run_dir) / STATE_FILE, start_step)
        self._start_step = start_step
        try:
            for name in asked:
                self._sinks.append(openers[name](Path(run_dir), config, self._memory.identity(name)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Send one record of metrics.jsonl, validation.jsonl or timings.jsonl."""
        step, values = int(record["step"]), flatten(record)
        stream = f"validation/{record['set']}" if "set" in record else "timings" if "seconds" in record else "step"
        is_new = self._memory.is_new(stream, step)
        if is_new or step > self._start_step:  # TensorBoard has purged what an earlier session wrote from there on
            self._sinks[0].write(step, values)
        if is_new:
            for sink in self._sinks[1:]:
                sink.write(step, values)
            self._memory.remember(stream, step)

    def close(self) -> None:
        """Flush and close every tracker, also when one of them fails."""
        with contextlib.ExitStack() as stack:
            for sink in self._sinks:
                stack.callback(sink.close)
            self._sinks = []


class TensorBoardSink:
    """Event files through tensorboard's own writer, which needs no torch."""

    def __init__(self, folder: Path, start_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # Readers take the files of a folder in the order of their names, which begin with whole seconds; a
        # session that starts within the same second would be ordered by its process id instead.
        written = {path.name.split(".")[3] for path in folder.glob("events.out.tfevents.*")}
        while f"{int(time.time()):010d}" in written:
            time.sleep(0.05)
        self._writer = EventFileWriter(str(folder))
        # A reader drops what earlier files hold from this step on: all of them, when no step is done.
        first = start_step + 1 if start_step else 0
        self._add(Event(step=first, session_log=SessionLog(status=SessionLog.START)))
        self._writer.flush()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write and flush, so that a killed run loses nothing that its checkpoint has seen."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(Event(step=step, summary=Summary(value=points)))
        self._writer.flush()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._writer.add_event(event)

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class _WandbSink:
    def __init__(self, run_dir: Path, config: dict[str, Any], identity: str) -> None:
        import wandb

        try:
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                name=str(config.get("name", run_dir.resolve().name)),
                id=identity,
                resume="allow",
                dir=str(run_dir),
                config=config,
                allow_val_change=True,
            )
        except (wandb.errors.UsageError, wandb.errors.CommError, wandb.errors.AuthenticationError) as error:
            said = " ".join(str(error).split())
            raise UserError(
                f"wandb cannot start ({said}); run `wandb login`, set WANDB_MODE=offline or do without it."
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class _TrackioSink:
    def __init__(self, run_dir: Path, config: dict[str, Any], identity: str) -> None:
        import trackio

        name = str(config.get("name", run_dir.resolve().name))
        try:
            with contextlib.redirect_stdout(sys.stderr):  # its greeting is no result of ours
                self._run = trackio.init(
                    project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                    name=f"{name}-{identity}",
                    config=config,
                    resume="allow",
                    embed=False,
                )
        except ValueError as error:
            said = " ".join(str(error).split())
            raise UserError(f"trackio cannot start ({said}); correct its settings or do without it.") from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        import trackio

        with contextlib.redirect_stdout(sys.stderr):
            trackio.finish()  # the run's own finish would be called, and printed, again at exit


class _Memory:
    """Ids of the remote runs and the last step each stream has sent, in a file of the run folder."""

    def __init__(self, path: Path, start_step: int) -> None:
        self._path = path
        kept = json.loads(path.read_text()) if start_step and path.exists() else {}
        self._ids: dict[str, str] = kept.get("ids", {})
        self._sent: dict[str, int] = kept.get("sent", {})

    def identity(self, name: str) -> str:
        if name not in self._ids:
            self._ids[name] = secrets.token_hex(4)
            self._save()
        return self._ids[name]

    def is_new(self, stream: str, step: int) -> bool:
        return step > self._sent.get(stream, -1)

    def remember(self, stream: str, step: int) -> None:
        self._sent[stream] = step
        self._save()

    def _save(self) -> None:
        atomic_write(self._path, json.dumps({"ids": self._ids, "sent": self._sent}))


def _leaves(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)
