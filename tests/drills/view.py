"""Hostile run folders in `mmcorl view`: every question is answered, in bounded time and memory."""

from __future__ import annotations

import http.client
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from tests.drills.lab import Lab, Verdict, drills
from tests.view_runs import write_run

CPU_SECONDS, PEAK_MB = 3.0, 700
"""Of one question on a machine that others use, and of the server."""
Spoil = Callable[[Path], object]


def written(name: str, *parts: str | tuple[str, int], mode: str = "a") -> Spoil:
    """More lines of a log: texts, each so many times."""

    def spoil(run: Path) -> None:
        with (run / name).open(mode, encoding="latin-1") as file:
            for part in parts:
                text, times = (part, 1) if isinstance(part, str) else part
                for _ in range(times):
                    file.write(text)

    return spoil


def config(*parts: str | tuple[str, int]) -> Spoil:
    return written("config.yaml", *parts, mode="w")


def numbered(name: str, line: str, count: int) -> Spoil:
    return lambda run: (run / name).write_text("".join(line.replace("N", str(number)) for number in range(count)))


def instead(name: str, make: Callable[[Path], object]) -> Spoil:
    return lambda run: ((run / name).unlink(missing_ok=True), make(run / name))


def zeros(size: int) -> Callable[[Path], object]:
    return lambda file: (file.touch(), os.truncate(file, size))


UID = '{"step": 4, "uid": "u", "agents": {'
AGENT = '{"votes": [["1", 1]], "vote": "1"}'
KB = 1 << 10
CONFIGS: dict[str, Spoil] = {
    "empty": config(""),
    "garbage": config(("\0\xff\xfe[{", 100)),
    "a value of 40 MB": config("name: ", ("x" * KB, 40 * KB)),
    "15 MB of values": config("a: [", ("1," * KB, 15 * KB // 2), "]"),
    "60,000 values": config("a: [", ("1,", 60_000), "]"),
    "250 kB of lines": config(("#\n", 125_000), "name: a"),
    "aliases": config("a0: &a0 [1]\n", *(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 10))),
    "deep": config("a: ", ("[", 100_000)),
    "3,000 agents": config("agents:\n", *(f"- {{name: a{n}}}\n" for n in range(3000))),
    "a name of 200 kB": config("name: ", ("x", 200_000)),
    "other kinds": config("steps: [1]\nsupervision: [2]\nreward: 3\nanswers: {relation: {a: 1}}\nvalidation: 4"),
    "a folder": instead("config.yaml", Path.mkdir),
}
LOGS: dict[str, Spoil] = {
    "metrics: a line of 64 MB": written("metrics.jsonl", ("x" * KB, 64 * KB), "\n"),
    "metrics: 2 GB of zeros": instead("metrics.jsonl", zeros(2 << 30)),
    "metrics: 5 million lines": written("metrics.jsonl", ('{"step": 9}\n' * 50, 100_000)),
    "metrics: 300,000 agents": written("metrics.jsonl", UID, *(f'"{n}": 1,' for n in range(300_000)), '"a": {}}}\n'),
    "metrics: agents are a list": written("metrics.jsonl", ('{"step": 4, "agents": [1], "cohort": 3}\n', 9)),
    "metrics: deep": written("metrics.jsonl", ("[", 1_000_000), "\n"),
    "votes: answers of 200 kB": written(
        "votes.jsonl", (f'{UID}"a": {{"vote": "{"1+" * KB * 100}"}}, "b": {{"vote": "{"+1" * KB * 100}"}}}}}}\n', 200)
    ),
    "votes: 1,000 agents, alike": written(
        "votes.jsonl", (UID + "".join(f'"{n}": {AGENT},' for n in range(1000)) + f'"a": {AGENT}}}}}\n', 200)
    ),
    "votes: 2 GB of zeros": instead("votes.jsonl", zeros(2 << 30)),
    "probes: 200,000 steps": numbered("probes.jsonl", UID.replace("4", "N") + f'"a": {AGENT}}}}}\n', 200_000),
    "responses: 300,000 prompts": numbered("responses.jsonl", '{"step": 1, "uid": "N", "agent": "a"}\n', 300_000),
    "a summary of 40 MB": written("summary.json", '{"a": [', ("1,", 20 << 20), "1]}"),
    "a summary that is deep": written("summary.json", '{"a": ', ("[", 1_000_000)),
}


def looked_at(spoil: Spoil) -> Callable[[Lab], Verdict]:
    """The list, the run, its prompts and one of them, each answered by what is there or by one sentence."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder() / "runs"
        write_run(folder / "whole")
        spoil(write_run(folder / "hostile"))
        running = lab.start("view", folder, "--port", "0")
        verdict: Verdict | None = Verdict("lost", "it did not start")
        try:
            if lab.when(running, lambda: b"\n" in running.output.read_bytes()):
                verdict = _questions(running.output.read_text().splitlines()[0], running.pid)
        finally:
            ended = lab.kill(running)
        if "Traceback" in ended.output:
            return Verdict("traceback", ended.output[-200:])
        return verdict or Verdict("survived")

    return body


def _questions(address: str, pid: int) -> Verdict | None:
    host, cookie = address.split("/")[2], ""
    token = re.search(r"/(\?token=.*)", address)
    ids: dict[str, str] = {}
    questions = [token[1]] if token else []
    questions += [
        "api/folders",
        "api/run?",
        "api/prompts?",
        "api/prompts?source=training&filter=wrong&",
        "api/prompt?uid=u&",
    ]
    for question in questions:
        path = question + (f"run={ids.get('hostile', 'none')}" if question[-1] in "?&" else "")
        before, started = _cpu(pid), time.monotonic()
        connection = http.client.HTTPConnection(host, timeout=40)
        try:
            connection.request("GET", f"/{path}", headers={"Cookie": cookie})
            answer = connection.getresponse()
            cookie = cookie or (answer.headers["Set-Cookie"] or "").partition(";")[0]
            told = json.loads(answer.read() or b"{}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            return Verdict("hang" if time.monotonic() - started > 39 else "lost", f"{question}: {type(error).__name__}")
        finally:
            connection.close()
        if question == "api/folders":
            ids = {one["name"]: one["id"] for one in told["folders"]}
            if "whole" not in ids:
                return Verdict("lost", "the other run is not listed")
        spent = _cpu(pid) - before
        if spent > CPU_SECONDS:
            return Verdict("hang", f"{question} took {spent:.1f} s of a processor")
        if re.search(r"'\w+' object|not subscriptable|unhashable", str(told.get("error", ""))):
            return Verdict("lost", f"{question}: {told['error']}")
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) >> 10  # type: ignore[index]
    return Verdict("lost", f"took {peak} MB") if peak > PEAK_MB else None


def _cpu(pid: int) -> float:
    """Seconds of a processor that a process took."""
    parts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


DRILLS = [
    *drills("view", ((f"config: {name}", looked_at(spoil)) for name, spoil in CONFIGS.items())),
    *drills("view", ((name, looked_at(spoil)) for name, spoil in LOGS.items())),
]
