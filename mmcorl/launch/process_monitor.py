"""Watches and ends processes of one machine from outside: a suspended process cannot report itself.

Imports nothing heavy: one of these runs on every machine of a run.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import psutil

from mmcorl.system import scratch_dirs

State = Literal["running", "suspended", "ended"]
"""`suspended`: stopped by a signal or a debugger."""

_STATES: dict[str, State] = {
    psutil.STATUS_STOPPED: "suspended",
    psutil.STATUS_TRACING_STOP: "suspended",
    psutil.STATUS_ZOMBIE: "ended",
    psutil.STATUS_DEAD: "ended",
}


class ProcessMonitor:
    """As an actor, one per machine."""

    def states(self, pids: Iterable[int]) -> dict[int, State]:
        """Return the state of each process."""
        return {pid: state(pid) for pid in pids}

    def dump_stacks(self, pids: Iterable[int]) -> None:
        """Make processes write the stacks of all their threads into their logs (see `RankActor`)."""
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).send_signal(signal.SIGUSR1)

    def end(self, pids: Sequence[int], files: Iterable[str] = ()) -> None:
        """Kill processes and their descendants, suspended ones too; remove their scratch folders and these files."""
        processes = [process for pid in pids for process in family(pid)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for pid in pids:
            scratch_dirs.clear(pid)
        for file in files:
            Path(file).unlink(missing_ok=True)


def state(pid: int) -> State:
    """Return the state of one process; a zombie has ended."""
    try:
        return _STATES.get(psutil.Process(pid).status(), "running")
    except psutil.NoSuchProcess:
        return "ended"


def family(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; empty where it has ended."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
