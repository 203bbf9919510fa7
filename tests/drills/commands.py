"""`eval`, `grade`, `rephrase` and `sweep` killed, the symbolic worker killed or stopped: the same results after all."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.drills.lab import Lab, Verdict, children, drills, name, problem, refused, there
from tests.openai_server import Call, OpenAIServer, Reply
from tests.runs import write_config

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "benchmarks"
COMPARED = ("summary.json", "responses.jsonl", "rule.jsonl")


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- eval and grade -------------------------------------------------------------------------------------------


def results(out: Path, names: tuple[str, ...] = COMPARED) -> dict[str, bytes]:
    """What has to be equal of an evaluation."""
    return {name: (out / name).read_bytes() for name in names if (out / name).is_file()}


def sums(count: int) -> list[dict[str, object]]:
    """Answers that only the computer-algebra system can tell right, and some that are wrong."""
    rows: list[dict[str, object]] = []
    for n in range(count):
        wrong = 1 if n % 5 == 0 else 0
        rows.append(
            {
                "id": n,
                "gold": rf"\ln x + x^{{{n % 60 + 2}}} + {n}",
                "response": rf"<answer>{n + wrong}+x^{{{n % 60 + 2}}}+\ln x</answer>",
            }
        )
    return rows


# -- the symbolic worker ----------------------------------------------------------------------------------------


def workers(pid: int) -> list[int]:
    """Symbolic workers of a command, and the forks of them that compare."""
    return [child for child in children(pid) if "symbolic_worker" in name(child)]


def worker_met(number: int, times: int, first: bool, then: float | None = None) -> Callable[[Lab], Verdict]:
    """A signal to the worker as it starts (`first`) or compares, some times over; a stopped one goes on `then`.

    Where it never gets to start, the command says so, and given again it ends with the same verdicts.
    """

    def body(lab: Lab) -> Verdict:
        file = write_rows(lab.folder() / "r.jsonl", sums(200))
        alone, out = lab.folder() / "out", lab.folder() / "out"
        argv: list[str | Path] = ["grade", file, "--quiet", "--out"]
        if lab.run(*argv, alone).code:
            return Verdict("unclear", "left alone, it fails")
        running, met = lab.start(*argv, out), 0
        told: set[int] = set()
        for _ in range(times):
            if not lab.when(running, lambda: set(workers(running.pid)) - told, 20):
                break
            if not first:
                time.sleep(1.0 + 0.2 * met)
            for pid in set(workers(running.pid)) - told:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
                    told.add(pid)
                    met += 1
                if then is not None:
                    time.sleep(then)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)
        ended = lab.wait(running, 400)
        if ended.code:
            told_so = refused(ended, "did not start", seconds=400, otherwise="lost")
            again = lab.run(*argv, out, seconds=400)
            if told_so.outcome != "survived" or again.code:
                return told_so if again.code == 0 else Verdict("lost", again.sentence)
        if results(out) != results(alone):
            return Verdict("silent", "other verdicts")
        if wrong := problem(ended, 400):
            return wrong
        return Verdict("survived" if met else "unclear", f"{met} signals, {ended.seconds:.0f} s")

    return body


# -- rephrase ---------------------------------------------------------------------------------------------------


def rewording(call: Call) -> Reply:
    """Reword everything and find everything the same."""
    content = call.body["messages"][0]["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    match = re.search(r"<question>\n(.*)\n</question>", text, re.DOTALL)
    answer = f"<rephrased>\nPlease answer this: {match[1]}\n</rephrased>" if match else "Same."
    return Reply(answer, delay=0.02)


def rephrased(reached: Callable[[Path], Callable[[], object]]) -> Callable[[Lab], Verdict]:
    def body(lab: Lab) -> Verdict:
        folder = lab.folder()

        def serve() -> None:
            with OpenAIServer(rewording) as server:
                (folder / "url.part").write_text(server.url)
                (folder / "url.part").rename(folder / "url")
                time.sleep(600)

        made: list[dict[str, bytes]] = []
        with lab.beside(serve):
            while not (folder / "url").exists():
                time.sleep(0.01)
            caught = False
            for kill in (False, True):
                place = lab.folder()
                rows = [
                    {"id": f"r{n}", "question": f"What is {n} plus {n + 1}?", "answer": str(2 * n + 1)}
                    for n in range(60)
                ]
                settings = lab.settings(
                    data__train={
                        "source": str(write_rows(place / "rows.jsonl", rows)),  # type: ignore[arg-type]
                        "columns": {"answer": "answer", "id": "id"},
                        "views": {"reworded": {"source": str(place / "view.jsonl")}},
                    }
                )
                config = write_config(place, settings)
                argv = ["rephrase", config, "--model", "m", "--url", (folder / "url").read_text(), "--quiet"]
                if kill:
                    running = lab.start(*argv)
                    caught = lab.when(running, reached(place))
                    if wrong := problem(lab.kill(running)):
                        return wrong
                ended = lab.run(*argv)
                if ended.code:
                    return problem(ended) or Verdict("lost" if kill else "unclear", ended.sentence)
                made.append(results(place, ("view.jsonl",)))
        if made[0] != made[1] or not made[0]:
            return Verdict("lost", "other rewordings")
        return Verdict("survived" if caught else "unclear", "" if caught else "it was too quick to be caught")

    return body


# -- sweep ------------------------------------------------------------------------------------------------------


def swept(moment: str, number: int, the_run: bool = False) -> Callable[[Lab], Verdict]:
    """A sweep of two runs, the sweep or the run in it met by a signal; nothing trains on, and the table is the same."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        config = write_config(folder, lab.settings(steps=4, checkpoint={"every": 1}))
        tables = []
        for kill in (False, True):
            out = folder / f"out_{kill}"
            argv = ["sweep", config, "--methods", "co_rl", "gt", "--quiet", "--out", out]
            if kill:
                running = lab.start(*argv)
                if not lab.when(running, there(out, moment)):
                    return Verdict("unclear", "it was too quick to be caught")
                if the_run:
                    for pid in children(running.pid):
                        os.kill(pid, number)
                    ended = lab.wait(running)
                    if "SIG" not in ended.output and "signal" not in ended.output and "killed" not in ended.output:
                        return problem(ended) or Verdict("lost", f"the signal is not told: {ended.sentence}")
                else:
                    ended = lab.kill(running, number)
                if wrong := problem(ended):
                    return wrong
            ended = lab.run(*argv, seconds=120)
            if ended.code:
                return problem(ended) or Verdict("lost" if kill else "unclear", f"does not go on: {ended.sentence}")
            rows = json.loads((out / "sweep.json").read_text())
            # Seconds differ, and memory.
            tables.append(
                [{key: row[key] for key in row if "second" not in key and "memory" not in key} for row in rows]
            )
        return Verdict("survived") if tables[0] == tables[1] else Verdict("lost", "another table")

    return body


DRILLS = [
    *drills(
        "commands",
        [
            ("rephrase: the first rows", rephrased(lambda place: there(place, "view.jsonl*/*.jsonl"))),
            ("rephrase: the view begins", rephrased(lambda place: there(place, "*view.jsonl*"))),
            ("sweep killed in a run", swept("*/*/checkpoints/step_*", signal.SIGKILL)),
            ("sweep killed as a run starts", swept("*/*/config.yaml", signal.SIGKILL)),
            ("sweep terminated", swept("*/*/checkpoints/step_*", signal.SIGTERM)),
            ("a run of a sweep killed", swept("*/*/checkpoints/step_*", signal.SIGKILL, the_run=True)),
        ],
    ),
    *drills(
        "worker",
        [
            ("killed once", worker_met(signal.SIGKILL, 1, first=False)),
            ("killed three times", worker_met(signal.SIGKILL, 3, first=False)),
            ("killed as it starts", worker_met(signal.SIGKILL, 1, first=True)),
            ("killed four times as it starts", worker_met(signal.SIGKILL, 4, first=True)),
            ("stopped for 3 s", worker_met(signal.SIGSTOP, 1, first=False, then=3.0)),
            ("stopped for good", worker_met(signal.SIGSTOP, 1, first=False)),
            ("stopped for good as it starts", worker_met(signal.SIGSTOP, 1, first=True)),
        ],
    ),
]
