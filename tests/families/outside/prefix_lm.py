"""PaliGemma, a prefix-LM: a prompt attends both ways, completions do not. Right, and wrong as is easily done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from model_adapters.base import Encoded, VisionSettings
from model_adapters.image_text import ImageTextAdapter

NEWLINE = 4
"""What ends a prompt, in the tokenizer of the test: the first of `gemma_bpe`'s after four special tokens."""


class PaliGemma(ImageTextAdapter):
    """Its processor takes no prompt without an image, and ends each with a newline."""

    family = "PaliGemma"
    model_types = ("paligemma",)
    media_tokens = ("<image>",)

    def rows_per_image(self, key: str, vision: dict[str, Tensor]) -> list[int]:
        return [1] * len(vision[key])

    def encode(self, processor: Any, text: str, images: Sequence[Image.Image] = (), **how: Any) -> Encoded:
        if images:
            return super().encode(processor, text, images, **how)
        ids = processor.tokenizer(f"<bos>{text}\n", add_special_tokens=False)["input_ids"]
        return self.finish(processor, torch.tensor(ids), {})

    def plain_inputs(
        self, processor: Any, text: str, images: Sequence[Image.Image], vision: VisionSettings, *template: Any
    ) -> dict[str, Any]:
        if images:
            return super().plain_inputs(processor, text, images, vision, *template)
        ids = self.encode(processor, text).input_ids[None]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    def finish(self, processor: Any, ids: Tensor, vision: dict[str, Tensor]) -> Encoded:
        """Count positions from 1."""
        return Encoded(ids, torch.arange(1, len(ids) + 1)[None], len(ids) + 1, vision)

    def bidirectional_spans(self, model: nn.Module, input_ids: Tensor) -> Tensor:
        """Of a prompt alone: all of it."""
        return torch.ones_like(input_ids)

    def prompt(self, input_ids: Tensor) -> Tensor:
        """Tokens (R, L) up to the first newline."""
        newline = input_ids.eq(NEWLINE)
        return newline.cumsum(-1) - newline.long() == 0

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Tensor:
        prompt, index = self.prompt(input_ids), torch.arange(input_ids.shape[1])
        seen = (index[:, None] >= index) | (prompt[:, :, None] & prompt[:, None, :])
        return ((seen & valid[:, None, :]) | index[:, None].eq(index))[:, None]


class NeedsImages(PaliGemma):
    """As its processor is, without prompts of text alone."""

    needs_images = True
    encode = ImageTextAdapter.encode
    plain_inputs = ImageTextAdapter.plain_inputs


class LeaksLate(PaliGemma):
    """Tokens behind the seventeenth of a completion see all of it: beyond what is sampled before the first step."""

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Tensor:
        late = (~self.prompt(input_ids)).cumsum(-1) > 17
        return super().attention_mask(model, input_ids, valid) | (late[:, :, None] & valid[:, None, :])[:, None]


class Leaks(PaliGemma):
    """Completions are taken for prompt, so every token sees its own future."""

    def prompt(self, input_ids: Tensor) -> Tensor:
        return torch.ones_like(input_ids, dtype=torch.bool)
