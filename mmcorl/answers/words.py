"""Words: what their case means, and numbers spelled out."""

from __future__ import annotations

import re
from fractions import Fraction

from mmcorl.answers.numerals import numeral

SHORT_WORDS = frozenset({"am", "pm", "no", "is", "of", "the", "not", "for", "but", "yes", "odd"})
"""Short words that are words even next to numbers (`5 am`)."""
_SHORT_NOUNS = (
    "all and any are art bag bar bed big box boy bus car cat cow cup day dog dry ear east egg eye far few fox fun gas "
    "girl hat her hot ice its key leg low man map max men min mix new now nut off old one our out own pen pie pig red "
    "rod run sad sea see set she six sky sum sun tan ten top toy two van war way west wet who why yet in on at by do "
    "go he if it me my so tea to up us we or be as an true both none"
)
_FOLDED = SHORT_WORDS | frozenset(_SHORT_NOUNS.split())
MULTIPLES = {"double": 2, "twice": 2, "triple": 3, "thrice": 3, "quadruple": 4}
SCALES = {"trillion": 10**12, "billion": 10**9, "million": 10**6, "thousand": 1000, "dozen": 12, "hundred": 100}
PARTS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7}
PARTS |= {"eighth": 8, "ninth": 9, "tenth": 10}


_MATHEMATICS = re.compile(r"[\\_^=<>+*/{}|]")
_PAIRS = re.compile(r"(?:([a-z])\1)+", re.IGNORECASE)
"""Genotypes, such as AaBB."""
_ARTICLE = re.compile(
    r"(?:(?:[Aa]n?|[Tt]he) |(?:der|die|das|den|dem|eine?n?|les?|las?|une?|des|el|los|una|il|lo|gli|os?|as|uma?|het"
    r"|een) |l')(?=[^\W\d_]{3}|-)"
)
"""Of English, German, French, Spanish, Italian, Portuguese and Dutch; a capital begins a name, such as Las Vegas."""


_SPELLINGS = (
    (re.compile(r"\b(north|south)[- ](?=east|west)", re.IGNORECASE), r"\1"),
    (re.compile(r"\b(?:counter-?|anti-?)(?=clockwise)", re.IGNORECASE), "counter"),
    (re.compile(r"(?<=[a-z]ward)s\b"), ""),
)


def fold_case(text: str) -> str:
    """Return words without the case and the article that mean nothing."""
    match = _ARTICLE.match(text)
    words = text[match.end() :] if match else text
    for pattern, spelling in _SPELLINGS:
        words = pattern.sub(spelling, words)
    return " ".join(word.casefold() if _is_cased_as_word(word) else word for word in words.split())


def _is_cased_as_word(word: str) -> bool:
    """Return whether the case of a word means nothing: in `Yes`, `TRUE` and `MuBERT`, not in `abC`, `Abc` and `SAS`."""
    if len(word) == 1 or _MATHEMATICS.search(word) or _PAIRS.fullmatch(word):
        return False
    if len(word) > 5:
        return True
    if len(word) > 3 or word.casefold() in _FOLDED:
        return word.isupper() or word[1:] == word[1:].lower()
    return word == word.lower()


def number_in_words(text: str) -> Fraction | None:
    """Return 21 for `twenty-one`, 5000 for `five thousand` and 2/3 for `two thirds`; None for other text."""
    words = text.casefold() if len(text) <= 80 and text[:1].isalpha() else ""
    if (minus := MINUS.match(words)) is not None:
        number = number_in_words(words[minus.end() :])
        return None if number is None else -number
    spelled = " ".join(words.replace("-", " ").split())
    whole, _, last = spelled.rpartition(" and a ") if spelled.endswith(" and a half") else ("", "", spelled)
    above, _, part = last.rpartition(" ")
    if last in PARTS and last not in ("half", "quarter"):
        # An ordinal: `a third` is 1/3.
        return None
    below = 12 if part == "dozen" else PARTS.get(part.removesuffix("s") if part not in ("halves",) else "half")
    if below is not None:
        count = Fraction(1) if above in ("", "a", "one") else numeral(above)
        before = numeral(whole) if whole else 0
        if count is None or before is None:
            return None
        return count * below if part == "dozen" else before + count / below
    return numeral("one " + words[2:] if words.startswith("a ") else words)


# `12 red balls`: a plural that is no number, and no word that denies or hedges.
_THINGS = re.compile(
    rf"(\d{{1,12}}) ((?!(?:{'|'.join([*SCALES, *PARTS, 'ten'])})s?\b)"
    r"(?:(?!(?:not|nor|less|more|minus|plus|times|over|per|and|versus|than|then)\b)"
    r"[A-Za-z]{3,16} ){0,2}[A-Za-z]{2,15}[a-rt-z]s)"
)
# Signs in words of English, the Romance languages, Chinese, Japanese and Korean.
MINUS = re.compile(r"(?:(?:minus|negative|moins|menos|meno) |[负負]|マイナス ?|마이너스 ?)(?=\S)", re.IGNORECASE)
_SCALED = re.compile(rf"(-?\d{{1,12}}(?:\.\d{{1,12}})?) ?({'|'.join(SCALES)})", re.IGNORECASE)


def amount_in_words(text: str) -> Fraction | None:
    """Return the value of `twenty-one` and `1.5 million`; None for other text."""
    scaled = _SCALED.fullmatch(text)
    return Fraction(scaled.group(1)) * SCALES[scaled.group(2).casefold()] if scaled else number_in_words(text)


def counted_things(text: str) -> tuple[Fraction, str] | None:
    """Return (12, `red balls`) for this and for `twelve red balls`; None for other text."""
    number, _, rest = text.partition(" ")
    count = number_in_words(number)
    things = _THINGS.fullmatch(text if count is None else f"{count} {rest}")
    return (Fraction(things.group(1)), things.group(2).casefold()) if things else None


# `third`, `3rd`; `the second trial`, `Trial 2`, `Trial II`.
_RANKED = re.compile(
    r"(?:the )?(?:(\d{1,4}(?:st|nd|rd|th)|[a-z-]*(?:first|second|third|th))(?: ([a-z]{4,20}))?"
    r"|([a-z]{4,20}) (\d{1,3}|(?-i:I{1,3}|IV|VI{1,3}|IX)))",
    re.IGNORECASE,
)
_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "VI": 6, "VII": 7, "VIII": 8, "IX": 9}
_IRREGULAR = {"first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight", "ninth": "nine"}
_IRREGULAR |= {"twelfth": "twelve"}


def ranked(text: str) -> str | None:
    """Return `trial 2` for `the second trial` and `Trial II`, and `3rd` for `third`; None for other text."""
    match = _RANKED.fullmatch(text) if len(text) < 40 else None
    if match is None:
        return None
    ordinal, thing, noun, number = match.groups()
    if noun:
        return f"{noun.casefold()} {_ROMAN.get(number, number)}"
    tens, _, last = ordinal.casefold().rpartition("-")
    stem = _IRREGULAR.get(last) or re.sub("tieth$", "ty", last).removesuffix("th")
    rank = int(last[:-2]) if last[0].isdigit() else numeral(f"{tens}{stem}")
    return None if rank is None else f"{thing.casefold()} {rank}" if thing else f"{rank}th"
