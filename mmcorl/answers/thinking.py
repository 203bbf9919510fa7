"""Where thinking ends: the marks of all served families, and what of a response is said outside of its thoughts.

    response = thoughts said            up to the last closing mark everything is thought, whether a mark opens it here,
                                        in the prompt or nowhere
             | said thoughts            from an opening mark that never closes to the end
             | thoughts                 where the prompt opened them and nothing closes them

Chat templates of thinking models end with an opening mark, so that completions hold the closing one alone, and none
where the token limit came first: then only the prompt tells a draft from an answer. `opens_thinking` reads it there.
"""

from __future__ import annotations

import re
from collections import deque

from mmcorl.answers.cleanup import SPECIAL_TOKEN

MARKS = (
    ("<think>", "</think>"),  # Qwen3, DeepSeek-R1, GLM, InternVL, MiMo, Nemotron, ...
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),  # EXAONE Deep
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),  # Seed-OSS
    ("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # OpenThinker, Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|channel>thought", "<channel|>"),  # Gemma-4
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),  # gpt-oss
    ("<|channel|>commentary<|message|>", "<|channel|>final<|message|>"),
)
"""Opening and closing marks of thinking, in any case."""
# gpt-oss decoded without its special tokens.
_BARE_OPENING, _BARE_CLOSING = r"(?-i:\Aanalysis(?=[A-Z]))", r"(?-i:assistantfinal)"
_OPENINGS = "|".join([*dict.fromkeys(re.escape(opening) for opening, _ in MARKS), _BARE_OPENING])
_CLOSINGS = "|".join([*dict.fromkeys(re.escape(closing) for _, closing in MARKS), _BARE_CLOSING])
OPENS, CLOSES = re.compile(_OPENINGS, re.IGNORECASE), re.compile(_CLOSINGS, re.IGNORECASE)
_TURN = rf"{SPECIAL_TOKEN}|<\|turn>|\[/INST\]"
_STEP = re.compile(rf"(?P<opening>{_OPENINGS})|{_CLOSINGS}|{_TURN}", re.IGNORECASE)
_BEGINS_TURN = re.compile(rf"(?:{_TURN})\s*(?:assistant|model)?\s*\Z", re.IGNORECASE)
_HEADER = 100
"""Characters in which a turn begins."""


def without_thoughts(text: str, opened: bool = False) -> tuple[str, bool]:
    """Return what a response says outside of its thoughts, and whether a thought is open at its end.

    `opened`: the prompt opened one.
    """
    end = max((match.end() for match in CLOSES.finditer(text)), default=None)
    if end is None and opened:
        return "", True
    rest = text[end:]
    opening = OPENS.search(rest)
    return (rest, False) if opening is None else (rest[: opening.start()], True)


def opens_thinking(prompt: str, begun: str = "") -> bool:
    """Return whether a rendered prompt ends within a thought, which the response then continues.

    That is so where it ends with an opening mark, or with one that begins the last turn and words behind it, which
    never close. What questions say about marks is no thought. `begun`: the words at the end of the prompt that are
    known to begin the response.
    """
    head = prompt.rstrip()
    if begun.strip() and head.endswith(begun.strip()):
        return without_thoughts(begun, opens_thinking(head.removesuffix(begun.strip())))[1]
    last = next(iter(deque(_STEP.finditer(prompt), 1)), None)
    if last is None or last["opening"] is None:
        return False
    header = prompt[max(0, last.start() - _HEADER) : last.start()]
    return not prompt[last.end() :].strip() or _BEGINS_TURN.search(header) is not None
