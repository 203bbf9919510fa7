"""Gemma-3: attention inside an image, and the sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from adapter_passes import (
    assert_passed,
    completions,
    encode_all,
    load,
    logprobs_of,
    plain_logits,
    rows,
    training_logprobs,
)
from model_adapters.base import AdapterError
from model_adapters.gemma3 import Gemma3Adapter
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.tiny import build_tiny

WINDOW = 20  # one image is 16 tokens, so blocks fit in the window as they do in the published models


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose window is shorter than its prompts."""
    path = tmp_path_factory.mktemp("gemma") / "narrow"
    return build_tiny("gemma3", path, mm_tokens_per_image=16, layers=4, text_config={"sliding_window": WINDOW})


def mask_of(ids: list[int], valid: list[int], window: int = 3) -> dict[str, Any]:
    """The masks of one row with 9 as image token, as 0/1 lists."""
    text: Any = SimpleNamespace(sliding_window=window, _attn_implementation="sdpa")
    config = SimpleNamespace(image_token_id=9, get_text_config=lambda: text)
    model: Any = SimpleNamespace(config=config)
    masks = Gemma3Adapter().attention_mask(model, torch.tensor([ids]), torch.tensor([valid]).bool())
    return {kind: mask[0, 0].int().tolist() for kind, mask in masks.items()}


def test_masks_by_hand() -> None:
    # Text, an image of three tokens, text, padding. Rows are queries, columns keys; window 3 keeps a query,
    # the two keys behind it and what lies ahead in its image.
    masks = mask_of([1, 9, 9, 9, 2, 0], [1, 1, 1, 1, 1, 0])
    assert masks["full_attention"] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 1, 1, 1],
    ]
    assert masks["sliding_attention"] == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]


def test_two_images_are_two_blocks_and_left_padding_sees_only_itself() -> None:
    masks = mask_of([0, 9, 9, 1, 9, 9], [0, 1, 1, 1, 1, 1], window=99)
    assert masks["full_attention"] == [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 1],
        [0, 1, 1, 1, 1, 1],
    ]
    assert masks["sliding_attention"] == masks["full_attention"]


def test_the_contract_holds_past_the_window(narrow: Path) -> None:
    # Batches of text alone included: without an image the adapter leaves the masks to transformers.
    assert_passed(check_adapter(narrow))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_training_past_the_window_equals_a_plain_forward(narrow: Path, attention: str) -> None:
    gemma = load("gemma3", narrow, attention=attention)
    samples = [*rows("gemma3"), ("Is the triangle left of the square? " * 4, ())]
    prompts = encode_all(gemma, samples)
    assert max(len(prompt.input_ids) for prompt in prompts[:3]) > 2 * WINDOW
    assert len(prompts[3].input_ids) > 2 * WINDOW
    with torch.no_grad():
        for batch in ([0, 1, 2, 0, 1, 2], [1, 3]):
            answers = list(zip(batch, completions(gemma, len(batch)), strict=True))
            plain = [logprobs_of(plain_logits(gemma, samples[index], one), one) for index, one in answers]
            got = training_logprobs(gemma, prompts, answers)
            torch.testing.assert_close(got, torch.cat(plain), atol=1e-5, rtol=0)


def test_flash_attention_is_refused_and_importance_correction_needed(tiny_checkpoints: Mapping[str, Path]) -> None:
    with pytest.raises(AdapterError, match="use sdpa or eager"):
        Gemma3Adapter().load_model(tiny_checkpoints["gemma3"], attention="flash_attention_2")
    assert Gemma3Adapter.needs_importance_correction
