"""Numbers in words: the words of each language for some numbers, and the one grammar by which they make all others.

number = [number] scale [number] | hundreds [below] | below     what stands before or behind a scale is smaller than it
below  = ten [one] | one ten (Germanic, Arabic) | sixty or eighty and a teen (French)
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from mmcorl.answers.closed_classes import classes, classes_of
from mmcorl.answers.spellings import spellings, turns

_VALUES = (*range(20), *range(20, 100, 10), 100, 1000, 10**6, 10**9, 10**12)
_TENS = (*range(11), 100, 1000, 10**4, 10**8)
_SINOGRAMS = dict(zip("〇一二三四五六七八九十百千万亿零两兩萬億", (*_TENS, 0, 2, 2, 10**4, 10**8), strict=True))
_KOREAN = dict(zip("공일이삼사오육칠팔구십백천만억", _TENS, strict=True))
_SCALES = frozenset({100, 1000, 10**4, 10**6, 10**8, 10**9, 10**12})
_NOT_ALONE_TEXT = (
    "hundred thousand million billion trillion null ein eine un une uno una um uma een elf once due cent mil sept mila "
    "sot seize doze vent trent on bin bir set sta 이 일 사 오 구 한 두 세 네"
)
_NOT_ALONE = frozenset(_NOT_ALONE_TEXT.split())
"""What alone is rather an article, an English word or a scale that wants a number before it."""
_MARKS = re.compile("[\u0300-\u036f\u064b-\u0655]")


def _folded(text: str) -> str:
    """Return letters without their case and marks, and without what stands between them."""
    letters = _MARKS.sub("", unicodedata.normalize("NFD", text.casefold()))
    return unicodedata.normalize("NFC", letters).replace(" ", "").replace("-", "")


def _language(joint: str, spelled: list[str]) -> tuple[dict[str, int], re.Pattern[str], str]:
    """Return the words of a language with their values, what reads one of them or the joint, and the joint."""
    known: dict[str, int] = {}
    for turn, spellings_of in enumerate(spelled):
        value, _, words = spellings_of.rpartition("=")
        known |= {_folded(word): int(value or _VALUES[min(turn, 32)]) for word in words.split("/")}
    known.pop("", None)
    longest = "|".join(sorted(known, key=len, reverse=True))
    return known, re.compile(f"({longest})|{joint if joint != '-' else '(?!)'}{'|s$' if joint == 'et' else ''}"), joint


_TABLES = [_language(joint, words) for _, (joint, *words) in spellings("number")]
_ENGLISH_TOO = frozenset({"mil", "bin"})
_SCALE_WORDS = {word: value for words, _, _ in _TABLES for word, value in words.items() if value >= 1000}
_SCALE_WORDS |= {word: value for table in (_SINOGRAMS, _KOREAN) for word, value in table.items() if value >= 1000}
_SCALED = re.compile(r"(-?\d{1,12}(?:\.\d{1,12})?) ?(\D{1,12})")


def scaled(text: str) -> Fraction | None:
    """Return 1500000 for `1.5 Millionen`; None for other text."""
    match = _SCALED.fullmatch(text)
    word = _folded(match.group(2)) if match else ""
    scale = None if word in _ENGLISH_TOO else _SCALE_WORDS.get(word)
    return Fraction(match.group(1)) * scale if match and scale else None


_ORDINALS = turns("ordinal")
_PLACES = frozenset(word for _, words in spellings("place") for word in words)
_RANK = re.compile(r"(?:第 ?(\d{1,3}|[一二三四五六七八九十]{1,3})|제 ?(\d{1,3})) ?(\D{0,2})|(\d{1,3}) ?(위|등)")


def ranked_elsewhere(text: str) -> str | None:
    """Return `3th`, as `words.ranked` spells it, for `der dritte Platz` and `第三名`; None for other text."""
    if len(text) > 32:
        return None
    if (match := _RANK.fullmatch(text)) is not None:
        number = match.group(1) or match.group(2) or match.group(4)
        rank = Fraction(number) if number.isdecimal() else numeral(number, alone=False)
        return f"{rank}th" if rank is not None and (not match.group(3) or match.group(3) in _PLACES) else None
    words = text.split()
    words = words[1:] if len(words) > 1 and classes_of(words[0].casefold()) & classes("determiner") else words
    words = words[:-1] if len(words) > 1 and words[-1] in _PLACES else words
    word = " ".join(words).casefold()
    # `dritter`, `dritten`: endings of German.
    rank_of = _ORDINALS.get(word) or _ORDINALS.get(word[:-1] if word[-2:] in ("er", "es", "en", "em") else "")
    return None if rank_of is None else f"{rank_of}th"


@lru_cache(maxsize=1 << 12)
def numeral(text: str, alone: bool = True) -> Fraction | None:
    """Return the number that words of one language are; None for other text, and where `alone` words are rather not."""
    folded = _folded(text) if len(text) <= 80 else ""
    if not folded or (alone and folded in _NOT_ALONE):
        return None
    for table in (_SINOGRAMS, _KOREAN):
        if folded[0] in table and (number := _east_asian(folded, table)) is not None:
            return number
    for words, pattern, joint in _TABLES:
        parts, at = [], 0
        while (match := pattern.match(folded, at)) is not None:
            parts += [words[match.group(1)]] if match.group(1) else []
            at = match.end()
        germanic = joint in ("und", "en", "و")
        # `vier und zwanzig` may be two numbers, `vierundzwanzig` is one.
        if parts and at == len(folded) and not (germanic and f" {joint} " in text):
            value = _composed(parts, germanic, _SCALES)
            return None if value is None else Fraction(value)
    return None


def with_counter(text: str) -> tuple[Fraction, str] | None:
    """Return (24, `个`) for `二十四个` and (7, `개`) for `일곱 개`; None for other text."""
    if text.isascii() or len(text) > 40:
        return None
    for at in range(len(text) - 1, max(0, len(text) - 12), -1):
        if not any(map(str.isdecimal, text[at:])) and (number := numeral(text[:at].strip(), alone=False)) is not None:
            return number, text[at:].strip()
    return None


def _east_asian(text: str, table: dict[str, int]) -> Fraction | None:
    below, of, above = text.partition("分之")
    if of:
        parts = [_east_asian(part, table) if part else None for part in (above, below)]
        return parts[0] / parts[1] if parts[0] is not None and parts[1] else None
    whole, point, decimals = text.partition("点")
    if not set(whole + decimals) <= table.keys() or (point and not decimals):
        return None
    values, places = [table[char] for char in whole], [table[char] for char in decimals]
    if len(values) > 3 and max(values) < 10:
        # A year: `二〇二四`.
        value: int | None = int("".join(map(str, values)))
    elif len(values) > 2 and table is _SINOGRAMS and values[-2] >= 100 and values[-1] < 10:
        # 105 in Japanese, and 150 in Chinese.
        value = None
    else:
        value = _composed([value for value in values if value] or [0], False, _SCALES | {10})
    if value is None or max(places, default=0) > 9:
        return None
    return value + Fraction(int("".join(map(str, places)) or "0"), 10 ** len(places))


def _composed(parts: list[int], germanic: bool, scales: frozenset[int]) -> int | None:
    top, first, last = max(parts), parts[0], parts[-1]
    at = parts.index(top)
    if len(parts) == 1:
        return top
    if top in scales or (top > 100 and at == 0):
        above = _composed(parts[:at], germanic, scales) if at else 1
        below = _composed(parts[at + 1 :], germanic, scales) if parts[at + 1 :] else 0
        most = top if top in scales else 100
        return above * top + below if above and above < top and below is not None and below < most else None
    decimal = first and first % 10 == 0 and 0 < last < 10
    swapped = germanic and 0 < first < 10 < last and last % 10 == 0
    return first + last if len(parts) == 2 and (decimal or swapped or (first in (60, 80) and 10 <= last < 20)) else None
