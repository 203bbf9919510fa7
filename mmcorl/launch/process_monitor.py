"""Watches and ends processes of one machine from outside: a suspended process cannot speak for itself.

Imports nothing heavy: one of these runs on every machine of a run. Linux only (/proc).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmcorl.system import scratch_dirs

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Sign:
    """What the kernel says of a process at one moment."""

    suspended: bool
    """Stopped by a signal or a debugger."""
    cpu: float
    """Seconds of processor time so far, those of its children included."""
    io: int
    """Bytes read and written so far."""
    at_work: bool
    """Its main thread runs or waits for its turn on a busy processor, or a thread of it waits for a disk."""


class Nurse:
    """As an actor, one per machine."""

    def look(self, pids: Iterable[int]) -> dict[int, Sign | None]:
        """How each process is; None for one that has ended."""
        children = _children()
        return {pid: _sign(pid, children) for pid in pids}

    def dump(self, pids: Iterable[int]) -> None:
        """Have processes write where each of their threads stands into their logs (SIGUSR1, see `Rank`)."""
        _signal(pids, signal.SIGUSR1)

    def end(self, pids: Sequence[int], files: Iterable[str] = ()) -> None:
        """Kill processes and all their descendants; remove their temporary folders, and these files."""
        _signal([one for pid in pids for one in (pid, *descendants(pid))], signal.SIGKILL)
        for pid in pids:
            scratch_dirs.clear(pid)
        for file in files:
            Path(file).unlink(missing_ok=True)


def descendants(pid: int) -> list[int]:
    """All processes that a process has started, and those that they have."""
    return _descendants(pid, _children())


def started(pid: int) -> int | None:
    """When a process was started, in ticks since the machine was; None where there is no such process."""
    stat = _stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[3]


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # It has ended by itself.
            os.kill(pid, number)


def _sign(pid: int, children: dict[int, list[int]]) -> Sign | None:
    own = _stat(pid)
    if own is None or own[0] in "ZX":
        return None
    cpu = sum(stat[1] for one in (pid, *_descendants(pid, children)) if (stat := _stat(one)) is not None)
    try:
        counts = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        io = int(counts["rchar"]) + int(counts["wchar"])
        states = [stat[0] for task in os.listdir(f"/proc/{pid}/task") if (stat := _stat(f"{pid}/task/{task}"))]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return Sign(own[0] in "Tt", cpu, io, own[0] == "R" or "D" in states)


def _stat(place: int | str) -> tuple[str, float, int, int] | None:
    """State, processor seconds with those of children it has waited for, parent and start of a process or thread."""
    try:
        text = Path(f"/proc/{place}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may hold spaces and parentheses.
    fields = text.rpartition(")")[2].split()
    return fields[0], sum(map(int, fields[11:15])) / _TICK, int(fields[1]), int(fields[19])


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (stat := _stat(name)) is not None:
            found.setdefault(stat[2], []).append(int(name))
    return found


def _descendants(pid: int, children: dict[int, list[int]]) -> list[int]:
    return [one for child in children.get(pid, ()) for one in (child, *_descendants(child, children))]
