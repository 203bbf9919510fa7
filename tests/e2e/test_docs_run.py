"""The commands and the Python of the pages, run in order in one folder, as far as a CPU without a network can.

Training is cut to a few steps; all else is as it is written. What is not run is in `NOT_RUN`, with the reason or the
tests that do the same; tests/unit/test_docs.py parses everything.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from bench import tutorial
from docs_pages import PAGES, Block, blocks, commands, words
from mmcorl.cli.main import main
from mmcorl.synthetic.rows import row
from paths import ROOT

NOT_RUN = {
    r"paper/|one_gpu/|one_base|/shared/": "needs GPUs, or models and data of the hub",
    r"org/new-model|Qwen/Qwen|MODEL |RUN/|http://": "needs a checkpoint, an endpoint or a run of the reader's",
    r"path/to/copy|gsm8k|refcoco_testa|ttrl_a|runs/corl |\$S/|evals/llama": "needs benchmarks or "
    "runs that the page does not make",
    r"launcher=ray": "tests/stack/test_ray_quickstart.py",
    r"profile=true": "needs more steps: tests/e2e/test_profile.py",
    r"gpu_check prove": "tests/e2e/test_prove_on_a_cpu.py",
    r"mmcorl rephrase|rephrased": "tests/e2e/test_rephrase.py, with an endpoint of its own",
    r"mmcorl push|mmcorl card": "tests/unit/test_share.py, with a hub of its own",
    r"mine(\.py)?:": "tests/e2e/test_outside.py",
    r"quickstart steps=300": "three times the quickstart, which tests/e2e/test_quickstart.py runs",
    r"step_000050": "needs fifty steps of a run of the reader's",
    r"=/data/": "moves a run to another machine: tests/e2e/test_run.py",
    r"smollm2|real_pair": "tests/e2e/test_fetched.py",
    r"train reading": "makes two more models, for minutes: tests/e2e/test_reading.py",
    r"grounding|overlap\.yaml|zoo:gemma3|boxes\.jsonl --data-set|self_qwen=": "makes more models, for minutes: "
    "tests/e2e/test_cohorts.py, test_diversity_commands.py, tests/walk",
    r"runs/partners/": "reads what a command above would have made",
    r"mmcorl bench": "trains every method on every cohort, an hour: tests/e2e/test_cohorts.py",
    r"mmcorl judge-check": "tests/e2e/test_judge_check.py, with an endpoint of its own",
    r"mmcorl sweep": "a process for each of a dozen runs: tests/e2e/test_sweep.py, tests/walk",
    r"mmcorl view": "serves until it is interrupted; tests of mmcorl.apps.view",
    r"mmcorl completion": "writes into the reader's shell",
}
SHORTER = "steps=2 validation.every=2 batch.prompts=4 batch.completions=4"
"""Settings that are appended to `mmcorl train`."""
PYTHON_NOT_RUN = {
    "docs/python.md": "tests/e2e/test_outside.py",
    "docs/extending.md": "tests/e2e/test_outside.py",
    "docs/own_loop.md": "tests/e2e/test_outside.py",
    "docs/add_a_family.md": "tests/families/test_add_a_family.py",
    "docs/tutorial.md": "the tutorial is run as a whole, below",
    "docs/sharing.md": "needs a hub: tests/unit/test_share.py",
    "docs/harnesses.md": "tests/extra/test_harnesses.py",
    "docs/rewards_elsewhere.md": "tests/unit/test_rewards_elsewhere.py",
    "configs/README.md": "downloads images",
}


def is_run(command: str) -> bool:
    return not any(re.search(pattern, command) for pattern in NOT_RUN)


def every_command() -> Iterator[tuple[str, str]]:
    """Yield (place, command) of what is run: blocks, not what is named within sentences, of mmcorl alone; each once."""
    seen = set()
    for page in PAGES:
        spans = {block.place for block in blocks(page) if block.language == "span"}
        for place, command in commands(page) if page != "docs/tutorial.md" else ():
            given = tuple(words(command))
            if given[0] == "mmcorl" and place not in spans and is_run(command) and given not in seen:
                seen.add(given)
                yield place, command


def every_block() -> list[Block]:
    pages = [page for page in PAGES if page not in PYTHON_NOT_RUN]
    return [block for page in pages for block in blocks(page) if block.language == "python"]


def test_each_reason_for_not_running_holds_for_something() -> None:
    every = [command for page in PAGES for _, command in commands(page)]
    optional = ("mmcorl view", "mmcorl completion", "mmcorl push|mmcorl card")
    assert all(any(re.search(p, c) for c in every) for p in NOT_RUN if p not in optional)
    assert len(list(every_command())) > 15


def put(name: str, *rows: dict[str, object]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def furnish() -> None:
    """The files that the pages take for granted, in the working folder."""
    Path("configs").symlink_to(ROOT / "configs")
    Path("images").mkdir()
    rows = []
    for number in range(12):
        drawn = row("visual", 5, number)
        assert drawn.image is not None
        Path(f"images/{number}.png").write_bytes(drawn.image)
        rows.append(
            {"id": str(number), "question": drawn.question, "image": f"images/{number}.png", "answer": drawn.answer}
        )
    put("rows.jsonl", *rows)
    answers = [{"id": str(n), "response": f"<answer>{n % 3}</answer>", "gold": str(n % 2)} for n in range(9)]
    for name in ("responses", "first", "second"):
        put(f"{name}.jsonl", *answers)
    boxes = [
        {"id": str(n), "response": f"<answer>[10, 10, {40 + n}, 50]</answer>", "gold": "[10, 10, 50, 50]"}
        for n in range(6)
    ]
    for name in ("boxes", "a", "b"):
        put(f"{name}.jsonl", *({**box, "width": 100, "height": 100} for box in boxes))
    put("readings.jsonl", {"id": "0", "response": "<answer>main street</answer>", "gold": "Main Street"})
    Path("accuracies.csv").write_text("0.55,0.46\n0.9,0.2,2\n")
    content = yaml.safe_load((ROOT / "configs" / "planted.yaml").read_text())
    for name in ("my_run.yaml", "my.yaml", "my-pair.yaml"):
        Path(name).write_text(yaml.safe_dump({**content, "name": "my-pair", "steps": 2}))


def fields(value: object, names: tuple[str, ...]) -> Iterator[str]:
    """Yield every key of a record but names of agents, pairs of them and sets."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in names and "|" not in key:
                yield key
            if key != "by_tag":  # whose keys are tags of the data
                yield from fields(inner, names)
    elif isinstance(value, list):
        for inner in value[:3]:
            yield from fields(inner, names)


def undocumented(run: Path) -> set[str]:
    """The files and fields of a run folder that docs/run_folder.md does not name."""
    page = (ROOT / "docs" / "run_folder.md").read_text()
    words = set(re.findall(r"[\w.]+", page))
    endings = tuple(word for word in words if word.startswith("_") and len(word) > 3)
    found = {re.sub(r"^comparison_.+", "comparison_RUN_OTHER.html", file.name) for file in run.iterdir()} - words
    for file in (*run.glob("*.jsonl"), run / "summary.json", run / "data_check.json"):
        lines = file.read_text().splitlines()[:3] if file.suffix == ".jsonl" else [file.read_text()]
        found |= {key for line in lines for key in fields(json.loads(line), ("qwen", "intern", "held_out"))} - words
    return {key for key in found if not key.endswith(endings)}


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_pages_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    furnish()
    for place, command in every_command():
        shorter = SHORTER.split() if command.startswith("mmcorl train") else []
        more = [word for word in shorter if word.split("=")[0] not in command]
        given = words(re.split(r" && ", command)[0])[1:]
        assert main([*given, *more]) == 0, f"{place}: {command}"
    assert not undocumented(Path("runs/quickstart"))
    for block in every_block():
        run = subprocess.run(
            [sys.executable, "-c", block.text],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert run.returncode == 0, f"{block.place}: {run.stderr}"


@pytest.mark.slow
def test_the_tutorial_runs_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text()
    made = tutorial.run(page, tmp_path)
    for block in re.findall(r"```text\n(.*?)```", made, re.DOTALL):
        assert block.strip()
    scores = re.findall(r"^(before|own|pair) & ([\d.]+)", made, re.MULTILINE)[:3]  # of the LaTeX table
    before, alone, trained = (float(dict(scores)[name]) for name in ("before", "own", "pair"))
    assert trained > before + 20
    assert trained > alone + 20
