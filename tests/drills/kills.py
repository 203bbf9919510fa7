"""`train` killed with SIGKILL at exact moments, then run again: the same bytes, no litter, no process left."""

from __future__ import annotations

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


def torn(lab: Lab) -> Verdict:
    """Half a line at the end of each log."""
    run = lab.stopped()
    for file in run.glob("*.jsonl"):
        with file.open("a") as log:
            log.write('{"step": 5, "ag')
    return lab.resumed(run)


DRILLS = drills(
    "kills",
    [
        *((f"at: {name}", at(moment)) for name, moment in MOMENTS.items()),
        ("three in a row", at(*(MOMENTS[name] for name in ("half of a checkpoint", "step 5", "half of the export")))),
        ("torn lines", torn),
    ],
)
