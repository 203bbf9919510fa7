"""Break a run under Ray in many ways; each time it stops in seconds, says why, leaves nothing, and goes on later.

A drill ends a run of two text agents of two ranks each; the next one begins where it left off. In the end the run must
be byte for byte the one that was left alone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from runs import Ended, assert_it_learns, assert_same_run, changed, command, small_config, taught, write_config

pytestmark = pytest.mark.stack
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Drill:
    """One way to break a run."""

    name: str
    sabotage: str = ""
    """Executed in every worker of the agent `qwen` as it loads; see saboteur.py."""
    overrides: Sequence[str] = ()
    outside: Callable[[subprocess.Popen[str], Path], None] | None = None
    """Done to the driver and the run folder while the run goes on."""
    before: Callable[[Path], None] | None = None
    """Done to the run folder before the run is started."""
    after: Callable[[Path], None] | None = None
    """What the error message asks for."""
    code: int = 1
    last_line: Sequence[str] = ()
    """Parts of the last line of output."""
    deadline: float = 0.0
    """Seconds that pass before anything can be noticed."""


def _at(call: str, number: int, action: str) -> str:
    return f"at_call({call!r}, {number}, on_rank(1, marked({action})))"


def _mark() -> None:
    Path(os.environ["MMCORL_MARK"]).write_text(str(time.time()))


def _wait_for_steps(run: Path, steps: int, process: subprocess.Popen[str]) -> None:
    """Wait until the run has logged so many steps."""
    log, deadline = run / "metrics.jsonl", time.monotonic() + 180
    while not list(run.glob("logs/*")) or not log.exists() or log.read_text().count("\n") < steps:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the run ended before it had done {steps} steps")
        time.sleep(0.05)


def _kill_driver(process: subprocess.Popen[str], run: Path) -> None:
    _wait_for_steps(run, 4, process)
    _mark()
    process.kill()


def _interrupt(process: subprocess.Popen[str], run: Path) -> None:
    """Ctrl-C on a terminal reaches the whole process group."""
    _wait_for_steps(run, 1, process)
    _mark()
    os.killpg(process.pid, signal.SIGINT)


def _interrupt_twice(process: subprocess.Popen[str], run: Path) -> None:
    _interrupt(process, run)
    time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def _dies(mark: str, driver: bool = False) -> Callable[[subprocess.Popen[str], Path], None]:
    """Kill the process of Ray with a mark in its command line one step later, then the driver itself if `driver`."""

    def outside(process: subprocess.Popen[str], run: Path) -> None:
        _wait_for_steps(run, (run / "metrics.jsonl").read_text().count("\n") + 1, process)
        family = psutil.Process(process.pid).children(recursive=True)
        victim = next(one for one in family if mark in " ".join(one.cmdline())[:200])
        _mark()
        victim.kill()
        if driver:
            time.sleep(2)  # in which another reaper is started
            process.kill()

    return outside


def _newest(run: Path) -> Path:
    return max(run.glob("checkpoints/step_*"))


def _truncate_newest(run: Path) -> None:
    weights = next(_newest(run).glob("qwen/*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)


RANK_1, DIED, RESUMES = "agent 'qwen', rank 1 of 2", "died without an error of its own", "re-run the same command"
SAFE = "the run is safe up to step"
LOSS, ROLLOUT, WRITE = (
    "mmcorl.algo.loss:policy_loss",
    "mmcorl.trainer.rollout:Rollouts.sample",
    "mmcorl.trainer.weights_io:write",
)
# Twenty steps, so that none of these finds the run at its end, with a checkpoint at every second one.
DRILLS = (
    Drill(
        "a worker is killed in a rollout",
        _at(ROLLOUT, 1, "kill"),
        last_line=(RANK_1, "during the rollout", DIED, "qwen-rank1.log"),
    ),
    Drill(
        "a worker is killed in an update",
        _at(LOSS, 1, "kill"),
        last_line=(RANK_1, "during the update of step 1", DIED),
    ),
    Drill(
        "a worker raises in an update",
        _at(LOSS, 2, "explode"),
        last_line=(RANK_1, "failed: ValueError: the third shoe dropped", "qwen-rank1.log"),
    ),
    Drill(
        "the writing worker is killed in a save",
        f"at_call({WRITE!r}, 1, marked(kill))",
        last_line=("agent 'qwen', rank 0 of 2", "during a checkpoint", DIED),
    ),
    Drill("Ctrl-C", outside=_interrupt, code=130, last_line=(f"interrupted: {RESUMES}",)),
    Drill(
        "a worker is suspended",
        _at(ROLLOUT, 1, "suspend"),
        last_line=(RANK_1, "its process has been suspended"),
    ),
    Drill("the driver is killed", outside=_kill_driver, code=-signal.SIGKILL),
    Drill(
        "a worker hangs in an update, and its peer waits for it",
        _at(LOSS, 1, "stand_still"),
        overrides=("ray.collective_timeout=5",),
        last_line=("agent 'qwen', rank 0 of 2", "no answer from rank 1", "qwen-rank1.log"),
        deadline=5,
    ),
    Drill(
        "a worker hangs in a rollout",
        _at(ROLLOUT, 1, "stand_still"),
        overrides=("ray.call_timeout=6",),
        last_line=(RANK_1, "gave no result within 6 seconds", "qwen-rank1.log"),
        deadline=6,
    ),
    Drill("Ctrl-C twice", outside=_interrupt_twice, code=130, last_line=(f"interrupted: {RESUMES}",)),
    Drill(
        "the disk is full",
        f"at_call({WRITE!r}, 1, marked(no_big_files))",
        last_line=("no room is left to write into", f"make room and {RESUMES}"),
    ),
    Drill("the raylet is killed", outside=_dies("raylet/raylet "), last_line=("raylet", SAFE)),
    Drill("the head is killed", outside=_dies("gcs/gcs_server "), last_line=("gcs_server", SAFE)),
    Drill(
        "the reaper and the driver are killed",
        outside=_dies("mmcorl.launch.process_monitor", driver=True),
        code=-signal.SIGKILL,
        deadline=10,  # in which the new reaper has to end processes of Ray's own
    ),
    Drill(
        "the newest checkpoint is damaged",
        before=_truncate_newest,  # The run goes on from the one before, to its end.
        code=0,
        last_line=("weights: ",),
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a drill."""

    drill: Drill
    ended: Ended
    seconds: float
    """From the fault to the end of the last process of the run."""
    left: Sequence[str]
    """Processes still there."""


class Range:
    """Where drills take place: a config, and a folder that all processes of a run live in."""

    def __init__(self, folder: Path):
        self.folder, self.mark = folder, folder / "mark"
        models = {name: taught(model, folder / "zoo") for name, model in {"qwen": "qwen2", "llama": "llama"}.items()}
        settings = changed(small_config(models, "text"), launcher="ray", agents__0__adapter="saboteur:Saboteur")
        self.config = write_config(folder, changed(settings, steps=20, agents__0__ranks=2, agents__1__ranks=2))

    def start(self, run: Path, *overrides: str, sabotage: str = "") -> subprocess.Popen[str]:
        """Start a run in its own process group; its output goes to a file."""
        self.mark.unlink(missing_ok=True)
        os.environ["MMCORL_MARK"] = str(self.mark)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "PYTHONPATH": f"{HERE}:{HERE.parent.parent}",
            "MMCORL_SABOTAGE": sabotage,
        }
        shutil.rmtree(run / "logs", ignore_errors=True)  # They come again with the workers.
        argv = command("train", self.config, *overrides, "--run-dir", run)
        with (self.folder / "output").open("w") as output:
            return subprocess.Popen(
                argv, cwd=self.folder, stdout=output, stderr=output, env=environment, start_new_session=True, text=True
            )

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the end."""
        return Ended(process.wait(300), (self.folder / "output").read_text(errors="replace"))

    def left(self, patience: float = 8.0) -> list[str]:
        """Processes of the run that are still there after a while: those that live in our folder."""
        deadline = time.monotonic() + patience
        while True:
            alive = []
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if Path(process.cwd()) == self.folder:
                        alive.append(" ".join(process.cmdline())[:80])
            if not alive or time.monotonic() > deadline:
                return alive
            time.sleep(0.05)

    def do(self, drill: Drill, run: Path) -> Outcome:
        """Start or resume the run, break it, and look."""
        if drill.before:
            drill.before(run)
        process = self.start(run, *drill.overrides, sabotage=drill.sabotage)
        if drill.before:
            _mark()
        if drill.outside:
            drill.outside(process, run)
        ended, left, now = self.finish(process), self.left(8 + drill.deadline), time.time()
        if drill.after:
            drill.after(run)
        if not self.mark.exists():
            raise AssertionError(f"{drill.name}: it did not happen\n{ended.output}")
        return Outcome(drill, ended, now - float(self.mark.read_text()), left)


def problems(outcome: Outcome) -> list[str]:
    """What is not as promised."""
    drill, ended = outcome.drill, outcome.ended
    last = (ended.output.strip().splitlines() or [""])[-1]
    faults = [f"it did not say {part!r}" for part in drill.last_line if part not in last]
    if ended.code != drill.code:
        faults.append(f"exit code {ended.code} instead of {drill.code}")
    if "Traceback" in ended.output:
        faults.append("it printed a stack trace")
    if outcome.seconds > 10 + drill.deadline and drill.code == 1:
        faults.append(f"{outcome.seconds:.1f} seconds are more than {10 + drill.deadline:g}")
    return faults + [f"left running: {process}" for process in outcome.left]


CHOSEN = ("a worker is killed in an update", "a worker is suspended", "the driver is killed")


@pytest.mark.parametrize(
    "drills",
    [
        pytest.param([drill for drill in DRILLS if drill.name in CHOSEN], id="some"),
        pytest.param(DRILLS, id="all", marks=pytest.mark.thorough),
    ],
)
def test_a_run_broken_again_and_again_ends_with_the_same_bytes(drills: Sequence[Drill], tmp_path: Path) -> None:
    place = Range(tmp_path)
    alone = place.finish(place.start(tmp_path / "alone"))
    assert alone.code == 0, alone.output
    assert_it_learns(tmp_path / "alone")
    for drill in drills:
        outcome = place.do(drill, tmp_path / "run")
        print(f"{drill.name}: {outcome.seconds:.1f} s")
        assert problems(outcome) == [], f"{drill.name}: {outcome.ended.output}"
    last = place.finish(place.start(tmp_path / "run"))
    assert last.code == 0, last.output
    assert place.left() == []
    assert_same_run(tmp_path / "run", tmp_path / "alone")
