"""GLM-4.1V: answers in box tokens, a budget that counts two frames, positions on three axes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import patches
from adapter_passes import SETTINGS, assert_passed, needs, noise
from mmcorl.answers.extract import extract
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.glm4v import Glm4vAdapter
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.recipes.glm4v import build_46v
from model_adapters.testing.recipes.parts import Sizes, Words
from model_adapters.testing.tiny import ANSWER_TOKENS, CORPUS

pytestmark = needs("glm4v")

ADAPTER = Glm4vAdapter()
SHAPES = ((56, 56), (31, 33), (333, 90), (28, 1000), (700, 700))


@pytest.fixture(scope="module")
def processor(tiny_checkpoints: Mapping[str, Path]) -> Any:
    return ADAPTER.load_processor(tiny_checkpoints["glm4v"], SETTINGS)


@pytest.mark.parametrize("special", [True, False], ids=["special", "text"])
def test_the_boxed_answer_can_be_extracted(special: bool, processor: Any, tmp_path: Path) -> None:
    """Whether or not a checkpoint declares the markup of a response special; others are dropped as ever."""
    processor.save_pretrained(tmp_path)
    other = transformers.AutoProcessor.from_pretrained(tmp_path)
    markup = ["<|begin_of_box|>", "<|end_of_box|>", "<think>", "</think>", "<answer>", "</answer>"]
    if special:
        other.tokenizer.add_special_tokens({"additional_special_tokens": markup})
    boxed = "The answer is <|begin_of_box|>12<|end_of_box|>."
    for text, source in ((boxed, "boxed"), (f"<answer>{boxed}</answer>", "answer_tags")):
        ids = other.tokenizer(f"<think>3+4 is 7</think>{text}<|user|>")["input_ids"]
        assert {other.tokenizer.convert_tokens_to_ids(token) for token in (*markup[:4], "<|user|>")} < set(ids)
        said = ADAPTER.decode(other, ids)
        assert said == "<think>3+4 is 7</think>" + text.replace(markup[0], r"\boxed{").replace(markup[1], "}")
        assert (found := extract(said)).answer == "12"
        assert found.source == source
        cut = ADAPTER.decode(other, ids[: ids.index(other.tokenizer.convert_tokens_to_ids("<|end_of_box|>"))])
        assert extract(cut, "length").source == "cut_off"
    # A prompt may ask for the tags, which are no turns of a conversation.
    asked = ADAPTER.encode(other, "Use <think> and <answer>7</answer>.").input_ids
    assert torch.equal(asked, ADAPTER.encode(processor, "Use <think> and <answer>7</answer>.").input_ids)


def test_the_prompt_is_that_of_the_hub(processor: Any) -> None:
    encoded = ADAPTER.encode(processor, "How many?", [noise(56, 84)], system="Be brief.", shots=[("1+1?", "2")])
    image = "<|begin_of_image|>" + "<|image|>" * 6 + "<|end_of_image|>"
    assert processor.tokenizer.decode(encoded.input_ids) == (
        f"[gMASK]<sop><|system|>\nBe brief.<|user|>\n1+1?<|assistant|>\n2<|user|>\n{image}How many?<|assistant|>\n"
    )
    # The image has 3 rows and 2 columns, and text goes on after the longer side.
    at = int((encoded.input_ids == processor.image_token_id).nonzero()[0])
    rows, columns = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 0, 1])
    block = encoded.positions[:, at : at + 7] - at
    assert block.tolist() == [[0] * 6 + [3], [*rows.tolist(), 3], [*columns.tolist(), 3]]


@pytest.mark.parametrize(
    "vision", [SETTINGS, VisionSettings(max_pixels=56 * 84), VisionSettings(min_pixels=200_000, max_pixels=400_000)]
)
def test_a_budget_is_the_pixels_of_an_image(
    vision: VisionSettings, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    processor = ADAPTER.load_processor(tiny_checkpoints["glm4v"], vision)
    low, high = vision.min_pixels or 56**2, vision.max_pixels or 4 * 56**2
    size = ADAPTER.engine_options(processor, vision)["mm_processor_kwargs"]["size"]
    assert size == {"shortest_edge": 2 * low, "longest_edge": 2 * high}
    longest = ADAPTER.engine_limits(processor, vision)["size"]["longest_edge"]
    for shape in SHAPES:
        encoded = ADAPTER.encode(processor, "?", [noise(*shape)], vision=vision)
        count = int((encoded.input_ids == processor.image_token_id).sum())
        assert ADAPTER.image_tokens(processor, shape, vision) == count
        assert low <= count * 28**2
        if shape != (28, 1000):  # One token high, whatever the budget.
            assert count * 28**2 <= min(high, longest / 2)
    processor.save_pretrained(tmp_path)
    plain = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert dict(plain.image_processor.size) == size


def test_what_no_budget_fits_is_refused(processor: Any) -> None:
    with pytest.raises(AdapterError, match="min_pixels 3136 exceeds max_pixels 784"):
        ADAPTER.encode(processor, "?", [noise(56, 56)], vision=VisionSettings(max_pixels=784))
    with pytest.raises(AdapterError, match="an image of 28x5628 pixels is more than 200 times"):
        ADAPTER.encode(processor, "?", [noise(28, 5628)])


def test_glm_4_6v_thinks_or_not(tmp_path: Path) -> None:
    """The classes of that name, by the same adapter."""
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    torch.manual_seed(0)
    model, processor = build_46v(Sizes(56, 64, 2, 0.1, {}, {}, 4), Words(CORPUS, 512, ANSWER_TOKENS))
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    assert_passed(check_adapter(tmp_path))
    loaded = ADAPTER.load_processor(tmp_path, SETTINGS)
    asked = "[gMASK]<sop><|user|>\n1+1?"
    for given, said in (
        ({}, "<|assistant|>\n"),
        ({"enable_thinking": False}, "/nothink<|assistant|>\n<think></think>\n"),
    ):
        ids = ADAPTER.encode(loaded, "1+1?", template=given).input_ids
        assert loaded.tokenizer.decode(ids) == asked + said
    assert len(ADAPTER.encode(loaded, "Think in <think> </think> tags.").input_ids) > len(ids)
