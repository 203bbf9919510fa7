"""Ends what a run has started on this machine when the run's process is gone, however it ended.

A separate process that reads pids from the run's process until that closes the pipe by leaving or by dying; then it
kills those still alive. Without it some of Ray's processes outlive a killed run by more than a minute, and a suspended
worker for ever.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import psutil

from mmcorl.launch.process_monitor import ProcessMonitor, family

GRACE = 1.0
"""Seconds that processes get to end by themselves."""


class Reaper:
    """The run's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mmcorl.launch.reaper"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self.update()

    def update(self) -> None:
        """Register all processes that this one has started so far."""
        assert self._process.stdin is not None
        for process in family(os.getpid())[1:]:
            if process.pid != self._process.pid:
                self._process.stdin.write(f"{process.pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """Close the pipe and wait until everything registered has ended."""
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
