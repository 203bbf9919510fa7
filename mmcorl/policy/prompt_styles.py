"""How a question becomes the text an agent reads: the question, then an instruction for the answer format."""

from __future__ import annotations

from mmcorl.types import Prompt, PromptStyle

__all__ = ["INSTRUCTIONS", "PromptStyle", "prompt_text"]

INSTRUCTIONS: dict[PromptStyle, str] = {
    "answer_tags": "\nThink it through inside <think> </think> tags, then give only the final answer inside "
    "<answer> </answer> tags.",
    "boxed": "\nReason step by step and put your final answer within \\boxed{}.",
    "plain": "",
}
"""Instruction by style; `answer_tags` is the form vision-language agents are trained with, `boxed` the text agents."""


def prompt_text(prompt: Prompt, style: PromptStyle, view: str = "original") -> str:
    """Question in one view followed by the instruction of the run's style, or of the prompt's own."""
    return prompt.question(view) + INSTRUCTIONS[prompt.style or style]
