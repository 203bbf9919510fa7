"""The text family: what it refuses, and models with an unusual head or window."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adapter_passes import assert_passed, load, noise
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.testing.contract import check_adapter
from model_adapters.text import TextAdapter


def test_images_are_refused(tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load("qwen3", tiny_checkpoints["qwen3"])
    for call in (loaded.adapter.encode, loaded.adapter.prompt_length):
        with pytest.raises(AdapterError, match="qwen3 is a text model and this prompt has 1 images: use a vision"):
            call(loaded.processor, "Which?", [noise(56, 56)])
    with pytest.raises(AdapterError, match="Qwen3ForCausalLM has no vision tower"):
        loaded.adapter.image_features(loaded.model, {})
    assert loaded.adapter.split_vision({}, [0, 0]) == [{}, {}]


def test_a_missing_pad_token_is_eos(tiny_checkpoints: Mapping[str, Path]) -> None:
    tokenizer = TextAdapter().load_processor(tiny_checkpoints["llama"], VisionSettings())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "pad_token_id" not in (tiny_checkpoints["llama"] / "tokenizer_config.json").read_text()


def test_a_separate_pad_token_is_banned_and_a_stop_token_is_not() -> None:
    vocabulary = {"<pad>": 0, "</s>": 2, "<|eot_id|>": 3, "a": 4}
    tokenizer: Any = SimpleNamespace(get_vocab=lambda: vocabulary, pad_token_id=0, eos_token_id=2)
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[2, 5]))
    config = SimpleNamespace(eos_token_id=2)
    assert TextAdapter().stop_ids(tokenizer, model) == (2, 3, 5)
    assert TextAdapter().banned_ids(tokenizer, config) == (0,)
    config.eos_token_id = [2, 0]
    assert TextAdapter().banned_ids(tokenizer, config) == ()


@pytest.mark.parametrize(
    ("model_type", "more"),
    [
        ("gemma2", {"final_logit_softcapping": 0.5, "sliding_window": 4, "query_pre_attn_scalar": 32}),
        ("gemma3_text", {"sliding_window": 4, "query_pre_attn_scalar": 32}),
        ("cohere", {"logit_scale": 0.25}),
        ("granite", {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
        ("mistral", {"sliding_window": 4}),
    ],
)
def test_the_contract_holds_for_unusual_heads_and_windows(
    model_type: str, more: dict[str, Any], tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    path = shutil.copytree(tiny_checkpoints["llama"], tmp_path / model_type)
    from transformers import AutoConfig, AutoModelForCausalLM

    llama = json.loads((path / "config.json").read_text())
    shared = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    shared += ("num_key_value_heads", "head_dim", "pad_token_id", "bos_token_id", "eos_token_id")
    config = AutoConfig.for_model(
        model_type, **{name: llama[name] for name in shared if name in llama}, initializer_range=0.2, **more
    )
    torch.manual_seed(0)
    generation = (path / "generation_config.json").read_text()
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    (path / "generation_config.json").write_text(generation)
    assert_passed(check_adapter(path))
    capped = model_type == "gemma2"  # which sdpa would pass over
    assert (load(model_type, path).model.config._attn_implementation == "eager") == capped
