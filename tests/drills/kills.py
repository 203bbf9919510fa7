"""`train` killed with SIGKILL at exact moments, then run again: the same bytes, no litter, no process left."""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.drills.lab import Lab, Verdict, drills, lines, problem, there

# Moments as a file that appears, or lines of a log.
MOMENTS: dict[str, Callable[[Path], Callable[[], object]]] = {
    "the folder exists": lambda run: run.is_dir,
    "data is checked": lambda run: there(run, "data_check.json"),
    "the first line of metrics": lambda run: lambda: lines(run / "metrics.jsonl") >= 1,
    "the first line of votes": lambda run: lambda: lines(run / "votes.jsonl") >= 1,
    "a checkpoint begins": lambda run: there(run, "checkpoints/.partial_*"),
    "half of a checkpoint": lambda run: there(run, "checkpoints/.partial_*/qwen/model.safetensors"),
    "the second half": lambda run: there(run, "checkpoints/.partial_*/other"),
    "COMMIT is written": lambda run: there(run, "checkpoints/.partial_*/COMMIT"),
    "the first checkpoint": lambda run: there(run, "checkpoints/step_000002"),
    "the second checkpoint": lambda run: there(run, "checkpoints/step_000004"),
    "best is linked": lambda run: there(run, "checkpoints/best-by-*"),
    "validation in the middle": lambda run: lambda: lines(run / "validation.jsonl") >= 2,
    "step 5": lambda run: lambda: lines(run / "metrics.jsonl") >= 5,
    "the last checkpoint begins": lambda run: there(run, "checkpoints/.partial_000006"),
    "the last checkpoint": lambda run: there(run, "checkpoints/step_000006"),
    "half of the export": lambda run: there(run, "*final*/qwen/model.safetensors"),
    "the export has its name": lambda run: there(run, "final"),
    "the summary": lambda run: there(run, "summary.json"),
    "the page begins": lambda run: there(run, "*report.html*"),
}


def at(*moments: Callable[[Path], Callable[[], object]]) -> Callable[[Lab], Verdict]:
    """Killed at one moment after another, each in a new start of the same command."""

    def body(lab: Lab) -> Verdict:
        run, missed = lab.folder() / "run", 0
        for moment in moments:
            running = lab.start("train", lab.config, "--run-dir", run)
            missed += not lab.when(running, moment(run))
            if wrong := problem(lab.kill(running)):
                return wrong
        verdict = lab.resumed(run)
        if missed == len(moments) and verdict.outcome == "survived":
            return Verdict("unclear", "it was too quick to be caught")
        return verdict

    return body


def after(seed: int) -> Callable[[Lab], Verdict]:
    """Killed after a number of seconds drawn at random, three times."""

    def body(lab: Lab) -> Verdict:
        chance, run = random.Random(seed), lab.folder() / "run"
        for _ in range(3):
            running = lab.start("train", lab.config, "--run-dir", run)
            time.sleep(chance.uniform(0.3, 3.0))
            if wrong := problem(lab.kill(running)):
                return wrong
        return lab.resumed(run)

    return body


def torn(lab: Lab) -> Verdict:
    """Half a line at the end of each log."""
    run = lab.stopped()
    for file in run.glob("*.jsonl"):
        with file.open("a") as log:
            log.write('{"step": 5, "ag')
    return lab.resumed(run)


def traced(lab: Lab, run: Path, inject: str, log: Path) -> int:
    """Run it as a process of its own under strace; the exit status."""
    command = ["strace", "-qq", "-o", str(log), "-e", "trace=rename,renameat,renameat2"]
    command += ["-e", inject] if inject else []
    command += [sys.executable, "-m", "mmcorl.cli", "train", str(lab.config), "--run-dir", str(run), "--quiet"]
    root = Path(__file__).resolve().parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, timeout=120, check=False).returncode


def at_rename(target: str) -> Callable[[Lab], Verdict]:
    """Killed as a file or folder is about to get its name, the last time that this happens."""

    def body(lab: Lab) -> Verdict:
        if shutil.which("strace") is None:
            return Verdict("unclear", "strace is not installed")
        names = renames(lab)
        calls = [number for number, name in enumerate(names, 1) if re.fullmatch(target, name)]
        if not calls:
            return Verdict("unclear", f"a run renames nothing to {target}: {sorted(set(names))}")
        run = lab.folder() / "run"
        code = traced(lab, run, f"inject=rename:signal=SIGKILL:when={calls[-1]}", lab.folder() / "strace.txt")
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            return Verdict("unclear", f"strace ended with {code}")
        return lab.resumed(run)

    return body


def renames(lab: Lab) -> list[str]:
    """Names given by the calls of rename() of a run, in order."""
    log = lab.root / "renames.txt"
    if not log.exists():
        traced(lab, lab.folder() / "run", "", log)
    return [path.rpartition("/")[2] for path in re.findall(r'^rename\(".*", "(.*)"\)', log.read_text(), re.M)]


DRILLS = drills(
    "kills",
    [
        *((f"at: {name}", at(moment)) for name, moment in MOMENTS.items()),
        ("three in a row", at(*(MOMENTS[name] for name in ("half of a checkpoint", "step 5", "half of the export")))),
        ("torn lines", torn),
        *((f"random moments {seed}", after(seed)) for seed in range(3)),
        *(
            (f"before the rename to {name}", at_rename(name))
            for name in (r"config\.yaml", r"data_check\.json", r"step_\d+", "best-by-.*", "trackers.json", "final")
        ),
        *((f"before the rename to {name}", at_rename(name)) for name in (r"summary\.json", r"report\.html")),
    ],
)
