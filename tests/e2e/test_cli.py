"""The command line: quick help, exit statuses, one training run end to end, and the small commands."""

from __future__ import annotations

import json
import math
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
from runs import TESTS, TrainedRun, changed, command, records, small_config, taught, write_config

AGENTS = ("qwen", "intern")


def test_help_answers_at_once_without_torch() -> None:
    code = (
        "import sys\n"
        "from mmcorl.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "assert not {'torch', 'transformers', 'datasets', 'openai'} & set(sys.modules)\n"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, capture_output=True, text=True, check=False)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    assert done.returncode == 0, done.stderr
    for name in ("train", "report", "families", "check-adapter", "zoo"):
        assert f"\n    {name}" in done.stdout
    assert seconds < 2


@pytest.mark.parametrize("command", ["train", "doctor"])
def test_a_config_error_needs_no_torch(command: str, tmp_path: Path) -> None:
    code = "import sys\nfrom mmcorl.cli.main import main\nassert main(sys.argv[1:]) == 2 and 'torch' not in sys.modules"
    file = tmp_path / "config.yaml"
    file.write_text("stepss: 3\n")
    argv = [sys.executable, "-c", code, command, str(file)]
    done = subprocess.run(argv, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "mmcorl: unknown setting 'stepss': did you mean 'steps'? (2 more mistakes after this one)\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"mmcorl {__version__}\n"


@pytest.mark.parametrize(
    "argv",
    [[], ["tran"], ["train"], ["train", "c.yaml", "--run-dri", "x"], ["report"], ["families", "extra"]],
    ids=" ".join,
)
def test_wrong_arguments_exit_with_2_and_show_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("usage: mmcorl")


# -- one run end to end -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    cache = tmp_path_factory.getbasetemp() / "taught"
    return {"qwen": taught("qwen2.5-vl", cache), "intern": taught("internvl3.5", cache)}


@pytest.fixture(scope="module")
def run(trained_run: TrainedRun) -> Path:
    return trained_run.path


def test_the_run_folder_holds_everything(run: Path) -> None:
    names = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert names == {
        "config.yaml",
        "data_check.json",
        "metrics.jsonl",
        "validation.jsonl",
        "responses.jsonl",
        "votes.jsonl",
        "timings.jsonl",
        "gallery.jsonl",
        "gallery",
        "tensorboard",
        "trackers.json",
        "checkpoints",
        "final",
        "summary.json",
        "report.html",
    }


def test_logs_cover_every_step_prompt_and_evaluation(run: Path) -> None:
    assert [line["step"] for line in records(run, "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in records(run, "validation.jsonl")] == [0, 3, 6]
    votes = records(run, "votes.jsonl")
    assert len(votes) == 6 * 4
    for line in votes:
        for agent, peer in (AGENTS, AGENTS[::-1]):
            told = line["agents"][agent]
            assert len(told["answers"]) == len(told["rewards"]) == 4
            assert told["teacher"] == peer  # a ring of two
            assert told["label"] == line["agents"][peer]["vote"]
    for line in records(run, "metrics.jsonl"):
        for agent in AGENTS:
            told = line["agents"][agent]
            assert {"reward_mean", "tie_share", "grad_norm", "entropy"} <= set(told)
            # Importance weights are those of trained tokens; a step in which every group agreed has none.
            assert ("importance_weight_mean" in told) == (told["trained_tokens"] > 0)
    assert {line["step"] for line in records(run, "gallery.jsonl")} == {1, 3, 6}
    assert all((run / image).is_file() for line in records(run, "gallery.jsonl") for image in line["images"])


def test_checkpoints_are_committed_pruned_and_named(run: Path) -> None:
    folder = run / "checkpoints"
    links = {path.name: path.resolve() for path in folder.iterdir() if path.is_symlink()}
    sets = {path.name for path in folder.iterdir() if not path.is_symlink()}
    assert set(links) == {"best-by-validation", "best-by-agreement"}
    # keep_last is 2; older ones stay only as a best.
    assert {"step_000004", "step_000006"} <= sets
    assert sets <= {"step_000004", "step_000006", *(path.name for path in links.values())}
    for name in sets:
        commit = json.loads((folder / name / "COMMIT").read_text())
        assert commit["step"] == int(name.removeprefix("step_"))
        for agent in AGENTS:
            assert {"model.safetensors", "optimizer.pt"} <= {path.name for path in (folder / name / agent).iterdir()}


def test_the_best_links_point_at_the_best_evaluation(run: Path) -> None:
    lines = [line for line in records(run, "validation.jsonl") if line["step"] > 0]
    accuracy = {line["step"]: sum(line["agents"][name]["accuracy"] for name in AGENTS) / 2 for line in lines}
    agreement = {line["step"]: line["cohort"]["agreement"] for line in lines}
    for name, scores in (("validation", accuracy), ("agreement", agreement)):
        best = max(sorted(scores), key=lambda step: scores[step])  # max takes the earliest of equals
        assert (run / "checkpoints" / f"best-by-{name}").resolve().name == f"step_{best:06d}"


def test_summary_has_what_the_readme_promises(run: Path, models: dict[str, Path]) -> None:
    summary = json.loads((run / "summary.json").read_text())
    lines = records(run, "validation.jsonl")
    assert (summary["name"], summary["supervision"], summary["steps"], summary["seed"]) == ("small", "ring", 6, 0)
    assert summary["seconds"] > 0
    assert set(summary["grader"]) == {"name", "version"}
    for agent in AGENTS:
        told = summary["agents"][agent]
        assert told["model"] == str(models[agent])
        assert told["start"] == {"held_out": lines[0]["agents"][agent]["accuracy"]}
        assert told["end"] == {"held_out": lines[-1]["agents"][agent]["accuracy"]}
        assert told["trainable_parameters"] == told["parameters"] > 100_000
    agreement = {"start": lines[0]["cohort"]["agreement"], "end": lines[-1]["cohort"]["agreement"]}
    assert summary["agreement"] == {"held_out": agreement}


@pytest.mark.parametrize("agent", AGENTS)
def test_final_weights_open_in_plain_transformers(agent: str, run: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = run / "final" / agent
    model = AutoModelForImageTextToText.from_pretrained(folder)
    processor = AutoProcessor.from_pretrained(folder)
    content = [{"type": "image", "image": Image.new("RGB", (56, 56), "red")}, {"type": "text", "text": "How many?"}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    with torch.no_grad():
        logits = model(**inputs).logits
    assert logits.shape[1] == inputs["input_ids"].shape[1]
    assert torch.isfinite(logits).all()
    assert not (folder / "optimizer.pt").exists()


def test_final_weights_are_those_of_the_last_checkpoint_and_not_those_of_the_start(
    run: Path, models: dict[str, Path]
) -> None:
    from safetensors.torch import load_file

    for agent in AGENTS:
        final = load_file(run / "final" / agent / "model.safetensors")
        last = load_file(run / "checkpoints" / "step_000006" / agent / "model.safetensors")
        start = load_file(models[agent] / "model.safetensors")
        assert all(torch.equal(final[name], last[name]) for name in last)
        assert any(not torch.equal(final[name], start[name]) for name in start)


def test_a_resolved_config_is_a_config_and_gives_the_same_numbers(run: Path, tmp_path: Path) -> None:
    assert main(["train", str(run / "config.yaml"), "--run-dir", str(tmp_path / "again"), "--quiet"]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()


def test_another_seed_is_another_run(models: dict[str, Path], run: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, changed(small_config(models), steps=1, validation=None))
    argv = ["train", str(config), "--run-dir", str(tmp_path / "run"), "--quiet", "seed=1"]
    assert main(argv) == 0
    first, other = records(run, "votes.jsonl")[:4], records(tmp_path / "run", "votes.jsonl")
    assert [line["uid"] for line in first] == [line["uid"] for line in other]  # their order has another seed
    assert [line["agents"] for line in first] != [line["agents"] for line in other]


def test_json_goes_to_stdout_and_progress_to_stderr(models: dict[str, Path], tmp_path: Path) -> None:
    config = write_config(tmp_path, changed(small_config(models), steps=1, validation=None))
    done = subprocess.run(
        command("train", config, "--run-dir", tmp_path / "run", "--json"),
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert "step 1/1" in done.stderr


def test_epochs_count_passes_over_the_usable_rows(models: dict[str, Path], tmp_path: Path) -> None:
    new = changed(small_config(models), steps=None, epochs=0.25, validation=None)  # 0.25 * 40 rows / 4 = 2.5: 3 steps
    config = write_config(tmp_path, new)
    assert main(["train", str(config), "--run-dir", str(tmp_path / "run"), "--quiet"]) == 0
    assert len(records(tmp_path / "run", "metrics.jsonl")) == math.ceil(0.25 * 40 / 4) == 3


def test_the_default_folder_is_runs_slash_name(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, changed(small_config(models), name="mine", steps=1, validation=None))
    assert main(["train", str(config), "--quiet"]) == 0
    assert (tmp_path / "runs" / "mine" / "final").is_dir()
    assert "runs/mine/report.html" in capsys.readouterr().out


# -- the small commands -----------------------------------------------------------------------------------------


def test_report_compares_runs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "report.html").unlink()
    assert main(["report", str(run), "--png", str(tmp_path / "overview.png")]) == 0
    output = capsys.readouterr().out
    assert f"report: {run / 'report.html'}" in output
    assert "qwen" in output
    assert (run / "report.html").is_file()
    assert (tmp_path / "overview.png").read_bytes()[:4] == b"\x89PNG"
    assert main(["report", str(run), "--json"]) == 0
    table: Any = json.loads(capsys.readouterr().out)
    assert "qwen" in json.dumps(table)


def test_report_of_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families"]) == 0
    assert "qwen2_5_vl" in capsys.readouterr().out
    assert main(["families", "--json"]) == 0
    types = {name for row in json.loads(capsys.readouterr().out) for name in row["model_types"]}
    assert {"qwen2_5_vl", "internvl", "gemma3"} <= types


def test_check_adapter(tiny_checkpoints: Mapping[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-adapter", str(tiny_checkpoints["qwen2"])]) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert main(["check-adapter", str(tiny_checkpoints["qwen2"]), "--json"]) == 0
    assert all(check["passed"] or check["skipped_reason"] for check in json.loads(capsys.readouterr().out))


def test_check_adapter_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check-adapter", str(tmp_path / "gone")]) == 2
    assert "There is no folder" in capsys.readouterr().err


def test_zoo(capsys: pytest.CaptureFixture[str]) -> None:
    from mmcorl.tools.zoo import ZOO

    assert main(["zoo"]) == 0
    listed = capsys.readouterr().out
    assert all(f"zoo:{name} " in listed for name in ZOO)
    assert main(["zoo", "gpt"]) == 2
    assert "there is no 'zoo:gpt'" in capsys.readouterr().err
