"""Molmo2: pooling by index within each image, OLMo's norms, and a sentence where transformers lacks the family."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adapter_passes import SETTINGS, assert_passed, load, needs, noise
from model_adapters.base import AdapterError
from model_adapters.registry import adapter_for
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.tiny import absent, build_tiny


@pytest.mark.skipif(absent("molmo2") is None, reason="this transformers has it")
def test_an_older_transformers_is_named_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "molmo2"}))
    for refused in (lambda: adapter_for(tmp_path), lambda: build_tiny("molmo2", tmp_path / "tiny")):
        with pytest.raises(AdapterError, match=r"^Molmo2 needs transformers >=5\.23, but .* is installed; install one"):
            refused()


@needs("molmo2")
def test_each_image_pools_its_own_patches(tiny_checkpoints: Mapping[str, Path]) -> None:
    """In a prompt of two images the processor counts on from the first; 2 crops of 25 patches are 50 places."""
    path = tiny_checkpoints["molmo2"]
    loaded = load("molmo2", path)
    images = [noise(56, 56), noise(60, 100, 2)]
    both = loaded.adapter.encode(loaded.processor, "Which?", images).vision
    plain = loaded.adapter.plain_inputs(loaded.processor, "Which?", images, SETTINGS)
    assert both["image_num_crops"].tolist() == [2, 2]
    # 5 patches on a side, pooled two by two: 3 x 3 of the base view and 3 x 3 of its crop, the last ones of one patch.
    assert both["image_grids"].tolist() == [[3, 3, 3, 3]] * 2
    assert both["image_token_pooling"].shape == (36, 4)
    assert both["image_token_pooling"][8].tolist() == both["image_token_pooling"][26].tolist() == [24, -1, -1, -1]
    assert plain["image_token_pooling"][26].tolist() == [74, -1, -1, -1]
    with torch.no_grad():
        ours = loaded.adapter.image_features(loaded.model, both)
        given = {key: plain[key] for key in ("pixel_values", "image_token_pooling", "image_grids")}
        theirs = torch.cat(loaded.model.model.get_image_features(**given).pooler_output)
    assert torch.equal(ours, theirs)


@needs("molmo2")
def test_the_contract_holds_with_olmos_norms(tmp_path: Path) -> None:
    path = build_tiny("molmo2", tmp_path / "olmo", text_config={"qk_norm_type": "olmo", "norm_after": True})
    assert_passed(check_adapter(path))
    weights = load_file(path / "model.safetensors")
    assert weights["model.transformer.blocks.0.self_attn.q_norm.weight"].shape == (64,)  # of all heads
    assert len(weights["model.transformer.wte.new_embedding"]) == 16
    assert len(weights["model.transformer.wte.embedding"]) == len(weights["lm_head.weight"])
