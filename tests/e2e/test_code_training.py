"""A run on sums in words and coding problems together: each kind votes in its own way, in the same batch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from mmcorl.answers.outputs import outputs_answer
from mmcorl.cli.main import main
from runs import changed, records, small_config, write_config

# Tiny models cannot write programs: here the first token of a completion chooses one of four.
WRITER = """
from model_adapters.text import TextAdapter

PROGRAMS = (
    "def add(a, b): return a + b",
    "def add(x, b): return sum((x, b))",
    "def add(a, b): return a * b",
    "import os; os._exit(1)",
)

class Writer(TextAdapter):
    def decode(self, processor, ids):
        return f"```python\\n{PROGRAMS[list(ids)[0] % 4]}\\n```"
"""
ROWS = [
    {"id": f"add-{n}", "question": f"Write `add`, problem {n}.", "tests": f"assert add({n}, 3) == {n + 3}"}
    for n in range(4)
]


@pytest.mark.slow
def test_mixed_rows_train_each_kind_by_its_own_votes(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program_writer.py").write_text(WRITER)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "code.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    code = {"source": str(tmp_path / "code.jsonl"), "columns": {"id": "id", "tests": "tests"}}
    config = changed(
        small_config({"a": tiny_checkpoints["qwen2"], "b": tiny_checkpoints["llama"]}, "text"),
        steps=2,
        agents__0__adapter="program_writer:Writer",
        agents__1__adapter="program_writer:Writer",
        data__train__size=2,
        data__also=[code],
        answers={"run_code": True},
        batch={"prompts": 6, "completions": 6},
        sampling={"max_new_tokens": 4},
        validation={"every": 2, "sets": [{"name": "code", "data": code}]},
    )
    file, run = write_config(tmp_path, config), tmp_path / "run"
    assert main(["train", str(file), "--run-dir", str(run), "--quiet", "answers.run_code=false"]) == 2
    assert not run.exists()
    for _ in range(2):  # the second time there is nothing to do but to find the rows as they were
        assert main(["train", str(file), "--run-dir", str(run), "--quiet"]) == 0

    lines = records(run, "votes.jsonl")
    assert len(lines) == 2 * 6  # every row in either step
    rewarded = set()
    for line in lines:
        kind, _, row = line["row"].partition("/")
        n = int(row.rpartition("-")[2]) if kind == "code.jsonl" else 0
        possible = {outputs_answer([str(n + 3)]), outputs_answer([str(n * 3)]), None}
        for agent, peer in (("a", "b"), ("b", "a")):
            own = line["agents"][agent]
            if kind != "code.jsonl":
                assert own["answers"] == [None] * 6  # a program is no answer to a sum
                continue
            assert set(own["answers"]) <= possible
            label = line["agents"][peer]["vote"]
            assert own["label"] == label
            assert own["rewards"] == [float(label is not None and answer == label) for answer in own["answers"]]
            rewarded.update(own["rewards"])
    assert rewarded == {0.0, 1.0}
    for step in records(run, "metrics.jsonl"):
        for agent in step["agents"].values():
            assert math.isfinite(agent["loss"])
            assert math.isfinite(agent["grad_norm"])
    answers = {record["answer"] for record in records(run, "responses.jsonl")}
    assert answers <= {outputs_answer([str(value)]) for n in range(4) for value in (n + 3, n * 3)} | {None}
