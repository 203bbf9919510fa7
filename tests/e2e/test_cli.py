"""The command line: quick help, exit statuses, one training run end to end, and the small commands."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmcorl import __version__
from mmcorl.cli.main import main
from runs import TESTS, TrainedRun, changed, records, small_config, taught, write_config

AGENTS = ("qwen", "intern")


def test_a_config_error_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("stepss: 3\n")
    code = (
        "import sys\n"
        "from mmcorl.cli.main import main\n"
        "code = max(main([command, 'config.yaml']) for command in ('train', 'doctor'))\n"
        "assert not {'torch', 'transformers', 'datasets', 'openai'} & set(sys.modules)\n"
        "sys.exit(code)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 2
    mistake = "unknown setting 'stepss': did you mean 'steps'? (2 more mistakes after this one)"
    assert (done.returncode, done.stderr) == (2, f"mmcorl: {mistake}\n" * 2)


def test_help_version_and_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in ("train", "report", "families", "check-adapter", "zoo"))
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"mmcorl {__version__}\n")
    for line in ("", "tran", "train", "train c.yaml --run-dri x", "report", "families extra"):
        with pytest.raises(SystemExit) as stop:
            main(line.split())
        output, errors = capsys.readouterr()
        assert (stop.value.code, output) == (2, ""), line
        assert errors.startswith("usage: mmcorl")


# -- one run end to end -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cache = tmp_path_factory.getbasetemp() / "taught"
    return {"qwen": taught("qwen2.5-vl", cache), "intern": taught("internvl3.5", cache)}


@pytest.fixture(scope="module")
def run(trained_run: TrainedRun) -> Path:
    return trained_run.path


FILES = """config.yaml data_check.json metrics.jsonl validation.jsonl responses.jsonl votes.jsonl timings.jsonl
gallery.jsonl gallery tensorboard trackers.json checkpoints final summary.json report.html"""


def test_the_run_folder_and_its_logs_cover_every_step_prompt_and_evaluation(run: Path) -> None:
    assert {path.name for path in run.iterdir() if not path.name.startswith(".")} == set(FILES.split())
    assert [line["step"] for line in records(run, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in records(run, "validation.jsonl")] == [0, 3, 6]
    votes = records(run, "votes.jsonl")
    assert len(votes) == 6 * 4
    for line in votes:
        for agent, peer in (AGENTS, AGENTS[::-1]):
            vote = line["agents"][agent]
            assert len(vote["answers"]) == len(vote["rewards"]) == 4
            assert vote["teacher"] == peer  # a ring of two
            assert vote["label"] == line["agents"][peer]["vote"]
    for line in records(run, "metrics.jsonl"):
        for metrics in line["agents"].values():
            assert {"reward_mean", "tie_share", "grad_norm", "entropy"} <= set(metrics)
            # Importance weights are those of trained tokens; a step in which every group agreed has none.
            assert ("importance_weight_mean" in metrics) == (metrics["trained_tokens"] > 0)
    assert {line["step"] for line in records(run, "gallery.jsonl")} == {1, 3, 6}
    assert all((run / image).is_file() for line in records(run, "gallery.jsonl") for image in line["images"])


def test_summary_has_what_the_readme_promises(run: Path, models: dict[str, Path]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    lines = records(run, "validation.jsonl")
    assert (summary["name"], summary["supervision"], summary["steps"], summary["seed"]) == ("small", "ring", 6, 0)
    assert summary["seconds"] > 0
    assert set(summary["grader"]) == {"name", "version"}
    for name in AGENTS:
        agent = summary["agents"][name]
        assert agent["model"] == str(models[name])
        assert agent["start"] == {"held_out": lines[0]["agents"][name]["accuracy"]}
        assert agent["end"] == {"held_out": lines[-1]["agents"][name]["accuracy"]}
        assert agent["trainable_parameters"] == agent["parameters"] > 100_000
    agreement = {"start": lines[0]["cohort"]["agreement"], "end": lines[-1]["cohort"]["agreement"]}
    assert summary["agreement"] == {"held_out": agreement}


def test_final_weights_are_the_last_and_open_in_plain_transformers(run: Path, models: dict[str, Path]) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModelForImageTextToText, AutoProcessor

    agent = "qwen"
    folder = run / "final" / agent
    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    content = [{"type": "image", "image": Image.new("RGB", (56, 56), "red")}, {"type": "text", "text": "How many?"}]
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    inputs = processor.apply_chat_template([{"role": "user", "content": content}], **options)
    with torch.no_grad():
        logits = model(**inputs).logits
    assert logits.shape[1] == inputs["input_ids"].shape[1]
    assert torch.isfinite(logits).all()
    assert not (folder / "optimizer.pt").exists()
    final, last, start = (
        load_file(parent / "model.safetensors")
        for parent in (folder, run / "checkpoints" / "step_000006" / agent, models[agent])
    )
    assert all(torch.equal(final[name], last[name]) for name in last)
    assert any(not torch.equal(final[name], start[name]) for name in start)


def test_a_resolved_config_is_a_config_and_gives_the_same_numbers(run: Path, tmp_path: Path) -> None:
    assert main(["train", str(run / "config.yaml"), "--run-dir", str(tmp_path / "again"), "--quiet"]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_another_seed_epochs_json_and_the_default_folder(
    models: dict[str, Path], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """JSON goes to stdout and progress to stderr; the folder is runs/NAME; another seed is another run."""
    monkeypatch.chdir(tmp_path)
    # Epochs count passes over the usable rows: 0.25 * 40 / 4 = 2.5 are 3 steps.
    new = changed(small_config(models), name="mine", steps=None, epochs=0.25, validation=None)
    assert main(["train", str(write_config(tmp_path, new)), "--json", "seed=1"]) == 0
    output, errors = capsys.readouterr()
    folder = tmp_path / "runs" / "mine"
    assert json.loads(output) == json.loads((folder / "summary.json").read_text())
    assert "step 3/3" in errors
    assert [line["step"] for line in records(folder, "metrics.jsonl")] == [1, 2, 3]
    first, other = records(run, "votes.jsonl")[:12], records(folder, "votes.jsonl")
    assert [line["uid"] for line in first] == [line["uid"] for line in other]  # their order has another seed
    assert [line["agents"] for line in first] != [line["agents"] for line in other]


# -- the small commands -----------------------------------------------------------------------------------------


def test_report_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.html").unlink()
    assert main(["report", str(run)]) == 0
    assert f"report: {run / 'report.html'}" in capsys.readouterr().out
    assert (run / "report.html").is_file()
    assert main(["report", str(run), "--json"]) == 0
    assert [row["agent"] for row in json.loads(capsys.readouterr().out)] == list(AGENTS)


def test_families_adapters_and_the_zoo(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mmcorl.tools.zoo import ZOO

    def output(*argv: str | Path, code: int = 0) -> str:
        assert main([str(item) for item in argv]) == code
        shown = capsys.readouterr()
        return shown.err if code else shown.out

    assert "qwen2_5_vl" in output("families")
    types = {name for row in json.loads(output("families", "--json")) for name in row["model_types"]}
    assert {"qwen2_5_vl", "internvl", "gemma3"} <= types
    assert "FAIL" not in output("check-adapter", tiny_checkpoints["qwen2"])
    checks = json.loads(output("check-adapter", tiny_checkpoints["qwen2"], "--json"))
    assert all(check["passed"] or check["skipped_reason"] for check in checks)
    assert set(ZOO) <= set(re.findall(r"zoo:(\S+) ", output("zoo")))
    assert "There is no folder" in output("check-adapter", tmp_path / "gone", code=2)
    assert "there is no 'zoo:gpt'" in output("zoo", "gpt", code=2)
    assert output("report", tmp_path, code=2).count("\n") == 1
