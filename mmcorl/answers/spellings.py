"""Spellings of numbers, ordinals, months, units, money and connectives in sixteen languages, from `spellings.tsv`.

A row has a kind, what it is of (a language, or the one thing that all its words spell), and words: a stroke parts
spellings of one word, `_` is a space, and `-` stands where a language has no word.
"""

from __future__ import annotations

from pathlib import Path

_ROWS = [row.split("\t") for row in Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()[1:]]


def spellings(kind: str) -> list[tuple[str, list[str]]]:
    """Return (what it is of, its words) for every row of a kind, in order."""
    return [
        (of.replace("_", " "), [word.replace("_", " ") for word in words.split()])
        for name, of, words in _ROWS
        if name.replace("_", " ") == kind
    ]


def turns(kind: str) -> dict[str, int]:
    """Return the place, from 1, of every word of a kind in its row: 3 for `March`, `März` and `mars`."""
    return {
        word.casefold(): turn
        for _, words in spellings(kind)
        for turn, spelled in enumerate(words, 1)
        for word in spelled.split("/")
    }
