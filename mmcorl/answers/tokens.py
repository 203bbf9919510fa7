"""Sentences as tokens with the classes of their words; mathematics is one token, other words are of an open class.

token       = mathematics | word | mark
mathematics = numbers, letters, commands and signs in a row, whatever sets them in type
word        = the longest phrase of `closed_classes` that begins here, else one word
mark        = comma | semicolon | colon | opening | closing | quote | end of a sentence | question
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from mmcorl.answers.closed_classes import PHRASES, WORDS, classes, classes_of


class Token(NamedTuple):
    classes: int
    text: str
    """In small letters."""
    start: int
    end: int


_UNSPACED = "\u0900-\u0963\u0966-\u097f\u0e00-\u0e7f\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3"
UNSPACED = re.compile(f"[{_UNSPACED}]")
_LETTER = rf"[^\W\d_{_UNSPACED}]"
_PIECE = re.compile(
    r"(?P<abbreviation>(?:e\.g|i\.e|z\. ?b)\.)"
    rf"|(?P<word>{_LETTER}{{2,}}(?:['’-]{_LETTER}+)*|(?:[aio]|[^\W\d_a-z{_UNSPACED}])(?:['’]{_LETTER}+)?(?!\w)"
    rf"|[ldncsjmt]['’]{_LETTER}{{2,}})|(?P<unspaced>[{_UNSPACED}]+)"
    # What sets words in type.
    r"|(?P<type>\\(?:text\w*|mathrm|mbox|left|right)\s?\{?|\\[,;:! \[\]()]|\\q?quad(?![A-Za-z])|</?\w+>|[*_${}`#|~])"
    r"|(?P<mathematics>\\[A-Za-z]+|\d+(?:[.,]\d+)*|[A-Za-z]|[-+/^<>=≤≥≠≈·×÷±√%°⇒→∴−&'\\])"
    r"|(?P<mark>\n|\S)",
    re.IGNORECASE,
)
_MATHEMATICS, _NAME, _END, _QUESTION = classes("mathematics"), classes("name"), classes("end"), classes("question")
_EQUALS, _THEREFORE = classes("equals"), classes("consequence")
_SIGNS = dict.fromkeys(("=", "≈", r"\approx", r"\equiv", r"\in"), _EQUALS)
_SIGNS |= dict.fromkeys(("⇒", "→", "∴", r"\rightarrow", r"\implies", r"\therefore", r"\to", r"\Rightarrow"), _THEREFORE)
_MARKS = {
    ",": "comma", "，": "comma", "、": "comma", "—": "comma", "–": "comma", ";": "semicolon", "；": "semicolon",
    ":": "colon", "：": "colon", "(": "opening", "（": "opening", "[": "opening", ")": "closing", "）": "closing",
    "]": "closing", '"': "quote", "“": "quote", "”": "quote", "«": "quote", "»": "quote", "„": "quote",
}  # fmt: skip
_ENDS = {end: _END | (_QUESTION if end in "?？؟" else 0) for end in ".!?。！？।؟\n"}
_MARK_CLASSES = {mark: classes(name) for mark, name in _MARKS.items()}
_LONGEST = max(len(word) for word in WORDS if re.fullmatch(f"[{_UNSPACED}]+", word))
_BEHIND_END = frozenset(" \t\n\r*$)<\\\"”'")
_ABBREVIATED = frozenset({"approx", "ans", "ca", "al"})


@lru_cache(maxsize=1 << 11)
def tokens_of(text: str) -> tuple[Token, ...]:
    """Return the tokens of a text; linear in its length."""
    read: list[Token] = []
    for match in _PIECE.finditer(text):
        kind, piece, start, end = match.lastgroup, match.group(), match.start(), match.end()
        if kind == "word":
            word = piece.casefold()
            known = classes_of(word)
            read.append(Token(known or (_NAME if piece[0] != word[0] else 0), word, start, end))
        elif kind == "mathematics":
            signs = _SIGNS.get(piece, 0)
            if signs & ~_EQUALS:
                read.append(Token(signs, piece, start, end))
            elif read and read[-1].classes & _MATHEMATICS:
                last = read[-1]
                read[-1] = Token(last.classes | signs, text[last.start : end], last.start, end)
            else:
                read.append(Token(_MATHEMATICS | signs, piece, start, end))
        elif kind == "unspaced":
            read += _segments(piece, start)
        elif kind == "abbreviation":
            read.append(Token(classes_of(piece.casefold()), piece.casefold(), start, end))
        elif kind == "mark":
            if piece in _ENDS:
                is_dot = piece in ".!?" and not (end == len(text) or text[end] in _BEHIND_END)
                if not (is_dot or (piece == "." and read and read[-1].text in _ABBREVIATED)):
                    read.append(Token(_ENDS[piece], piece, start, end))
            else:
                read.append(Token(_MARK_CLASSES.get(piece, 0), piece, start, end))
    return tuple(_with_phrases(read))


def _segments(run: str, start: int) -> Iterable[Token]:
    """Yield the words of a run in which words are not spaced: the longest that are known, else characters."""
    if run in WORDS:
        yield Token(WORDS[run], run, start, start + len(run))
        return
    at = 0
    while at < len(run):
        length = next((size for size in range(min(_LONGEST, len(run) - at), 1, -1) if run[at : at + size] in WORDS), 1)
        piece = run[at : at + length]
        yield Token(WORDS.get(piece, 0), piece, start + at, start + at + length)
        at += length


def _with_phrases(read: list[Token]) -> Iterable[Token]:
    at = 0
    while at < len(read):
        token, size = read[at], 1
        for words, known in PHRASES.get(token.text, ()):
            there = read[at : at + len(words)]
            if len(there) == len(words) and all(map(_is, there, words)):
                size = len(words)
                token = Token(known, " ".join(words), token.start, there[-1].end)
                break
        at += size
        if token.classes == _NAME and at < len(read) and not read[at].classes and read[at].text.isalpha():
            # `Pythagorean theorem` is of nobody.
            token = token._replace(classes=0)
        yield token


def _is(token: Token, word: str) -> bool:
    return token.text.startswith(word[:-1]) if word[-1] == "*" else token.text.replace("’", "'") == word


@lru_cache(maxsize=1 << 10)
def sentences_of(text: str) -> tuple[tuple[Token, ...], ...]:
    """Return the sentences of a text as tokens, each with the mark that ends it, if one does."""
    tokens = tokens_of(text)
    ends = [at + 1 for at, token in enumerate(tokens) if token.classes & _END]
    return tuple(tokens[start:end] for start, end in pairwise([0, *ends, len(tokens)]) if start < end)


def classes_in(tokens: Sequence[Token]) -> int:
    """Return the classes of all tokens together."""
    there = 0
    for token in tokens:
        there |= token.classes
    return there
