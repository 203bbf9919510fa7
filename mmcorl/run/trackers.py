"""Send a run's numbers to TensorBoard, always, and to wandb or trackio when the config names them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from mmcorl.errors import UserError
from mmcorl.run.folder import atomic_write

NAMES = ("tensorboard", "wandb", "trackio")
PROJECT = "mmcorl"
STATE_FILE = "trackers.json"


def require_trackers(names: Sequence[str]) -> None:
    """Refuse names that are unknown or whose package is not installed; imports none of them."""
    for name in names:
        if name not in NAMES:
            raise UserError(f"trackers has {name!r}, which is not one of {', '.join(NAMES)}; remove or correct it.")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"trackers asks for {name}, which is not installed; run `pip install {name}` or leave it out."
            )


def flatten(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a record of metrics.jsonl, validation.jsonl or timings.jsonl by tag.

    `agents/qwen/reward_mean`, `cohort/agreement`, `validation/held_out/qwen/accuracy`,
    `validation/held_out/cohort/agreement`, `timings/rollout`. Null and text are left out.
    """
    if "set" in record:
        base = f"validation/{record['set']}"
        agents = {f"{base}/{agent}": values for agent, values in (record.get("agents") or {}).items()}
        tree: dict[str, Any] = {**agents, f"{base}/cohort": record.get("cohort")}
    elif "seconds" in record:
        rest = {key: value for key, value in record.items() if key not in ("step", "seconds")}
        tree = {"timings": {**(record["seconds"] or {}), **rest}}
    else:
        tree = {key: value for key, value in record.items() if key != "step"}
    return dict(_numbers(tree, ""))


Tracker = tuple[Callable[[int, Mapping[str, float]], object], Callable[[], object]]
"""What logs the values of a step, and what closes the tracker."""


class _State(BaseModel):
    """The content of trackers.json."""

    ids: dict[str, str] = {}
    sent: dict[str, int] = {}


class Trackers:
    """All trackers of a run; opened once per session, also when the run is resumed.

    TensorBoard is written to `run_dir`/tensorboard whether it is named or not; on a resume it purges what an earlier
    session wrote after `start_step`. wandb and trackio continue the run whose id is kept in `run_dir`/trackers.json;
    a record that an earlier session has sent is not sent again, since a resumed run repeats it number for number. Their
    environment variables hold: WANDB_MODE, WANDB_PROJECT, TRACKIO_DIR, TRACKIO_PROJECT.

    Raises UserError: a name is unknown, its package is missing, or it cannot start.
    """

    def __init__(
        self,
        run_dir: Path,
        names: Sequence[str] = ("tensorboard",),
        config: Mapping[str, Any] | None = None,
        start_step: int = 0,
    ) -> None:
        require_trackers(names)
        self._start_step, self._state_file = start_step, run_dir / STATE_FILE
        others = [name for name in dict.fromkeys(names) if name != "tensorboard"]
        state = _State()
        try:
            if start_step and self._state_file.exists():
                state = _State.model_validate_json(self._state_file.read_bytes())
        except ValidationError:  # TensorBoard needs nothing of it.
            if others:
                print(
                    f"{str(self._state_file)!r} is damaged: {' and '.join(others)} cannot go on with the run begun "
                    "there and begin another",
                    file=sys.stderr,
                )
        self._ids, self._sent = state.ids, state.sent
        """The last step sent of each kind of record."""
        self._tensorboard = _tensorboard(run_dir / "tensorboard", start_step)
        self._others: list[Tracker] = []
        try:
            for name in others:
                self._ids.setdefault(name, secrets.token_hex(4))
                start = _wandb if name == "wandb" else _trackio
                self._others.append(start(run_dir, dict(config or {}), self._ids[name]))
        except BaseException:
            self.close()
            raise
        self._save_state()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, record: Mapping[str, Any]) -> None:
        """Send one record of metrics.jsonl, validation.jsonl or timings.jsonl."""
        step, values = int(record["step"]), flatten(record)
        kind = f"validation/{record['set']}" if "set" in record else "timings" if "seconds" in record else "step"
        is_new = step > self._sent.get(kind, -1)
        if is_new or step > self._start_step:  # TensorBoard has purged what an earlier session wrote from there on
            self._tensorboard[0](step, values)
        if is_new:
            for log, _ in self._others:
                log(step, values)
            self._sent[kind] = step
            self._save_state()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            for _, close in (self._tensorboard, *self._others):
                stack.callback(close)

    def _save_state(self) -> None:
        content = json.dumps({"ids": self._ids, "sent": self._sent})
        atomic_write(self._state_file, content, sync=bool(self._others))


def _tensorboard(folder: Path, start_step: int) -> Tracker:
    from torch.utils.tensorboard import SummaryWriter

    # Readers drop what earlier files hold from this step on: all of it when no step is done.
    writer = SummaryWriter(str(folder), purge_step=start_step + 1 if start_step else 0)

    before = threading.excepthook

    def hook(arguments: Any) -> None:
        # The error of TensorBoard's thread is raised again by the next `log`, and told there.
        if type(arguments.thread).__name__ != "_AsyncWriterThread":
            before(arguments)

    def close() -> None:
        threading.excepthook = before
        writer.close()

    threading.excepthook = hook

    def log(step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)
        writer.flush()  # A killed run loses nothing its checkpoint has seen.

    return log, close


def _wandb(run_dir: Path, config: dict[str, Any], identity: str) -> Tracker:
    import wandb

    try:
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=str(config.get("name", run_dir.resolve().name)),
            id=identity,
            resume="allow",
            dir=str(run_dir),
            config=config,
            allow_val_change=True,
        )
    except (wandb.errors.UsageError, wandb.errors.CommError, wandb.errors.AuthenticationError) as error:
        raise UserError(
            f"wandb cannot start ({' '.join(str(error).split())}); run `wandb login`, set WANDB_MODE=offline or do "
            "without it."
        ) from error
    return lambda step, values: run.log(dict(values), step=step), run.finish


def _trackio(run_dir: Path, config: dict[str, Any], identity: str) -> Tracker:
    import trackio

    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=f"{config.get('name', run_dir.resolve().name)}-{identity}",
                config=config,
                resume="allow",
                embed=False,
            )
    except ValueError as error:
        raise UserError(
            f"trackio cannot start ({' '.join(str(error).split())}); correct its settings or do without it."
        ) from error

    def close() -> None:
        with contextlib.redirect_stdout(sys.stderr):
            trackio.finish()  # the run's own finish would be called, and printed, again at exit

    return lambda step, values: run.log(dict(values), step=step), close


def _numbers(value: object, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _numbers(below, f"{path}/{key}" if path else str(key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)
