"""Engines with processes of their own: the same run as with one in each rank, and the same end when one breaks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_drills import DIED, Drill, Range, problems

from runs import ForkServer, assert_it_learns, assert_same_run, changed, records, small_config, taught
from runs import write_config as write

pytestmark = pytest.mark.stack

VLLM = {"kind": "vllm", "kv_cache_gib": 0.1}
APART = {**VLLM, "separate": 1}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    os.environ["DS_ACCELERATOR"] = "cpu"  # The server talks on stdout, where DeepSpeed would report its guess.
    with ForkServer(tmp_path_factory.mktemp("outputs")) as running:
        yield running


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Range:
    return OneAgent(tmp_path_factory.mktemp("range"))


class OneAgent(Range):
    """Two ranks that divide their weights, and one engine for both."""

    def settings(self) -> dict[str, Any]:
        config = small_config({"qwen": taught("qwen2", self.folder / "zoo")}, "text")
        return changed(
            config,
            launcher="ray",
            supervision={"kind": "self"},
            engine=APART,
            training__sharding="zero3",
            agents__0__ranks=2,
            agents__0__adapter="saboteur:Saboteur",
        )


def test_where_an_engine_lives_changes_nothing(server: ForkServer, tmp_path: Path) -> None:
    """An engine for each rank, with images: votes, weights and all else are those of one process, byte for byte."""
    models = {name: taught(model, tmp_path / "zoo") for name, model in {"q": "qwen2.5-vl", "i": "internvl3.5"}.items()}
    config = changed(small_config(models), steps=2, engine=VLLM)
    for name, changes in {"local": {}, "apart": {"launcher": "ray", "engine": APART}}.items():
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


# Of `VllmEngine` only the engine's process has one.
BROKEN = (
    Drill(
        "an engine is killed while it samples",
        "at_call('mmcorl.engines.vllm:VllmEngine.generate', 8, marked(kill))",
        said=("agent 'qwen', engine 0 of 1", "during the rollout", DIED, "qwen-engine0.log"),
    ),
    Drill(
        "an engine raises",
        "at_call('mmcorl.engines.vllm:VllmEngine.generate', 8, marked(explode))",
        said=("agent 'qwen', engine 0 of 1", "failed: ValueError: the third shoe dropped", "qwen-engine0.log"),
    ),
    Drill(
        "an engine stands still for ever in a sync",
        "at_call('mmcorl.engines.vllm:VllmEngine.sync', 5, marked(stand_still))",
        said=("agent 'qwen', engine 0 of 1", "during the update", "hangs: it stands still", "qwen-engine0.log"),
    ),
)


def test_an_engine_that_breaks_ends_the_run_and_the_same_command_goes_on(place: Range, tmp_path: Path) -> None:
    """Two ranks feed and ask one engine; every sync leaves it with the trainer's weights."""
    alone = place.finish(place.start(tmp_path / "alone"))
    assert alone.code == 0, alone.output
    assert_it_learns(tmp_path / "alone")
    # At step 0 and after the first update all of its weights were compared; after that, what it samples with.
    steps = records(tmp_path / "alone", "metrics.jsonl")
    assert max(line["agents"]["qwen"]["importance_drift_abs_max"] for line in steps) < 1e-3
    for drill in BROKEN:
        outcome = place.do(drill, tmp_path / "run")
        assert problems(outcome) == [], f"{drill.name}: {outcome.ended.output}"
    last = place.finish(place.start(tmp_path / "run"))
    assert last.code == 0, last.output
    assert place.left() == []
    assert_same_run(tmp_path / "run", tmp_path / "alone")


def test_low_rank_adapters_reach_an_engine_as_they_are(server: ForkServer, tmp_path: Path) -> None:
    """vLLM keeps them beside the weights, in another process as in the rank's."""
    config = small_config({"qwen": taught("qwen2", tmp_path / "zoo")}, "text")
    config = changed(config, steps=2, supervision={"kind": "self"}, training__lora={"rank": 4, "alpha": 64})
    places: dict[str, dict[str, Any]] = {"local": {"engine": VLLM}, "apart": {"launcher": "ray", "engine": APART}}
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
