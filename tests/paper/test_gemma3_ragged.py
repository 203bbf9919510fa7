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


@pytest.mark.parametrize("images", [False, True], ids=["text", "images"])
def test_without_the_cure_it_raises(processor: Any, images: bool) -> None:
    text = TWO if images else ["one", "a longer one"]
    with pytest.raises(ValueError, match="inhomogeneous"):
        processor(text=list(text), images=pictures() if images else None, padding=False)


def test_with_the_cure_every_row_is_that_of_its_prompt_alone(processor: Any) -> None:
    alone = [processor(text=[text], images=[image], padding=False) for text, image in zip(TWO, pictures(), strict=True)]
    assert [patches.apply(NAME)[0].state for _ in range(2)] == ["applied", "already"]
    batch = processor(text=list(TWO), images=pictures(), padding=False)
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert batch[key] == [row[key][0] for row in alone], key
    # The tiny processor spends four tokens on an image.
    assert [sum(row) for row in batch["token_type_ids"]] == [4, 4]
    assert len(batch["token_type_ids"][0]) < len(batch["token_type_ids"][1])


@pytest.mark.parametrize("tensors", [None, "pt"])
@pytest.mark.parametrize("grouped", [False, True], ids=["flat", "grouped"])
def test_what_worked_is_unchanged(processor: Any, tensors: str | None, grouped: bool) -> None:
    """Padded batches, crops among them, in every form: the same keys, values and types."""

    def run() -> Any:
        options: dict[str, Any] = {"padding": True, "return_mm_token_type_ids": True}
        options = {"text_kwargs": options} if grouped else options  # the processor empties what it is given
        text = list(TWO)
        return processor(text=text, images=pictures(), return_tensors=tensors, do_pan_and_scan=True, **options)

    before = run()
    patches.apply(NAME)
    after = run()
    assert before.keys() == after.keys()
    for key in before:
        assert type(before[key]) is type(after[key]), key
        assert np.asarray(before[key]).dtype == np.asarray(after[key]).dtype, key
        assert np.array_equal(np.asarray(before[key]), np.asarray(after[key])), key


def test_marks_that_were_not_asked_for_stay_away(processor: Any) -> None:
    patches.apply(NAME)
    assert "token_type_ids" not in processor(text=list(TWO), images=pictures(), return_mm_token_type_ids=False)


def test_different_lengths_still_make_no_tensor(processor: Any) -> None:
    patches.apply(NAME)
    with pytest.raises(ValueError, match="padding=True"):
        processor(text=list(TWO), images=pictures(), padding=False, return_tensors="pt")
