"""One rank of one agent in a process of its own: a Ray actor around the same worker that a local run has."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.errors import RunError, UserError

if TYPE_CHECKING:
    from mmcorl.config import AgentSettings, Config

ECHO = re.compile(r"nccl|gloo|connection (closed|reset|refused)|broken pipe|process ?group|tcpstore", re.IGNORECASE)
"""In an error about another rank that has gone rather than about this one."""


@dataclass(frozen=True)
class Place:
    """Where a rank's process is."""

    node: str
    """Address of its machine."""
    node_id: str
    pid: int
    gpus: tuple[str, ...]
    log: str
    """File that takes what it prints until the run has a folder."""


@dataclass(frozen=True)
class Broke:
    """A call that raised, as data: an error of any library survives the way to the run's process."""

    error: str
    """Type and message."""
    echo: bool
    """It reads as if another rank had gone first."""
    refused: bool = False
    """The user's mistake, in a sentence."""
    no_room: str | None = None
    """The system's words where a write found no room."""


class Rank:
    """One rank of one agent, one per GPU. Nothing heavy is imported before `build` has set the process up."""

    def __init__(self, agent: str, environment: Mapping[str, str]):
        os.environ.update(environment)
        # Ray sets it for every worker; torch has renamed it and warns, and vLLM's engines must not see it.
        os.environ.pop("NCCL_ASYNC_ERROR_HANDLING", None)
        handle, self._log = tempfile.mkstemp(prefix=f"mmcorl-{agent}-", suffix=".log")
        _print_to(handle)
        # Where it stands when it crashes in native code, and when the nurse asks.
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, all_threads=True)

    def place(self) -> Place:
        """Who and where this is."""
        import ray

        context = ray.get_runtime_context()
        gpus = tuple(str(one) for one in context.get_accelerator_ids().get("GPU", []))
        return Place(ray.util.get_node_ip_address(), context.get_node_id(), os.getpid(), gpus, self._log)

    def keep_log(self, file: Path) -> Broke | None:
        """From now on print to the end of this file, after what was printed so far."""

        def keep() -> None:
            if not file.parent.parent.is_dir():
                raise RunError(
                    f"there is no folder {str(file.parent.parent)!r} on this machine: put the run folder on a file "
                    "system that all machines share"
                )
            file.parent.mkdir(exist_ok=True)
            with open(self._log, "rb") as before, file.open("ab") as log:
                shutil.copyfileobj(before, log)
            _print_to(os.open(file, os.O_WRONLY | os.O_APPEND))
            os.unlink(self._log)

        result: Broke | None = caught(keep)
        return result

    def free_port(self) -> int:
        """A port of this machine that nobody listens at."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    def build(
        self,
        config: Config,
        settings: AgentSettings,
        path: str,
        steps: int,
        device: str,
        threads: str,
        number: int,
        size: int,
        meeting: str,
    ) -> Broke | None:
        """Meet the other ranks at `meeting` (host:port of rank 0), load model, optimizer and engine."""
        os.environ["OMP_NUM_THREADS"] = threads

        def build() -> None:
            import torch

            from mmcorl.launch.process_setup import prepare_process
            from mmcorl.policy.prompt_encoder import Reader
            from mmcorl.sharding.ranks import Ranks
            from mmcorl.trainer.worker import Worker

            prepare_process(config)
            reader, here = Reader(config, settings, path), torch.device(device)
            ranks = Ranks.join(number, size, meeting, here, config.ray.collective_timeout)
            self._worker = Worker(config, reader, steps, here, ranks)

        result: Broke | None = caught(build)
        return result

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the worker; an error is returned as Broke, and its trace printed here."""
        return caught(lambda: getattr(self._worker, method)(*arguments))


def caught(call: Callable[[], Any]) -> Any:
    """The result of a call, or a Broke where it raised."""
    try:
        return call()
    except BaseException as error:  # An exit, too, ends the run here and not this process alone.
        traceback.print_exc()
        said = " ".join(str(error).split())
        user = isinstance(error, UserError) or any(kind.__name__ == "AdapterError" for kind in type(error).__mro__)
        room = None
        with contextlib.suppress(ImportError):
            from mmcorl.run.checkpoints import no_room

            room = no_room(error)
        plain = user or isinstance(error, RunError)
        return Broke(
            said if plain else f"{type(error).__name__}: {said}" if said else type(error).__name__,
            echo=not user and isinstance(error, RuntimeError | OSError) and bool(ECHO.search(said)),
            refused=user,
            no_room=room,
        )


def _print_to(handle: int) -> None:
    """Everything that this process prints goes to an open file, native code's words included."""
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), write_through=True)
