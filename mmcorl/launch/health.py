"""Stops a run within seconds when one of its processes dies, raises or hangs, and says which and why.

Every rank is asked for results by the thread of its agent, and looked at from outside, once a second, by the nurse of
its machine. The first thing found wrong ends every wait of the run, so that no agent is waited for that will not
answer and none that could.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmcorl.errors import RunError, UserError
from mmcorl.launch.actor import Broke, Place
from mmcorl.launch.process_monitor import Sign

POLL = 0.2
"""Seconds between two looks at whether something else went wrong while a result is waited for."""
PERIOD = 1.0
"""Seconds between two looks at all processes."""
GRACE = 1.5
"""Seconds in which ranks may report after the first one did: the first report can be an echo of another's end."""
SUSPENDED = "hangs: its process is suspended"
IDLE_CPU, IDLE_IO = 0.02, 2**16
"""Processor seconds and bytes per second below which a process does nothing but stay connected."""
_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)


class RankError(RunError):
    """A rank that died, raised or hung: one sentence that names agent, rank, machine, what happened and the log."""


@dataclass
class Seat:
    """A rank as the run's process knows it."""

    agent: str
    number: int
    of: int
    actor: Any
    place: Place
    log: str
    """Where what it prints is to be read."""
    during: str | None = None
    """The call it is in."""
    starting: bool = False
    """That call may take its time: a download may be among what it does."""
    known: bool = False
    """Where it stands since it is quiet has been found out, and is no reason to worry."""
    quiet: float = 0.0
    """Seconds for which it has been seen to do nothing."""
    suspended: float = 0.0
    """Seconds for which it has been seen suspended."""
    sign: Sign | None = None

    def look(self, sign: Sign, seconds: float) -> None:
        """Take in how it was found `seconds` after the last time."""
        before, self.sign = self.sign, sign
        if before is None:
            return
        self.suspended = self.suspended + seconds if sign.suspended and before.suspended else 0.0
        idle = sign.cpu - before.cpu < IDLE_CPU * seconds and sign.io - before.io < IDLE_IO * seconds
        if idle and not sign.at_work:
            self.quiet += seconds
        else:
            self.quiet, self.known = 0.0, False


@dataclass(frozen=True)
class _Fault:
    seat: Seat
    what: str
    during: str | None
    echo: bool
    broke: Broke | None
    at: float = field(default_factory=time.monotonic)


class Watch:
    """Collects results and bad news of all ranks.

    Args:
        ray: the module.
        hung_after: see `RaySettings.hung_after`.
        nurses: by node id.
    """

    def __init__(self, ray: Any, hung_after: float):
        self.ray, self.hung_after = ray, hung_after
        self.seats: list[Seat] = []
        self.nurses: dict[str, Any] = {}
        self._faults: list[_Fault] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self, seats: Sequence[Seat], nurses: Mapping[str, Any]) -> None:
        """Look after these from now on."""
        self.seats, self.nurses = list(seats), dict(nurses)
        self._thread.start()

    def close(self) -> None:
        """End every wait; nothing is looked after from now on."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def gather(self, seats: Sequence[Seat], refs: Sequence[Any], during: str, limit: float | None = None) -> list[Any]:
        """The results of one call per rank, in order.

        Raises RankError as soon as any rank of the run fails, UserError where a rank refuses the user's input, OSError
        where one finds no room on a disk. After `limit` seconds a rank without a result has failed.
        """
        waiting, replies = dict(zip(refs, seats, strict=True)), dict.fromkeys(refs)
        for seat in seats:
            # What it did before, such as waiting for its peers, is not held against it.
            seat.quiet, seat.known, seat.during, seat.starting = 0.0, False, during, limit is not None
        start = time.monotonic()
        while waiting:
            self.check()
            if limit is not None and time.monotonic() - start > limit:
                for seat in waiting.values():
                    self.report(seat, f"was not done after {limit:g} seconds")
            done, _ = self.ray.wait(list(waiting), timeout=POLL)
            for ref in done:
                seat = waiting.pop(ref)
                try:
                    reply = self.ray.get(ref)
                except self.ray.exceptions.RayActorError as error:
                    self.report(seat, _death(str(error)))
                except self.ray.exceptions.RayError as error:
                    self.report(seat, f"gave no result: {str(error).strip().splitlines()[-1]}")
                else:
                    if isinstance(reply, Broke):
                        self.report(seat, f"failed: {reply.error}", echo=reply.echo, broke=reply)
                    else:
                        seat.during, replies[ref] = None, reply
        while self._faults:
            self.check()
            self._closed.wait(POLL)
        return list(replies.values())

    def report(self, seat: Seat, what: str, *, echo: bool = False, broke: Broke | None = None) -> None:
        """Something is wrong with a rank; `echo` where it may be the consequence of another's end."""
        with self._lock:
            self._faults.append(_Fault(seat, what, seat.during, echo, broke))

    def check(self) -> None:
        """Raise what is wrong, if anything is, once the ranks that know of it have had time to say so."""
        if self._closed.is_set():
            raise RuntimeError("the run is over")
        with self._lock:
            faults = list(self._faults)
        if not faults:
            return
        alone = faults[0].seat.of == 1 or not faults[0].echo
        if not alone and time.monotonic() - faults[0].at < GRACE:
            return
        first = min(faults, key=lambda fault: fault.echo)  # The earliest of equals.
        seat, broke = first.seat, first.broke
        if broke is not None and broke.refused:
            raise UserError(broke.error)
        if broke is not None and broke.no_room is not None:
            raise OSError(errno.ENOSPC, broke.no_room)
        rank = f", rank {seat.number} of {seat.of}" if seat.of > 1 else ""
        during = f" during {first.during}" if first.during else ""
        raise RankError(f"agent {seat.agent!r}{rank} on {seat.place.node}{during} {first.what} (its log: {seat.log})")

    # -- looking from outside ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._look_after()
        except Exception as error:  # Nobody would notice that nobody watches.
            self.report(self.seats[0], f"can no longer be watched: {type(error).__name__}: {error}", echo=True)

    def _look_after(self) -> None:
        asked: dict[str, Any] = {}
        silent = dict.fromkeys(self.nurses, 0.0)
        last = time.monotonic()
        while not self._closed.wait(PERIOD):
            now = time.monotonic()
            # When this process itself was suspended, the others are not to blame for the time.
            seconds, last = min(now - last, 2 * PERIOD), now
            for node, nurse in self.nurses.items():
                own = [seat for seat in self.seats if seat.place.node_id == node]
                if node not in asked:
                    asked[node] = nurse.look.remote([seat.place.pid for seat in own])
                done, _ = self.ray.wait([asked[node]], timeout=POLL)
                if not done:
                    silent[node] += seconds
                    if silent[node] >= self.hung_after:
                        self.report(own[0], f"cannot be reached: {own[0].place.node} does not answer")
                    continue
                silent[node] = 0.0
                try:
                    signs = self.ray.get(asked.pop(node))
                except self.ray.exceptions.RayError:
                    # Ranks that went with it report themselves, and are asked first.
                    self.report(own[0], f"cannot be watched: {own[0].place.node} has left the cluster", echo=True)
                    continue
                for seat in own:
                    if (sign := signs[seat.place.pid]) is None:
                        self.report(seat, _death(""))
                    else:
                        seat.look(sign, seconds)
            if not self._faults:
                self._find_hung()

    def _find_hung(self) -> None:
        for seat in self.seats:
            if seat.suspended >= self.hung_after:
                self.report(seat, SUSPENDED)
                return
        for agent in dict.fromkeys(seat.agent for seat in self.seats):
            team = self._calls(agent)
            quiet = [seat for seat in team if seat.quiet >= self.hung_after]
            everyone = bool(quiet) and len(quiet) == len(team)
            if everyone or not all(seat.known for seat in quiet):
                self._question(quiet, everyone)

    def _calls(self, agent: str) -> list[Seat]:
        """Ranks of an agent that are in a call and past their start."""
        return [seat for seat in self.seats if seat.agent == agent and seat.during and not seat.starting]

    def _question(self, quiet: Sequence[Seat], everyone: bool) -> None:
        """Report a rank that does nothing and does not wait for another one, or any when nobody moves."""
        for seat in quiet:
            if seat.suspended:
                self.report(seat, SUSPENDED)
                return
        for node, nurse in self.nurses.items():
            pids = [seat.place.pid for seat in quiet if seat.place.node_id == node]
            self.ray.wait([nurse.dump.remote(pids)], timeout=PERIOD)
        time.sleep(POLL)
        for seat in quiet:
            frames = _standing(seat.log)
            if frames and not _waits(frames):
                file, line, function = frames[0]
                self.report(seat, f"hangs: it stands still in {function} ({Path(file).name}:{line})")
                return
            seat.known = True
        if everyone:
            self.report(quiet[0], "hangs: it stands still, and so do all ranks of the agent")


def _death(reason: str) -> str:
    if "running low on memory" in reason:
        return "was killed by Ray because its machine ran low on memory"
    if "node has died" in reason:
        return "was lost with the Ray node of its machine, which was ended or cannot be reached (`ray status`)"
    return (
        "died without an error of its own: it was killed, it crashed in native code, or the Ray node of its machine "
        "was lost (`ray status`)"
    )


def _waits(frames: Sequence[tuple[str, str, str]]) -> bool:
    """Whether a rank that does nothing waits for other ranks."""
    return any("torch/distributed" in file or "deepspeed/comm" in file for file, _, _ in frames)


def _standing(log: str) -> list[tuple[str, str, str]]:
    """Frames (file, line, function) of the main thread in the last dump in a log, innermost first."""
    try:
        text = Path(log).read_text(errors="replace")
    except OSError:
        return []  # On a machine that shares no files with this one.
    return _FRAME.findall(text.rpartition("most recent call first")[2])
