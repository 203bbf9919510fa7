"""Extract the answer a response commits to.

One pass each over tags, braces and think blocks, so the time is linear in the length of the response. Nothing is
guessed from prose ("the last number"), because a draft is not a commitment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from mmcorl.answers.cleanup import strip_noise, strip_special_tokens
from mmcorl.answers.latex import clean

Source = Literal["answer_tags", "boxed", "none", "cut_off"]

_OPEN_ANSWER = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_ANSWER = re.compile(r"</answer>", re.IGNORECASE)
_OPEN_THINK = re.compile(r"<think>", re.IGNORECASE)
_CLOSE_THINK = re.compile(r"</think>", re.IGNORECASE)
# `boxed{` without its backslash is common in model text; the look-behind keeps `unboxed{` out.
_BOX = re.compile(r"(?:\\(?:(?:begin)?boxed|fbox)|(?<![A-Za-z\\])boxed)[ \t\n\r]{0,8}\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


@dataclass(frozen=True)
class Extraction:
    """What a response commits to, and in which format."""

    answer: str | None
    """The committed answer, stripped; None without one."""
    source: Source
    """`answer_tags` or `boxed`; without an answer `cut_off` when the response was still being written
    (an unclosed tag, box or think block, or the length limit), else `none`."""


def extract(response: str, finish_reason: Literal["stop", "length"] = "stop") -> Extraction:
    """Extract the answer of one response; never raises, whatever the text.

    Order: drop everything up to the last `</think>`, and everything from a think block that never closes unless the
    text ends with a complete answer tag; then take the last complete `<answer>...</answer>`, unwrapping a box inside;
    else the last balanced `\\boxed{}`, `\\fbox{}` or `boxed{}`. Blank content is no answer. A complete answer counts
    even when the text is cut off after it.
    """
    text = strip_special_tokens(strip_noise(response))
    text, drafting = _without_drafts(text)

    tag = _last_tag(text)
    if tag is not None:
        return _committed(_unwrap_boxes(tag), "answer_tags")
    boxes, open_box = _boxes(text)
    if boxes:
        start, end = _last_outermost(boxes)
        return _committed(_unwrap_boxes(text[start:end]), "boxed")

    unfinished = drafting or open_box or _OPEN_ANSWER.search(text) is not None or finish_reason == "length"
    return Extraction(None, "cut_off" if unfinished else "none")


def _committed(content: str, source: Source) -> Extraction:
    answer = content.strip()
    # `$$` and `\text{ }` are blank, too.
    return Extraction(answer, source) if clean(answer) else Extraction(None, "none")


def _without_drafts(text: str) -> tuple[str, bool]:
    """Return `text` without think blocks, and whether a think block is open at its end."""
    closes = [match.end() for match in _CLOSE_THINK.finditer(text)]
    if closes:
        text = text[closes[-1] :]
    opening = _OPEN_THINK.search(text)
    if opening is None:
        return text, False
    # A model that forgets `</think>` but ends on a complete answer tag has still committed.
    if text.rstrip()[-len("</answer>") :].lower() == "</answer>" and _last_tag(text) is not None:
        return text, False
    return text[: opening.start()], True


def _last_tag(text: str) -> str | None:
    """Return the content of the last complete `<answer>...</answer>`; None without one."""
    closes = [match.start() for match in _CLOSE_ANSWER.finditer(text)]
    if not closes:
        return None
    start = None
    for match in _OPEN_ANSWER.finditer(text):
        if match.end() > closes[-1]:
            break
        start = match.end()
    if start is None:
        return None
    end = next(close for close in closes if close >= start)
    return text[start:end]


def _boxes(text: str) -> tuple[list[tuple[int, int]], bool]:
    """Return the content spans of the balanced boxes, by start, and whether a box never closes."""
    openings = {match.end() - 1 for match in _BOX.finditer(text)}
    if not openings:
        return [], False
    spans: list[tuple[int, int]] = []
    stack: list[int] = []
    # Escaped braces are LaTeX characters, not groups: `\left\{ ... \right.` must not unbalance a box.
    for match in _BRACE.finditer(text):
        token = match.group()
        if token == "{":
            stack.append(match.start())
        elif token == "}" and stack:
            start = stack.pop()
            if start in openings:
                spans.append((start + 1, match.start()))
    return sorted(spans), any(start in openings for start in stack)


def _last_outermost(boxes: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the last box that is in no other box."""
    last = boxes[0]
    for box in boxes:
        if box[0] > last[1]:
            last = box
    return last


def _unwrap_boxes(content: str) -> str:
    """Return the content of the only box in `content`; replace several boxes by their contents."""
    spans, _ = _boxes(content)
    if not spans:
        return content
    innermost = [span for span, after in zip(spans, [*spans[1:], None], strict=True) if not _holds(span, after)]
    if len(innermost) == 1:
        start, end = innermost[0]
        return content[start:end]
    pieces, position = [], 0
    for start, end in innermost:
        box = max(match.start() for match in _BOX.finditer(content, position, start) if match.end() == start)
        pieces += [content[position:box], content[start:end]]
        position = end + 1
    return "".join([*pieces, content[position:]])


def _holds(outer: tuple[int, int], inner: tuple[int, int] | None) -> bool:
    return inner is not None and inner[0] < outer[1]
