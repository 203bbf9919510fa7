"""Hostile programs in `grade --run-code`: contained, no verdict lost. One by one: tests/e2e/test_code_hostile.py."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.drills.lab import Lab, Verdict, drills, problem
from tests.e2e.test_code_hostile import BOMBS, BURDENS, KILLERS, LOOPS
from tests.paths import CASES


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
KILLS = f"import os\ndef f():\n try: {KILLERS['everyone']}\n except OSError: pass\n return 1"
GRADED = {
    "late by its last byte": LATE,
    "a set of 400,000 colliding numbers": COLLIDES,
    "30 MB of lists": PIECES,
    "more than the limit": BURDENS["more than the limit"],
    "forks": BOMBS["fork loop"],
    "endless output": LOOPS["endless output"],
    "kills everyone": KILLS,
    "10 GiB": BOMBS["10 GiB"],
}
DRILLS = drills("sandbox", ((f"graded: {name}", in_a_file(source)) for name, source in GRADED.items()))
