"""Mistral-3: rows of an image end in marks, images keep their own size, queries grow beyond the original length."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter_passes import SETTINGS, Loaded, assert_passed, encode_all, noise
from mmcorl.policy.policy import Policy, Rows
from model_adapters.base import VisionSettings
from model_adapters.mistral3 import Mistral3Adapter
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.tiny import build_tiny

ADAPTER = Mistral3Adapter()
OWN = "You are Ministral-3, a large language model."


def loaded_from(path: Path) -> Loaded:
    return Loaded("mistral3", ADAPTER, ADAPTER.load_processor(path, SETTINGS), ADAPTER.load_model(path))


@pytest.fixture(scope="module")
def loaded(tiny_checkpoints: Mapping[str, Path]) -> Loaded:
    return loaded_from(tiny_checkpoints["mistral3"])


def test_the_prompt_is_that_of_the_hub(loaded: Loaded) -> None:
    """84 x 56 pixels are 2 rows of 3 tokens; a system message replaces the template's own."""
    image = "[IMG][IMG][IMG][IMG_BREAK][IMG][IMG][IMG][IMG_END]"
    for given, system in ((None, OWN), ("Be brief.", "Be brief.")):
        ids = ADAPTER.encode(loaded.processor, "How many?", [noise(84, 56)], system=given).input_ids
        assert loaded.processor.tokenizer.decode(ids) == (
            f"<s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][INST]{image}How many?[/INST]"
        )


def test_marks_count_as_tokens_of_an_image(loaded: Loaded) -> None:
    processor = loaded.processor
    text = len(ADAPTER.encode(processor, "?").input_ids)
    for size in ((56, 56), (31, 33), (333, 90), (28, 1000), (113, 112), (700, 700)):
        length = len(ADAPTER.encode(processor, "?", [noise(*size)]).input_ids)
        assert ADAPTER.image_tokens(processor, size, SETTINGS) == length - text
        assert ADAPTER.prompt_length(processor, "?", [noise(*size)] * 2) == 2 * length - text


def test_one_token_alone_in_a_pass_is_that_of_company(loaded: Loaded) -> None:
    """An image of 28 x 28 pixels and less, of which transformers' own `squeeze` makes a vector."""
    small, other = encode_all(loaded, [("?", [noise(28, 28)]), ("?", [noise(84, 28)])])
    with torch.no_grad():
        alone = ADAPTER.image_features(loaded.model, small.vision)
        together = ADAPTER.image_features(loaded.model, ADAPTER.collate_vision([small.vision, other.vision]))
    assert alone.shape == (1, together.shape[1])
    torch.testing.assert_close(alone, together[:1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_images_of_all_shapes_go_through_the_tower_unpadded(
    checkpointing: bool, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Their patches of 14 pixels are kept without padding, and features and gradients are transformers' own.

    The tower of transformers masks all images against each other, ours attends to each by itself.
    """
    import transformers

    path = tiny_checkpoints["mistral3"]
    loaded, plain = loaded_from(path), transformers.AutoModelForImageTextToText.from_pretrained(path)
    if checkpointing:
        loaded.model.train().gradient_checkpointing_enable({"use_reentrant": False})
    images = (noise(100, 40), noise(40, 100, 1), noise(84, 28, 2))
    prompts = encode_all(loaded, [("?", images[:2]), ("?", images[2:])])
    assert [len(prompt.vision["pixel_values"]) for prompt in prompts] == [2 * 8 * 4, 6 * 2]
    ours = ADAPTER.image_features(loaded.model, ADAPTER.collate_vision([prompt.vision for prompt in prompts]))
    inputs = loaded.processor.image_processor(list(images), patch_size={"height": 28, "width": 28}, return_tensors="pt")
    theirs = plain.model.get_image_features(inputs["pixel_values"], image_sizes=inputs["image_sizes"])
    theirs = torch.cat(list(getattr(theirs, "pooler_output", theirs)))
    assert torch.allclose(ours, theirs, atol=1e-5)
    gradients = []
    for model, features in ((loaded.model, ours), (plain, theirs)):
        (features * torch.linspace(-1, 1, len(features))[:, None]).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert len(gradients[0]) == len(gradients[1]) > 20
    for name, gradient in gradients[1].items():
        assert float((gradients[0][name] - gradient).norm()) < 1e-4 * float(gradient.norm()), name


def test_queries_beyond_the_original_length_are_those_of_transformers(tmp_path: Path) -> None:
    """Ministral-3 scales them by position, so positions must reach attention on every path."""
    import transformers

    if transformers.__version__ < "5":
        pytest.skip("transformers 4.57 has no Ministral-3")
    short = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "llama_4_scaling_beta": 0.5,
    }
    path = build_tiny("mistral3", tmp_path, text_config={"rope_parameters": short})
    assert_passed(check_adapter(path))
    loaded = loaded_from(path)
    prompts = encode_all(loaded, [("How many?", (noise(90, 60),)), ("Sum?", ())])
    ids = [torch.arange(40, 40 + size) for size in (9, 3, 12, 1)]
    rows = [Rows(prompts, [0, 0, 1, 1], ids, shared=shared) for shared in (False, True)]
    policy = Policy(loaded.model, ADAPTER, loaded.processor)
    with torch.no_grad():
        plain, shared = (policy(one) for one in rows)
        assert torch.allclose(plain, shared, atol=1e-5)
        for module in loaded.model.modules():
            if hasattr(module, "rotary_emb") or hasattr(module, "layer_idx"):
                config: Any = module.config
                config.rope_parameters["llama_4_scaling_beta"] = 0.0
        assert not torch.allclose(plain, policy(rows[0]), atol=1e-3)


def test_an_engine_reads_the_same_files_and_reserves_no_more(loaded: Loaded) -> None:
    assert ADAPTER.engine_options(loaded.processor, SETTINGS) == {"tokenizer_mode": "hf", "config_format": "hf"}
    for side, longest in ((1024, 112), (84, 84)):
        limits = ADAPTER.engine_limits(loaded.processor, VisionSettings(max_side=side))
        assert limits == {"size": {"longest_edge": longest}}
