"""Words of closed classes, by class and language: those that say of a value what becomes of it, or nothing at all.

`closed_classes.tsv` is the table: class, language, words. Languages do not extend these classes, and nobody else lists
their words. `_` is a space, and `*` ends a stem; a word belongs to its classes whatever the language of a text is.
Chinese, Japanese, Korean and Thai are also read within runs of letters.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

_ROWS = [row.split("\t") for row in Path(__file__).with_suffix(".tsv").read_text(encoding="utf-8").splitlines()[1:]]
_MARKS = "mathematics equals comma semicolon colon opening closing quote end question name"
"""Of these sentences consist beside words."""
_BITS = {name: 1 << bit for bit, name in enumerate(dict.fromkeys([row[0] for row in _ROWS] + _MARKS.split()))}


@lru_cache(maxsize=1 << 9)
def classes(names: str) -> int:
    """Return the set of the classes with these names."""
    return sum({_BITS[name] for name in names.split()})


WORDS: dict[str, int] = {}
_STEMS: dict[str, int] = {}
_PHRASES: dict[tuple[str, ...], int] = {}
for _name, _, _words in _ROWS:
    for _word in _words.split():
        if "_" in _word:
            _PHRASES[tuple(_word.split("_"))] = _PHRASES.get(tuple(_word.split("_")), 0) | _BITS[_name]
        else:
            _of = _STEMS if _word.endswith("*") else WORDS
            _of[_word.rstrip("*")] = _of.get(_word.rstrip("*"), 0) | _BITS[_name]
PHRASES: dict[str, list[tuple[tuple[str, ...], int]]] = {}
"""Phrases of several words by their first, the longest first; the last word may end with `*`."""
for _phrase in sorted(_PHRASES, key=len, reverse=True):
    PHRASES.setdefault(_phrase[0], []).append((_phrase, _PHRASES[_phrase]))
_DENIES, _IS = classes("negation auxiliary"), classes("copula auxiliary")


@lru_cache(maxsize=1 << 14)
def classes_of(word: str) -> int:
    """Return the classes of a word in small letters; none, 0, where it is of an open class."""
    word = word.replace("’", "'")
    if (known := WORDS.get(word)) is not None:
        return known | _stems_of(word)
    if word.endswith("n't"):
        return _DENIES
    base, apostrophe, ending = word.rpartition("'")
    if apostrophe and ending == "s":
        known = WORDS.get(base, 0)
        return known | _IS if known & _BITS["pronoun"] else known & _BITS["source"]
    if apostrophe and len(base) < 3:
        # `n'est`, `l'aire`.
        return WORDS.get(ending, 0) | (_BITS["negation"] if base == "n" else 0)
    return _stems_of(word)


def _stems_of(word: str) -> int:
    known = 0
    for end in range(3, len(word) + 1):
        known |= _STEMS.get(word[:end], 0)
    return known
