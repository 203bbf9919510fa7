"""Benchmarks as validation sets of a run: the suite's problems, prompts and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_suite.periodic import held_out
from mmcorl.cli.main import main
from mmcorl.config import BenchmarkSet
from mmcorl.errors import UserError
from mmcorl.types import Completion
from runs import changed, records, small_config, write_config


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A few MATH-500 rows in the official schema."""
    rows = [
        {"problem": f"What is {n}/2?", "solution": "", "answer": f"\\frac{{{n}}}{{2}}", "subject": "Algebra"}
        | {"level": 1, "unique_id": f"test/{n}"}
        for n in (1, 3, 5)
    ]
    file = tmp_path / "math500.json"
    file.write_text(json.dumps(rows))
    return file


def test_a_response_is_graded_by_the_rules_of_the_suite(copy: Path) -> None:
    part = held_out(BenchmarkSet(name="math500", source=str(copy), limit=2))
    assert [prompt.row_id for prompt in part.prompts] == ["test/1", "test/3"]
    assert part.grade is not None
    right, wrong, cut = "<answer>0.5</answer>", "<answer>0.6</answer>", "<answer>0.5"
    assert part.grade(part.prompts[0], Completion(right, "0.5", 3, "stop"))
    assert not part.grade(part.prompts[0], Completion(wrong, "0.6", 3, "stop"))
    assert not part.grade(part.prompts[0], Completion(cut, None, 3, "length"))
    assert not part.grade(part.prompts[1], Completion(right, "0.5", 3, "stop"))


def test_a_run_evaluates_a_benchmark_when_it_evaluates(
    copy: Path, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    models: dict[str, Any] = {"a": tiny_checkpoints["qwen2_5_vl"], "b": tiny_checkpoints["internvl3_5"]}
    config = changed(
        small_config(models), steps=1, validation={"benchmarks": [{"name": "math500", "source": str(copy)}], "every": 1}
    )
    run = tmp_path / "run"
    assert main(["train", str(write_config(tmp_path, config)), "--run-dir", str(run), "--quiet"]) == 0
    lines = records(run, "validation.jsonl")
    assert [(line["step"], line["set"]) for line in lines] == [(0, "math500"), (1, "math500")]
    assert {line["grader"]["name"] for line in lines} == {"mmcorl-grader"}
    assert all(told["graded"] == told["n"] == 3 for line in lines for told in line["agents"].values())
    assert json.loads((run / "summary.json").read_text())["agents"]["a"]["end"] == {
        "math500": lines[-1]["agents"]["a"]["accuracy"]
    }


def test_code_is_not_run_during_training(tmp_path: Path) -> None:
    problem = {"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "    return 1\n"}
    (tmp_path / "h.jsonl").write_text(
        json.dumps(problem | {"test": "def check(c):\n    assert c() == 1\n", "entry_point": "f"}) + "\n"
    )
    with pytest.raises(UserError, match="runs code that a model wrote"):
        held_out(BenchmarkSet(name="humaneval", source=str(tmp_path / "h.jsonl")))
