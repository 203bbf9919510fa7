"""Numbers and formulas of a question, as the rules read them."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

FORMULA = re.compile(
    r"(?<!\\)\$\$(.+?)(?<!\\)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|(\[asy\].+?\[/asy\])|(\\begin\{.+?\\end\{[A-Za-z*]+\})",
    re.DOTALL,
)
NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?|\.[0-9]+")
THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|,)(?=[0-9]{3}(?![0-9]))")
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_WORDS = {word: value for value, word in enumerate(_UNITS)} | {
    word: value for value, word in zip(range(20, 100, 10), _TENS, strict=True)
}
_WORD = re.compile(rf"\b({'|'.join(_TENS)})[- ]({'|'.join(_UNITS[1:10])})\b|\b({'|'.join(_WORDS)})\b", re.IGNORECASE)
_DOLLAR = re.compile(r"(?<!\\)\$")


def cardinals(text: str) -> Counter[int]:
    """Return how often each number is written as a word: `twenty-one`."""
    words: Counter[int] = Counter()
    for tens, unit, word in _WORD.findall(text):
        words[_WORDS[word.lower()] if word else _WORDS[tens.lower()] + _WORDS[unit.lower()]] += 1
    return words


def numbers_of(text: str, merged: bool) -> tuple[set[str], Counter[str]]:
    """Return the numbers in digits, without leading and trailing zeros, and how often each is a word."""
    text = unicodedata.normalize("NFKC", text)
    digits = set()
    for number in NUMBER.findall(THOUSANDS.sub("", text) if merged else text):
        whole, _, part = number.partition(".")
        part = part.rstrip("0")
        digits.add((whole.lstrip("0") or "0") + (f".{part}" if part else ""))
    return digits, Counter({str(value): count for value, count in cardinals(text).items()})


def formulas(text: str) -> list[str]:
    """Return what is between the signs of mathematics, drawings and environments with theirs."""
    # A comma or full stop of the sentence may be inside.
    return [next(group for group in match.groups() if group).rstrip(" .,;:\n") for match in FORMULA.finditer(text)]


def left_open(original: str, reworded: str) -> str | None:
    """Return what a rewording leaves open that the original closes."""
    if len(_DOLLAR.findall(original)) % 2 == 0 and len(_DOLLAR.findall(reworded)) % 2:
        return "a $ is left open"
    if _unbalanced(original) == 0 and _unbalanced(reworded):
        return "its braces do not close"
    return None


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _unbalanced(text: str) -> int:
    text = text.replace("\\{", "").replace("\\}", "")
    return text.count("{") - text.count("}")
