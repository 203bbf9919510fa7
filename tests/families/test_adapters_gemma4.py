"""Gemma-4: embeddings per layer, blocks that see themselves on sliding layers alone, thoughts, and what is left out."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import family_checks
from adapter_passes import GEMMA4_31B, SETTINGS, Loaded, load, needs, noise
from model_adapters.base import AdapterError, ModelAdapter
from model_adapters.gemma4 import Gemma4Adapter
from model_adapters.gemma4_unified import Gemma4UnifiedAdapter
from model_adapters.testing.tiny import build_tiny

pytestmark = needs("gemma4")


@pytest.fixture(scope="module")
def small(tiny_checkpoints: Mapping[str, Path]) -> Loaded:
    return load("gemma4", tiny_checkpoints["gemma4"])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("gemma4", tmp_path_factory.mktemp("large") / "gemma4", text_config=GEMMA4_31B)


def test_every_token_has_an_embedding_for_each_layer_and_images_have_that_of_padding(small: Loaded) -> None:
    adapter, model = small.adapter, small.model
    encoded = adapter.encode(small.processor, "Which?", [noise(56, 56)])
    ids = encoded.input_ids[None]
    with torch.no_grad():
        features = adapter.image_features(model, encoded.vision)
        inputs = adapter.decoder_inputs(model, ids, features)
        sampled = adapter.decoder_inputs(model, ids[:, -1:], None)
    table = model.model.language_model.embed_tokens_per_layer.weight.unflatten(1, (4, 16)) * 16**0.5
    image = ids[0] == model.config.image_token_id
    assert 64 <= int(image.sum()) <= 70
    expected = torch.where(image[:, None, None], table[small.processor.tokenizer.pad_token_id], table[ids[0]])
    assert torch.equal(inputs["per_layer_inputs"][0], expected)
    assert torch.equal(sampled["per_layer_inputs"][0, 0], table[ids[0, -1]])


@pytest.mark.slow
@pytest.mark.parametrize("check", [family_checks.contract, family_checks.shared_prefix])
def test_large_sizes_are_transformers(check: Any, large: Path, tmp_path: Path) -> None:
    check(large)
    unified = build_tiny("gemma4_unified", tmp_path / "gemma4_unified", text_config={"sliding_window": 30})
    check(unified)


def mask_of(adapter: ModelAdapter) -> dict[str, Any]:
    """The masks of text, an image of four tokens (9), text, with a window of 2 tokens."""
    text: Any = SimpleNamespace(sliding_window=2, _attn_implementation="sdpa", use_bidirectional_attention="vision")
    model: Any = SimpleNamespace(config=SimpleNamespace(image_token_id=9, get_text_config=lambda: text))
    masks = adapter.attention_mask(model, torch.tensor([[1, 9, 9, 9, 9, 2]]), torch.ones(1, 6).bool())
    return {kind: mask[0, 0].int().tolist() for kind, mask in masks.items()}


def test_masks_by_hand() -> None:
    causal = [[int(key <= query) for key in range(6)] for query in range(6)]
    two_way = [[1, 0, 0, 0, 0, 0], *[[1, 1, 1, 1, 1, 0]] * 4, [1, 1, 1, 1, 1, 1]]
    masks = mask_of(Gemma4Adapter())
    assert masks["full_attention"] == causal
    # All that lies ahead in the image, but one token behind.
    assert masks["sliding_attention"] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1],
    ]
    masks = mask_of(Gemma4UnifiedAdapter())
    assert masks["full_attention"] == two_way
    # The whole image, wherever the window ends.
    assert masks["sliding_attention"] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0],
        *[[0, 1, 1, 1, 1, 0]] * 3,
        [0, 0, 0, 0, 1, 1],
    ]


def test_prompts_and_responses_with_and_without_thoughts(small: Loaded, large: Path) -> None:
    """Large sizes are given an empty thought unless they are to think; <think> tags tell thoughts from answers."""
    adapter, tokenizer = small.adapter, small.processor.tokenizer
    both = (small.processor, adapter.load_processor(large, SETTINGS))
    ends = []
    for processor in both:
        for template in ({}, {"enable_thinking": True}):
            ids = adapter.encode(processor, "Sum?", system="Count.", template=template).input_ids
            text = tokenizer.decode(ids)
            assert text.startswith(
                "<bos><|turn>system\n" + "<|think|>\n" * bool(template) + "Count.<turn|>\n<|turn>user\n"
            )
            ends.append(text.split("<turn|>\n")[-1])
    plain, without = "<|turn>model\n", "<|turn>model\n<|channel>thought\n<channel|>"
    assert ends == [plain, plain, without, plain]
    said = "<|channel>thought\n3+4<channel|> 7<turn|>"
    assert adapter.decode(small.processor, tokenizer(said, add_special_tokens=False)["input_ids"]) == (
        "<think>thought\n3+4</think> 7"
    )
    assert adapter.decode(small.processor, tokenizer("7<turn|>", add_special_tokens=False)["input_ids"]) == "7"


def test_image_tokens_are_counted_without_the_image(small: Loaded) -> None:
    draw = random.Random(0)
    sizes = [(1, 1), (3, 900), (900, 3), (48, 48), *((draw.randint(1, 600), draw.randint(1, 600)) for _ in range(12))]
    for size in sizes:
        ids = small.adapter.encode(small.processor, "?", [noise(*size)]).input_ids
        count = int(ids.eq(small.model.config.image_token_id).sum())
        assert small.adapter.image_tokens(small.processor, size, SETTINGS) == count, size


def test_sound_is_frozen_and_experts_are_refused(small: Loaded, large: Path, tmp_path: Path) -> None:
    frozen = {name.split(".")[1] for name, one in small.model.named_parameters() if not one.requires_grad}
    assert frozen == {"audio_tower", "embed_audio"}
    with pytest.raises(AdapterError, match=r"'<\|audio\|>', which Gemma-4 reads as image markup"):
        small.adapter.encode(small.processor, "what says <|audio|>?")
    experts = shutil.copytree(large, tmp_path / "experts")
    config = json.loads((experts / "config.json").read_text())
    config["text_config"] |= {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2}
    (experts / "config.json").write_text(json.dumps(config))
    with pytest.raises(AdapterError, match=r"has experts, .* use a size of Gemma-4 without \(E2B, E4B, 31B\)"):
        small.adapter.load_model(experts)
