r"""Whether an answer names the quantity, the things and the unit that its question asks for.

    clause   = the last question, else the last request, from its asking word to a condition or `not`
    symbol   = what the clause asks for by a symbol: `the value of x`, `angle ABC`, `f(3)`
    quantity = what it asks for by a word: area, median
    counted  = the noun behind `how many`
    unit     = the unit behind `in` or `how many`

Where the question names none of these, an answer may name any. Only English questions are read so; of others, the last
sentence is the clause.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mmcorl.answers.assertion import CHANGING
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.comparison import may_share_a_name
from mmcorl.answers.names import QUANTITY_WORDS, is_name
from mmcorl.answers.tokens import UNSPACED, Token, classes_in, tokens_of
from mmcorl.answers.units import COUNTED, split_unit
from mmcorl.grading.question import is_other_way_round

_SENTENCE = re.compile(r"(?<=[?.!;？。！；])(?=\s|\Z)|\n|(?<=[？。！；])")
_REQUEST_TEXT = (
    r"find|determine|calculate|compute|evaluate|solve(?: [^.?;]{1,60}?)? for|name|identify|state"
    r"|what|which|who|whom|whose|where|when|how"
)
_ASKING = re.compile(rf"\b(?:{_REQUEST_TEXT})\b", re.IGNORECASE)
_FORMAT = re.compile(r"\b(?:give|express|write|round|answer|state your|leave|enter|use|show)\b", re.IGNORECASE)
_CONDITION = re.compile(r"\b(?:if|given|assuming|suppose|such that|not|unless)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_LEAD = re.compile(
    r"(?:find|determine|calculate|compute|evaluate|solve(?: [^.?;]{1,60}?)? for|name|identify|state"
    r"|what(?: is|'s| are)?|which)\b,? ?"
    r"(?:(?:the|a|an|its|is|exact|numerical|value|values|measure|size|length|degree|of|for|segment|m)\s)*",
    re.IGNORECASE,
)
_ANGLE = re.compile(r"(?:angle|\\angle|∠) ?(?=[A-Z]{1,3}\b)")
_SYMBOL = re.compile(
    r"(\\angle ?[A-Z]{1,3}\b|\\(?:sin|cos|tan|cot|sec|csc) ?\(?\w\)?|[A-Za-z]'{0,2}(?:_\w|_\{\w+\})?\([^()]{1,12}\)"
    r"|[A-Z]{2}\b|[A-Za-z]_(?:\w|\{\w+\})|\\[a-z]+(?![a-z])|[A-Za-z]\b)"
    r"(?! ?[-+*/^=(\\]|\w)(?P<more>(?:,? and |, )(?=[A-Za-z](?![a-z])))?"
)
_AXIS = re.compile(r"\b([xyz])-(?:intercept|coordinate|value|component)s?\b")
_SEGMENT = re.compile(r"\\overline\{([A-Z]{2})\}")
_SET = re.compile(r"[${}]|\\(?:text|mathrm|rm)(?![A-Za-z])")
_UNIT_AT = re.compile(r"\b(?:in|how many|number of|nearest) ", re.IGNORECASE)
_HOW_MANY = re.compile(r"\bhow many (?:more |fewer |different |other |of the )*([^\W\d_]+)", re.IGNORECASE)
_PAIR = re.compile(r"([^\W\d_]\w*) ?: ?([^\W\d_]\w*)")
_NO_UNITS_TEXT = "in can are times t s h l second minute hour day week month year"
_NO_UNITS = frozenset(_NO_UNITS_TEXT.split())
_ANY_THING = frozenset({"unit", "units", "way", "ways"})
_PERCENT = re.compile(r"%|％|percent|per cent|prozent|pour cent|por ciento|百分|процент", re.IGNORECASE)
_KINDS = (
    re.compile(r"[A-Za-z]|\\(?!angle|sin|cos|tan|cot|sec|csc)[a-z]+"),
    re.compile(r"[A-Za-z]_.+"), re.compile(r"[A-Za-z]'*(?:_.+)?\(.*\)"),
    re.compile(r"[a-z]{2}|[A-Z]{2}"), re.compile(r"\\angle ?.*"), re.compile(r"\\(?:sin|cos|tan|cot|sec|csc).+"),
)  # fmt: skip
"""Symbols that name things of one kind: a letter, a term, a value of a function, a segment, an angle, a ratio."""
_ALIKE = (("mean", "average"), ("speed", "velocity"), ("slope", "gradient"), ("center", "centre"), ("cost", "price"))
_LENGTHS = frozenset(["length", "width", "height", "depth", "base", "radius", "diameter", "distance"])
_NEUTRAL_TEXT = "answer ans result value total solution number amount percentage"
_NEUTRAL_QUANTITIES = frozenset(_NEUTRAL_TEXT.split())


def stem(word: str) -> str:
    """Return a word without an ending of inflection: `pay` for `pays` and `paid` for `paid`."""
    word = word.casefold().removesuffix("'s")
    return next(
        (
            word[: -len(end)]
            for end in ("ies", "ing", "ed", "es", "s", "e")
            if word.endswith(end) and len(word) > len(end) + 2
        ),
        word,
    )


@lru_cache(maxsize=1 << 10)
def words_of(text: str) -> frozenset[str]:
    """Return the stems of the words of a text, also without what is elided before them: élèves of `d'élèves`."""
    words = [token.text.replace("’", "'") for token in tokens_of(text[:8192])]
    return frozenset(stem(part) for word in words for part in (word, word.partition("'")[2]) if part)


def is_asked(token: Token, question: str | None, changing: bool = False) -> bool:
    """Return whether a word is one of what a question asks for; none that changes a value, unless `changing`."""
    if not question or (token.classes & CHANGING and not changing):
        return False
    clause = sought_by(question).clause
    if not token.text.isascii() and UNSPACED.match(token.text):
        return token.text in clause
    return stem(token.text) in words_of(clause)


def asks_for(names: str, question: str | None) -> bool:
    """Return whether the clause of a question has a word of some classes."""
    return bool(question) and bool(classes_in(tokens_of(sought_by(question).clause)) & classes(names))


def measure_asked(question: str) -> str | None:
    """Return the area of a question that asks for it: the last that it names, where words are spaced the first."""
    clause = tokens_of(sought_by(question).clause)
    named = [token.text for token in clause if token.classes & classes("measure")]
    return next(iter(named[::-1] if named and UNSPACED.match(named[0]) else named), None)


@dataclass(frozen=True)
class Sought:
    """What a question asks for; each part is None where it names none."""

    clause: str
    symbol: str | None
    quantity: str | None
    noun: str | None
    """The last word of what it asks for, where that is no such quantity."""
    counted: str | None
    unit: str | None


@lru_cache(maxsize=1 << 10)
def sought_by(question: str) -> Sought:
    question = question[-8192:]
    sentences = [sentence.strip() for sentence in _SENTENCE.split(question) if sentence and sentence.strip()]
    asking = [k for k, sentence in enumerate(sentences) if sentence.endswith(("?", "？"))]
    asking += [
        k for k, sentence in enumerate(sentences)
        if k not in asking and _ASKING.match(sentence) and not _FORMAT.match(sentence)
    ]  # fmt: skip
    asking = asking or [k for k, sentence in enumerate(sentences) if _ASKING.search(sentence)]
    at = max(asking, default=len(sentences) - 1)
    whole = sentences[at] if sentences else ""
    tail = " ".join([whole, *sentences[at + 1 :]])
    words = list(_ASKING.finditer(whole))
    clause = whole[words[0].start() :] if words else whole
    condition = _CONDITION.search(clause, 1)
    clause = clause[: condition.start()] if condition else clause
    plain = _ANGLE.sub(r"\\angle ", _SEGMENT.sub(r"\1", clause).replace("$", "").replace(r"\(", "").replace(r"\)", ""))
    many = _HOW_MANY.search(clause)
    counted = many.group(1) if many else None
    symbol = _symbol(plain)
    return Sought(clause, symbol, _quantity(plain), None if symbol else _noun(plain), counted, _unit(tail))


def _symbol(clause: str) -> str | None:
    lead = _LEAD.match(clause)
    if (axis := _AXIS.search(clause)) is not None:
        return axis.group(1)
    if lead is None or (match := _SYMBOL.match(clause, lead.end())) is None or match["more"] is not None:
        return None
    # `What is a good estimate?`: an article.
    return None if match.group(1) in ("a", "A", "I") and clause[match.end() :].strip(" ?.") else match.group(1)


def _quantity(clause: str) -> str | None:
    """Return the last word for a quantity before `of`: area of `the total area of the region`."""
    return next((word for word in reversed(_phrase(clause)) if word in QUANTITY_WORDS - _NEUTRAL_QUANTITIES), None)


def _noun(clause: str) -> str | None:
    last = next(reversed(_phrase(clause)), None)
    return None if last in _NEUTRAL_QUANTITIES else last


def _phrase(clause: str) -> list[str]:
    lead = _LEAD.match(clause)
    if lead is None or "-" in clause.partition(" of ")[0]:
        return []
    phrase = re.split(r" (?:of|in|for|between|from|to|that|when|with)\b|[?.,]", clause[lead.end() :])[0]
    return [word.casefold() for word in _WORD.findall(phrase)]


def _unit(text: str) -> str | None:
    for match in _UNIT_AT.finditer(text):
        words = _SET.sub("", text[match.end() : match.end() + 60]).split()
        for count in (3, 2, 1):
            phrase = " ".join(words[:count]).strip(" ?.,;:!)")
            last = phrase.rpartition(" ")[2]
            vague = phrase in _NO_UNITS and not match.group().startswith("nearest")
            if vague or last in COUNTED or last == "in":
                continue
            value, unit = split_unit(f"1 {phrase}")
            if value == "1" and unit is not None and len(words) >= count:
                return unit
    return None


def names_another(name: str, question: str) -> bool:
    """Return whether a name before `=` or `is` is not what the question asks for."""
    sought = sought_by(question)
    described = name.casefold().removeprefix("the ")
    quantity = None if is_symbol(name) else _quantity(f"what is {described}")
    if quantity is not None:
        other = sought.quantity or sought.noun
        return other is not None and not _are_alike(quantity, other)
    if not is_symbol(name):
        return False
    if sought.symbol is not None:
        return _is_other_symbol(name, sought.symbol, question)
    if sought.quantity is None or name in _symbols(sought.clause):
        return False
    if len(name) == 1:
        return not (name in "xyzn" and name not in _symbols(question)) and not may_share_a_name(name, sought.quantity)
    return re.fullmatch(r"[A-Z]{2}", name) is not None and sought.quantity not in _LENGTHS


def is_symbol(name: str) -> bool:
    return name.startswith("\\") or (is_name(name) and name.casefold() not in QUANTITY_WORDS and " " not in name)


def counts_others(unit: str, question: str, same_number: bool) -> bool:
    """Return whether a unit or a counted noun is not what the question asks for.

    `same_number`: the known answer has the same number, without a unit; 5 is 5% where the question speaks of percent.
    """
    sought, words = sought_by(question), [word.casefold() for word in _WORD.findall(unit)]
    if _is_measure(unit):
        if sought.unit is not None:
            return unit != sought.unit and not (unit == "°" and sought.unit in ("°C", "°F"))
        return sought.counted is not None or (unit == "%" and same_number and not _PERCENT.search(question))
    known = _nouns(sought.clause if sought.counted else question)
    return not all(word in _ANY_THING or word in known or stem(word) in known for word in words)


def _is_measure(unit: str) -> bool:
    return split_unit(f"1 {unit}") == ("1", unit) and not COUNTED & set(_WORD.findall(unit))


@lru_cache(maxsize=1 << 10)
def _nouns(text: str) -> frozenset[str]:
    """Return the stems of words, and what they are as counted nouns: child of `children`."""
    words = [*_WORD.findall(text), *UNSPACED.findall(text)]
    return words_of(text) | {unit for word in words if (unit := split_unit(f"1 {word}")[1]) is not None}


def is_swapped(words: str, question: str | None) -> bool:
    """Return whether words name the two of a ratio in the other order than the question: BC:AB for AB:BC."""
    text = _SET.sub("", question or "").replace(" ", "")
    pairs = [(a, b) for a, b in _PAIR.findall(words) if a != b]
    colons = any(f"{b}:{a}" in text and f"{a}:{b}" not in text for a, b in pairs)
    return colons or is_other_way_round(words, question)


def _are_alike(a: str, b: str) -> bool:
    return a == b or any({a, b} == set(pair) for pair in _ALIKE)


def _is_other_symbol(name: str, symbol: str, question: str) -> bool:
    left, right = _normal(name), _normal(symbol)
    if left == right:
        return False
    if right.startswith(r"\angle"):
        letters, vertex = left.removeprefix(r"\angle").casefold(), right.removeprefix(r"\angle")
        if len(letters) == 1 and vertex[len(vertex) // 2] == letters:
            return False
    return any(kind.fullmatch(left) and kind.fullmatch(right) for kind in _KINDS) or name in _symbols(question)


def _normal(symbol: str) -> str:
    """Return a symbol in one spelling: AB for BA and |AB|, ABC for the angle CBA."""
    text = re.sub(r"\\overline|^m(?=\\)|[|{} ]", "", symbol)
    text = text.casefold() if text.startswith("\\") else text
    if text.startswith(r"\angle"):
        letters = text.removeprefix(r"\angle")
        return r"\angle" + min(letters, letters[::-1])
    return min(text, text[::-1]) if re.fullmatch(r"[A-Z]{2}", text) else text


@lru_cache(maxsize=1 << 10)
def _symbols(text: str) -> frozenset[str]:
    """Return the symbols that a text uses: letters alone but articles, and pairs of capitals."""
    return frozenset(re.findall(r"(?<![A-Za-z\\'])(?:[A-Za-z]|[A-Z]{2})(?![A-Za-z'])", text)) - {"a", "A", "I"}
