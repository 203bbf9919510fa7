"""InternVL3.5: tiles, and the language models it comes with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from adapter_passes import Loaded, assert_passed, load, noise
from model_adapters.base import VisionSettings
from model_adapters.internvl3_5 import InternVL35Adapter
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.tiny import build_tiny


@pytest.fixture(scope="module")
def intern(tiny_checkpoints: Mapping[str, Path]) -> Loaded:
    return load("internvl3_5", tiny_checkpoints["internvl3_5"])


def test_one_tile_unless_more_are_allowed(intern: Loaded) -> None:
    # 120 x 60 fits a row of two tiles; a thumbnail is added when there are several. 56 x 56 stays one.
    images = [noise(120, 60), noise(56, 56)]
    one = intern.adapter.encode(intern.processor, "Which?", images)
    assert one.vision["num_patches"].tolist() == [1, 1]
    assert one.vision["pixel_values"].shape == (2, 3, 56, 56)
    four = intern.adapter.encode(intern.processor, "Which?", images, vision=VisionSettings(tiles=4))
    assert four.vision["num_patches"].tolist() == [3, 1]
    assert four.vision["pixel_values"].shape == (4, 3, 56, 56)
    # 4 image tokens a tile: two more tiles are 8 more tokens.
    assert len(four.input_ids) == len(one.input_ids) + 8
    for tiles, options in ((1, {"crop_to_patches": False}), (6, {"crop_to_patches": True, "max_patches": 6})):
        assert intern.adapter.engine_options(intern.processor, VisionSettings(tiles=tiles)) == {
            "mm_processor_kwargs": options
        }


@pytest.mark.parametrize("language_model", ["qwen2", pytest.param("llama", marks=pytest.mark.slow)])
def test_the_contract_holds_for_other_language_models(language_model: str, tmp_path: Path) -> None:
    path = build_tiny("internvl3_5", tmp_path / language_model, text_config={"model_type": language_model})
    assert load("internvl3_5", path).model.config.text_config.model_type == language_model
    assert_passed(check_adapter(path))


def test_the_mark_of_the_processor_counts_as_an_image_between_words(intern: Loaded) -> None:
    """A family may name only what its processor turns that mark into."""

    class Other(InternVL35Adapter):
        media_tokens = ("<img>", "</img>")

    text, images = "left <image> right", [noise(56, 56)]
    encoded = Other().encode(intern.processor, text, images)
    assert encoded.input_ids.equal(intern.adapter.encode(intern.processor, text, images).input_ids)
