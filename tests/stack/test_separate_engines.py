"""Engines with processes of their own: the same run as with one in each rank."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs import ForkServer, assert_it_learns, assert_same_run, changed, small_config, taught
from runs import write_config as write

pytestmark = pytest.mark.stack

VLLM = {"kind": "vllm", "kv_cache_gib": 0.1}
APART = {**VLLM, "separate": 1}
# A machine that other tests work on, too, may be silent for longer than one that does nothing but train.
UNDER_RAY = {"launcher": "ray", "ray": {"hung_after": 60}, "engine": APART}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    os.environ["DS_ACCELERATOR"] = "cpu"  # The server talks on stdout, where DeepSpeed would report its guess.
    with ForkServer(tmp_path_factory.mktemp("outputs")) as running:
        yield running


def test_where_an_engine_lives_changes_nothing(server: ForkServer, tmp_path: Path) -> None:
    """An engine for each rank, with images: votes, weights and all else are those of one process, byte for byte."""
    models = {name: taught(model, tmp_path / "zoo") for name, model in {"q": "qwen2.5-vl", "i": "internvl3.5"}.items()}
    config = changed(small_config(models), steps=2, engine=VLLM)
    for name, changes in {"local": {}, "apart": UNDER_RAY}.items():
        (tmp_path / name).mkdir()
        file = write(tmp_path / name, changed(config, **changes))
        ended = server.run("train", file, "--run-dir", tmp_path / name / "run")
        assert ended.code == 0, ended.output
    assert_it_learns(tmp_path / "local" / "run")
    assert_same_run(tmp_path / "apart" / "run", tmp_path / "local" / "run")
    assert "q: 1 rank, 1 on " in ended.output
    assert "; 1 engine, 1 on " in ended.output
    logs = sorted(path.name for path in (tmp_path / "apart" / "run" / "logs").iterdir())
    assert logs == ["i-engine0.log", "i-rank0.log", "q-engine0.log", "q-rank0.log"]


def test_low_rank_adapters_reach_an_engine_as_they_are(server: ForkServer, tmp_path: Path) -> None:
    """vLLM keeps them beside the weights, in another process as in the rank's."""
    config = small_config({"qwen": taught("qwen2", tmp_path / "zoo")}, "text")
    config = changed(config, steps=2, supervision={"kind": "self"}, training__lora={"rank": 4, "alpha": 64})
    places: dict[str, dict[str, Any]] = {"local": {"engine": VLLM}, "apart": UNDER_RAY}
    for name, changes in places.items():
        (tmp_path / name).mkdir()
        ended = server.run(
            "train", write(tmp_path / name, changed(config, **changes)), "--run-dir", tmp_path / name / "run"
        )
        assert ended.code == 0, ended.output
    # Not everything: peft writes the names of adapted layers in the order of a set.
    weights = ("final/qwen/model.safetensors", "final/qwen/adapter/adapter_model.safetensors")
    for file in ("votes.jsonl", "metrics.jsonl", *weights):
        apart, local = ((tmp_path / name / "run" / file).read_bytes() for name in ("apart", "local"))
        assert apart == local, file
