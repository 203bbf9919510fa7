"""Notations with rules of their own: numbers in a base, chemical formulas, systems of equations, dates, times."""

from __future__ import annotations

import re

from mmcorl.answers.words import number_in_words

_CHEMICAL = re.compile(r"\\(?:ce|mathrm|text|mathsf)\s?\{((?:[A-Za-z0-9()+=<>\s_^{}-]|\\?->){1,256})\}")
_ELEMENTS = re.compile(r"(?:[A-Z][a-z]?|[()\d]|_\d|_\{\d{1,3}\})+(?:\^\{?\d?[+-]\}?)?")
_BASE = re.compile(
    r"\(([0-9A-F]{1,64})\)_(\d|\{\(?\d{1,2}\)?\})"
    r"|([0-9A-F]{1,64})(?:_\{\((\d{1,2})\)\}|_\{ ?([a-z]{3,7}) ?\}| ?\(?(?:in )?base[ -]?(\d{1,2})\)?)"
)
_SYSTEM = re.compile(
    r"(?:\\(?:left)?\\?\{\s*)?\\begin\{(aligned|align\*?|cases|gathered|split|array)\}(?:\{[lcr]{1,4}\})?"
    r"((?:(?!\\(?:begin|end)(?![A-Za-z])).)*)\\end\{\1\}\s*(?:\\right\s*\.?)?",
    re.DOTALL,
)
_ALIGNED = re.compile(r"&\s*(?=[=<>]|\\[lg]eq?(?![A-Za-z]))")
_RELATION = re.compile(r"[=<>]|\\[lg]eq?(?![A-Za-z])")


def system(text: str) -> str:
    """Return a system of equations, one a line, as a list; other environments as they are."""
    system = _SYSTEM.fullmatch(text.strip())
    if system is None:
        return text
    rows = [
        _ALIGNED.sub("", row).strip(" ,;.\n")
        for row in re.split(r"\\\\(?:\[[^\]]{0,8}\])?", system.group(2))
        if row.strip()
    ]
    # In `x & x > 0` the second cell is a condition.
    return ", ".join(rows) if rows and all(_RELATION.search(row) and "&" not in row for row in rows) else text


def _formula(match: re.Match[str]) -> str:
    """Return a chemical formula without its command, the subscripts as digits; other text as it is."""
    if match.group().startswith(r"\ce"):
        return re.sub(r"\^\{?(\d?[+-])\}?", r"^{\1}", match.group(1))
    return match.group(1) if _ELEMENTS.fullmatch(match.group(1)) else match.group()


def _in_base(match: re.Match[str]) -> str:
    digits, base = (group for group in match.groups() if group is not None)
    number = number_in_words(base) if base.isalpha() else base.strip("{()}")
    return match.group() if number is None else f"{digits}_{{{number}}}"


def without_chemistry(text: str) -> str:
    """Replace chemical formulas in commands by what they hold."""
    return _CHEMICAL.sub(_formula, text)


def with_subscripts(text: str) -> str:
    """Return `1011_{2}` for `(1011)_2` and `1011 (base 2)`, and `H2O` for `H_2O`."""
    text = _BASE.sub(_in_base, text)
    if _ELEMENTS.fullmatch(text) and len(re.findall("[A-Z]", text)) > 1:
        return re.sub(r"_\{?(\d{1,3})\}?", r"\1", text)
    return text


_MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if len(name) > 3 else name for name in _MONTHS)
_DATE = re.compile(
    rf"(?:(?P<d1>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m1>{_MONTH})\.?"
    rf"|(?P<m2>{_MONTH})\.? (?P<d2>\d{{1,2}})(?:st|nd|rd|th)?)"
    r"(?:,? (?P<y1>\d{4}))?|(?P<y2>\d{4})-(?P<m3>\d{2})-(?P<d3>\d{2})",
    re.IGNORECASE,
)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?: ([ap])m)?")


def date(text: str) -> str | None:
    """Return `17 May 2023` for `May 17, 2023`, `17th of May 2023` and `2023-05-17`; None for other text."""
    match = _DATE.fullmatch(text) if len(text) <= 32 and (" " in text or text.count("-") == 2) else None
    if match is None:
        return None
    day, month, year = (next((v for k, v in match.groupdict().items() if v and k[0] == part), "") for part in "dmy")
    number = int(month) if month.isdigit() else [name[:3].lower() for name in _MONTHS].index(month[:3].lower()) + 1
    if not (1 <= int(day) <= 31 and 1 <= number <= 12):
        return None
    return f"{int(day)} {_MONTHS[number - 1]} {year}".strip()


def minutes(text: str) -> int | None:
    """Return the minute of the day of `4:35 pm` and `16:35`; None for 4:35, which may be either, and other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, half = int(match.group(1)), match.group(3)
    if half is None:
        return hour * 60 + int(match.group(2)) if hour == 0 or 12 < hour < 24 else None
    return (hour % 12 + 12 * (half == "p")) * 60 + int(match.group(2)) if 1 <= hour <= 12 else None
