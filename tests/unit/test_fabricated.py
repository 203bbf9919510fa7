"""Made-up rollouts: exact lengths, positions as the family counts them, an update that takes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from gpu_check.prove.fabricated import config_of, fabricate, load_worker, questions


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "llama"])
def test_prompts_have_exactly_the_tokens_asked_for(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    config = config_of(family, tiny_checkpoints[family], "cpu", prompts=2, completions=3, tokens=6)
    worker = load_worker(config)
    free = questions(worker, 2, 56)
    prompts = questions(worker, 2, 56, tokens=150)
    assert prompts.keys() == free.keys()
    for uid, prompt in prompts.items():
        assert len(prompt.input_ids) == prompt.positions.shape[1] == 150
        assert not torch.isin(prompt.input_ids[-20:], worker.policy.banned).any()
        own = len(free[uid].input_ids) if prompt.vision else 0
        assert torch.equal(prompt.input_ids[:own], free[uid].input_ids[:own])
        # Text counts on by one on every axis, and so does what follows the prompt.
        onward = prompt.positions[:, own:]
        assert torch.equal(onward, onward[:1].expand_as(onward))
        assert onward[0].diff().eq(1).all()
        assert prompt.next_position == int(onward[0, -1]) + 1
        if own:
            assert int(onward[0, 0]) == free[uid].next_position
    rewards = fabricate(worker, prompts, [[6, 2, 4], [1, 3, 5]], seed=1)
    assert {len(sample.ids) for one in worker.rollouts.pending.values() for sample in one.samples} == {1, 2, 3, 4, 5, 6}
    metrics = worker.update(rewards, 1)
    assert metrics["trained_tokens"] == 21
    assert metrics["grad_norm"] > 0


def test_a_prompt_shorter_than_its_picture_is_refused(tiny_checkpoints: Mapping[str, Path]) -> None:
    config = config_of("gemma3", tiny_checkpoints["gemma3"], "cpu", prompts=1, completions=2, tokens=4)
    with pytest.raises(ValueError, match=r"a prompt of 5 tokens was asked for, but picture and sentence have \d+ more"):
        questions(load_worker(config), 1, 56, tokens=5)
