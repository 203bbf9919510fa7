"""Send a run's numbers to TensorBoard, always, and to the services that the config names."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import re
import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ValidationError

from mmcorl.errors import UserError
from mmcorl.run.folder import atomic_write
from mmcorl.run.tracking_services import SERVICES, Begun, plain_tag, send_gallery
from mmcorl.system.install_hints import install_package

NAMES = ("tensorboard", *SERVICES)
STATE_FILE = "trackers.json"
WAITING = 10_000
"""Records of a run that may wait for a service to take them."""
STARTING = 120
"""Seconds that a service gets to start."""
PATIENCE = 60
"""Seconds that a service gets to end."""


def require_trackers(names: Sequence[str]) -> None:
    """Refuse names that are unknown or whose package is not installed; imports none of them."""
    for name in names:
        if name not in NAMES:
            raise UserError(f"trackers has {name!r}, which is not one of {', '.join(NAMES)}; remove or correct it.")
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"logging.trackers asks for {name}, which is not installed; run `{install_package(name)}` or leave it "
                "out."
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
    leaves = _leaves(tree, "/")
    return {
        tag: float(value) for tag, value in leaves if isinstance(value, int | float) and not isinstance(value, bool)
    }


class _State(BaseModel):
    """The content of trackers.json."""

    ids: dict[str, str] = {}
    sent: dict[str, int] = {}


class Trackers:
    """All trackers of a run; opened once per session, also when the run is resumed.

    TensorBoard is written to `run_dir`/tensorboard whether it is named or not, and where it is not installed and not
    named, a line on stderr says that it is not; on a resume it purges what an earlier session wrote after `start_step`.
    The others, accelerate's trackers, go on with the run whose id is kept in `run_dir`/trackers.json; a record that an
    earlier session has handed over is not sent again, since a resumed run repeats it number for number. Their own
    environment variables hold. A service that fails later is left out from there on. Runs of a sweep,
    SWEEP/METHOD/seed_S, are grouped by its name.

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
        self._folder, self._start_step, self._state_file = run_dir, start_step, run_dir / STATE_FILE
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
        self._others: dict[str, tuple[_Sender, Any]] = {}
        config = config or {}
        place = run_dir.resolve()
        group = place.parents[1].name if re.fullmatch(r"seed_\d+", place.name) else None
        try:
            for name in others:
                known = self._ids.get(name)
                identity = known or secrets.token_hex(16)
                begun = Begun(run_dir, str(config.get("name", place.name)), group, identity, known)
                self._others[name] = sender, tracker = _started(name, begun, _settings(config))
                chosen = SERVICES[name].identity
                self._ids[name] = sender.call(partial(chosen, tracker)).result(STARTING) if chosen else identity
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
            named = {plain_tag(name): value for name, value in values.items()}
            for sender, tracker in self._others.values():
                sender.send(partial(tracker.log, named, step=step))
            self._sent[kind] = step
            self._save_state()

    def log_gallery(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Send the lines of gallery.jsonl of one step, with a picture of each, to services that have tables."""
        if not records or not self._others or int(records[0]["step"]) <= self._sent.get("gallery", -1):
            return
        for name, (sender, tracker) in self._others.items():
            if SERVICES[name].has_tables:
                sender.send(partial(send_gallery, name, tracker, records, self._folder))
        self._sent["gallery"] = int(records[0]["step"])

    def close(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._tensorboard[1])
            for name, (sender, tracker) in self._others.items():
                with contextlib.redirect_stdout(sys.stderr):
                    sender.finish(partial(SERVICES[name].finish, tracker))

    def _save_state(self) -> None:
        content = json.dumps({"ids": self._ids, "sent": self._sent})
        atomic_write(self._state_file, content, sync=bool(self._others))


def _tensorboard(
    folder: Path, start_step: int
) -> tuple[Callable[[int, Mapping[str, float]], object], Callable[[], object]]:
    """Return what logs the values of a step, and what closes the writer."""
    if importlib.util.find_spec("tensorboard") is None:
        print(f"{folder.name}/ is not written: the package {folder.name} is not installed", file=sys.stderr)
        return lambda step, values: None, lambda: None
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


class _Sender:
    """Hands calls to one tracker in a thread of its own, so that a slow or broken service never holds up the run.

    The first error, or a queue that grows too long, ends it: that is said once, and later calls are dropped.
    """

    def __init__(self, name: str) -> None:
        self._name, self._given_up = name, False
        self._calls: queue.Queue[tuple[Callable[[], Any], Future[Any]]] = queue.Queue()
        threading.Thread(target=self._work, name=f"tracker {name}", daemon=True).start()

    def call(self, work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((work, future))
        return future

    def send(self, work: Callable[[], Any]) -> None:
        if not self._given_up:
            self.call(work).add_done_callback(self._look)
        if self._calls.qsize() > WAITING:
            self.give_up(f"{WAITING} records wait to be taken")

    def give_up(self, reason: str) -> None:
        if not self._given_up:
            self._given_up = True
            print(f"{self._name} takes no more of this run ({reason}); the run goes on without it", file=sys.stderr)

    def _look(self, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self.give_up(_line(error))

    def finish(self, work: Callable[[], Any]) -> None:
        """Wait for what was sent and then for `work`, but not for long."""
        if self._given_up:
            return
        try:
            self.call(work).result(timeout=PATIENCE)
        except TimeoutError:
            self.give_up(f"it did not end within {PATIENCE} s")
        except Exception as error:
            self.give_up(_line(error))

    def _work(self) -> None:
        while True:
            work, future = self._calls.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _started(name: str, begun: Begun, config: Mapping[str, Any]) -> tuple[_Sender, Any]:
    sender = _Sender(name)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for results
            return sender, sender.call(partial(SERVICES[name].start, name, begun, config)).result(timeout=STARTING)
    except Exception as error:
        told = f"no answer within {STARTING} s" if isinstance(error, TimeoutError) else _line(error)
        raise UserError(
            f"{name} cannot start ({told}); correct its settings, work offline (docs/sharing.md) or "
            "leave it out of logging.trackers"
        ) from error


def _settings(config: Mapping[str, Any]) -> dict[str, str | float | None]:
    """Return a config flat, by dotted names as in overrides; agents by name."""
    agents = {str(agent["name"]): agent for agent in config.get("agents") or ()}
    leaves = _leaves({**config, "agents": agents} if agents else config, ".")
    return {key: value if isinstance(value, str | int | float | None) else json.dumps(value) for key, value in leaves}


def _leaves(tree: Mapping[str, Any], separator: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from ((f"{key}{separator}{below}", leaf) for below, leaf in _leaves(value, separator))
        else:
            yield str(key), value
