"""Every way to break a run under Ray, one after the other in the same run folder, and what comes of each.

    python tests/stack/fault_drills.py [--out report.md]

A drill ends a run of two text agents of two ranks each; the next one begins where it left off. In the end the run has
to be byte for byte the one that was left alone. Needs the ray extra; no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from runs import Ended, assert_same_run, changed, command, records, small_config, taught, write_config  # noqa: E402


@dataclass(frozen=True)
class Drill:
    """One way to break a run."""

    name: str
    sabotage: str = ""
    """Run in every worker of the agent `qwen` as it loads; see saboteur.py."""
    overrides: Sequence[str] = ()
    """Settings of this start alone."""
    outside: Callable[[subprocess.Popen[str], Path], None] | None = None
    """Done to the run's process and folder while it runs."""
    before: Callable[[Path], None] | None = None
    """Done to the run folder before the run is started."""
    after: Callable[[Path], None] | None = None
    """What the sentence asks for."""
    code: int = 1
    said: Sequence[str] = ()
    """Parts of its last line."""
    deadline: float = 0.0
    """Seconds that pass before anything can be noticed."""


def _when(call: str, number: int, action: str) -> str:
    return f"at_call({call!r}, {number}, on_rank(1, marked({action})))"


def _steps_done(run: Path, steps: int, process: subprocess.Popen[str]) -> None:
    """Wait until this session has written so many more steps."""
    log = run / "metrics.jsonl"

    def lines() -> int:
        return log.read_text().count("\n") if log.exists() else 0

    deadline = time.monotonic() + 180
    while not list(run.glob("logs/*")) or lines() < steps:
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"the run ended before it had done {steps} steps")
        time.sleep(0.05)


def _mark() -> None:
    Path(os.environ["MMCORL_MARK"]).write_text(str(time.time()))


def _kill_driver(process: subprocess.Popen[str], run: Path) -> None:
    _steps_done(run, 4, process)
    _mark()
    process.kill()


def _interrupt(process: subprocess.Popen[str], run: Path) -> None:
    """Ctrl-C on a terminal reaches the whole process group."""
    _steps_done(run, 1, process)
    _mark()
    os.killpg(process.pid, signal.SIGINT)


def _interrupt_twice(process: subprocess.Popen[str], run: Path) -> None:
    _interrupt(process, run)
    time.sleep(0.1)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)


def _newest(run: Path) -> Path:
    return max(run.glob("checkpoints/step_*"))


def _damage(run: Path) -> None:
    """One byte too few in the weights of the newest checkpoint."""
    weights = next(_newest(run).glob("qwen/*.safetensors"))
    os.truncate(weights, weights.stat().st_size - 1)


def _remove(run: Path) -> None:
    shutil.rmtree(_newest(run))


DIED = "died without an error of its own"
# Six steps with a checkpoint at every second one. Up to 12 tokens are drawn in the evaluation before the first step
# and in every rollout.
DRILLS = (
    Drill(
        "a worker is killed in a rollout",
        _when("mmcorl.engines.transformers:draw", 15, "kill"),
        said=("agent 'qwen', rank 1 of 2", "during the rollout", DIED, "qwen-rank1.log"),
    ),
    Drill(
        "a worker is killed in an update",
        _when("mmcorl.algo.loss:policy_loss", 1, "kill"),
        said=("agent 'qwen', rank 1 of 2", "during the update of step 1", DIED),
    ),
    Drill(
        "a worker raises in an update",
        _when("mmcorl.algo.loss:policy_loss", 2, "explode"),
        said=("agent 'qwen', rank 1 of 2", "failed: ValueError: the third shoe dropped", "qwen-rank1.log"),
    ),
    Drill(
        "the writing worker is killed in a save",
        "at_call('mmcorl.trainer.weights_io:write', 1, marked(kill))",
        said=("agent 'qwen', rank 0 of 2", "during a checkpoint", DIED),
    ),
    Drill("Ctrl-C", outside=_interrupt, code=130, said=("interrupted: the same command goes on",)),
    Drill(
        "a worker is suspended",
        _when("mmcorl.engines.transformers:draw", 4, "suspend"),
        said=("agent 'qwen', rank 1 of 2", "its process has been suspended"),
    ),
    Drill("the run's process is killed", outside=_kill_driver, code=-signal.SIGKILL),
    Drill(
        "a worker hangs in an update, and its peer waits for it",
        _when("mmcorl.algo.loss:policy_loss", 1, "stand_still"),
        overrides=("ray.collective_timeout=5",),
        said=("agent 'qwen', rank 0 of 2", "no answer from rank 1", "qwen-rank1.log"),
        deadline=5,
    ),
    Drill(
        "a worker hangs in a rollout",
        _when("mmcorl.engines.transformers:draw", 4, "stand_still"),
        overrides=("ray.call_timeout=6",),
        said=("agent 'qwen', rank 1 of 2", "gave no result within 6 seconds", "qwen-rank1.log"),
        deadline=6,
    ),
    Drill("Ctrl-C twice", outside=_interrupt_twice, code=130, said=("interrupted: the same command goes on",)),
    Drill(
        "no room on the disk",
        "at_call('mmcorl.trainer.weights_io:write', 1, marked(no_big_files))",
        said=("no room is left to write into", "make room and the same command goes on"),
    ),
    Drill(
        "the newest checkpoint is damaged",
        before=_damage,
        after=_remove,
        code=2,
        said=("is damaged", "or remove that folder to go on from the checkpoint before it"),
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
    steps: tuple[int, int]
    """Steps logged when it ended, and of these in the last committed checkpoint."""


class Range:
    """Where drills take place: a config, and a folder that all processes of a run live in."""

    def __init__(self, folder: Path):
        self.folder, self.mark = folder, folder / "mark"
        self.config = write_config(folder, self.settings())

    def settings(self) -> dict[str, Any]:
        """Two agents of two ranks."""
        models = {
            name: taught(model, self.folder / "zoo") for name, model in {"qwen": "qwen2", "llama": "llama"}.items()
        }
        settings = changed(small_config(models, "text"), launcher="ray", agents__0__adapter="saboteur:Saboteur")
        for agent in settings["agents"]:
            agent["ranks"] = 2
        return settings

    def start(self, run: Path, *overrides: str, sabotage: str = "") -> subprocess.Popen[str]:
        """A run in a process group of its own; its output goes to a file."""
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "PYTHONPATH": f"{HERE}:{HERE.parent.parent}",
            "MMCORL_SABOTAGE": sabotage,
            "MMCORL_MARK": str(self.mark),
        }
        self.mark.unlink(missing_ok=True)
        shutil.rmtree(run / "logs", ignore_errors=True)  # They come again with the workers.
        os.environ["MMCORL_MARK"] = str(self.mark)
        with (self.folder / "output").open("w") as output:
            argv = command("train", self.config, *overrides, "--run-dir", run)
            return subprocess.Popen(
                argv, cwd=self.folder, stdout=output, stderr=output, env=environment, start_new_session=True, text=True
            )

    def finish(self, process: subprocess.Popen[str]) -> Ended:
        """Wait for the end."""
        code = process.wait(180)
        return Ended(code, (self.folder / "output").read_text(errors="replace"))

    def left(self, patience: float = 8.0) -> list[str]:
        """Processes of the run that are still there after a while."""
        deadline = time.monotonic() + patience
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _processes(self) -> list[str]:
        """Those that live in our folder. (Ray's own write their names over the environment they were given.)"""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()) == self.folder:
                    processes.append(" ".join(process.cmdline())[:80])
        return processes

    def do(self, drill: Drill, run: Path) -> Outcome:
        """Start or resume the run, break it, and look."""
        if drill.before:
            drill.before(run)
        process = self.start(run, *drill.overrides, sabotage=drill.sabotage)
        if drill.before:
            _mark()
        if drill.outside:
            drill.outside(process, run)
        ended = self.finish(process)
        left = self.left()
        now = time.time()
        if drill.after:
            drill.after(run)
        if not self.mark.exists():
            raise AssertionError(f"{drill.name}: it did not happen\n{ended.output}")
        sets = [int(path.parent.name[-6:]) for path in run.glob("checkpoints/step_*/COMMIT")]
        done = [line["step"] for line in records(run, "metrics.jsonl")] if (run / "metrics.jsonl").exists() else []
        steps = (max(done, default=0), max(sets, default=0))
        return Outcome(drill, ended, now - float(self.mark.read_text()), left, steps)


def problems(outcome: Outcome) -> list[str]:
    """What is not as promised."""
    drill, ended = outcome.drill, outcome.ended
    lines = ended.output.strip().splitlines()
    last = lines[-1] if lines else ""
    found = [f"it did not say {part!r}" for part in drill.said if part not in last]
    if ended.code != drill.code:
        found.append(f"exit code {ended.code} instead of {drill.code}")
    if "Traceback" in ended.output:
        found.append("it printed a stack trace")
    if outcome.seconds > 10 + drill.deadline and drill.code == 1:
        found.append(f"{outcome.seconds:.1f} seconds are more than {10 + drill.deadline:g}")
    return found + [f"left running: {one}" for one in outcome.left]


def main() -> int:
    """All drills; exit code 1 where something was not as promised."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the report here, too")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="drills-"))
    report, bad = ["| drill | seconds | steps done, kept | last words | as promised |", "|---|---|---|---|---|"], 0
    try:
        place = Range(folder)
        alone = place.finish(place.start(folder / "alone"))
        if alone.code:
            raise SystemExit(alone.output)
        run = folder / "run"
        for drill in DRILLS:
            outcome = place.do(drill, run)
            wrong = problems(outcome)
            bad += bool(wrong)
            said = (outcome.ended.output.strip().splitlines() or ["-"])[-1].replace(str(folder), "").replace("|", "/")
            kept = ", ".join(map(str, outcome.steps))
            row = f"| {drill.name} | {outcome.seconds:.1f} | {kept} | {said} | {'; '.join(wrong) or 'yes'} |"
            report.append(row)
            print(row, flush=True)
        last = place.finish(place.start(run))
        try:
            assert last.code == 0, last.output
            assert_same_run(run, folder / "alone")
            report.append("\nAfter all of them the run ended byte for byte as the one that was left alone.")
        except AssertionError as error:
            report.append(f"\nThe run did not end as the one that was left alone: {error}")
            bad += 1
    finally:
        shutil.rmtree(folder)
    print("\n".join(report))
    if arguments.out:
        arguments.out.write_text("\n".join(report) + "\n")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
