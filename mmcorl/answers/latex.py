"""Normalise markup: one spelling for answers that differ only in Unicode, LaTeX, markdown or spacing.

No content is dropped: answers that differ in a letter or a digit still differ.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from mmcorl.answers.cleanup import strip_noise, without_markup
from mmcorl.answers.grammar import FUNCTIONS, GREEK, THEREFORE, split_top_level
from mmcorl.answers.language import with_decimal_points, without_braced_commas
from mmcorl.answers.notation import (
    clock,
    date,
    system,
    with_brackets,
    with_round_groups,
    with_subscripts,
    without_chemistry,
)
from mmcorl.answers.spellings import spellings
from mmcorl.answers.units import PERSONS, ROMAN_UNITS, split_unit, with_unit_quotients, with_units

MAX_LENGTH = 4096
"""Longer answers are compared as plain text."""

_COMMANDS_FROM_WORDS = FUNCTIONS - {"min", "max", "mod", "sec"}

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
_SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_SUPERSCRIPT_RUN = re.compile(f"[{''.join(_SUPERSCRIPTS)}]+")
_SUBSCRIPT_RUN = re.compile(f"[{''.join(_SUBSCRIPTS)}]+")
_DIGITS_ELSEWHERE = re.compile(r"(?![0-9])\d")
_VULGAR = re.compile("[¼½¾⅐-⅞]")

_CHARACTERS = {ord(char): spelling for spelling, chars in spellings("character") for char in chars}
_CHARACTERS |= dict.fromkeys(map(ord, "\u2009\u202f\u00a0"), r"\,")

_SPACING = re.compile(r"(?<!\\)\\(?:[;: >]|q?quad)|~")
_SIZING = re.compile(r"\\(?:left|right|middle|[Bb]igg?[lr]?)(?![A-Za-z])\.?(?=\s*(?:[\[\](){}|.]|\\[{}|]|\\[lr]))")
_STYLE = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|rm|bf|it|tiny|scriptsize|footnotesize|small|normalsize"
    r"|[lL]arge|LARGE|[hH]uge|boldmath|bfseries|itshape|centering|noindent)(?![A-Za-z])|\\color\s?\{[\w!.,# ]{1,32}\}"
    r"|(?:\s|\\ ){0,4}\\!\s{0,4}"
)
_COLOURED = re.compile(r"\\(?:textcolor|colorbox|fcolorbox\s?\{[\w!.,# ]{1,32}\})\s?\{[\w!.,# ]{1,32}\}(?=\s?\{)")
_LISTED_TEXT = re.compile(r"\[\s*(?:(['\"])[^'\"\[\]]*\1\s*(?:,\s*(?!\])|(?=\])))+\]")
_SET_BUILDER = re.compile(r"\{(\s*[A-Za-z]\s*[|:].*)\}", re.DOTALL)
_AMPERSAND = re.compile(r"(?<=[\w)\]}°%])\s*\\?&\s*(?=[\w(\[\\-])")
_TIMES_DEGREES = re.compile(r"(?:\\cdot|\\times|\*)\s{0,4}(?=\\degrees?(?![A-Za-z])|°|\^\s?\{?\s?\\circ)")
# `160~cm`; a tilde before a number means `about`.
_TIE = re.compile(r"(?<=[\d})\]])~(?=\s{0,4}(?:[A-Za-z\\]|$))|(?<=\([A-H]\))~")
_THIN_DIGITS = re.compile(r"(?<=\d)(?:\\,|\\ |~)(?=\d{3}(?!\d))")
_SPACED_THOUSANDS = re.compile(r"(-?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?)( ?[^\d\s-].*)?")
_ROMAN = re.compile(
    r"\\(?:text|textbf|textit|textrm|textnormal|mathrm|mathbf|mathit|mathsf|operatorname|mbox|hbox|rm|bf|emph"
    r"|boldsymbol|bm|underline)"
    r"\s*\{((?:[^{}]|\{[^{}]{0,64}\}){0,512})\}"
)
# `3\\mathbf{i} - 2\\hat{\\jmath}`
_UNIT_VECTOR = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|vec|hat|widehat|overrightarrow)"
    r"(?:\s?\{\s?\\(?:mathbf|hat|vec|bm)\s?\{\s?\\?([ijk])(?:math)?\s?\}\s?\}|\s?\{\s?\\?([ijk])(?:math)?\s?\})"
)
_SPACED_EXPONENT = re.compile(r"-?\d+(?:\.\d+)?[eE] \d{1,3}")
_DEGREES = re.compile(
    r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?:(?![A-Za-z])|(?=[TNSEWC](?![A-Za-z])))|\\degrees?(?![A-Za-z])|\^\s*°|\^\s*\{\s*°\s*\}"
)
# `90^o` and `90\circ` are degrees only after a number.
_LOOSE_DEGREES = re.compile(r"(?<=\d)\s{0,4}(?:\^\s{0,4}(?:o(?![A-Za-z])|\{\s{0,4}o\s{0,4}\})|\\circ(?![A-Za-z]))")
_TIME = re.compile(r"0?(\d{1,2})(?::(\d\d) ?| )([AaPp])\.?[Mm]\.?")
_TO = re.compile(r"\d{1,9}(?:\.\d{1,9})?(?: to \d{1,9}(?:\.\d{1,9})?){1,3}")
_MINUTES_TO = re.compile(r"[1-5]?\d to [1-5]\d")
_FRACTION_NAME = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_TOKEN_ARGUMENT = r"([0-9A-Za-z]|\\[A-Za-z]+(?![A-Za-z])(?!\s*\{))"
_FRACTION_HEAD = re.compile(
    rf"\\(frac|binom)(?![A-Za-z])\s*(?:{_TOKEN_ARGUMENT}\s*{_TOKEN_ARGUMENT}|(\{{[^{{}}]{{0,256}}\}})\s*{_TOKEN_ARGUMENT}"
    rf"|{_TOKEN_ARGUMENT}\s*(?=\{{))"
)
_BARE_ROOT = re.compile(r"\\sqrt(?![A-Za-z])(\[[2-9]\])?\s*([0-9]+|[A-Za-z]|\\[A-Za-z]+(?![A-Za-z])(?!\s*[{\[]))")
# TeX's older `{5 \choose 2}` and `{1 \over 2}`.
_INFIX = re.compile(
    r"\{([^{}]{1,64})\\(choose|over)(?![A-Za-z])([^{}]{1,64})\}"
    r"|([^{}()\[\]=,\\]{1,64})\\(choose|over)(?![A-Za-z])([^{}()\[\]=,\\]{1,64})"
)
_INFIX_NAMES = {"choose": "binom", "over": "frac"}
# A space before an argument means nothing: `\dfrac {3} {4}`, `\text {cm}`, `x^ {2}`.
_SPACE_BEFORE_ARGUMENT = re.compile(r"(?<=[A-Za-z\^_])\s+(?=\{)|(?<=[^\\]\})\s+(?=\{)|(?<=\\sqrt)\s+(?=\[)")
_COMMAND_WITH_CAPITAL = re.compile(r"\\(?=[a-z]*[A-Z])([A-Za-z]+)")
_NAMES = dict(spellings("symbols"))
_COMMANDS = FUNCTIONS | frozenset(_NAMES["command"])
_TAKE_NO_ARGUMENT = frozenset(rf"\{name}" for name in _NAMES["without argument"])
_COMMAND = re.compile(r"(?<!\\)\\[A-Za-z]")
_GAP_BEHIND = re.compile(r"(?:\s|\\[,;: ]|~)+\Z")
_ENDS_COMMAND = re.compile(r"\\[A-Za-z]+\Z")
_DOUBLED_COMMAND = re.compile(r"\\\\[A-Za-z]{2,}")
_DOUBLED = re.compile(r"\\\\(?=[A-Za-z]{2,}|[{}%!,;:]|\$\s*\d)")
# `x = 1 \quad y = 2` and `x=1\\y=2`: equations beside each other are several, though TeX shows no comma.
_NAME_AND_SIGN = (
    r"(?=(?:[A-Za-z]{1,2}(?:_\w|_\{\w+\})?'?|\\(?:alpha|beta|gamma|theta|lambda|mu|angle [A-Z]{1,3}))\s{0,4}=(?!=))"
)
_BESIDE = re.compile(
    rf"\s{{0,16}}(?:\\\\|\\q?quad(?![A-Za-z])|\n|~)(?:\s|\\[;:,! ]|\\\\|\\q?quad(?![A-Za-z])){{0,16}}{_NAME_AND_SIGN}"
    rf"|(?<=[\d)\]}}°%])(?:\s|\\[;:,! ]){{1,16}}{_NAME_AND_SIGN}"
)
_MIDDLE_SIDE = re.compile(r"(?<==)[^=,;]{1,200}(?==)")
_GAP_IN_CHAIN = re.compile(r"(?<=[\d)\]}])\s+(?=[A-Za-z])")
_JOINED = re.compile(rf"\b(?:and|or|{'|'.join(sorted(word for word in THEREFORE if word.isalpha()))})\b")
_UNION = re.compile(r"(?<=[)\]])\s*U\s*(?=[(\[])")
_BRACED_COMMA = re.compile(r"\s{0,4}\{\s{0,4},\s{0,4}\}\s{0,4}")
# `1.234,56` is a decimal, whatever the language, and `1.234.567` is none.
_DECIMAL_COMMA = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3}){1,4}),(?!\d{3}(?!\d))(\d{1,12})(?![\d,.])")
# A number of people is whole: `12.500 Einwohner`.
_POINTS = re.compile(
    rf"(?<![\d.,])(?:\d{{1,3}}(?:\.\d{{3}}){{2,6}}(?![\d.,])|[1-9]\d{{0,2}}\.\d{{3}}(?=\s?(?:EUR|{'|'.join(PERSONS)})\s*$))"
)
# `8\sqrt{3}{squareinches}`: words in braces that are no argument.
_BRACED_WORDS = re.compile(r"(\\frac\s?\{[^{}]*\})?(?<=[}\d)i])\s{0,4}\{([A-Za-z][A-Za-z. ]{3,20})\}\s{0,4}$")
_SYNONYMS = {name: spelling for spelling, names in spellings("command") for name in names}
_SYNONYM = re.compile(rf"\\({'|'.join(_SYNONYMS)})(?![A-Za-z])")
_EMPTY_SET = re.compile(r"\\\{\s{0,4}\\\}")
_COMMA_SPACE = re.compile(r"(?<!\\)\\,")
# In `5!=120` stands a factorial.
_NOT_EQUAL = re.compile(r"(?<!\d)!=")
_SIGN_SYNONYMS = (("<=", r"\le "), (">=", r"\ge "), ("...", r"\ldots "), ("**", "^"), ("*", r"\cdot "))
_LETTERS = re.compile(r"[A-Za-z]")
_WORDS = re.compile(
    rf"(?<![A-Za-z\\])(infinity|inf|pi|a(?:sin|cos|tan)|sqrt(?=\s*[({{\d])|{'|'.join(sorted(_COMMANDS_FROM_WORDS))})(?![A-Za-z])"
)
_WORD_COMMANDS = {"infinity": r"\infty ", "inf": r"\infty "} | {
    f"a{name}": rf"\arc{name} " for name in ("sin", "cos", "tan")
}
_PREFIX = re.compile(
    r"(?:so |thus |hence |therefore,? )?(?:the )?(?:final |correct )?(?:answer(?: is|:| is:)|ans[.:]{1,2})\s*(?=\S)",
    re.IGNORECASE,
)
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
# In `0.\overline{3}` the dot is the decimal point.
_DANGLING_DOT = re.compile(r"(?<=\d)\.(?![\d.]|\\(?:overline|bar|dot)\{)")
# `0.1666...` and `0.123123...`: digits written three times, or several twice, and then dots repeat for ever.
_GOES_ON = re.compile(r"(?<![\d.])(\d{1,9}\.\d{0,9}?)(?:(\d{1,6}?)\2{2,20}|(\d{3,6}?)\3)\s{0,4}\\ldots(?![A-Za-z])")


def _alternatives(words: dict[str, str]) -> str:
    return "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))


_MONEY = {word: code for code, words in spellings("money") for word in words}
_SIGN = _alternatives(_MONEY)
_CURRENCY = re.compile(
    rf"(?<![A-Za-z])(-?)\s{{0,4}}({_SIGN})\s{{0,4}}(-?[\d.,]+|\\frac\{{\d+\}}\{{\d+\}})"
    r"(?:\s{0,4}(thousand|million|billion|trillion|bn)|([kKmMbB]))?(?![A-Za-z])"
)
_MAGNITUDES = {"k": "thousand", "m": "million", "b": "billion", "bn": "billion"}
_CURRENCY_BEHIND = re.compile(rf"(?<=\d)\s{{0,4}}({_SIGN})(?!\s{{0,4}}[\d.]|[A-Za-z])")
_CODE = re.compile(r"\b(?:[A-Z]{3}|Rs)\b")
_EUROS = re.compile(r"€\s?\d|\d\s?(?:€|EUR|euros?)\s*$")
# `(+3, -4)`; after anything else a plus adds.
_IDLE_PLUS = re.compile(r"(?<=[(\[{,=])(\s{0,4})\+(?=[\d.\\A-Za-z(])")
_TIMES_TEN = re.compile(r"(?<=\d)\s{0,4}[xX]\s{0,4}(?=10\s{0,4}\^)")
_JOINTS = {word: joint for joint, words in spellings("joint") for word in words}
_EAST_ASIAN = {word: joint for joint, words in spellings("joint of east asia") for word in words}
_EAST_ASIAN_JOINT = re.compile(
    rf"(?<=[\dA-Za-z)\]}}°%])\s{{0,4}}({_alternatives(_EAST_ASIAN)})\s{{0,4}}(?=[\dA-Za-z(\[\\-])"
)
# `x < 1 oder x > 4`, `2 y 3`: between values, words of one letter are no factors; `2 e 3` may be a power of ten.
_JOINT = re.compile(
    rf"(?:(?<=[\d)\]}}°%])|(?<=[<>=][A-Za-z])|(?<=[<>=] [A-Za-z])) (?!e \d)({_alternatives(_JOINTS)}) "
    r"(?=-?[\d(\[\\]|-?[A-Za-z](?:_\w)?\s?(?:[<>=]|\\[lgn]eq?(?![A-Za-z])))"
)
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,64}(?:\.[0-9]{1,64})?")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\.\d+|[A-Za-zÀ-ɏЀ-ӿ]+|\s+|.", re.DOTALL)
_BREAK_BEFORE_DOLLAR = re.compile(r"\\\\\s{0,4}\$\s{0,4}\Z")
# `x^{2}3` is no power of 23.
_SHORT_SCRIPT = re.compile(r"([\^_])\{([A-Za-z0-9])\}(?!\d)")
_QUOTES = (("**", "**"), ("*", "*"), ("__", "__"), ("```", "```"), ("`", "`"), ('"', '"'), ("'", "'"))


def clean(answer: str) -> str:
    """Return the normal spelling of `answer`, in linear time; plain text beyond `MAX_LENGTH`."""
    return _remembered(answer) if len(answer) <= 256 else _cleaned(answer)


def _cleaned(answer: str) -> str:
    text = strip_noise(answer).strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return text
    if len(text) > MAX_LENGTH:
        return " ".join(text.split())
    text = without_markup(text)
    for _ in range(4):
        spelled = _once(text)
        if spelled == text:
            break
        text = spelled
        if len(text) > MAX_LENGTH:
            break
    return text


_remembered = lru_cache(maxsize=1 << 14)(_cleaned)


def _once(text: str) -> str:
    text = _unwrap(_single_backslashes(_characters(text)))
    text = _JOINT.sub(lambda word: f" {_JOINTS[word.group(1)]} ", text) if " " in text else text
    if (time := _TIME.fullmatch(text)) is not None:
        text = f"{time.group(1)}:{time.group(2) or '00'} {time.group(3).lower()}m"
    elif " to " in text and _TO.fullmatch(text):
        # `10 to 10` may be ten minutes before ten.
        text = text if _MINUTES_TO.fullmatch(text) else text.replace(" to ", ":")
    else:
        text = date(text) or clock(text) or text
    if _SPACED_EXPONENT.fullmatch(text):
        text = text.replace(" ", "")
    elif text[:1] == "{" and not text[1:-1].strip() and text[-1] == "}":
        text = r"\emptyset"
    text = _PREFIX.sub("", text, count=1) if _PREFIX.match(text) else text
    # `= 7/4` continues a line of the question.
    text = text[1:].lstrip() if text.startswith("=") and not text.startswith("==") and len(text) > 1 else text
    text = _latex(text)
    text = _unwrap(text.strip())
    return _join(text)


def _single_backslashes(text: str) -> str:
    """Undo LaTeX escaped once too often (JSON in JSON); in a matrix two backslashes end a row."""
    if "\\\\" not in text:
        return text
    if _DOUBLED_COMMAND.search(text) and not _COMMAND.search(text):
        return text.replace("\\\\", "\\")
    return text if r"\begin" in text else _DOUBLED.sub(r"\\", text)


def _lower_command(match: re.Match[str]) -> str:
    name, lower = match.group(1), match.group(1).lower()
    # `\Pi` is another letter than `\pi`, and `\PI` is none.
    known = lower in _COMMANDS or (name.isupper() and len(name) > 1 and f"\\{lower}" in GREEK | {r"\pi"})
    return f"\\{lower}" if known else match.group()


def _characters(text: str) -> str:
    if text.isascii():
        return text
    text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{{{''.join(_SUPERSCRIPTS[char] for char in run.group())}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: f"_{{{''.join(_SUBSCRIPTS[char] for char in run.group())}}}", text)
    # `1½` is one and a half; without the space NFKC would make it eleven halves.
    text = _VULGAR.sub(lambda char: f" {unicodedata.normalize('NFKC', char.group())} ", text)
    text = _EAST_ASIAN_JOINT.sub(lambda word: f" {_EAST_ASIAN[word.group(1)]} ", text)
    text = unicodedata.normalize("NFKC", text.translate(_CHARACTERS))
    text = text.translate(_CHARACTERS).replace("Â°", "°")
    return _DIGITS_ELSEWHERE.sub(lambda digit: str(unicodedata.decimal(digit.group())), text)


def _unwrap(text: str) -> str:
    """Strip math delimiters, and markdown or quotes around the whole text."""
    text = text.strip()
    for mark, replacement in ((r"\(", ""), (r"\)", ""), (r"\[", ""), (r"\]", "")):
        if mark in text and r"\\[" not in text:
            text = text.replace(mark, replacement)
    text = _BREAK_BEFORE_DOLLAR.sub("$", text) if r"\\" in text else text
    # A single dollar sign before a digit is money, a pair delimits mathematics.
    bare = text.replace(r"\$", "")
    if bare.count("$") == 1 and re.match(r"-?\s*[A-Z]{0,2}\$\s*\d|[\d.,]+ \$", bare):
        text = text.replace("$", r"\$")
    elif "$" in bare:
        text = re.sub(r"(?<!\\)\$", "", text)
    text = text.strip()
    if text[:1] == "[" and _LISTED_TEXT.fullmatch(text):
        text = ", ".join(re.split(r"['\"]\s*,\s*['\"]", text.strip("[] \n")[1:-1]))
    elif text[:1] == "{" and (builder := _SET_BUILDER.fullmatch(text)) is not None:
        text = rf"\{{{builder.group(1)}\}}"
    text = text.rstrip("\\").rstrip() if text.endswith("\\") else text
    for opening, closing in _QUOTES:
        while (
            len(text) > len(opening) + len(closing)
            and text.startswith(opening)
            and text.endswith(closing)
            and opening not in text[len(opening) : -len(closing)]
        ):
            text = text[len(opening) : -len(closing)].strip()
    return text


def _latex(text: str) -> str:
    text = with_brackets(with_units(text))
    text = _TIE.sub(" ", text) if "~" in text else text
    if r"\begin" in text:
        text = system(text)
    elif "&" in text:
        text = _AMPERSAND.sub(" and ", text)
    if text.count("=") > 1 and len(sides := split_top_level(text, frozenset("="))) > 2:
        first = len(sides[0])
        text = text[:first] + _BESIDE.sub(_apart, text[first:])
    if "\\" in text:
        text = _SPACE_BEFORE_ARGUMENT.sub("", _COMMAND_WITH_CAPITAL.sub(_lower_command, text))
        text = _INFIX.sub(_prefixed, text) if r"\choose" in text or r"\over" in text else text
        text = without_chemistry(text) if r"\ce" in text or "_" in text else text
        text = _COLOURED.sub("", _STYLE.sub("", _TIMES_DEGREES.sub("", text)))
        text = _DEGREES.sub("°", text)
        if "j" in text or "k" in text:
            text = _UNIT_VECTOR.sub(lambda m: rf"\hat{{{m.group(1) or m.group(2)}}}", text)
        text = _FRACTION_NAME.sub(r"\\frac", _SIZING.sub("", text))
        for _ in range(8):
            spelled = _ROMAN.sub(_roman, text)
            if spelled == text:
                break
            text = spelled
        text = _THIN_DIGITS.sub("", _SPACING.sub(" ", text))
        text = _EMPTY_SET.sub(r"\\emptyset ", _SYNONYM.sub(lambda m: _SYNONYMS[m.group(1)], text))
        text = _COMMA_SPACE.sub(" ", text.replace(r"\%", "%"))
    if text.count("=") > 1:
        text = _MIDDLE_SIDE.sub(_with_gaps, text)
    text = with_unit_quotients(text)
    if "{" in text:
        text = without_braced_commas(_BRACED_COMMA.sub("{,}", text), decimal=False).replace("{,}", ",")
        text = _BRACED_WORDS.sub(lambda m: m.group() if m.group(1) else f" {m.group(2)}", text)
    text = _NOT_EQUAL.sub(r"\\ne ", text) if "!=" in text else text
    for sign, replacement in _SIGN_SYNONYMS:
        if sign in text:
            text = text.replace(sign, replacement)
    text = with_decimal_points(text) if "," in text and _EUROS.search(text) else text
    if "$" in text or not text.isascii() or _CODE.search(text):
        text = _CURRENCY_BEHIND.sub(lambda m: f" {_MONEY[m.group(1)]} ", _CURRENCY.sub(_amount, text))
    text = _IDLE_PLUS.sub(r"\1", text) if "+" in text else text
    text = _LOOSE_DEGREES.sub("°", text) if "^" in text or r"\circ" in text else text
    if r"\ldots" in text:
        text = _GOES_ON.sub(lambda m: rf"{m.group(1)}\overline{{{m.group(2) or m.group(3)}}}", text)
    if _LETTERS.search(text):
        text = _TIMES_TEN.sub(r"\\times ", text)
        text = _WORDS.sub(lambda word: _WORD_COMMANDS.get(word.group(1), rf"\{word.group(1)} "), text)
    if "\\" in text:
        text = _FRACTION_HEAD.sub(_braced_fraction, text)
        text = _BARE_ROOT.sub(r"\\sqrt\1{\2}", text)
        text = with_round_groups(text)
    text = _UNION.sub(r"\\cup ", text) if "U" in text else text
    text = with_subscripts(text)
    text = _without_thousands(text)
    if " " in text and (grouped := _SPACED_THOUSANDS.fullmatch(text.strip())) is not None:
        number, things = grouped.group(1).replace(" ", ""), grouped.group(2) or ""
        text = number + things if not things or split_unit(number + things)[0] == number else text
    return _DANGLING_DOT.sub("", text)


def _roman(match: re.Match[str]) -> str:
    content = match.group(1)
    bare = content.replace("~", " ").strip()
    before = _GAP_BEHIND.sub("", match.string[max(0, match.start() - 16) : match.start()])
    after_value = before[-1:] in ("}", ")") or before[-1:].isdigit() or before.endswith(r"\pi")
    if after_value and bare in ROMAN_UNITS:
        return f" {ROMAN_UNITS[bare]} "
    # `\pi\text{r}` must not become another command.
    return f" {content} " if len(bare) > 1 else f" {bare}" if _ENDS_COMMAND.search(before) else bare


def _braced_fraction(match: re.Match[str]) -> str:
    name, above, below, group, last, first = match.groups()
    if group is not None:
        return rf"\{name}{group}{{{last}}}"
    return rf"\{name}{{{above}}}{{{below}}}" if above is not None else rf"\{name}{{{first}}}"


def _amount(match: re.Match[str]) -> str:
    sign, currency, number = match.groups()[:3]
    scale = (match.group(4) or match.group(5) or "").lower()
    return f"{sign}{number} {_MAGNITUDES.get(scale, scale)} {_MONEY[currency]} "


def _apart(match: re.Match[str]) -> str:
    before = match.string[: match.start()].rstrip().rstrip("}").rstrip()
    return " " if before.endswith((",", ";", "and", "or")) else ", "


def _prefixed(match: re.Match[str]) -> str:
    above, name, below = match.groups()[:3] if match.group(2) else match.groups()[3:]
    return rf"\{_INFIX_NAMES[name]}{{{above.strip()}}}{{{below.strip()}}}"


def _without_thousands(text: str) -> str:
    """Join `7,425,000` to one number, except inside brackets, where a comma separates."""
    if text.count(".") > 1 or ("." in text and text.rstrip()[-1].isalpha()):
        text = _POINTS.sub(lambda match: match.group().replace(".", ""), text)
    if "," not in text:
        return text
    if "." in text and not any(bracket in text for bracket in "([{"):
        text = _DECIMAL_COMMA.sub(lambda m: f"{m.group(1).replace('.', '')}.{m.group(2)}", text)
    return _THOUSANDS.sub(
        lambda match: match.group() if _inside_brackets(text, match.start()) else match.group().replace(",", ""), text
    )


def _inside_brackets(text: str, end: int) -> bool:
    return any(
        text.count(opening, 0, end) > text.count(closing, 0, end)
        for opening, closing in (("(", ")"), ("[", "]"), (r"\{", r"\}"))
    )


def _join(text: str) -> str:
    """Join tokens with one space between words or numbers and none elsewhere; drop idle braces."""
    tokens = _drop_braces(_TOKEN.findall(_SHORT_SCRIPT.sub(r"\1\2", text)))
    out: list[str] = []
    spaced = False
    for token in tokens:
        if token.isspace():
            spaced = True
            continue
        previous = out[-1] if out else ""
        if previous and _needs_space(previous, token, spaced):
            out.append(" ")
        out.append(token)
        spaced = False
    joined = _SHORT_SCRIPT.sub(r"\1\2", "".join(out))
    # A comma is followed by a space: thousands separators are gone, and `32, 349` must stay two numbers.
    joined = re.sub(r",(?=\S)", ", ", joined)
    joined = re.sub(r"\^(-?\d{2,}|-\d)", r"^{\1}", joined)
    joined = joined.rstrip(" .,;:")
    return joined.lstrip("+ ") or joined


def _needs_space(previous: str, token: str, spaced: bool) -> bool:
    if previous[0] == "\\" and previous[-1].isalpha():
        return token[0].isalpha() and token.isascii()
    if not spaced:
        return False
    if previous[-1].isdigit() and token[0].isdigit():
        return True
    if previous[-1].isdigit() and token == r"\frac":
        return False
    wordy = (len(previous) > 1 or len(token) > 1) and (previous[-1].isalpha() or token[0].isalpha())
    return wordy and token[0] not in "\\,.;:)]}^_=" and previous[-1] not in "([{^_="


def _with_gaps(side: re.Match[str]) -> str:
    """Keep a space between a value and letters between two signs of equality: there `2 y x` may be words."""
    if (
        side.group().count("{") != side.group().count("}")
        or _JOINED.search(side.group())
        or split_unit(side.group().strip())[1] is not None
    ):
        return side.group()
    return _GAP_IN_CHAIN.sub(r"\\:", side.group())


def _drop_braces(tokens: list[str]) -> list[str]:
    """Drop idle braces (`{ft.}` is `ft.`); keep those of an argument, an exponent or a set."""
    out: list[str] = []
    keep: list[bool] = []
    for token in tokens:
        if token == "{":
            before = next((item for item in reversed(out) if not item.isspace()), "")
            argument = before in ("^", "_", "}", "]") or (before[:1] == "\\" and before[-1:].isalpha())
            keep.append(argument and before not in _TAKE_NO_ARGUMENT)
            out.append(token if keep[-1] else " ")
        elif token == "}" and keep:
            out.append(token if keep.pop() else " ")
        else:
            out.append(token)
    return out
