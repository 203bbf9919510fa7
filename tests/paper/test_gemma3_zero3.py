"""Gemma-3 under real ZeRO-3 on transformers 4.57: the crash, and the checkpoint's weights with the cure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import patches
from zero3_load import load_on_two_ranks

SIZE_0 = {"error": "IndexError: index 0 is out of bounds for dimension 0 with size 0"}


def test_gemma3_dies_while_loading_and_with_the_cure_has_the_checkpoints_weights(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """Both ranks alike. InternVL, without a padding index, loads before and after."""
    gemma, intern = tiny_checkpoints["gemma3"], tiny_checkpoints["internvl3_5"]
    first, second = load_on_two_ranks(tmp_path / "ranks", gemma, intern, "gemma3_zero3", gemma, intern)
    assert first == second
    assert first[0] == SIZE_0
    assert first[1] == first[3] != SIZE_0
    assert [answer.keys() for answer in first[1:]] == [{"compared"}] * 3, first
    assert first[2]["compared"] > 50  # three decoder layers alone have 13 tensors each


def test_a_real_embedding_is_still_initialised() -> None:
    """The cure passes over empty shards only: a padding row becomes zero, the others are drawn."""
    from torch import nn
    from transformers import Qwen2Config, Qwen2ForCausalLM

    patches.apply("torchvision_cpu", "gemma3_zero3")
    config = Qwen2Config(
        vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    table = nn.Embedding(8, 64, padding_idx=3)
    nn.init.constant_(table.weight, 7.0)
    model._init_weights(table)
    assert table.weight[3].abs().max() == 0
    # 7 x 64 draws of standard deviation 0.02 (initializer_range): the estimate is within 10 percent.
    assert table.weight[[0, 1, 2, 4, 5, 6, 7]].std().item() == pytest.approx(0.02, rel=0.1)
