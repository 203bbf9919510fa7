"""Gemma-3: who sees whom inside an image, and the sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from adapter_passes import (
    Loaded,
    completions,
    encode_all,
    features_per_prompt,
    generation_logprobs,
    load,
    noise,
    plain_logprobs,
    rows,
    training_logprobs,
)
from model_adapters.base import AdapterError
from model_adapters.gemma3 import Gemma3Adapter
from model_adapters.testing.tiny import build_tiny

WINDOW = 20  # one image is 16 tokens, so blocks fit in the window as they do in the published models


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose window is shorter than its prompts."""
    return build_tiny(
        "gemma3",
        tmp_path_factory.mktemp("gemma") / "narrow",
        mm_tokens_per_image=16,
        layers=4,
        text_config={"sliding_window": WINDOW},
    )


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def gemma(request: pytest.FixtureRequest, narrow: Path) -> Loaded:
    return load("gemma3", narrow, attention=request.param)


def mask_of(ids: list[int], valid: list[int], window: int = 3) -> dict[str, Any]:
    """The masks of one row with 9 as image token, as 0/1 lists."""
    text: Any = SimpleNamespace(sliding_window=window, _attn_implementation="sdpa")
    config = SimpleNamespace(image_token_id=9, get_text_config=lambda: text)
    model: Any = SimpleNamespace(config=config)
    masks = Gemma3Adapter().attention_mask(model, torch.tensor([ids]), torch.tensor([valid]).bool())
    return {kind: mask[0, 0].int().tolist() for kind, mask in masks.items()}


def test_masks_by_hand() -> None:
    # text, an image of three tokens, text, padding. Rows are queries, columns keys; window 3 keeps a query,
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


def test_training_and_sampling_past_the_window_equal_a_plain_forward(gemma: Loaded) -> None:
    samples = rows("gemma3")
    prompts = encode_all(gemma, samples)
    assert max(len(prompt.input_ids) for prompt in prompts) > 2 * WINDOW
    answers = completions(gemma, 6)
    forced = torch.stack([c[:3] for c in completions(gemma, 6, seed=1)]).view(3, 2, 3)
    with torch.no_grad():
        batch = [(number % 3, completion) for number, completion in enumerate(answers)]
        for (index, completion), got in zip(batch, training_logprobs(gemma, prompts, batch), strict=True):
            expected = plain_logprobs(gemma, samples[index], completion)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
        sampled = generation_logprobs(gemma, prompts, forced)
        for index in range(3):
            for copy in range(2):
                expected = plain_logprobs(gemma, samples[index], forced[index, copy])
                torch.testing.assert_close(sampled[index, copy], expected, atol=1e-5, rtol=0)


def test_text_batches_past_the_window(gemma: Loaded) -> None:
    # Without an image the adapter leaves masks to transformers, the sliding ones included.
    samples = [("Is the triangle left of the square? " * 4, ()), ("How many dots?", ())]
    prompts = encode_all(gemma, samples)
    assert len(prompts[0].input_ids) > 2 * WINDOW
    answers = completions(gemma, 2)
    forced = torch.stack([c[:3] for c in answers])
    with torch.no_grad():
        got = training_logprobs(gemma, prompts, list(enumerate(answers)))
        sampled = generation_logprobs(gemma, prompts, forced[:, None])
        for index in range(2):
            expected = plain_logprobs(gemma, samples[index], answers[index])
            torch.testing.assert_close(got[index], expected, atol=1e-5, rtol=0)
            torch.testing.assert_close(sampled[index, 0], expected[:3], atol=1e-5, rtol=0)


def test_a_late_image_token_moves_an_early_one(gemma: Loaded) -> None:
    encoded = gemma.adapter.encode(gemma.processor, "Which?", [noise(56, 56), noise(56, 56, 1)])
    ids = encoded.input_ids[None]
    where = (ids[0] == gemma.adapter.image_token_id(gemma.model.config)).nonzero().flatten()
    first, second = where[:16], where[16:]

    def hidden(shift: float) -> Tensor:
        features = features_per_prompt(gemma, [encoded])[0].clone()
        features[15, 0] += shift  # the last token of the first image
        mask = gemma.adapter.attention_mask(gemma.model, ids, torch.ones_like(ids).bool())
        return (
            gemma.adapter.decoder(gemma.model)(
                inputs_embeds=gemma.adapter.embed(gemma.model, ids, features),
                position_ids=encoded.positions,
                attention_mask=mask,
                use_cache=False,
            )
        ).last_hidden_state[0]

    with torch.no_grad():
        moved = (hidden(5.0) - hidden(0.0)).abs().amax(-1)
    assert (moved[first] > 1e-3).all()  # the whole block, its first token included
    assert (moved[: first[0]] == 0).all()  # nothing in front of the image
    assert (moved[second] > 1e-5).all()  # later images see earlier ones


def test_flash_attention_is_refused(tiny_checkpoints: Mapping[str, Path]) -> None:
    with pytest.raises(AdapterError, match="use sdpa or eager"):
        Gemma3Adapter().load_model(tiny_checkpoints["gemma3"], attention="flash_attention_2")


def test_importance_correction_is_asked_for() -> None:
    assert Gemma3Adapter.needs_importance_correction
