"""The builder of tiny checkpoints: deterministic, complete, in the layout of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adapter_passes import adapter_of, load
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.testing.tiny import FAMILIES, build_tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_arguments_give_the_same_weights(
    family: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    state = torch.random.get_rng_state()
    again = load_file(build_tiny(family, tmp_path / "a") / "model.safetensors")  # type: ignore[arg-type]
    other = load_file(build_tiny(family, tmp_path / "b", seed=1) / "model.safetensors")  # type: ignore[arg-type]
    first = load_file(tiny_checkpoints[family] / "model.safetensors")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    assert torch.equal(state, torch.random.get_rng_state())  # the caller's random numbers are untouched


@pytest.mark.parametrize("family", FAMILIES)
def test_any_text_survives_the_tokenizer(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    processor = adapter_of(family).load_processor(tiny_checkpoints[family], VisionSettings())
    tokenizer = getattr(processor, "tokenizer", processor)
    text = "Größe: 42 €\n\n  x² = 7? \\boxed{\\frac{1}{2}}"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.unk_token_id not in ids or tokenizer.unk_token_id is None
    assert tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False) == text


def test_the_head_has_a_row_for_every_token(tiny_checkpoints: Mapping[str, Path]) -> None:
    for family in FAMILIES:
        loaded = load(family, tiny_checkpoints[family])
        tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
        assert loaded.model.get_output_embeddings().weight.shape[0] == len(tokenizer)
        assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1


def test_gemma_weights_carry_hub_names(tiny_checkpoints: Mapping[str, Path]) -> None:
    names = load_file(tiny_checkpoints["gemma3"] / "model.safetensors")
    tower = [name for name in names if "vision_tower" in name]
    assert tower
    assert all("vision_tower.vision_model." in name for name in tower)


def test_sizes_can_be_set(tmp_path: Path) -> None:
    # 84 pixels are 6 patches a side: 3 x 3 merged tokens.
    path = build_tiny(
        "internvl3_5",
        tmp_path / "big",
        image_size=84,
        hidden=128,
        layers=3,
        corpus=["How many dots?"],
        extra_tokens=("<answer>", "</answer>"),
        text_config={"intermediate_size": 96},
        vision_config={"num_hidden_layers": 1},
    )
    loaded = load("internvl3_5", path)
    config = loaded.model.config
    assert config.image_seq_length == 9
    assert (config.text_config.hidden_size, config.text_config.intermediate_size) == (128, 96)
    assert config.text_config.num_hidden_layers == 3
    assert config.vision_config.num_hidden_layers == 1
    # 256 bytes, 7 special tokens, 2 answer tokens and a few merges of one line.
    assert 265 <= len(loaded.processor.tokenizer) < 290


def test_gemma_may_keep_every_patch(tmp_path: Path) -> None:
    loaded = load("gemma3", build_tiny("gemma3", tmp_path / "sixteen", mm_tokens_per_image=16))
    from adapter_passes import noise

    encoded = loaded.adapter.encode(loaded.processor, "Which?", [noise(56, 56)])
    token = loaded.adapter.image_token_id(loaded.model.config)
    assert int((encoded.input_ids == token).sum()) == 16


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="unknown tiny family 'bert': use one of qwen2_5_vl, "):
        build_tiny("bert", tmp_path)  # type: ignore[arg-type]
    with pytest.raises(AdapterError, match="image_size 60 must be a multiple of 28"):
        build_tiny("qwen2", tmp_path, image_size=60)
