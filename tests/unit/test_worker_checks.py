"""What a worker looks after while it scores: numbers that are none, and adapters that are away for a while."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mmcorl.algo.finite import NotFiniteError
from mmcorl.policy.lora import adapted_layers, without_adapters
from worker_parts import prompt, worker


def test_a_trainer_that_gives_no_numbers_is_told_by_the_prompt(tiny_checkpoints: Mapping[str, Path]) -> None:
    """The engine samples from weights that are well, and the trainer scores with others."""
    agent = worker(tiny_checkpoints["qwen2"])
    prompts, drawn = [prompt("Sum?"), prompt("Which?")], agent.sampler.engine.generate

    def then_broken(*arguments: Any) -> Any:
        samples = drawn(*arguments)
        with torch.no_grad():
            next(iter(agent.adapter.decoder(agent.policy.model).parameters())).fill_(math.nan)
        return samples

    agent.sampler.engine.generate = then_broken
    with pytest.raises(NotFiniteError, match=rf"comparison of engine and trainer, scoring: .* {prompts[0].uid} "):
        agent.log_ratios(prompts, 4)


def test_adapters_come_back_as_strong_as_they_were(tiny_checkpoints: Mapping[str, Path]) -> None:
    agent = worker(tiny_checkpoints["qwen2"], training={"lora": {"rank": 4, "alpha": 8}})
    layers = list(adapted_layers(agent.policy.model).values())
    assert {scale for layer in layers for scale in layer.scaling.values()} == {2.0}  # alpha / rank
    layers[0].scaling["default"] = 0.5  # as somebody may have scaled it
    with without_adapters(agent.policy.model):
        assert {scale for layer in layers for scale in layer.scaling.values()} == {0.0}
    assert [layer.scaling["default"] for layer in layers] == [0.5] + [2.0] * (len(layers) - 1)
