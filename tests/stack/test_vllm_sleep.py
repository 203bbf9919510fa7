"""What vLLM loses on a GPU while it sleeps, lost on a CPU: NaN takes its place, and samples must not change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmcorl.api import train
from mmcorl.engines.vllm import VllmEngine
from mmcorl.errors import RunError
from mmcorl.trainer.worker import Worker
from vllm_parts import EXACT, FAMILIES, without
from worker_parts import mixed_prompts, prompt, settings, worker

pytestmark = pytest.mark.stack

VLLM = {"kind": "vllm", "kv_cache_gib": 0.1}


def strays(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that hang on modules and are neither parameters, buffers nor views of them."""
    kept = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    for path, module in model.named_modules():
        stack = [(f"{path}.{key}", value) for key, value in vars(module).items()]
        while stack:
            name, value = stack.pop()
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() not in kept:
                yield name, value
            elif isinstance(value, list | tuple):
                stack += [(name, one) for one in value]
            elif isinstance(value, dict) and not name.endswith(("._parameters", "._buffers", "._modules")):
                stack += [(name, one) for one in value.values()]


class Sleep:
    """Level 2 takes all that is on a GPU but buffers, which vLLM keeps; level 1 takes the KV cache alone."""

    def __init__(self, engine: VllmEngine):
        self.engine, self.calls = engine, []
        engine._sleeps = True
        engine.llm.sleep, engine.llm.wake_up = self.sleep, self.wake  # type: ignore[method-assign]

    @torch.no_grad()
    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")
        assert self.engine.llm.reset_prefix_cache()
        lost = {} if level == 1 else dict(self.engine.model.named_parameters())
        # Scales of the cache lie on the CPU whatever the device.
        lost |= {name: one for name, one in strays(self.engine.model) if not name.endswith("_cpu")}
        for name, tensor in lost.items():
            cache = name.endswith("kv_cache")  # masked places of which are multiplied by zero, which NaN would survive
            if tensor.is_floating_point() and (cache or level == 2):
                tensor.data.fill_(1e3 if cache else torch.nan)

    def wake(self, tags: list[str]) -> None:
        self.calls.append(f"wake {' '.join(tags)}")


def steps(agent: Worker, family: str, count: int) -> list[dict[str, float]]:
    """Metrics of steps that change all that is trained."""
    prompts = mixed_prompts(family) if family in EXACT else [prompt("How many?"), prompt("How many dots are there?")]
    metrics = []
    for step in range(1, count + 1):
        groups = agent.rollout(prompts, step)
        metrics.append(agent.update({group.uid: [1.0, 0.0, 0.0, 1.0] for group in groups}, step))
    return metrics


def asleep(path: Path, **training: Any) -> tuple[Worker, Sleep]:
    agent = worker(path, engine=VLLM, training={"dtype": "fp32", **training}, optimizer={"lr": 1e-2})
    return agent, Sleep(agent.sampler.engine)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sync_gives_back_all_that_level_2_loses(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    agent, sleep = asleep(tiny_checkpoints[family])
    drift = torch.cat(agent.log_ratios([prompt("How many?")], 8))
    assert drift.abs().max() < 1e-3
    assert all(metrics["importance_drift_abs_max"] < 1e-3 for metrics in steps(agent, family, 2))
    # Compared and sampled before each update, the engine gets its weights while the cache is still away.
    once = ["sleep 2", "wake weights", "wake kv_cache"]
    assert sleep.calls == [*once, "sleep 1", "wake weights kv_cache", *once, "sleep 2", "wake weights"]


@pytest.mark.parametrize(("family", "kept"), [("qwen2", True), ("qwen2_5_vl", False)])
def test_of_low_rank_training_nothing_is_lost(family: str, kept: bool, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Adapters beside the weights, and merged into those that they change."""
    agent, sleep = asleep(tiny_checkpoints[family], lora={"rank": 4, "alpha": 64})
    assert agent.sampler.engine.adapters == kept
    assert all(metrics["importance_drift_abs_max"] < 1e-3 for metrics in steps(agent, family, 2))
    assert {call for call in sleep.calls if "sleep" in call} == {"sleep 1"}
    # As level 2 would be.
    agent.sampler.trains_everything = True
    with pytest.raises(RunError, match="log-probability nan"):
        steps(agent, family, 2)


def test_a_weight_that_no_sync_gives_back_is_found(tiny_checkpoints: Mapping[str, Path]) -> None:
    agent, _ = asleep(tiny_checkpoints["internvl3_5"])
    engine: Any = agent.sampler.engine
    whole = engine.sync
    engine.sync = lambda weights: whole(without(weights, "layers.1.input_layernorm"))
    with pytest.raises(RunError, match="log-probability nan"):
        agent.log_ratios([prompt("How many?")], 8)


def test_a_buffer_that_went_stale_stops_the_run(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the first step by its fingerprint; later, where nothing looks at it, by the drift."""
    update: Callable[..., dict[str, float]] = Worker._update
    agents = [{"name": "a", "model": str(tiny_checkpoints["qwen2"])}]
    sizes = {"batch": {"prompts": 2, "completions": 4}, "sampling": {"max_new_tokens": 16}}

    def run(step: int, when: str, **engine: Any) -> list[float]:
        """The drift of each step, with the engine's table of rotations in disorder from `step` on."""
        tables: list[tuple[Tensor, Tensor]] = []

        def disordered(agent: Worker, rewards: Any, number: int) -> dict[str, float]:
            metrics = update(agent, rewards, number) if when == "after" else {}
            if number == step:
                buffers: Any = agent.sampler.engine.model.named_buffers()  # type: ignore[attr-defined]
                table = next(one for name, one in buffers if "cos_sin_cache" in name)
                tables.append((table, table.clone()))
                table.copy_(table.roll(7, 0))
            return metrics or update(agent, rewards, number)

        monkeypatch.setattr(Worker, "_update", disordered)
        more = {"agents": agents, "reward": {"kind": "entropy"}, "device": "cpu", "threads": 1, **sizes}
        folder = tmp_path / f"{when}-{step}-{len(engine)}"
        try:
            train(settings(steps=3, engine=VLLM | engine, **more), folder, quiet=True)
        finally:
            # vLLM shares it among all engines of a process.
            for table, before in tables:
                table.copy_(before)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [line["agents"]["a"]["importance_drift_abs_mean"] for line in lines]

    with pytest.raises(RunError, match=r"agent 'a': 1 of \d+ buffers of the sampling engine are not .*cos_sin_cache"):
        run(1, "before")
    with pytest.raises(
        RunError, match=r"step 3: agent 'a': engine and trainer differ by .*; engine\.parity=warn goes on"
    ):
        run(2, "after")
    before, then, after = run(2, "after", parity="warn")
    assert max(before, then) < 1e-4 < 1e-3 < after
