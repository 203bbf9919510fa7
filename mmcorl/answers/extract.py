"""Extract the answer a response commits to.

One pass each over tags, braces and think blocks, so the time is linear in the length of the response. By default
nothing is guessed from prose ("the last number"), because a draft is not a commitment; two other modes read responses
as the authors' trainers do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mmcorl.answers.boxes import BOX, box_spans, boxed_answer, braced, unwrap_boxes
from mmcorl.answers.cleanup import strip_noise, strip_special_tokens
from mmcorl.answers.latex import clean
from mmcorl.answers.prose import prose_answer
from mmcorl.answers.thinking import CLOSES, without_thoughts

Mode = Literal["commit", "last_number", "answer_tags", "whole"]
Source = Literal["answer_tags", "boxed", "phrase", "last_number", "whole", "prose", "none", "cut_off", "unclosed"]

_OPEN_ANSWER = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_ANSWER = re.compile(r"</answer>", re.IGNORECASE)
_PHRASES = ("he answer is", "final answer is", "答案是")
_NUMBER = re.compile(r"-?\d*\.?\d+")


@dataclass(frozen=True)
class Extraction:
    """What a response commits to, and in which format."""

    answer: str | None
    """The committed answer, stripped; None without one."""
    source: Source
    """`answer_tags` or `boxed`, with mode `last_number` `phrase` or `last_number`, with `whole` also that, or `prose`;
    without an answer `cut_off` when the token limit ended the response, `unclosed` when it ended by itself in an answer
    tag, box or think block that never closes, else `none`."""


def extract(
    response: str,
    finish_reason: Literal["stop", "length"] = "stop",
    mode: Mode = "commit",
    *,
    thinking: bool = False,
) -> Extraction:
    """Extract the answer of one response; never raises, whatever the text.

    `thinking`: the prompt opened a thought, which the response continues (`mmcorl.answers.thinking`).

    `commit`: drop everything up to the last mark that closes a thought, and everything from a thought that never closes
    unless the text ends with a complete answer tag; then take the last complete `<answer>...</answer>`, unwrapping a
    box inside; else the last balanced `\\boxed{}`, `\\fbox{}` or `boxed{}`, or the last ones joined by `and`. Blank
    content is no answer, nor is a box that the words around it deny (`mmcorl.answers.assertion`). A complete
    answer counts even when the text is cut off after it.

    `answer_tags` (the authors' VLM training): the last complete `<answer>...</answer>` alone, in a think block, too.

    `last_number` (their text training): what follows the last word `boxed`, up to the brace or `$` that closes it; else
    all that follows `the answer is`; else the last number. So drafts and cut-off responses have answers, too.

    `whole` (short answers to questions about pictures): as `commit`, else all that stands after thinking, unless the
    response was cut off or a tag, box or think block never closes.
    """
    text, drafting = strip_noise(response), False
    if mode in ("commit", "whole"):
        text, drafting = _without_drafts(text, thinking)
    text = strip_special_tokens(text)
    if mode == "last_number":
        content, source = _as_said(text)
        if (extraction := _committed(content, source)).answer is not None:
            return extraction
        return Extraction(None, "cut_off" if finish_reason == "length" else "none")
    tag = last_tag(text)
    if tag is not None:
        content = text[tag[0] + len("<answer>") : tag[1] - len("</answer>")]
        return _committed(unwrap_boxes(braced(content)), "answer_tags")
    text = braced(text)
    boxes, open_box = box_spans(text) if mode in ("commit", "whole") else ([], False)
    if boxes:
        boxed = boxed_answer(text, boxes)
        if boxed is not None:
            return _committed(boxed, "boxed")
        return Extraction(None, "cut_off" if finish_reason == "length" else "none")

    if finish_reason == "length":
        return Extraction(None, "cut_off")
    if drafting or open_box or _OPEN_ANSWER.search(text) is not None:
        return Extraction(None, "unclosed")
    return _committed(text, "whole") if mode == "whole" else Extraction(None, "none")


def extract_prose(response: str, *, thinking: bool = False, choices: Sequence[str] | None = None) -> Extraction:
    """Extract the answer of a response that ended by itself, also where it stands in sentences (`prose_answer`).

    `choices`: the values of the options. A response with a box or an answer tag, whatever it holds, commits by these.
    """
    extraction = extract(response, thinking=thinking)
    if extraction.source != "none":
        return extraction
    text = strip_special_tokens(_without_drafts(strip_noise(response), thinking)[0])
    if BOX.search(text) or _OPEN_ANSWER.search(text) or (answer := prose_answer(text, choices)) is None:
        return extraction
    return _committed(answer, "prose")


def _as_said(text: str) -> tuple[str, Source]:
    """Return what stands last in a box, behind a phrase or as a number, without punctuation at its ends."""
    _, box, behind = text.rpartition("boxed")
    source: Source = "boxed"
    if box:
        (start, end), *_ = box_spans(f"boxed{behind}")[0] or [(6, len(text))]
        content = f"boxed{behind}"[start:end] if behind.startswith("{") else behind.partition("$")[0]
    elif phrase := next((phrase for phrase in _PHRASES if phrase in text), None):
        content, source = text.rpartition(phrase)[2].strip(), "phrase"
    else:
        numbers = _NUMBER.findall(text.replace(",", ""))
        content, source = numbers[-1] if numbers else "", "last_number"
    return content.removeprefix(":").removesuffix(".").removesuffix("/"), source


def _committed(content: str, source: Source) -> Extraction:
    answer = content.strip()
    # `$$` and `\text{ }` are blank, too.
    return Extraction(answer, source) if clean(answer) else Extraction(None, "none")


def _without_drafts(text: str, thinking: bool) -> tuple[str, bool]:
    """Return what is said outside of thoughts, and whether a thought is open at the end."""
    rest, drafting = without_thoughts(text, thinking)
    # A model that forgets to end its thought but ends on a complete answer tag has still committed.
    if drafting and (ending := strip_special_tokens(text).rstrip())[-len("</answer>") :].lower() == "</answer>":
        draft = CLOSES.split(ending)[-1]
        if last_tag(draft) is not None:
            return draft, False
    return rest, drafting


def last_tag(text: str) -> tuple[int, int] | None:
    """Return where the last complete `<answer>...</answer>` begins and ends; None without one."""
    closes = [match.start() for match in _CLOSE_ANSWER.finditer(text)]
    if not closes:
        return None
    start = None
    for match in _OPEN_ANSWER.finditer(text):
        if match.end() > closes[-1]:
            break
        start = match.start()
    if start is None:
        return None
    end = next(close for close in closes if close >= start + len("<answer>"))
    return start, end + len("</answer>")
