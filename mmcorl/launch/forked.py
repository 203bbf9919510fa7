"""Agents in processes that branch off the run's own: they work at the same time, each on a thread of its own.

A branch has at once what was read and imported before it, so it costs some milliseconds. It lives no longer than the
run's process, which asks it for one thing at a time.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import torch

from mmcorl.launch.health import RankError
from mmcorl.launch.host import Host

_DIES_WITH_ITS_PARENT = 1
"""PR_SET_PDEATHSIG of prctl."""


def may_fork(agents: int, threads: int | None, device: torch.device) -> bool:
    """Whether agents in branches of this process work, and work faster than one after the other here.

    Branches do not take threads of torch with them: neither those of an operator nor those for each GPU in sight.
    """
    if agents < 2 or threads != 1 or device.type != "cpu" or torch.cuda.is_available():
        return False
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


class ForkedTeam:
    """One worker in a branch of this process. `ready` before the first call."""

    size = 1

    def __init__(self, name: str, build: Callable[[], Host]):
        self.name = name
        self._here, there = multiprocessing.Pipe()
        branch = multiprocessing.get_context("fork").Process(target=self._serve, args=(there, build), name=name)
        branch.start()
        there.close()
        self._branch = branch

    def ready(self) -> None:
        """Wait until the worker has been built; what stood against it is raised."""
        self._answer("its start")

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], during: str) -> list[Any]:
        """Call it there; errors come here with the place where they were raised as a note."""
        (own,) = arguments
        # A branch that has ended cannot be told anything, and says so when it is asked.
        with suppress(BrokenPipeError):
            self._here.send((method, own))
        return [self._answer(during)]

    def end(self) -> None:
        """Of a branch that is idle, or one whose work nobody wants any more."""
        self._branch.kill()
        self._branch.join()

    def _answer(self, during: str) -> Any:
        try:
            result, errors = self._here.recv()
        except (EOFError, ConnectionResetError):
            self._branch.join()
            code = self._branch.exitcode or 0
            how = f"{signal.Signals(-code).name} ended it" if code < 0 else f"it left with exit code {code}"
            more = ", as happens where memory runs out" if code == -signal.SIGKILL else ""
            raise RankError(f"the process of agent {self.name!r} died during {during}: {how}{more}") from None
        for error, cause in itertools.pairwise(errors):
            error.__cause__ = cause
        if errors:
            raise errors[0]
        return result

    def _serve(self, pipe: Connection, build: Callable[[], Host]) -> None:
        """The branch: build, then answer until nobody asks any more."""
        ctypes.CDLL(None).prctl(_DIES_WITH_ITS_PARENT, signal.SIGKILL)
        self._here.close()
        # A Ctrl-C reaches all processes of a terminal: the run's own decides what comes of it.
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, signal.SIG_IGN)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # Its threads are not here either, which it would warn of.
        host: Host | None = None
        with suppress(EOFError, ConnectionError):
            while True:
                # Outside of what follows: its end is no error of a call.
                method, arguments = ("", ()) if host is None else pipe.recv()
                result: Any = None
                errors: tuple[BaseException, ...] = ()
                try:
                    if host is None:
                        host = build()
                    else:
                        result = host.call(method, *arguments)
                except BaseException as error:  # An exit, too, is one of the run and not of this process.
                    errors = _sendable(error)
                pipe.send((result, errors))
                if host is None:
                    return


def _sendable(error: BaseException) -> tuple[BaseException, ...]:
    """An error, with its trace as a note, and what caused it, one behind the other; in words what cannot travel."""
    trace = "".join(traceback.format_exception(error))
    chain: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    sent = tuple(one if _travels(one) else RuntimeError(f"{type(one).__name__}: {one}") for one in chain)
    sent[0].add_note(trace)
    return sent


def _travels(error: BaseException) -> bool:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # Whatever an error of some library raises when it is made anew.
        return False
    return True
