"""Hostile programs, one by one and in `grade --run-code`: contained, cheap for the grader, no verdict lost."""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Callable

from tests.drills.lab import Lab, Verdict, drills, problem
from tests.e2e.test_code_hostile import BOMBS, BURDENS, ESCAPES, KILLERS, LIARS, LIMITS, LOOPS, PRINTED, SHORT, TESTS
from tests.paths import CASES

GRADER_SECONDS, GRADER_MB = 1.0, 64


def program(source: str, test: str = "assert f() == 3", may_pass: bool = False) -> Callable[[Lab], Verdict]:
    """One program under each way of running it; what it costs this process, and a file that must stay."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        boxes, outside = folder / "boxes", folder / "outside"
        boxes.mkdir()
        outside.mkdir()
        outside.chmod(0o777)
        (outside / "canary").write_text("alive")
        (outside / "canary").chmod(0o666)
        told = folder / "told.json"

        def command() -> int:
            from mmcorl.sandbox.process import Sandbox, detect
            from mmcorl.sandbox.run_tests import (
                CallCase,
                Program,
                StdinCase,
                run_calls,
                run_programs,
                run_python_tests,
            )

            tempfile.tempdir = str(boxes)
            sandbox = Sandbox(detect(), LIMITS)
            text = source.replace("{canary}", str(outside / "canary")).replace("{outside}", str(outside))
            made = Program(text.replace("{grader}", str(os.getpid())).replace("SHORT", str(SHORT)))
            before, memory = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            results = [
                run_python_tests(sandbox, made, ["f"], "", [test], SHORT * 2),
                run_calls(sandbox, made, "f", [CallCase((), 3)], SHORT * 2),
                run_programs(sandbox, made, [StdinCase("", "1e9")], SHORT * 2),
            ]
            grew = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) >> 10
            record = {
                "passed": [result.passed for result in results],
                "errors": [result.harness_error for result in results],
                "cpu": time.process_time() - before,
                "grew_mb": grew,
            }
            told.write_text(json.dumps(record))
            return 0

        ended = lab.wait(lab.fork(command))
        if wrong := problem(ended):
            return wrong
        if ended.code or not told.exists():
            return Verdict("lost", f"the grader ended with {ended.code}")
        record = json.loads(told.read_text())
        if (outside / "canary").read_text() != "alive" or len(list(outside.iterdir())) != 1:
            return Verdict("lost", "files outside were changed")
        if list(boxes.iterdir()):
            return Verdict("lost", "a folder was left behind")
        if any(record["passed"]) and not may_pass:
            return Verdict("silent", f"it passes: {record['passed']}")
        if any(record["errors"]):
            return Verdict("lost", f"the sandbox is blamed: {record['errors']}")
        if record["cpu"] > GRADER_SECONDS or record["grew_mb"] > GRADER_MB:
            return Verdict("lost", f"it costs the grader {record['cpu']:.1f} s of CPU and {record['grew_mb']} MB")
        return Verdict("survived")

    return body


def in_a_file(source: str) -> Callable[[Lab], Verdict]:
    """The program among good ones in a file of responses: the command ends, and the good ones keep their verdicts."""

    def body(lab: Lab) -> Verdict:
        folder = lab.folder()
        problems = json.loads((CASES / "code_rows.json").read_text())["humaneval"]
        (folder / "he.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
        solved = [f"```python\n{row['prompt']}{row['canonical_solution']}\n```" for row in problems]
        name = problems[0]["entry_point"]
        evil = source.replace("def f():", f"def {name}(*_):").replace("SHORT", "9.5")
        texts = [f"```python\n{evil}\n```", *solved[1:]]
        rows = [{"id": row["task_id"], "response": text} for row, text in zip(problems, texts, strict=True)]
        (folder / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        argv = ["grade", folder / "r.jsonl", "--benchmark", f"humaneval={folder / 'he.jsonl'}", "--run-code", "--quiet"]
        ended = lab.run(*argv, "--out", folder / "out", "--json", seconds=120)
        if wrong := problem(ended, 120):
            return wrong
        if ended.code:
            return Verdict("lost", ended.sentence)
        verdicts = [json.loads(line) for line in (folder / "out" / "rule.jsonl").read_text().splitlines()]
        got = [verdict["rule"] for verdict in verdicts]
        return Verdict("survived") if got == [False, True, True] else Verdict("silent", f"verdicts {got}")

    return body


def body_of(code: str) -> str:
    """A function that tries something and answers 1."""
    return "def f():\n try:\n  " + code.replace("\n", "\n  ") + "\n except BaseException: return 1\n return 1"


LATE = """
import os, time
t0 = time.monotonic()
def f():
    left = memoryview(b'{"value":"' + b"x" * (90 << 20) + b'"}')
    while left: left = left[os.write(4, left):]
    while time.monotonic() < t0 + 29.9: time.sleep(.001)
    os.write(4, b"\\n"); time.sleep(100)"""
COLLIDES = BURDENS["a set whose hashes collide"].replace("20001", "400001")
PIECES = BURDENS["lists in a list"].replace("600 << 10", "10 << 20")
KILLS = {
    name: f"import os, ctypes\ndef f():\n try: {line}\n except OSError: pass\n return 1"
    for name, line in KILLERS.items()
}
DRILLS = [
    *drills(
        "sandbox",
        [
            *((f"loop: {name}", program(source)) for name, source in LOOPS.items()),
            *((f"bomb: {name}", program(source)) for name, source in BOMBS.items()),
            *((f"burden: {name}", program(source)) for name, source in BURDENS.items()),
            *((f"printed: {name}", program(source)) for name, source in PRINTED.items()),
            *((f"lie: {name}", program(source, TESTS.get(name, "assert f() == 1"))) for name, source in LIARS.items()),
            *(
                (f"escape: {name}", program(body_of(code.replace("{{", "{").replace("}}", "}"))))
                for name, code in ESCAPES.items()
            ),
            *((f"signal: {name}", program(source)) for name, source in KILLS.items()),
            *(
                (f"graded: {name}", in_a_file(source))
                for name, source in {
                    "late by its last byte": LATE,
                    "a set of 400,000 colliding numbers": COLLIDES,
                    "30 MB of lists": PIECES,
                    "more than the limit": BURDENS["more than the limit"],
                    "forks": BOMBS["fork loop"],
                    "endless output": LOOPS["endless output"],
                    "kills everyone": KILLS["everyone"],
                    "10 GiB": BOMBS["10 GiB"],
                }.items()
            ),
        ],
    )
]
