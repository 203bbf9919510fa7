"""Benchmarks as validation sets of a run: the suite's problems, prompts and rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_suite.evaluation.periodic import held_out
from evaluations import humaneval, math500
from mmcorl.cli.main import main
from mmcorl.errors import UserError
from mmcorl.run.settings import BenchmarkSet
from mmcorl.types import Completion
from runs import changed, records, small_config, write_config


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Three MATH-500 problems, all with the answer 1."""
    return math500(tmp_path / "math500.jsonl", ["1?", "2?", "3?"])


def test_a_response_is_graded_by_the_rules_of_the_suite(copy: Path) -> None:
    part = held_out(BenchmarkSet(name="math500", source=str(copy), limit=2))
    assert [prompt.row_id for prompt in part.prompts] == ["t/0", "t/1"]
    assert part.grade is not None
    for text, answer, end, right in (
        ("<answer>1.0</answer>", "1.0", "stop", True),
        ("<answer>0.6</answer>", "0.6", "stop", False),
        ("<answer>1", None, "length", False),
    ):
        assert part.grade(part.prompts[0], Completion(text, answer, 3, end)) is right


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
    assert all(metrics["graded"] == metrics["n"] == 3 for line in lines for metrics in line["agents"].values())
    assert json.loads((run / "summary.json").read_text())["agents"]["a"]["end"] == {
        "math500": lines[-1]["agents"]["a"]["accuracy"]
    }


def test_code_is_not_run_during_training(tmp_path: Path) -> None:
    file = humaneval(tmp_path / "h.jsonl", [("def f():\n", "candidate() == 1")])
    with pytest.raises(UserError, match="runs code that a model wrote"):
        held_out(BenchmarkSet(name="humaneval", source=str(file)))
