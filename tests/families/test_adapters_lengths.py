"""The length of a prompt without work on its pictures equals that of the encoded prompt."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, adapter_of, noise
from model_adapters.base import AdapterError, ModelAdapter, VisionSettings

SIZES = [(56, 56), (1, 1), (9, 13), (27, 29), (28, 56), (90, 60), (333, 90), (47, 131), (200, 2), (400, 300), (1, 190)]
SETTINGS = {
    "default": VisionSettings(),
    "tiles": VisionSettings(tiles=6),
    "wide budget": VisionSettings(min_pixels=28 * 28, max_pixels=1 << 20),
    "narrow budget": VisionSettings(min_pixels=4 * 28 * 28, max_pixels=9 * 28 * 28),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_length_is_that_of_the_encoded_prompt(
    family: str, setting: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    adapter, vision = adapter_of(family), SETTINGS[setting]
    processor = adapter.load_processor(tiny_checkpoints[family], vision)
    prompts = [[size] for size in SIZES] + [[], SIZES[5:8], [SIZES[-1], SIZES[0]]]
    for sizes in prompts:
        images = [noise(*size) for size in sizes]
        encoded = adapter.encode(processor, "Which of these?", images, system="Be brief.", vision=vision)
        length = adapter.prompt_length(processor, "Which of these?", images, system="Be brief.", vision=vision)
        assert length == len(encoded.input_ids), sizes
        for image in images:
            assert adapter.image_tokens(processor, image.size, vision) is not None


@pytest.mark.parametrize("family", ["qwen2_5_vl"])
def test_pictures_are_not_worked_on(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    adapter = adapter_of(family)
    processor = adapter.load_processor(tiny_checkpoints[family], VisionSettings(max_pixels=1 << 24))
    seen: list[tuple[int, int]] = []
    work = type(adapter).prepare_images

    class Watched(type(adapter)):  # type: ignore[misc]
        def prepare_images(self, processor, images, vision):  # type: ignore[no-untyped-def]
            seen.extend(image.size for image in images)
            return work(self, processor, images, vision)

    length = Watched().prompt_length(processor, "?", [noise(560, 840)], vision=VisionSettings(max_pixels=1 << 24))
    # 20 columns and 30 rows of 28 pixels, beside the words.
    assert 600 < length < 640
    assert seen == [(56, 56)]


def test_a_picture_that_cannot_be_encoded_is_refused_by_its_size(tiny_checkpoints: Mapping[str, Path]) -> None:
    adapter = adapter_of("qwen2_5_vl")
    processor = adapter.load_processor(tiny_checkpoints["qwen2_5_vl"], VisionSettings())
    with pytest.raises(AdapterError, match="an image of 3x700 pixels is more than 200 times"):
        adapter.prompt_length(processor, "Which?", [noise(3, 700)])


def test_a_family_that_cannot_tell_is_encoded(tiny_checkpoints: Mapping[str, Path]) -> None:
    class Outside(type(adapter_of("qwen2_5_vl"))):  # type: ignore[misc]
        image_tokens = ModelAdapter.image_tokens

    adapter = Outside()
    processor = adapter.load_processor(tiny_checkpoints["qwen2_5_vl"], VisionSettings())
    images = [noise(333, 90)]
    assert adapter.prompt_length(processor, "?", images) == len(adapter.encode(processor, "?", images).input_ids)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_text_has_its_length(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    adapter = adapter_of(family)
    tokenizer = adapter.load_processor(tiny_checkpoints[family], VisionSettings())
    assert adapter.prompt_length(tokenizer, "1 + 1?") == len(adapter.encode(tokenizer, "1 + 1?").input_ids)
    with pytest.raises(AdapterError, match="is a text model"):
        adapter.prompt_length(tokenizer, "1 + 1?", [noise(56, 56)])
