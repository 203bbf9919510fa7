"""Gemma-3's processor on unpadded prompts of different lengths, transformers 4.57: the error and the cure."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import patches

patches.apply("torchvision_cpu")
transformers = import_module("transformers")

NAME = "gemma3_ragged"
STOCK = transformers.Gemma3Processor.__call__
TWO = ["<start_of_image>What is this?", "And now a much longer question about this <start_of_image>, please: 1 + 2?"]


@pytest.fixture
def processor(tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The tiny Gemma-3's, as transformers delivers it."""
    monkeypatch.setattr(transformers.Gemma3Processor, "__call__", STOCK)
    return transformers.AutoProcessor.from_pretrained(tiny_checkpoints["gemma3"])


def pictures() -> list[list[Image.Image]]:
    return [[Image.new("RGB", (60, 60), "red")], [Image.new("RGB", (90, 60), "blue")]]


def test_without_the_cure_it_raises_and_with_it_every_row_is_that_of_its_prompt_alone(processor: Any) -> None:
    for text, images in ((TWO, pictures()), (["one", "a longer one"], None)):
        with pytest.raises(ValueError, match="inhomogeneous"):
            processor(text=list(text), images=images, padding=False)
    alone = [processor(text=[text], images=[image], padding=False) for text, image in zip(TWO, pictures(), strict=True)]
    assert [patches.apply(NAME)[0].state for _ in range(2)] == ["applied", "already"]
    batch = processor(text=list(TWO), images=pictures(), padding=False)
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert batch[key] == [row[key][0] for row in alone], key
    # The tiny processor spends four tokens on an image.
    assert [sum(row) for row in batch["token_type_ids"]] == [4, 4]
    # Marks that were not asked for stay away; different lengths still make no tensor.
    assert "token_type_ids" not in processor(text=list(TWO), images=pictures(), return_mm_token_type_ids=False)
    with pytest.raises(ValueError, match="padding=True"):
        processor(text=list(TWO), images=pictures(), padding=False, return_tensors="pt")


@pytest.mark.parametrize("tensors", [None, "pt"])
def test_what_worked_is_unchanged(processor: Any, tensors: str | None) -> None:
    """Padded batches, crops among them: the same keys, values and types, with options flat and grouped."""

    def run(grouped: bool) -> Any:
        options: dict[str, Any] = {"padding": True, "return_mm_token_type_ids": True}
        options = {"text_kwargs": options} if grouped else options
        settings = {"return_tensors": tensors, "do_pan_and_scan": True, **options}
        return processor(text=list(TWO), images=pictures(), **settings)

    before = [run(grouped) for grouped in (False, True)]
    patches.apply(NAME)
    for old, new in zip(before, [run(grouped) for grouped in (False, True)], strict=True):
        assert old.keys() == new.keys()
        for key in old:
            assert type(old[key]) is type(new[key]), key
            assert np.asarray(old[key]).dtype == np.asarray(new[key]).dtype, key
            assert np.array_equal(np.asarray(old[key]), np.asarray(new[key])), key
