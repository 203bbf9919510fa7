"""`mmcorl doctor`: what it looks at, what it calls a problem, and that it loads nothing before one is solved."""

from __future__ import annotations

import json

import pytest

from mmcorl import doctor, memory
from mmcorl.cli import main
from mmcorl.config import parse
from mmcorl.reader import Reader
from model_adapters.tiny import build_tiny


@pytest.fixture(scope="module")
def config_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    for family in ("qwen2_5_vl", "internvl3_5"):
        build_tiny(family, folder / family, seed=0)
    file = folder / "config.yaml"
    config = {
        "steps": 2,
        "agents": [
            {"name": "a", "model": str(folder / "qwen2_5_vl")},
            {"name": "b", "model": str(folder / "internvl3_5")},
        ],
        "data": {"train": {"source": "synthetic:visual", "size": 20}},
        "batch": {"prompts": 2, "completions": 2},
        "sampling": {"max_new_tokens": 4},
        "training": {"dtype": "fp32"},
        "device": "cpu",
    }
    file.write_text(json.dumps(config))
    return file


def test_a_config_that_works_has_no_problem(config_file, capsys):
    assert main(["doctor", str(config_file), "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    told = {finding["what"] for finding in findings}
    assert {"packages", "GPUs", "memory", "engines"} <= told
    engines = [finding["sentence"] for finding in findings if finding["what"] == "engines"]
    assert [sentence.split(":")[0] for sentence in engines] == ["a", "b"]
    assert all("engine and trainer agree" in sentence and "images" in sentence for sentence in engines)


def test_what_the_config_needs_and_is_missing_is_named_and_nothing_is_loaded(config_file, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None if package in ("ray", "deepspeed") else "1.0")
    overrides = ["launcher=ray", "training.sharding=zero3"]
    assert main(["doctor", str(config_file), *overrides]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM  packages: the config needs ray: pip install 'mmcorl[ray]'" in out
    assert "PROBLEM  packages: the config needs deepspeed: pip install 'mmcorl[deepspeed]'" in out
    assert "not compared with the trainers before the problems above are solved" in out
    assert "engine and trainer agree" not in out


def test_too_little_memory_is_told_with_ways_out(config_file):
    config = parse(json.loads(config_file.read_text()))
    readers = [Reader(config, agent, agent.model) for agent in config.agents]
    peaks = [memory.budget(config, i, memory.shape_of(reader), None).peak for i, reader in enumerate(readers)]
    enough = list(doctor.memory(config, readers, [2 * max(peaks)]))
    assert [finding.level for finding in enough] == ["ok"] * 3
    assert "all 2 agents share one device" in enough[-1].sentence
    # The smallest GPU of the machine decides.
    tight = list(doctor.memory(config, readers, [2 * max(peaks), min(peaks) - 1]))
    assert [finding.level for finding in tight] == ["problem"] * 3
    assert "use training.gradient_checkpointing=true" in tight[0].sentence


def test_rows_that_training_leaves_out_are_not_compared(config_file, capsys):
    # Every row is longer than that, so there is nothing that engines could agree on.
    assert main(["doctor", str(config_file), "data.max_prompt_tokens=3"]) == 1
    out = capsys.readouterr().out
    assert "PROBLEM  engines: not compared with the trainers: no row of the training data can be used" in out


def test_a_wrong_config_is_refused_as_for_train(config_file, capsys):
    assert main(["doctor", str(config_file), "training.shardin=zero3"]) == 2
    assert "sharding" in capsys.readouterr().err
