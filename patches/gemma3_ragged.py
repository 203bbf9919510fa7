"""Gemma-3's processor fails on unpadded prompts of different lengths when it marks image tokens.

Until transformers 5.4 it makes one array of all rows of ids: `ValueError: setting an array element with a sequence
... inhomogeneous shape`, also for prompts without images, because `return_mm_token_type_ids` is its default. The fix
runs the processor without the marks and computes them row by row from the returned ids.
"""

from __future__ import annotations

import functools
from typing import Any

from patches.base import Patch


def _is_applied() -> bool:
    """Process two texts of different lengths with a minimal processor: a word list and no images."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import Gemma3ImageProcessor, Gemma3Processor, PreTrainedTokenizerFast

    special = {"boi_token": "<boi>", "eoi_token": "<eoi>", "image_token": "<image>"}
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["a", *special.values()])}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, extra_special_tokens=special)
    processor = Gemma3Processor(Gemma3ImageProcessor(), tokenizer, image_seq_length=1)
    try:
        rows = processor(text=["a", "a <image> a"], padding=False)["token_type_ids"]
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        return False
    return [list(row) for row in rows] == [[0], [0, 1, 0]]


def _apply() -> None:
    from transformers.models.gemma3 import processing_gemma3

    processing: Any = processing_gemma3
    original = processing.Gemma3Processor.__call__

    @functools.wraps(original)
    def mark_by_row(self: Any, images: Any = None, text: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Merge arguments as the processor does, on a copy because it empties its input.
        copy = {key: dict(value) if isinstance(value, dict) else value for key, value in kwargs.items()}
        merged = self._merge_kwargs(
            processing.Gemma3ProcessorKwargs, tokenizer_init_kwargs=self.tokenizer.init_kwargs, **copy
        )
        if not merged["text_kwargs"].get("return_mm_token_type_ids", False):
            return original(self, images, text, *args, **kwargs)
        grouped = kwargs.get("text_kwargs")
        if grouped and "return_mm_token_type_ids" in grouped:
            kwargs = {**kwargs, "text_kwargs": {**grouped, "return_mm_token_type_ids": False}}
        else:
            kwargs = {**kwargs, "return_mm_token_type_ids": False}
        batch = original(self, images, text, *args, **kwargs)
        ids = batch["input_ids"]
        if isinstance(ids, list):
            batch["token_type_ids"] = [[int(token == self.image_token_id) for token in row] for row in ids]
        else:  # an array or tensor: zeros of the same type plus the marks
            batch["token_type_ids"] = ids * 0 + (ids == self.image_token_id)
        return batch

    processing.Gemma3Processor.__call__ = mark_by_row


PATCH = Patch(
    name="gemma3_ragged",
    package="transformers",
    versions=">=4.57,<5.4",
    symptom="Gemma-3 prompts of different lengths without padding raise `ValueError: ... inhomogeneous shape`",
    upstream="https://github.com/huggingface/transformers/pull/44563",
    remove_when="transformers before 5.4 is no longer supported",
    apply=_apply,
    is_applied=_is_applied,
)
