"""Where drills work: commands in forks of this warm process, with limits, and the verdict on how they ended."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tests.runs import changed, contents, small_config, taught, write_config

Outcome = Literal["survived", "lost", "silent", "traceback", "hang", "unclear"]
SECONDS = 60.0
DECIDING = ("metrics.jsonl", "validation.jsonl", "votes.jsonl")
ADDRESS_SPACE_MB = 4000
PEAK_MB = 1500
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PRCTL = ctypes.CDLL(None).prctl


@dataclass(frozen=True)
class Verdict:
    """`survived`: it held. `silent`: exit 0 with other results. `lost`: anything else that must not happen."""

    outcome: Outcome
    word: str = ""


@dataclass(frozen=True)
class Drill:
    area: str
    name: str
    body: Callable[[Lab], Verdict]


@dataclass(frozen=True)
class Ended:
    """How a command ended: exit status (minus the signal's number), output, seconds and its peak memory."""

    code: int
    output: str
    seconds: float
    peak_mb: int
    timed_out: bool = False
    left: tuple[str, ...] = ()
    """Processes that it left behind (ended since)."""

    @property
    def sentence(self) -> str:
        """The last line that mmcorl itself says, or the last line of all."""
        lines = self.output.strip().splitlines() or [""]
        said = [line for line in lines if line.startswith("mmcorl: ")]
        return (said or lines)[-1]


@dataclass
class Running:
    pid: int
    output: Path
    started: float = field(default_factory=time.monotonic)


class Lab:
    """A folder to work in, the things most drills start from, and commands."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._count = 0
        self.limited = True
        """Whether commands get no more memory than `ADDRESS_SPACE_MB`."""
        self.kept: set[int] = set()  # servers and the like, which outlive a drill
        self.ended: list[Ended] = []
        """What the present drill ran."""
        _PRCTL(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with Path("/proc/self/statm").open() as file:
            self._base_mb = int(file.read().split()[0]) * resource.getpagesize() >> 20

    def folder(self, lasting: bool = False) -> Path:
        """A fresh folder; one that is not `lasting` may be removed after the drill."""
        self._count += 1
        folder = self.root / ("lasting" if lasting else "drill") / f"{self._count:03d}"
        folder.mkdir(parents=True)
        return folder

    # -- commands -------------------------------------------------------------------------------------------------

    def start(
        self, *argv: str | Path, cwd: Path | None = None, typed: str = "", before: Callable[[], None] | None = None
    ) -> Running:
        """Start `mmcorl` in a fork; `typed` is what stdin holds, `before` runs in the fork."""
        from mmcorl.cli.main import main

        def command() -> int:
            if before is not None:
                before()
            return main([str(item) for item in argv])

        return self.fork(command, cwd=cwd, typed=typed)

    def fork(self, command: Callable[[], int], cwd: Path | None = None, typed: str = "") -> Running:
        """Run a function in a fork with limits; its exit status is what it returns."""
        folder = self.folder()
        output, stdin = folder / "output.txt", folder / "stdin.txt"
        stdin.write_text(typed)
        pid = os.fork()
        if pid:
            return Running(pid, output)
        status = 70
        try:
            os.setsid()
            for number in (signal.SIGHUP, signal.SIGQUIT):  # which who starts this may have ignored
                signal.signal(number, signal.SIG_DFL)
            _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            # A fork has its own idea of whose children are orphans.
            _PRCTL(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
            os.dup2(os.open(stdin, os.O_RDONLY), 0)
            handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            if self.limited:
                limit = (self._base_mb + ADDRESS_SPACE_MB) << 20
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(cwd or folder)
            # Or one drill finds what another read from a path of the same name.
            os.environ["HF_DATASETS_CACHE"] = str(folder / "datasets")
            if "datasets" in sys.modules:
                sys.modules["datasets"].config.HF_DATASETS_CACHE = folder / "datasets"  # type: ignore[attr-defined]
            status = command()
            Path(f"{output}.modules").write_text("\n".join(sys.modules))
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else int(bool(stop.code))
        except BaseException:
            traceback.print_exc()
            status = 1
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def when(self, running: Running, reached: Callable[[], Any], seconds: float = SECONDS) -> bool:
        """Wait for a moment, by polling; False if the command ended, or the moment did not come in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(OSError):
                if reached():
                    return True
            if os.waitid(os.P_PID, running.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return False
            time.sleep(0.0003)
        return False

    def wait(self, running: Running, seconds: float = SECONDS) -> Ended:
        """The end of a command, which is killed when it takes too long; nothing of it goes on afterwards."""
        deadline = running.started + seconds
        timed_out = False
        while True:
            pid, status, usage = os.wait4(running.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                timed_out = True
                os.kill(running.pid, signal.SIGKILL)
                _, status, usage = os.wait4(running.pid, 0)
                break
            time.sleep(0.005)
        took = time.monotonic() - running.started
        left = self._reap()
        code = os.waitstatus_to_exitcode(status)
        text = running.output.read_text(errors="replace")
        ended = Ended(code, text, took, usage.ru_maxrss >> 10, timed_out, left)
        self.ended.append(ended)
        return ended

    def run(self, *argv: str | Path, seconds: float = SECONDS, **options: Any) -> Ended:
        """Run `mmcorl` to its end."""
        return self.wait(self.start(*argv, **options), seconds)

    def kill(self, running: Running, *signals: int) -> Ended:
        """Send a signal (SIGKILL by default) to the command's own process, and wait for its end."""
        for number in signals or (signal.SIGKILL,):
            with suppress(ProcessLookupError):
                os.kill(running.pid, number)
        return self.wait(running, time.monotonic() - running.started + SECONDS)

    def _reap(self) -> tuple[str, ...]:
        """Names of processes that a command left behind three seconds after its end; they are ended."""
        deadline = time.monotonic() + 3
        while (left := [pid for pid in children(os.getpid()) if pid not in self.kept]) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(0.01)
        names = tuple(name(pid) for pid in left)
        while left:
            for pid in left:
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
            left = [pid for pid in children(os.getpid()) if pid not in self.kept]
        return names

    @contextmanager
    def beside(self, function: Callable[[], None]) -> Iterator[int]:
        """A process of its own during a drill, such as a server."""
        pid = os.fork()
        if not pid:
            try:
                _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
                function()
            finally:
                os._exit(0)
        self.kept.add(pid)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self.kept.discard(pid)

    # -- what drills start from -----------------------------------------------------------------------------------

    def settings(self, kind: str = "text", **changes: Any) -> dict[str, Any]:
        """Six steps of two agents, each in a process of its own."""
        names = {"text": ("qwen2", "llama"), "visual": ("qwen2.5-vl", "internvl3.5")}[kind]
        models = dict(zip(("qwen", "other"), (self.model(name) for name in names), strict=True))
        return changed(small_config(models, kind), threads=1, **changes)

    def model(self, name: str) -> Path:
        """A zoo model that answers."""
        file = self.root / f"{name}.path"
        if not file.exists():  # built in a fork: this process has to stay without threads

            def build() -> int:
                file.write_text(str(taught(name, self.root / "cache")))
                return 0

            if self.wait(self.fork(build), 300).code:
                raise RuntimeError(f"the zoo did not build {name}")
        return Path(file.read_text())

    @cached_property
    def config(self) -> Path:
        return write_config(self.folder(lasting=True), self.settings())

    @cached_property
    def reference(self) -> Path:
        """A run of `config` left alone."""
        run = self.folder(lasting=True) / "run"
        ended = self.run("train", self.config, "--run-dir", run, seconds=120)
        if ended.code:
            raise RuntimeError(ended.output)
        # What one fork had to import, the next ones find here.
        for module in max(self.root.glob("drill/*/output.txt.modules")).read_text().splitlines():
            with suppress(Exception):
                importlib.import_module(module)
        return run

    @cached_property
    def _stopped(self) -> Path:
        run = self.folder(lasting=True) / "run"
        running = self.start("train", self.config, "--run-dir", run)
        reached = self.when(running, lambda: lines(run / "metrics.jsonl") >= 5)
        self.kill(running)
        if not reached or (run / "summary.json").exists():
            raise RuntimeError("the run could not be stopped after step 5: is the machine too busy?")
        return run

    def stopped(self) -> Path:
        """A copy of a run that was killed after step 5, its last checkpoint that of step 4."""
        return Path(shutil.copytree(self._stopped, self.folder() / "run", symlinks=True))

    def finished(self) -> Path:
        """A copy of a finished run."""
        return Path(shutil.copytree(self.reference, self.folder() / "run", symlinks=True))

    # -- verdicts -------------------------------------------------------------------------------------------------

    def resumed(self, run: Path, seconds: float = 120) -> Verdict:
        """The same command once more has to end with the bytes of an uninterrupted run, and leave nothing behind."""
        ended = self.run("train", self.config, "--run-dir", run, seconds=seconds)
        if ended.code or ended.timed_out:
            return problem(ended) or Verdict("lost", f"does not resume: {ended.sentence}")
        return self.same(run, ended)

    def same(self, run: Path, ended: Ended, otherwise: Outcome = "lost", seconds: float = SECONDS) -> Verdict:
        """Whether a finished run has the reference's bytes."""
        if wrong := problem(ended, seconds):
            return wrong
        try:
            got = contents(run)
        except (OSError, IndexError) as error:
            return Verdict(otherwise, f"exit 0, but of the run is missing: {error}")
        expected = contents(self.reference)
        aside = {file.name.removeprefix("damaged_") for file in run.glob("damaged_*.jsonl")} - set(DECIDING)
        names = (expected.keys() | got.keys()) - aside  # of logs that begin again
        differ = [file for file in names if got.get(file) != expected.get(file)]
        if differ:
            return Verdict(
                otherwise, f"exit 0 with other bytes in {', '.join(sorted(differ)[:4])} ({len(differ)} files)"
            )
        litter = [file.name for pattern in (".*", "*.new", "*.part") for file in run.rglob(pattern)]
        if litter := [file for file in litter if file != ".lock"]:
            return Verdict("lost", f"litter: {litter[:4]}")
        return Verdict("survived")


def problem(ended: Ended, seconds: float = SECONDS, peak_mb: int = PEAK_MB) -> Verdict | None:
    """What no end of a command may be, whatever it was given: a hang, a traceback, a crash, much memory, orphans."""
    if ended.timed_out or ended.seconds > max(seconds, SECONDS) * 2:
        return Verdict("hang", f"stopped after {ended.seconds:.0f} s, {ended.peak_mb} MB: {ended.sentence[:80]}")
    if "Traceback (most recent call last)" in ended.output:
        errors = re.findall(r"^[\w.]*(?:Error|Exception|Exit|Interrupt|Warning|Timeout)\b.*$", ended.output, re.M)
        return Verdict("traceback", f"exit {ended.code}, {ended.peak_mb} MB: {(errors or [ended.sentence])[-1][:200]}")
    if ended.code < 0 and ended.code not in (
        -signal.SIGKILL,
        -signal.SIGTERM,
        -signal.SIGHUP,
        -signal.SIGINT,
        -signal.SIGQUIT,
    ):
        return Verdict("lost", f"ended by {signal.Signals(-ended.code).name}, {ended.peak_mb} MB")
    if ended.left:
        return Verdict("lost", f"left processes behind: {', '.join(ended.left)[:200]}")
    if ended.peak_mb > peak_mb:
        return Verdict("lost", f"took {ended.peak_mb} MB: {ended.sentence}")
    return None


def refused(ended: Ended, *words: str, seconds: float = SECONDS, otherwise: Outcome = "silent") -> Verdict:
    """Refused in one sentence with these words in it."""
    if ended.timed_out and re.search(r"^step +\d+/\d", ended.output, re.M):
        return Verdict(otherwise, f"not refused: it trains for {ended.seconds:.0f} s and more")
    if wrong := problem(ended, seconds):
        return wrong
    if ended.code not in (1, 2):
        return Verdict(otherwise, f"exit {ended.code}, not refused: {ended.sentence[:120]}")
    if not ended.sentence.startswith("mmcorl: "):
        return Verdict("lost", f"exit {ended.code} without a sentence: {ended.sentence[:160]}")
    if missing := [word for word in words if word not in ended.sentence]:
        return Verdict("unclear", f"the sentence lacks {missing}: {ended.sentence}")
    return Verdict("survived", ended.sentence)


def children(pid: int) -> list[int]:
    """Processes that a process started, of all its threads."""
    found = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):
            found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def name(pid: int) -> str:
    """What a process is called, its command line for short."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{pid} {words[-60:].strip()}"
    return str(pid)


def agents(run: int) -> list[int]:
    """Processes of a run's agents: forks, unlike the symbolic worker."""
    return [pid for pid in children(run) if "symbolic_worker" not in name(pid)]


def lines(file: Path) -> int:
    """Whole lines of a file, 0 where there is none."""
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def there(folder: Path, pattern: str) -> Callable[[], bool]:
    """Whether something in a folder matches."""
    return lambda: next(folder.glob(pattern), None) is not None


def drills(area: str, table: Iterable[tuple[str, Callable[[Lab], Verdict]]]) -> list[Drill]:
    return [Drill(area, name, body) for name, body in table]
