"""Agents as adapters on one base: the same bytes as with a base each, and nothing passes between them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter_passes import each_family
from mmcorl.launch.local import LocalLauncher
from mmcorl.policy.prompt_encoder import PromptEncoder
from runs import ForkServer, assert_it_learns, assert_same_run, changed, small_config, taught, write_config
from worker_parts import copy_of, largest_difference, mixed_prompts, prompt, rollout, settings, worker

LORA = {"rank": 4, "alpha": 8}
ONE_BASE = "training.lora.share_base=true"
KILL = "at_call('mmcorl.trainer.worker:Worker.update', 7, kill)"
"""Of two agents in one process: in step 4, after the checkpoint of step 2 or 3."""


def alone_and_on_one_base(
    server: ForkServer, folder: Path, config: dict[str, Any], *options: str, kill: str = KILL
) -> None:
    file = write_config(folder, config)
    ended = server.run("train", file, "--run-dir", folder / "alone")
    assert ended.code == 0, ended.output
    assert_it_learns(folder / "alone")
    run = ("train", file, ONE_BASE, *options, "--run-dir", folder / "one")
    if kill:
        assert server.run(*run, sabotage=kill).code == -signal.SIGKILL
    ended = server.run(*run)
    assert ended.code == 0, ended.output
    assert ("resuming after step" in ended.output) == bool(kill)
    assert_same_run(folder / "one", folder / "alone")


def agents_of(path: Path, count: int, **changes: Any) -> dict[str, Any]:
    models = {f"agent_{number}": path for number in range(count)}
    kind = "visual" if changes.pop("images", False) else "text"
    return changed(small_config(models, kind), training__lora=LORA, optimizer__lr=1e-2, **changes)


@pytest.mark.slow
def test_two_agents_killed_and_resumed(server: ForkServer, tmp_path: Path) -> None:
    qwen = taught("qwen2", tmp_path / "taught")
    alone_and_on_one_base(server, tmp_path, agents_of(qwen, 2))


CASES: dict[str, tuple[int, str, dict[str, Any], tuple[str, ...]]] = {
    "four": (4, "qwen2", {"supervision": {"kind": "pooled"}}, ()),
    "in forks": (2, "qwen2", {}, ("threads=1",)),
    "bf16, recomputed, a KL penalty": (
        2,
        "llama",
        {"training__dtype": "bf16", "training__gradient_checkpointing": True, "objective": {"kl_coef": 0.05}},
        (),
    ),
    "averaged teachers": (2, "qwen2", {"supervision": {"kind": "ring", "voter": "ema"}}, ()),
    "images": (2, "qwen2.5-vl", {"images": True}, ()),
    "images, the tower frozen": (2, "internvl3.5", {"images": True, "training__freeze_vision": True}, ()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("count", "model", "changes", "options"), CASES.values(), ids=CASES)
def test_more_cohorts(
    count: int, model: str, changes: dict[str, Any], options: tuple[str, ...], server: ForkServer, tmp_path: Path
) -> None:
    path = taught(model, tmp_path / "taught")
    kill = "" if options else KILL.replace("7", str(3 * count + 1))
    alone_and_on_one_base(server, tmp_path, agents_of(path, count, **changes), *options, kill=kill)


@pytest.mark.slow
def test_a_cohort_of_two_pairs(server: ForkServer, tmp_path: Path) -> None:
    cache = tmp_path / "taught"
    config = agents_of(taught("qwen2", cache), 2)
    config["agents"][1:1] = [{"name": f"llama_{n}", "model": str(taught("llama", cache))} for n in range(2)]
    alone_and_on_one_base(server, tmp_path, config, kill=KILL.replace("7", "13"))


@each_family("qwen2_5_vl", "internvl3_5", "gemma3", "llama")
def test_an_update_of_one_changes_nothing_of_another(family: str, tiny_checkpoints: dict[str, Path]) -> None:
    path = tiny_checkpoints[family]
    names = ("a", "b", "c")
    config = settings(
        agents=[{"name": name, "model": str(path)} for name in names],
        supervision={"kind": "ring"},
        training={"lora": LORA | {"share_base": True}},
        optimizer={"lr": 0.02},
    )
    with LocalLauncher(config) as launch:
        encoders = [PromptEncoder(config, agent, str(path)) for agent in config.agents]
        agents: list[Any] = launch.cohort(encoders, 10).agents
    # The frozen weights are the same memory, and of the adapters none is.
    held = [{p.data_ptr(): p for p in agent.policy.model.parameters()} for agent in agents]
    assert {p for p, one in held[0].items() if not one.requires_grad} == held[0].keys() & held[1].keys()
    assert not any(held[0][place].requires_grad for place in held[0].keys() & held[2].keys())
    # Each starts as an agent alone does: other adapters by its seed, and the same policy, as one of two matrices is 0.
    states = [agent.policy.model.state_dict() for agent in agents]
    alone = worker(path, name="b", training={"lora": LORA})
    assert largest_difference(states[1], alone.policy.model.state_dict()) == 0.0
    assert all(largest_difference(states[0], other) > 0 for other in states[1:])

    before = [copy_of(agent.policy.model).state_dict() for agent in agents]
    for agent in agents[:2]:  # between rollout and update of the first, the second works too
        rollout(agent, mixed_prompts(family) if agent.adapter.multimodal else [prompt(text) for text in "abc"])
    agents[0].update(dict.fromkeys(agents[0].rollouts.pending, (1.0, 0.0, 0.0, 1.0)), 1)
    after = [agent.policy.model.state_dict() for agent in agents]
    moved = {name for name in after[0] if not torch.equal(after[0][name], before[0][name])}
    assert moved
    assert all("lora_" in name for name in moved)
    assert largest_difference(after[1], before[1]) == largest_difference(after[2], before[2]) == 0.0
    # Nor has a gradient reached it, nor a step of its optimizer.
    assert all(parameter.grad is None for parameter in agents[1].policy.parameters())
    assert not agents[1].optimizer.state
