"""The rule grader inside lm-evaluation-harness, lmms-eval and inspect_ai, run for real on a few rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmcorl.grading import grade
from paths import ROOT

pytestmark = pytest.mark.harnesses

RESPONSE = "Half of eight is \\boxed{4}."
ROWS: list[dict[str, Any]] = [
    {"question": "What is 2 + 2?", "answer": "4", "options": None},
    {"question": "What is half of 16?", "answer": "8", "options": None},
    {"question": "How many are there?", "answer": "B", "options": ["3", "4", "5"]},
    {"question": "What is half of eight?", "answer": "\\frac{8}{2}", "options": None},
    {"question": "How many are there?", "answer": "C", "options": ["3", "4", "5"]},
]
# 4 is 4, not 8; option B of 3, 4, 5 by its value; 8/2; not option C.
RIGHT = [1.0, 0.0, 1.0, 1.0, 0.0]

GRADER = """
from mmcorl.grading.harnesses import rule_grader

process_results = rule_grader(gold="answer", question="question", choices="options")
"""
TASK = """
task: mine
dataset_path: json
dataset_kwargs: {data_files: {test: ROWS}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
process_results: !function my_grader.process_results
metric_list:
  - {metric: mmcorl_rules, aggregation: mean, higher_is_better: true}
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A folder with a task of lm-evaluation-harness, which lmms-eval reads as well."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "my_grader.py").write_text(GRADER)
    (tmp_path / "tasks" / "mine.yaml").write_text(TASK.replace("ROWS", str(tmp_path / "rows.jsonl")))
    return tmp_path / "tasks"


def run(code: str, *words: str, cwd: Path) -> Any:
    """Run Python in a process of its own; the last line of its output as JSON."""
    environment = os.environ | {"HOME": str(cwd), "HF_HOME": str(cwd / "hub"), "INSPECT_LOG_DIR": str(cwd / "logs")}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_rows_are_graded_as_here() -> None:
    graded = [grade(RESPONSE, row["answer"], row["question"], row["options"]).correct for row in ROWS]
    assert graded == [value == 1.0 for value in RIGHT]


def test_lm_evaluation_harness(tasks: Path, tmp_path: Path) -> None:
    code = """
import json, sys
from lm_eval import simple_evaluate
from lm_eval.models.dummy import DummyLM
from lm_eval.tasks import TaskManager

class Fixed(DummyLM):
    def generate_until(self, requests, disable_tqdm=False):
        return [sys.argv[2] for _ in requests]

manager = TaskManager(include_path=sys.argv[1], include_defaults=False)
result = simple_evaluate(model=Fixed(), tasks=["mine"], task_manager=manager, bootstrap_iters=0)
samples = sorted(result["samples"]["mine"], key=lambda sample: sample["doc_id"])
print(json.dumps([[one["mmcorl_rules"] for one in samples], result["results"]["mine"]["mmcorl_rules,none"]]))
"""
    assert run(code, str(tasks), RESPONSE, cwd=tmp_path) == [RIGHT, 0.6]


def test_lmms_eval(tasks: Path, tmp_path: Path) -> None:
    """Its own dummy model; torchvision is of another build than a CPU's torch, which `patches` corrects."""
    task = (tasks / "mine.yaml").read_text()
    (tasks / "mine.yaml").write_text(task + "doc_to_visual: !function my_grader.no_pictures\n")
    (tasks / "my_grader.py").write_text(GRADER + "def no_pictures(row):\n    return []\n")
    code = """
import json, sys
import patches
patches.apply("torchvision_cpu")
from lmms_eval.evaluator import simple_evaluate
from lmms_eval.tasks import TaskManager
manager = TaskManager(include_path=sys.argv[1], include_defaults=False)
result = simple_evaluate(
    model="dummy", model_args="response=" + sys.argv[2], tasks=["mine"], task_manager=manager, bootstrap_iters=0,
    batch_size=1, log_samples=True,
)
samples = sorted(result["samples"]["mine"], key=lambda sample: sample["doc_id"])
print(json.dumps([[one["mmcorl_rules"] for one in samples], result["results"]["mine"]["mmcorl_rules,none"]]))
"""
    assert run(code, str(tasks), RESPONSE, cwd=tmp_path) == [RIGHT, 0.6]


def test_inspect_ai(tmp_path: Path) -> None:
    """Also an answer of several that are accepted, and one that the token limit cut off."""
    code = """
import json, sys, tomllib
from importlib.metadata import EntryPoint
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model

declared = tomllib.load(open(sys.argv[3], "rb"))["project"]["entry-points"]["inspect_ai"]["mmcorl"]
rules = EntryPoint("mmcorl", declared, "inspect_ai").load()

rows, response = json.loads(sys.argv[1]), sys.argv[2]
samples = [Sample(input=row["question"], target=row["answer"], choices=row["options"]) for row in rows]
samples.append(Sample(input="How many?", target=["five", "4"]))
samples.append(Sample(input="How many?", target="4"))
outputs = [ModelOutput.from_content("mockllm/model", response) for _ in samples[:-1]]
outputs.append(ModelOutput.from_content("mockllm/model", "So it is \\\\\\\\boxed{", stop_reason="max_tokens"))
for output in outputs:
    output.usage = ModelUsage()  # which the model would count with a tokenizer from the network
model = get_model("mockllm/model", custom_outputs=outputs)
(log,) = eval(Task(dataset=samples, scorer=rules()), model=model, display="none", max_connections=1, max_samples=1)
scores = [next(iter(sample.scores.values())) for sample in sorted(log.samples, key=lambda sample: sample.id)]
print(json.dumps([[one.value for one in scores], scores[-1].metadata["stage"], log.results.scores[0].name,
                  log.results.scores[0].metrics["accuracy"].value, log.location]))
"""
    values, stage, name, accuracy, log = run(
        code, json.dumps(ROWS), RESPONSE, str(ROOT / "pyproject.toml"), cwd=tmp_path
    )
    assert values == ["C" if value else "I" for value in RIGHT] + ["C", "I"]
    assert stage == "no_answer"
    assert name == "rules"
    assert accuracy == pytest.approx(4 / 7)
    # By its name, as the command asks for it: through the entry point of the installed package.
    command = [str(Path(sys.executable).with_name("inspect")), "score", log, "--scorer", "mmcorl/rules"]
    command += ["--action", "append", "--overwrite"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.count("0.571") == 2
