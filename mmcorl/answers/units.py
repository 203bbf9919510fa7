"""Split the unit of measure off an answer and normalise its spelling.

Only known units are split off, so that no variable or word is lost.
"""

from __future__ import annotations

import re
from functools import cache

from mmcorl.answers.spellings import spellings

_ALIASES: dict[str, str] = {}


def _add(name: str, *spellings: str) -> None:
    for spelling in (name, *spellings):
        _ALIASES[spelling] = name


_PREFIXES = {"": "", "k": "kilo", "M": "mega", "G": "giga", "d": "deci", "c": "centi", "m": "milli", "n": "nano"}
_PREFIXES |= {"p": "pico", "micro": "micro"}
_METRIC = dict(spellings("metric"))
"""Symbols and words of the units that take prefixes."""
SYMBOLS = {symbol: words[0] for symbol, *words in _METRIC.values()}
"""Words of units by their symbols."""
for _name, (_symbol, *_words) in _METRIC.items():
    for _prefix, _word in _PREFIXES.items():
        if _prefix in ("d", "c") and _name not in ("m", "g", "bel"):
            continue
        _add(f"{_prefix}{_name}", *(f"{_word}{stem}{plural}" for stem in _words for plural in ("", "s")))
        # `5 pm` is a time, and `pH 5` no inductance.
        if (_prefix or len(_symbol) > 1) and f"{_prefix}{_symbol}" not in ("pm", "pH"):
            _add(f"{_prefix}{_name}", f"{_prefix}{_symbol}")
PERSONS = next(words for name, words in spellings("unit") if name == "people")
COUNTED: set[str] = set(PERSONS)
"""Units that are things, which one counts."""
for _thing, (_plural,) in spellings("thing"):
    _add(_thing, _plural)
    COUNTED |= {_thing, _plural, _thing.capitalize(), _plural.capitalize()}
for _name, _words in spellings("unit"):
    _add(_name, *_words)
for _, _words in spellings("counter"):
    _ALIASES |= {word: word for word in _words}
for _prefix in ("", "k", "M", "G"):
    _add(rf"hr \cdot {_prefix}watt", f"{_prefix}Wh")
for _spelling, _unit in list(_ALIASES.items()):
    # `15.5 Litres`; short names keep their case, which tells mm from Mm.
    if len(_spelling) >= 4 and _spelling.isalpha() and _spelling.islower():
        _ALIASES[_spelling.capitalize()] = _unit

# `20 Cm^2` and `5 KM`; a capital alone is another prefix or unit in Mm, Mg and MM.
_CAPITALS = {
    spelling: unit
    for unit in ("cm", "dm", "km", "kg", "ft", "lb", "oz", "yd", "hr")
    for spelling in (unit.capitalize(), unit.upper())
}
_ALIASES |= _CAPITALS

UNIT_WORDS = frozenset(_ALIASES)
"""Every spelling that names a unit."""

# Words that are also variables, prepositions or function names: units only after a plain number.
_NUMBER_ONLY = frozenset({"m", "g", "L", "l", "t", "in", "min", "are", "can", "h", "s", "mi", "ha", "cl", "cc"})
_NUMBER_ONLY |= frozenset(_CAPITALS)
# Single letters that are more often variables than units; `\text{s}` arrives spelled out.
_NEVER_BARE = frozenset({"t", "h", "s", "l"})

_EXPONENT = r"(?:\^(?:\{-?[1-3]\}|[1-3])|[ -](?:squared|cubed)\b)?"


def _alternatives(words: frozenset[str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=lambda word: (-len(word), word)))


@cache
def _pattern(words: frozenset[str], symbols: str = "") -> re.Pattern[str]:
    first, later = _alternatives(words), _alternatives(UNIT_WORDS | frozenset(symbols))
    power = r"(?:(?:square|sq|cubic|cu|кв|куб)\.? ?)?"
    # Thousands of words: each copy of them takes 25 ms to compile, so there are two, made when first needed.
    first += rf"|[{symbols}](?= ?(?:/|\\cdot))" if symbols else ""
    more = rf"(?: ?/ ?\(?| ?\\cdot ?| per {power}|-(?=[a-z]{{3}})| )(?:{later})\.?{_EXPONENT}\)?"
    unit = rf"{power}(?:{first})\.?{_EXPONENT}(?:{more})*"
    return re.compile(rf"(?:(?<![A-Za-z\\_^{{])|(?=[°%])) ?({unit})(?![A-Za-z\u0400-\u04ff])\.?$")


# Capitals that are variables, too, unless they stand in a quotient or product of units: `5 N/C`.
_AFTER_NUMBER = UNIT_WORDS - _NEVER_BARE, "NJWCVAK"
_AFTER_CONSTANT = UNIT_WORDS - (_NUMBER_ONLY - {"m", "in", "mi"})
# Only numbers count things: `a square` is a shape.
_AFTER_SYMBOL = UNIT_WORDS - _NUMBER_ONLY - COUNTED
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_ENDS_VALUE = re.compile(r"(?:[\d})\]!]|(?<![A-Za-z\\])[A-Za-z]|\\(?:pi|theta|alpha|beta|infty))$")
_ENDS_NO_UNIT = frozenset("0123456789)]}")
# The second form is `3e8` and `3\\times10^8`.
_PLAIN_NUMBER = re.compile(
    r"[-+]?[\d.,/{}() ]*(?:\\frac[\d.,{} ]+)?|-?[\d.]+(?:[eE][-+]?\d+|\\(?:times|cdot) ?10\^(?:\{-?\d+\}|\d))"
)
_CONSTANT = re.compile(r"(?:[-+\d.,/{}() ]|\\cdot|\\frac|\\sqrt|\\pi)*")
_POWER_WORD = re.compile(r"(?:(square|sq|кв)|cubic|cu|куб)(?![a-zа-я])\.? ?(?=\S)")
_POWERS = {"squared": 2, "cubed": 3, None: 0}
_CAPITAL_UNITS = {symbol: name for name, (symbol, *_) in _METRIC.items() if len(symbol) == 1 and symbol.isupper()}
_NAMES = _CAPITAL_UNITS | {"K": "kelvin"} | _ALIASES
_ATOM = re.compile(
    rf"({_alternatives(frozenset(_NAMES))})\.?(?:\^\{{?(-?[1-3])\}}?|[ -](squared|cubed))?(?![A-Za-z\u0400-\u04ff])"
)


def split_unit(text: str) -> tuple[str, str | None]:
    """Split an answer such as `5 cm^2` into (value, unit); the unit is None unless a known one ends the text."""
    # By far the commonest case: a digit or closing bracket outside an exponent ends no unit.
    if text[-1:] in _ENDS_NO_UNIT and "^" not in text[-5:] and "/(" not in text:
        return text, None
    # No unit is longer than this, and searching the whole text takes quadratic time.
    tail = max(0, len(text) - 80)
    match = _pattern(*_AFTER_NUMBER).search(text, tail)
    if match is None or not match.start():
        return text, None
    if not _PLAIN_NUMBER.fullmatch(text[: match.start()]):
        constant = _CONSTANT.fullmatch(text[: match.start()]) is not None
        match = _pattern(_AFTER_CONSTANT if constant else _AFTER_SYMBOL).search(text, tail)
        if match is None or not match.start():
            return text, None
    value = text[: match.start()].rstrip()
    # In `\cos 15°` the degree belongs to the argument.
    if match.group(1) == "°" and _TRIGONOMETRY.search(value):
        return text, None
    if not _ENDS_VALUE.search(value):
        return text, None
    return value, _unit_name(match.group(1))


def without_units(text: str) -> str:
    """Return a formula without the units behind its numbers: `5 \\times 4` for `5 cm \\times 4 cm`."""
    value = split_unit(text)[0]
    return value if _TRIGONOMETRY.search(value) else _behind_digits().sub("", value)


def _unit_name(unit: str) -> str:
    """Return the normal spelling of a unit: `square cm`, `cm^{2}` and `cm^2` are `cm^2`; `kmh` is `km/hr`."""
    exponents: dict[str, int] = {}
    sign, power, position = 1, 1, 0
    while position < len(unit):
        if (word := _POWER_WORD.match(unit, position)) is not None:
            power, position = (2 if word.group(1) else 3), word.end()
        elif unit.startswith(r"\cdot", position):
            position += len(r"\cdot")
        elif (match := _ATOM.match(unit, position)) is not None:
            name, _, inner = _NAMES[match.group(1)].partition("^")
            step = sign * int(match.group(2) or _POWERS.get(match.group(3)) or inner or 1) * power
            exponents[name] = exponents.get(name, 0) + step
            power, position = 1, match.end()
        else:
            sign = -1 if unit[position] == "/" or unit.startswith("per ", position) else sign
            position += 1
    if exponents == {"kmh": 1}:
        exponents = {"km": 1, "hr": -1}
    elif exponents == {"mph": 1}:
        exponents = {"mi": 1, "hr": -1}
    above = [_power(name, exponents[name]) for name in sorted(exponents) if exponents[name] > 0]
    below = [name for name in sorted(exponents) if exponents[name] < 0]
    if not above:
        return r" \cdot ".join(_power(name, exponents[name]) for name in below)
    return "/".join([r" \cdot ".join(above), *(_power(name, -exponents[name]) for name in below)])


def _power(name: str, exponent: int) -> str:
    if exponent == 1:
        return name
    return f"{name}^{exponent}" if exponent > 0 else f"{name}^{{{exponent}}}"


# --- markup -------------------------------------------------------------------------------------------------

ROMAN_UNITS = {"s": "sec", "h": "hr", "t": "tonne", "l": "L", "N": "newton", "J": "joule", "W": "watt"}
ROMAN_UNITS |= {"C": "coulomb", "V": "volt", "A": "ampere", "m": "metre", "g": "gram", "L": "litre", "K": "kelvin"}
_MEASURE = rf"(?:{_alternatives(UNIT_WORDS | frozenset(ROMAN_UNITS))}){_EXPONENT}"


@cache
def _behind_digits() -> re.Pattern[str]:
    return re.compile(rf"(?<=\d)(?: |\\:)?{_MEASURE}(?: ?/ ?{_MEASURE})?(?![A-Za-z\u0400-\u04ff(^])")


# A C is a variable, too, but not behind a power of ten.
_SPACED_UNIT = re.compile(
    r"(10\s*\^\s*\{-?\d{1,3}\}|\d[eE][-+]?\d{1,3}|\d(?=\s+[^C]))\s+([shNJWVAKC])"
    r"(?=\s*(?:[.,;]|\((?:[a-h]|[ivx]{1,4}|[1-9])\)|$))"
)
_UNIT_FRACTION = re.compile(
    r"(?<=[\d})])\s{0,4}\\frac\{((?:[^{}]|\{[^{}]{0,4}\}){1,24})\}"
    r"\{((?:[^{}]|\{[^{}]{0,4}\}){1,24})\}\s{0,4}\.?\s{0,4}$"
)
# `2 \mu N` and `2 \mu g` are frictions.
_MICRO = re.compile(
    r"(?<=[\d}])(?:\s|\\,|~){0,4}\\mu\s{0,4}(?:\\(?:text|mathrm)\s?\{\s?)?"
    r"(m|s|F|C|A|V|H|T|W|J|Wb|Hz)\s?\}?\s*\.?\s*$"
)
# `3 m s^{-1}`: units side by side are a product where one has a negative power.
_GAP = r"(?:\s|\\,|~){1,4}"
_UNIT = r"(?:k?g|[kcm]?m|mol|[sJNWVAK])(?:\s{0,4}\^\s?(?:\{\s?-?[1-4]\s?\}|[1-4]))?"
_UNIT_PRODUCT = re.compile(rf"(?<=[\d}}]){_GAP}({_UNIT}(?:{_GAP}{_UNIT}){{1,4}})\s*\.?\s*$")
_BETWEEN_UNITS = re.compile(rf"{_GAP}(?=[A-Za-z])")


def with_units(text: str) -> str:
    """Spell units that stand as symbols behind a number: `5 \\mu m` and `5 N`."""
    text = _MICRO.sub(lambda m: f" micro{SYMBOLS[m.group(1)]}", text) if r"\mu" in text else text
    return _SPACED_UNIT.sub(lambda m: f"{m.group(1)} {ROMAN_UNITS[m.group(2)]}", text)


def with_unit_quotients(text: str) -> str:
    """Spell `5 \\frac{m}{s}` and `5 m s^{-1}` behind a number as products and quotients in a line."""
    if text.find(r"\frac") > 0:
        text = _UNIT_FRACTION.sub(_unit_quotient, text)
    if "-" in text and (product := _UNIT_PRODUCT.search(text)) is not None and "-" in product.group(1):
        text = f"{text[: product.start()]} " + _BETWEEN_UNITS.sub(r" \\cdot ", product.group(1))
    return text


def _unit_quotient(match: re.Match[str]) -> str:
    """Return ` m/s` for `\\frac{m}{s}` behind a number, and other fractions as they are."""
    above, below = (" ".join(part.replace("{", "").replace("}", "").split()) for part in match.groups())
    unit = split_unit(f"1 {above}/{below}") if not above[-1].isdigit() else ("", None)
    return f" {above}/{below}" if unit[1] is not None and unit[0] == "1" else match.group()
