"""Settings of the text around a question."""

from __future__ import annotations

from mmcorl.section import Section
from mmcorl.types import PromptStyle


class PromptSettings(Section):
    style: PromptStyle = "answer_tags"
    """Instruction after the question: think/answer tags (`answer_tags`), a LaTeX box (`boxed`) or none (`plain`); or
    the authors' strings, for text agents (`paper_text`), for vision-language agents (`paper_tags`) and for
    vision-language models before training (`paper_boxed`, which has a system message)."""
    instruction: str | None = None
    """Text after every question, as it is written, spaces and line breaks included, in place of that of `style`;
    `style` then only says which form of an answer `reward.format` rewards."""
    system: str | None = None
    """System message; by default that of `style`, which only `paper_boxed` has. "" sends none."""
