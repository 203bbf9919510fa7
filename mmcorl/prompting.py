"""How a question becomes the text an agent reads: the question, then an instruction for the answer format."""

from __future__ import annotations

from typing import Literal

from mmcorl.types import Prompt

PromptStyle = Literal["answer_tags", "boxed", "plain"]

INSTRUCTIONS: dict[PromptStyle, str] = {
    "answer_tags": "\nThink it through inside <think> </think> tags, then give only the final answer inside "
    "<answer> </answer> tags.",
    "boxed": "\nReason step by step and put your final answer within \\boxed{}.",
    "plain": "",
}
"""Instruction by style; `answer_tags` is the form vision-language agents are trained with, `boxed` the text agents."""


def prompt_text(prompt: Prompt, style: PromptStyle, view: str = "original") -> str:
    """Question in one view followed by the instruction of one style."""
    return prompt.question(view) + INSTRUCTIONS[style]
