"""Deaths under Ray, in the environment of `make test-stack`: noticed in seconds, told, the same bytes later."""

from __future__ import annotations

import copy
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import cache

import psutil

from tests.drills.lab import Ended, Lab, Verdict, drills, lines, problem
from tests.runs import write_config

NOTICED = 10.0
"""Most seconds from a death to the end of the command."""


@cache
def under_ray(lab: Lab) -> Lab:
    """The lab with 16 steps under Ray; what they have to end with comes from a run of two forks."""
    other = copy.copy(lab)
    other.root, other.limited = lab.root / "ray", False  # Ray's processes map more than they use.
    other.config = write_config(other.folder(lasting=True), lab.settings(steps=16))
    other.reference = other.folder(lasting=True) / "run"
    ended = other.run("train", other.config, "--run-dir", other.reference, seconds=200)
    if ended.code:
        raise RuntimeError(ended.output)
    other.config = write_config(other.folder(lasting=True), lab.settings(steps=16, launcher="ray"))
    return other


def of(run: int, mark: str) -> list[psutil.Process]:
    """Processes that a run started, by a word of their command line."""
    found = []
    for process in psutil.Process(run).children(recursive=True):
        if mark in " ".join(process.cmdline())[:200]:
            found.append(process)
    return found


def dies(marks: Sequence[str], *words: str, driver: bool = False) -> Callable[[Lab], Verdict]:
    """The first process with each mark is killed in the fourth step, then the run itself if `driver`."""

    def body(lab: Lab) -> Verdict:
        if importlib.util.find_spec("ray") is None:
            return Verdict("unclear", "ray is not installed")
        lab = under_ray(lab)
        run = lab.folder() / "run"
        running = lab.start("train", lab.config, "--run-dir", run)
        if not lab.when(running, lambda: lines(run / "metrics.jsonl") >= 3, 240):
            return Verdict("unclear", f"no third step: {lab.wait(running, 1).output[-200:]}")
        for mark in marks:
            victims = of(running.pid, mark)
            if not victims:
                return Verdict("unclear", f"there is no {mark}")
            victims[0].kill()
        killed, step = time.monotonic(), lines(run / "metrics.jsonl")
        if driver:
            os.kill(running.pid, signal.SIGKILL)
        ended = lab.wait(running, killed - running.started + 90)
        took = ended.seconds - (killed - running.started)
        told = f"{took:.1f} s, {lines(run / 'metrics.jsonl') - step} steps later"
        if wrong := _judged(ended, took, words, driver):
            return Verdict(wrong.outcome, f"{told}: {wrong.word}")
        last = lab.run("train", lab.config, "--run-dir", run, seconds=200)
        verdict = (
            Verdict("lost", f"does not resume: {last.sentence}") if last.code else lab.same(run, last, seconds=200)
        )
        return Verdict(verdict.outcome, f"{told}: {verdict.word or ended.sentence}")

    return body


def _judged(ended: Ended, took: float, words: Sequence[str], driver: bool) -> Verdict | None:
    if wrong := problem(ended, 200):
        return wrong
    if took > NOTICED:
        return Verdict("lost", f"too late: {ended.sentence}")
    missing = [word for word in words if word not in ended.output]
    if not driver and (ended.code != 1 or not ended.sentence.startswith("mmcorl: ") or missing):
        return Verdict("lost", f"exit {ended.code}, lacks {missing}: {ended.sentence}")
    return None


SAFE = "the run is safe up to step"
DRILLS = drills(
    "ray",
    [
        ("a rank dies", dies(["ray::RankActor"], "died without an error of its own", SAFE)),
        ("the raylet dies", dies(["raylet/raylet "], "raylet", SAFE)),
        ("the head dies", dies(["gcs/gcs_server "], "gcs_server", SAFE)),
        ("the driver dies", dies([], driver=True)),
        ("the reaper and the driver die", dies(["mmcorl.launch.process_monitor"], driver=True)),
    ],
)
