"""The text family: what it refuses, and models whose head or window is unusual."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import patches
from adapter_passes import load, noise
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.text import TextAdapter

SMALL = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def test_images_are_refused(tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load("qwen3", tiny_checkpoints["qwen3"])
    with pytest.raises(AdapterError, match="qwen3 is a text model and this prompt has 1 images: use a vision"):
        loaded.adapter.encode(loaded.processor, "Which?", [noise(56, 56)])
    with pytest.raises(AdapterError, match="Qwen3ForCausalLM has no vision tower"):
        loaded.adapter.image_features(loaded.model, {})
    assert loaded.adapter.split_vision({}, [0, 0]) == [{}, {}]


def test_a_missing_pad_token_is_eos(tiny_checkpoints: Mapping[str, Path]) -> None:
    tokenizer = TextAdapter().load_processor(tiny_checkpoints["llama"], VisionSettings())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert "pad_token_id" not in (tiny_checkpoints["llama"] / "tokenizer_config.json").read_text()


def test_a_pad_token_of_its_own_is_banned_and_a_stop_is_not() -> None:
    vocabulary = {"<pad>": 0, "</s>": 2, "<|eot_id|>": 3, "a": 4}
    tokenizer: Any = SimpleNamespace(get_vocab=lambda: vocabulary, pad_token_id=0, eos_token_id=2)
    model: Any = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=[2, 5]))
    config = SimpleNamespace(eos_token_id=2)
    assert TextAdapter().stop_ids(tokenizer, model) == (2, 3, 5)
    assert TextAdapter().banned_ids(tokenizer, config) == (0,)
    config.eos_token_id = [2, 0]
    assert TextAdapter().banned_ids(tokenizer, config) == ()


def test_a_template_without_system_turn_is_named(tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load("llama", tiny_checkpoints["llama"])
    loaded.processor.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0]['content'] }}"
    )
    assert len(loaded.adapter.encode(loaded.processor, "Sum?").input_ids) > 0
    with pytest.raises(AdapterError, match="refuses a system turn"):
        loaded.adapter.encode(loaded.processor, "Sum?", system="Be brief.")


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
def test_unusual_heads_and_windows(model_type: str, more: dict[str, Any]) -> None:
    patches.apply("torchvision_cpu")
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SMALL, **more})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    adapter = TextAdapter()
    ids = torch.randint(3, 60, (1, 9))
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0]
        assert expected.std() > 0.01
        # A training pass of this row, right-padded beside a longer one.
        batch = torch.cat([torch.cat([ids, torch.zeros(1, 4, dtype=torch.long)], 1), torch.randint(3, 60, (1, 13))])
        valid = torch.ones(2, 13, dtype=torch.bool)
        valid[0, 9:] = False
        positions = torch.arange(13).expand(2, -1)
        hidden = adapter.decoder(model)(
            inputs_embeds=adapter.embed(model, batch, None),
            position_ids=positions,
            attention_mask=adapter.attention_mask(model, batch, valid),
            use_cache=False,
        ).last_hidden_state
        torch.testing.assert_close(adapter.logits(model, hidden)[0, :9], expected, atol=1e-5, rtol=0)
        # A left-padded prefill of its first six tokens and three steps.
        prompt = torch.cat([torch.zeros(1, 2, dtype=torch.long), ids[:, :6]], 1)
        seen = prompt.new_ones(1, 8)
        seen[0, :2] = 0
        cache = DynamicCache()
        hidden = adapter.decoder(model)(
            inputs_embeds=adapter.embed(model, prompt, None),
            position_ids=(seen.cumsum(1) - 1).clamp(min=0),
            attention_mask=adapter.attention_mask(model, prompt, seen.bool()),
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        torch.testing.assert_close(adapter.logits(model, hidden[:, 2:])[0], expected[:6], atol=1e-5, rtol=0)
        for step in range(6, 9):
            seen = torch.cat([seen, seen.new_ones(1, 1)], 1)
            hidden = adapter.decoder(model)(
                inputs_embeds=adapter.embed(model, ids[:, step : step + 1], None),
                position_ids=torch.tensor([[step]]),
                attention_mask=seen,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            got = adapter.logits(model, hidden)[0, 0]
            torch.testing.assert_close(got, expected[step], atol=1e-5, rtol=0)
