"""One copy of vLLM's weights over two ranks: the samples of one copy per rank, and training that goes on with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding_worlds import Task, World, engine_samples

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_two_ranks_with_one_copy_sample_what_a_copy_each_samples(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Three prompts on one rank and two on the other, images among them; then none on the second; before and after an
    update with ZeRO-3; and greedily in blocks of which a rank has more than the other."""
    sections: dict[str, Any] = {
        "engine": {"kind": "vllm", "kv_cache_gib": 0.1, "max_rows": 2},
        "training": {"dtype": "fp32", "sharding": "zero3"},
        "optimizer": {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "max_grad_norm": 1.0},
        "sampling": {"max_new_tokens": 10},
        "batch": {"prompts": 5, "completions": 4},
    }
    found = []
    for together in (1, 2):
        engine = sections["engine"] | {"tensor_parallel": together}
        task = Task(
            tiny_checkpoints[family], sections | {"engine": engine}, shares=((0, 2, 4), (1, 3)), pictures={0: 1, 3: 2}
        )
        world = World(2)  # vLLM keeps the groups of a process
        try:
            found.append(world.do(engine_samples, task))
        finally:
            world.close()
    apart, shared = found
    for alone, spanned in zip(apart, shared, strict=True):
        assert [len(call) for call in spanned["sampled"]] == [len(call) for call in alone["sampled"]]
        for one, other in zip(alone["sampled"], spanned["sampled"], strict=True):
            assert [[ids for ids, _ in group] for group in one] == [[ids for ids, _ in group] for group in other]
            for before, after in zip(one, other, strict=True):
                for (_, logprobs), (_, again) in zip(before, after, strict=True):
                    assert torch.allclose(logprobs, again, atol=1e-5)
        assert alone["greedy"] == spanned["greedy"]
        assert spanned["drift"] < 1e-5
        assert 0.4 < spanned["bytes"] / alone["bytes"] < 0.6
