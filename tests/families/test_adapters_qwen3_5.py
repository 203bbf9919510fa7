"""Qwen3.5: a template that opens a thought, and experts refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from adapter_passes import load, needs

pytestmark = needs("qwen3_5")


def test_a_prompt_ends_in_an_open_thought_unless_told_otherwise(tiny_checkpoints: Mapping[str, Path]) -> None:
    qwen = load("qwen3_5", tiny_checkpoints["qwen3_5"])
    asked = "<|im_start|>user\nSum?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    for options, end in (
        ({}, ""),
        ({"template": {"enable_thinking": False}}, "\n</think>\n\n"),
        ({"answer_prefix": "It is"}, "\n</think>\n\nIt is"),
    ):
        ids = qwen.adapter.encode(qwen.processor, "Sum?", **options).input_ids
        assert qwen.processor.tokenizer.decode(ids) == asked + end
