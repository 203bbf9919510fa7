"""Rules of a problem that is recast into another scenario: what decides the answer is still there."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from mmcorl.tools.rephrase.texts import NUMBER, THOUSANDS, cardinals, formulas, left_open, squeezed

_NUMERIC = r"(?:\{{\s*(?P<{0}>[0-9.]+)\s*\}}|(?P<{0}_digit>[0-9]))"
_FRACTION = re.compile(
    rf"\\[dt]?frac\s*{_NUMERIC.format('above')}\s*{_NUMERIC.format('below')}"
    r"|(?<![0-9./}])(?P<left>[0-9]+)\s*/\s*(?P<right>[0-9]+)(?![0-9./])"
)
_PERCENT = re.compile(r"(?<![0-9.])([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\$?\s*(?:\\?%|percent\b|per cent\b)", re.IGNORECASE)
_INDEX = re.compile(r"(?<=[A-Za-z])(?<!\\log)_(?:\{[0-9]+\}|[0-9])")
"""Part of a name: x_1 may become Ann's height."""
_NTHS = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_PART = re.compile(rf"\b(?:(one|two|three|four|five|seven)[- ])?({'|'.join(_NTHS)})s?\b|\bhalves\b", re.IGNORECASE)
_COUNTS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "seven": 7}
_STANDS_FOR = {
    1: r"once|single|first",
    2: r"pair|both|couple|twice|doubled?|doubles|doubling|squared?|squares|second|twins?",
    3: r"thrice|tripled?|triples|tripling|cubed?|cubes|third|trio|triangle|triangular",
    4: r"quadrupled?|fourth|square|rectang(?:le|ular)|quadrilateral",
    5: r"fifth|pentagon(?:al)?",
    6: r"sixth|hexagon(?:al)?",
    7: r"seventh",
    8: r"eighth|octagon(?:al)?",
    9: r"ninth",
    10: r"tenth",
    12: r"dozen",
    100: r"hundred|century",
}
_STANDING = {value: re.compile(rf"\b(?:{words})\b", re.IGNORECASE) for value, words in _STANDS_FOR.items()}
_SMALL = 3
"""Smaller numbers in words may go: `two sisters` may become `a pair`, `one` an article."""

_DIGITS = 1000
"""Python refuses to read longer numbers than about four times this."""

_GREEK = (
    r"alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|omega"
)
_NAME = re.compile(rf"[A-Za-z]|\\(?:{_GREEK})")
_CONSTANTS = ("e", "i")
"""Letters that may not be names."""
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]+(?:\.[0-9]+)?|\S", re.DOTALL)
_PROSE = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm)\s*\{[^{}]*\}")
_DEGREES = re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})")
_SPACING = {r"\left", r"\right", r"\,", r"\!", r"\;", r"\:", r"\ ", r"\displaystyle", "~", "$"}
_SAME = {r"\dfrac": r"\frac", r"\tfrac": r"\frac", r"\lvert": "|", r"\rvert": "|"}
_BETWEEN = {"=", "<", ">", ",", ";", ":", "&", r"\\", r"\quad", r"\qquad", r"\approx", r"\equiv", r"\neq", r"\ne"} | {
    *(r"\le", r"\leq", r"\ge", r"\geq", r"\in", r"\to", r"\rightarrow", r"\implies", r"\text")
}
_OPENING, _CLOSING = {"{", "(", "[", r"\{", r"\begin"}, {"}", ")", "]", r"\}", r"\end"}
_PLAIN = {
    *(r"\angle", r"\triangle", r"\overline", r"\cdot", r"\times", r"\div", r"\pi", r"\ldots", r"\dots", r"\cdots"),
    *(r"\%", r"\$", r"\{", r"\}", r"\pm", r"\parallel", r"\perp", r"\circ", r"\mid", r"\infty"),
}
"""Commands of formulas that may become words."""


def numbers(original: str, reworded: str) -> str | None:
    """Every number is there with its value, as digits or words, and no other in digits."""
    spelled = {Fraction(value) for value in cardinals(original) if value >= _SMALL}
    old_words, new_words = _words_of(original), _words_of(reworded)
    changes = []
    # `1,200` is one number or two, 1/2 and 50 % are a half or two numbers: any reading may agree.
    for merged, whole in product((True, False), repeat=2):
        old, new = (_amounts(text, merged, whole) for text in (original, reworded))
        lost = {value for value in {*old} - {*new} if new_words[value] <= old_words[value]}
        lost |= {value for value in spelled if not new[value] + new_words[value]}
        added = {value for value in {*new} - {*old} if old_words[value] <= new_words[value]}
        if not lost and not added:
            return None
        named = [(name, ", ".join(map(str, sorted(of)[:5]))) for name, of in (("lost", lost), ("added", added)) if of]
        changes.append(" and ".join(f"{name} {values}" for name, values in named))
    return f"the numbers differ: {changes[0]}"


def formulas_kept(original: str, reworded: str) -> str | None:
    """Formulas with powers, roots and the like are there up to their names; drawings are there as they are."""
    if opened := left_open(original, reworded):
        return opened
    there = {_canonical(side) for formula in formulas(reworded) for side in _sides(formula)}
    for formula in formulas(original):
        if formula.startswith("[asy]"):
            if squeezed(formula) not in squeezed(reworded):
                return "the drawing is not in it as written"
            continue
        for side in _sides(formula):
            if _is_structured(side) and _canonical(side) not in there:
                return f"the formula {' '.join(side)[:60]!r} is not in it, under no other names either"
    return None


def told(answer: str, original: str, reworded: str) -> str | None:
    """Return where a rewording tells the answer: more often than the original, or as the count that it asks for."""
    found = f"it tells the answer {answer[:40]!r}"
    amounts = _amounts(answer.strip(" $\\"), merged=True, whole=True)
    if len(amounts) == 1 and re.fullmatch(r"[-+0-9.,{}$%\s/\\dtfrac]*", answer):
        (value,) = amounts
        if _amounts(reworded, True, True)[value] > _amounts(original, True, True)[value]:
            return found
        asked = re.search(r"\bhow many ([\w-]+)", reworded, re.IGNORECASE)
        after = re.escape(asked[1]) if asked else "~"
        pattern = rf"\b([a-z-]+) {after}\b|\banswer\W+((?:[a-z-]+\W+){{0,2}}[a-z-]+)"
        # `two asymptotes`, and `the answer is two`, where the original does not say so.
        said = {match.group().lower() for match in re.finditer(pattern, reworded, re.IGNORECASE)}
        return found if any(value in cardinals(words) and words not in original.lower() for words in said) else None
    text = squeezed(answer.strip(" $"))
    return found if len(text) > 3 and squeezed(reworded).count(text) > squeezed(original).count(text) else None


def _amounts(text: str, merged: bool, whole: bool) -> Counter[Fraction]:
    """Return how often a text has each number in digits.

    `merged`: 1,200 is one number. `whole`: so are 1/2 and 50 %.
    """
    text = _INDEX.sub("", unicodedata.normalize("NFKC", text).replace("\N{FRACTION SLASH}", "/"))
    digits: Counter[Fraction] = Counter()
    if merged:
        text = THOUSANDS.sub("", text)
    if whole:
        for pattern in (_FRACTION, _PERCENT):
            for match in pattern.finditer(text):
                digits[_value(match)] += 1
            text = pattern.sub(" ~ ", text)
    digits.update(Fraction(number[:_DIGITS]) for number in NUMBER.findall(text))
    return digits


def _words_of(text: str) -> Counter[Fraction]:
    """Return how often a text has words that may stand for each number."""
    words: Counter[Fraction] = Counter({Fraction(value): count for value, count in cardinals(text).items()})
    for value, pattern in _STANDING.items():
        words[Fraction(value)] += len(pattern.findall(text))
    for count, part in _PART.findall(text):
        words[Fraction(_COUNTS.get(count.lower(), 1), _NTHS.get(part.lower(), 2))] += 1
    return words


def _value(match: re.Match[str]) -> Fraction:
    """Return the value of a fraction or a percentage."""
    if match.re is _PERCENT:
        return Fraction(match[1][:_DIGITS]) / 100
    above = match["above"] or match["above_digit"] or match["left"]
    below = match["below"] or match["below_digit"] or match["right"]
    try:
        return Fraction(above[:_DIGITS]) / Fraction(below[:_DIGITS])
    except (ValueError, ZeroDivisionError):
        return Fraction(-1)


def _sides(formula: str) -> Iterator[list[str]]:
    """Yield the tokens of each side of a formula: what is between its signs of relation, outside of brackets."""
    formula = _DEGREES.sub("", _PROSE.sub(r" \\text ", formula))
    side: list[str] = []
    depth = 0
    for token in _TOKEN.findall(formula):
        token = _SAME.get(token, token)
        if token in _SPACING:
            continue
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth <= 0 and token in _BETWEEN:
            yield side
            side = []
        else:
            side.append(token)
    while side and side[-1] == ".":
        side.pop()
    yield side


def _is_structured(side: list[str]) -> bool:
    named = any(_NAME.fullmatch(token) for token in side)
    return named and any(
        token == "^" or (token[0] == "\\" and token not in _PLAIN and not _NAME.fullmatch(token)) for token in side
    )


def _canonical(side: list[str]) -> tuple[str, ...]:
    """Return a side with its names numbered in the order in which they come, and without braces around one token."""
    numbered: dict[str, str] = {}
    tokens: list[str] = []
    for token in side:
        if _NAME.fullmatch(token) and token not in _CONSTANTS:
            token = numbered.setdefault(token, f"name {len(numbered)}")
        if token == "}" and len(tokens) > 1 and tokens[-2] == "{":
            tokens[-2:] = tokens[-1:]
        else:
            tokens.append(token)
    return tuple(tokens)
