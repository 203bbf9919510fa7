"""Other signals to a run, or to one agent of it: a sentence, then the same bytes from the same command."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from tests.drills.lab import Lab, Verdict, agents, drills, lines, problem


def sent(*signals: int, codes: tuple[int, ...], gap: float = 0.0) -> Callable[[Lab], Verdict]:
    """Signals to the run in its third step; it has to end with one of these statuses, and to resume."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        running = lab.start("train", lab.config, "--run-dir", run)
        lab.when(running, lambda: lines(run / "metrics.jsonl") >= 2)
        for number in signals:
            with suppress(ProcessLookupError):
                os.kill(running.pid, number)
            time.sleep(gap)
        ended = lab.wait(running)
        if wrong := problem(ended):
            return wrong
        if ended.code not in codes:
            return Verdict("lost", f"exit {ended.code}, not {codes}: {ended.sentence}")
        return lab.resumed(run)

    return body


def agent(number: int, reached: str, seconds: float = 0.0) -> Callable[[Lab], Verdict]:
    """A signal to the process of one agent; a stopped one goes on after `seconds`."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        running = lab.start("train", lab.config, "--run-dir", run)
        lab.when(running, lambda: next(run.glob(reached), None) and lines(run / "metrics.jsonl") >= 1)
        forks = agents(running.pid)
        if len(forks) != 2:
            return Verdict("unclear", f"{len(forks)} processes of agents were found")
        os.kill(forks[-1], number)
        if seconds:
            time.sleep(seconds)
            os.kill(forks[-1], signal.SIGCONT)
            return lab.same(run, lab.wait(running))
        ended = lab.wait(running)
        if wrong := problem(ended):
            return wrong
        if ended.code == 0:  # agents leave SIGTERM to the run
            return lab.same(run, ended)
        if ended.code != 1 or not ended.sentence.startswith("mmcorl: ") or "other" not in ended.output:
            return Verdict("lost", f"exit {ended.code}, the agent is not named: {ended.sentence}")
        return lab.resumed(run)

    return body


def stopped_then_killed(lab: Lab) -> Verdict:
    """An agent that is stopped dies with its run."""
    run = lab.folder() / "run"
    running = lab.start("train", lab.config, "--run-dir", run)
    lab.when(running, lambda: lines(run / "metrics.jsonl") >= 2)
    for pid in agents(running.pid)[-1:]:
        os.kill(pid, signal.SIGSTOP)
    return problem(lab.kill(running)) or lab.resumed(run)


def reader_gone(lab: Lab) -> Verdict:
    """Who reads its output goes away, as `| head` does."""
    run = lab.folder() / "run"

    def close() -> None:
        read, write = os.pipe()
        os.dup2(write, 1)
        os.dup2(write, 2)
        os.close(read)

    lab.run("train", lab.config, "--run-dir", run, before=close)
    return lab.resumed(run)


def three_at_once(lab: Lab) -> Verdict:
    """Three starts in one folder: one trains, two are refused."""
    run = lab.folder() / "run"
    running = [lab.start("train", lab.config, "--run-dir", run) for _ in range(3)]
    lab.kept.update(item.pid for item in running)
    ended = [lab.wait(item) for item in running]
    lab.kept.difference_update(item.pid for item in running)
    if wrong := next((found for item in ended if (found := problem(item))), None):
        return wrong
    if sorted(item.code for item in ended) != [0, 2, 2]:
        return Verdict("lost", f"exit statuses {[item.code for item in ended]}")
    return lab.same(run, ended[0])


INTERRUPTED = (130, 143, 129)
DRILLS = drills(
    "signals",
    [
        ("SIGTERM", sent(signal.SIGTERM, codes=INTERRUPTED)),
        ("SIGINT", sent(signal.SIGINT, codes=INTERRUPTED)),
        ("SIGHUP", sent(signal.SIGHUP, codes=INTERRUPTED)),
        ("SIGINT twice", sent(signal.SIGINT, signal.SIGINT, gap=0.02, codes=(*INTERRUPTED, -2))),
        ("SIGTERM twice", sent(signal.SIGTERM, signal.SIGTERM, gap=0.02, codes=(*INTERRUPTED, -15))),
        ("SIGINT five times", sent(*[signal.SIGINT] * 5, gap=0.02, codes=(*INTERRUPTED, -2))),
        ("SIGQUIT", sent(signal.SIGQUIT, codes=(-3, *INTERRUPTED))),
        ("SIGSTOP and SIGCONT", sent(signal.SIGSTOP, signal.SIGCONT, gap=2.0, codes=(0,))),
        ("an agent killed in a step", agent(signal.SIGKILL, "metrics.jsonl")),
        ("an agent killed in a checkpoint", agent(signal.SIGKILL, "checkpoints/.partial_*")),
        ("an agent terminated", agent(signal.SIGTERM, "metrics.jsonl")),
        ("an agent aborted", agent(signal.SIGABRT, "metrics.jsonl")),
        ("an agent stopped for 5 s", agent(signal.SIGSTOP, "metrics.jsonl", 5.0)),
        ("an agent stopped, the run killed", stopped_then_killed),
        ("nobody reads the output", reader_gone),
        ("three starts at once", three_at_once),
    ],
)
