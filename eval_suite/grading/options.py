"""The options of a multiple-choice question that stand only in its text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LETTERS = "ABCDEFGH"
"""Options are looked for up to H."""

MAX_QUESTION = 1 << 16
"""Longer texts are not searched for options."""

_HEADER = re.compile(r"(?:choices?|options?|选项)\s*[:：]", re.IGNORECASE)
# `A.`, `A:`, `A)`, `(A)`, `\textbf{(A)}`, full width included. What follows is the option.
_MARK = re.compile(
    r"(?:\\(?:textbf|mathbf|text|mathrm|textrm|bf|rm)\s*\{?\s*)?"
    r"(?:(?P<open>[(（])\s*(?P<round>[A-H])\s*[)）]|(?P<bare>[A-H])\s?(?P<end>[.．:：、)）]))"
    r"(?:\s*(?:\}|\\[ ,;]|~)){0,4}\s*"
)
_ENDS = {"．": ".", "：": ":", "）": ")"}
_STRONG = re.compile(r"(?:^|[\n;；]|[:：]\s)[ \t>*-]{0,8}$")
_SPACED = re.compile(r"(?:^|[\s,，。.$}?？)）]|\\q?quad)\$?$")
_EMPTY = re.compile(r"[ \t]*(?:[;；]|$)")


@dataclass(frozen=True)
class _Mark:
    letter: str
    start: int
    """Where the mark begins and the option before it ends."""
    content: int
    """Where its own option begins."""
    style: str
    strong: bool
    """At the start of a line, behind a semicolon or behind `Choices:`."""


def parse_options(question: str) -> tuple[str, ...] | None:
    """The options in `question` in order A, B, C, ...; None when it shows none.

    Reads `A. 45; B. 60`, `Choices:\\nA:40°\\nB:50°`, `(A) 1 (B) 2`, `A) 1` and `\\textbf{(A)} 1`. Only a letter
    with its mark opens an option, so `A:1:2` and `A. 1; 2` are one option each. A letter that is left out
    (`C. No.; F. None`) leaves an empty option, which nothing equals. Linear in the length of the text.
    """
    if len(question) > MAX_QUESTION:
        return None
    headers = [match.end() for match in _HEADER.finditer(question)]
    if headers:
        found = _in(question, headers[-1], headed=True)
        if found is not None:
            return found
    return _in(question, 0, headed=False)


def _in(question: str, start: int, *, headed: bool) -> tuple[str, ...] | None:
    marks = _marks(question, start, headed)
    best: list[_Mark] = []
    for style in sorted({mark.style for mark in marks}):
        alike = [mark for mark in marks if mark.style == style]
        chain = _chain(alike)
        # `A. (A)\nB. (B)` holds two chains: the one at the line starts, else the longer, else the first.
        if _opens_options(chain) and (not best or _rank(chain) > _rank(best)):
            best = chain
    return _contents(question, best) if best else None


def _opens_options(chain: Sequence[_Mark]) -> bool:
    """Points (A) and (B) of a figure are two marks in running text; options are more or stand apart."""
    strong = sum(mark.strong for mark in chain)
    if len(chain) < 2 or (not strong and len(chain) < 3):
        return False
    return chain[0].strong or chain[0].style in ("()", ".")


def _rank(chain: Sequence[_Mark]) -> tuple[int, int, int]:
    return sum(mark.strong for mark in chain), len(chain), -chain[0].start


def _marks(question: str, start: int, headed: bool) -> list[_Mark]:
    marks = []
    for match in _MARK.finditer(question, start):
        letter = match.group("round") or match.group("bare")
        style = "()" if match.group("round") else _ENDS.get(match.group("end"), match.group("end"))
        before = question[max(start, match.start() - 12) : match.start()]
        strong = _STRONG.search(before) is not None if before or match.start() > start else True
        # A colon is punctuation too: inside running text it opens no option (`ratio A: B`).
        spaced = _SPACED.search(before) is not None and (style != ":" or headed)
        if not (strong or spaced):
            continue
        # `point ;O.;` and `shape ;B.;`: a letter between two separators is part of the option before it.
        if _EMPTY.match(question, match.end()) and match.end() < len(question):
            continue
        marks.append(_Mark(letter, match.start(), match.end(), style, strong))
    return marks


def _chain(marks: Sequence[_Mark]) -> list[_Mark]:
    """A, B, C, ... in this order: each letter at its next strong mark, else at its next one."""
    by_letter: dict[str, list[_Mark]] = {letter: [] for letter in LETTERS}
    for mark in marks:
        by_letter[mark.letter].append(mark)
    best: list[_Mark] = []
    # The last A that begins as long a chain as any; a handful of them is all a question has.
    for first in by_letter["A"][-8:]:
        chain = [first]
        skipped = 0
        for letter in LETTERS[1:]:
            following = by_letter[letter]
            at = bisect_left([mark.start for mark in following], chain[-1].content)
            after = following[at:]
            strong = next((mark for mark in after if mark.strong), None)
            chosen = strong or (after[0] if after and not skipped else None)
            if chosen is None:
                skipped += 1
                continue
            # `C. No.; F. None`: a gap is believed only behind B and at a strong mark.
            if skipped and len(chain) < 2:
                break
            chain.append(chosen)
            skipped = 0
        if not best or _rank(chain)[:2] >= _rank(best)[:2]:
            best = chain
    return best


def _contents(question: str, chain: Sequence[_Mark]) -> tuple[str, ...]:
    ends = [mark.start for mark in chain[1:]] + [len(question)]
    pieces = [question[mark.content : end].strip() for mark, end in zip(chain, ends, strict=True)]
    # What stands below the last option is an instruction: options of one line end with theirs.
    separator = "\n" if not any("\n" in piece for piece in pieces[:-1]) else "\n\n"
    pieces[-1] = pieces[-1].partition(separator)[0]
    options = [""] * (LETTERS.index(chain[-1].letter) + 1)
    for mark, piece in zip(chain, pieces, strict=True):
        options[LETTERS.index(mark.letter)] = _trimmed(piece)
    return tuple(options)


def _trimmed(option: str) -> str:
    option = option.strip()
    while option.endswith((";", "；", ",", "，", r"\qquad", r"\quad", r"\\")):
        option = option.removesuffix(r"\qquad").removesuffix(r"\quad").removesuffix(r"\\").rstrip(";；,， \t\n")
    # `\textbf{(A)}\ 1$ $` of AMC statements: a lone dollar belongs to the marks.
    return option.rstrip("$").strip() if option.count("$") % 2 else option


@lru_cache(maxsize=1 << 12)
def plain_options(choices: tuple[str, ...]) -> tuple[str, ...]:
    """Option values without their own labels, when every one of them carries it (`A. 45`, `B. 60`, ...)."""
    bare = []
    for letter, choice in zip(LETTERS, choices, strict=False):
        match = _MARK.match(choice.strip())
        if match is None or (match.group("round") or match.group("bare")) != letter:
            return choices
        bare.append(choice.strip()[match.end() :].strip())
    # Options that are nothing but labels ((A), (B), ...) are the values.
    return tuple(bare) if len(bare) == len(choices) and all(bare) else choices
