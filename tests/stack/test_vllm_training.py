"""Training and evaluation with vLLM: a run learns, and greedy answers are those of the transformers engine."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmcorl.cli.main import main
from mmcorl.types import Prompt
from paths import CONFIGS
from vllm_parts import with_images
from worker_parts import mixed_prompts, worker

pytestmark = pytest.mark.stack

VLLM = {"kind": "vllm", "kv_cache_gib": 0.1}


def answers(path: Path, prompts: Sequence[Prompt], **sections: Any) -> list[tuple[str, str | None]]:
    """Greedy responses and what they commit to."""
    return [(one.text, one.answer) for one in worker(path, **sections).evaluate(prompts)]


@pytest.fixture(scope="module", autouse=True)
def zoo_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ.setdefault("MMCORL_CACHE", str(tmp_path_factory.mktemp("zoo")))


def test_quickstart_learns_with_vllm(tmp_path: Path) -> None:
    """Two families in one process, an engine each: Co-RL repairs what was planted in both."""
    run = tmp_path / "run"
    engine = ["engine.kind=vllm", "engine.kv_cache_gib=0.25"]
    assert main(["train", str(CONFIGS / "quickstart.yaml"), "--quiet", *engine, "--run-dir", str(run)]) == 0
    agents = json.loads((run / "summary.json").read_text())["agents"]
    assert all(agent["start"]["held_out"] < 0.62 for agent in agents.values())
    assert min(agent["end"]["held_out"] for agent in agents.values()) >= 0.95
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 60
    # The engine followed every update: nothing of it is left to correct.
    assert max(agent["importance_drift_abs_max"] for step in steps for agent in step["agents"].values()) < 1e-3


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl3_5", "llama"])
def test_greedy_answers_are_those_of_the_transformers_engine(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    prompts = [*mixed_prompts(family), *with_images(family)]
    path = tiny_checkpoints[family]
    plain = answers(path, prompts, sampling={"max_new_tokens": 20})
    assert answers(path, prompts, sampling={"max_new_tokens": 20}, engine=VLLM) == plain


@pytest.mark.parametrize(
    ("family", "training"),
    [
        ("internvl3_5", {"freeze_vision": True}),
        ("qwen2", {"lora": {"rank": 4, "alpha": 64}}),
        ("qwen2_5_vl", {"lora": {"rank": 4, "alpha": 64}}),
    ],
)
def test_the_engine_follows_whatever_is_trained(
    family: str, training: Mapping[str, Any], tiny_checkpoints: Mapping[str, Path]
) -> None:
    """A frozen tower, adapters that vLLM keeps as they are, and adapters in a tower, which come merged."""
    optimizer = {"lr": 3e-2, "betas": (0.9, 0.99), "eps": 1e-8, "max_grad_norm": 1.0}
    agent = worker(
        tiny_checkpoints[family],
        engine=VLLM,
        training={"dtype": "fp32", **training},
        optimizer=optimizer,
        objective={"importance_correction": "token_truncate"},
        sampling={"max_new_tokens": 12},
    )
    assert agent.sampler.engine.adapters == (family == "qwen2")
    prompts = mixed_prompts(family)
    start = [group.completions for group in agent.rollout(prompts, 1)]
    drift = []
    for step in (1, 2, 3):
        groups = agent.rollout(prompts, step)
        metrics = agent.update({group.uid: [1.0, 0.0, 0.0, 1.0] for group in groups}, step)
        assert metrics["grad_norm"] > 0
        drift.append(metrics["importance_drift_abs_max"])
    assert max(drift) < 1e-3
    assert [group.completions for group in agent.rollout(prompts, 1)] != start
