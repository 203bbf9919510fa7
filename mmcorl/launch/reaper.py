"""Ends what a run has started on this machine when the run's process is gone, however it went.

A process of its own that reads `pid start-time` lines from the run's process until that closes the pipe by leaving or
by dying; then it kills those that are still there. Without it some of Ray's processes outlive a killed run by more than
a minute, and a suspended worker for ever.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from mmcorl.launch.process_monitor import Nurse, descendants, started

PATIENCE = 1.0
"""Seconds that they have to end by themselves."""


class Guard:
    """The run's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mmcorl.launch.reaper"], stdin=subprocess.PIPE, text=True, start_new_session=True
        )
        self.note()

    def note(self) -> None:
        """Have it know all processes that this one has started so far."""
        assert self._process.stdin is not None
        for pid in descendants(os.getpid()):
            if pid != self._process.pid and (start := started(pid)) is not None:
                self._process.stdin.write(f"{pid} {start}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """All is done: what is left, ends."""
        self._process.communicate()


def main() -> None:
    """Wait for the end of the pipe."""
    known = {int(pid): int(start) for pid, start in (line.split() for line in sys.stdin)}

    def left() -> list[int]:
        # A number can belong to another process by now.
        return [pid for pid, start in known.items() if started(pid) == start]

    deadline = time.monotonic() + PATIENCE
    while left() and time.monotonic() < deadline:
        time.sleep(0.05)
    Nurse().end(left())


if __name__ == "__main__":
    main()
