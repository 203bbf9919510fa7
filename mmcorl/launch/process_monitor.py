"""Watches and ends processes of one machine from outside: a suspended process cannot report itself.

Imports nothing heavy: a `ProcessMonitor` runs on every machine of a run. The reaper, a process of its own, ends what a
run has started on this machine when the run's process is gone, however it ended: it reads pids until the run's end of
the pipe closes, then kills those still alive. Without it some of Ray's processes outlive a killed run by more than a
minute, and a suspended worker for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

import psutil

from mmcorl.system import scratch_dirs
from mmcorl.system.respawn import itself

State = Literal["running", "suspended", "ended"]
"""`suspended`: stopped by a signal or a debugger."""
GRACE = 1.0
"""Seconds that processes get to end by themselves once their run is gone."""
_STATES: dict[str, State] = {
    psutil.STATUS_STOPPED: "suspended",
    psutil.STATUS_TRACING_STOP: "suspended",
    psutil.STATUS_ZOMBIE: "ended",
    psutil.STATUS_DEAD: "ended",
}


class ProcessMonitor:
    """Ray actor, one per machine."""

    def states(self, pids: Iterable[int]) -> dict[int, State]:
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


class Reaper:
    """The run's end of the pipe to the reaper, which is started again if it is killed."""

    def __init__(self) -> None:
        self._lock, self._closed = threading.Lock(), False
        self._start()
        threading.Thread(target=self._start_again, name="reaper", daemon=True).start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            itself("mmcorl.launch.process_monitor"),
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._register()

    def _start_again(self) -> None:
        while True:
            self._process.wait()
            with self._lock:
                if self._closed:
                    return
                self._start()

    def _register(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # Of a reaper that has just been killed; the next is told as well.
            for process in family(os.getpid())[1:]:
                if process.pid != self._process.pid:
                    self._process.stdin.write(f"{process.pid}\n")
            self._process.stdin.flush()

    def update(self) -> None:
        """Register all processes that this one has started so far."""
        with self._lock:
            self._register()

    def close(self) -> None:
        """Close the pipe and wait until everything registered has ended."""
        with self._lock:
            self._closed = True
        self._process.communicate()


def main() -> None:
    """Collect pids until the pipe closes, then end what is left of them."""
    known: set[psutil.Process] = set()
    for line in sys.stdin:
        with contextlib.suppress(psutil.NoSuchProcess):
            known.add(psutil.Process(int(line)))

    def left() -> list[int]:
        alive = []
        for process in known:
            # `is_running` notices when another process has taken the number.
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process.pid)
        return alive

    deadline = time.monotonic() + GRACE
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    ProcessMonitor().end(left())


if __name__ == "__main__":
    main()
