"""LLaVA-OneVision: a base view and a grid of tiles for the only image of a prompt, one view for each of several."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from adapter_passes import SETTINGS, Loaded, noise
from model_adapters.base import VisionSettings
from model_adapters.llava_onevision import LlavaOnevisionAdapter

ADAPTER = LlavaOnevisionAdapter()
PUBLISHED = VisionSettings(tiles=36)
SIDE, VIEW = 56, 4
"""Pixels and tokens of a view's side and of a view; a grid has 3 x 3 tiles at most."""


@pytest.fixture(scope="module")
def loaded(tiny_checkpoints: Mapping[str, Path]) -> Loaded:
    path = tiny_checkpoints["llava_onevision"]
    return Loaded("llava_onevision", ADAPTER, ADAPTER.load_processor(path, SETTINGS), ADAPTER.load_model(path))


def placeholders(loaded: Loaded, images: list[Image.Image], vision: VisionSettings) -> tuple[int, list[int]]:
    """Number of placeholders, and views of each image."""
    encoded = ADAPTER.encode(loaded.processor, "?", images, vision=vision)
    count = int((encoded.input_ids == loaded.processor.image_token_id).sum())
    assert ADAPTER.prompt_length(loaded.processor, "?", images, vision=vision) == len(encoded.input_ids)
    return count, encoded.vision["views"].tolist()


def test_tiles_bound_the_grid_beside_the_base_view(loaded: Loaded) -> None:
    """Each row of the grid's tokens ends in a newline vector."""
    wide = noise(4 * SIDE, 2 * SIDE)
    # In one tile: 56 x 28 pixels, padded by half a token at both ends.
    assert placeholders(loaded, [wide], VisionSettings(tiles=1)) == (VIEW + 2 * (2 + 1), [2])
    assert placeholders(loaded, [wide], VisionSettings(tiles=2)) == (VIEW + 2 * (4 + 1), [3])
    wider = noise(6 * SIDE, SIDE)  # in a row of three tiles: 168 x 28 pixels
    assert placeholders(loaded, [wider], VisionSettings(tiles=3)) == (VIEW + 2 * (6 + 1), [4])
    for tiles in range(1, 10):
        for size in ((300, 50), (50, 300), (400, 390), (57, 57), (1000, 28)):
            (views,) = placeholders(loaded, [noise(*size)], VisionSettings(tiles=tiles))[1]
            assert 2 <= views <= tiles + 1


def test_as_published_nothing_is_resized_before_the_processor(loaded: Loaded) -> None:
    image = noise(500, 300)
    assert ADAPTER.prepare_images(loaded.processor, [image], PUBLISHED)[0] is image
    small = noise(50, 40)
    assert ADAPTER.prepare_images(loaded.processor, [small], SETTINGS)[0] is small
    assert ADAPTER.prepare_images(loaded.processor, [image], SETTINGS)[0].size == (56, 34)


def test_each_of_several_images_is_one_view(loaded: Loaded) -> None:
    images = [noise(300, 50), noise(50, 300, 1), noise(90, 90, 2)]
    for vision in (SETTINGS, PUBLISHED):
        assert placeholders(loaded, images, vision) == (3 * (VIEW + 1), [1, 1, 1])
