"""Notations with rules of their own: numbers in a base, chemical formulas, systems of equations, dates, times."""

from __future__ import annotations

import re

from mmcorl.answers.spellings import spellings, turns
from mmcorl.answers.words import number_in_words

_CHEMICAL = re.compile(r"\\(?:ce|mathrm|text|mathsf)\s?\{((?:[A-Za-z0-9()+=<>\s_^{}-]|\\?->){1,256})\}")
_ELEMENTS = re.compile(r"(?:[A-Z][a-z]?|[()\d]|_\d|_\{\d{1,3}\})+(?:\^\{?\d?[+-]\}?)?")
_BASE = re.compile(
    r"\(([0-9A-F]{1,64})\)_(\d|\{\(?\d{1,2}\)?\})"
    r"|(?<![A-Za-z\\])([0-9a-f]{1,64})_\{(16)\}"
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


# `0b1011`, `0o17` and `0x1F`, as programs write them.
_PREFIXED = re.compile(r"0(?:b([01]{1,64})|o([0-7]{1,64})|x([\da-f]{1,64}))", re.IGNORECASE)
_PREFIXES = {"b": 2, "o": 8, "x": 16}
_HAS_SUBSCRIPTS = re.compile(r"_|base|\A\s*0[bBoOxX]|->|\\to|\\rightl|⇌|⟶")
_ARROW = re.compile(r"\s*(?:<?-+>|\\(?:to|rightleftharpoons|leftrightarrow)(?![A-Za-z])|[⇌⟶])\s*")
_CHARGE = r"\^(?:\{ ?\d?[+-] ?\}|\d?[+-])"
_SPECIES = re.compile(
    rf"(\d{{0,3}}) ?((?:(?:[A-Z][a-z]?|[()\[\]]|\d+|_\d|_\{{\d{{1,3}}\}})+|e)(?:{_CHARGE})?)"
    r"( ?_?\{?\((?:aq|s|l|g)\)\}?)?"
)
# The sign of a charge parts no species.
_PLUS = re.compile(r"\s*(?<![\^{])(?<!\^\d)(?<!\{\d)\+(?!\})\s*")


def reaction(text: str) -> str:
    """Return a chemical equation, its subscripts as digits and the species of a side in order; others as they are."""
    sides = _ARROW.split(text)
    if len(sides) != 2:
        return text
    spelled = []
    for side in sides:
        species = [_SPECIES.fullmatch(term.strip()) for term in _PLUS.split(side)]
        if not all(species):
            return text
        terms = ["".join(term.groups("")).replace(" ", "").removeprefix("1") for term in species if term]
        spelled.append("+".join(sorted(re.sub(r"_\{?(\d{1,3})\}?|\^\{?(\d?[+-])\}?", _script, term) for term in terms)))
    return r"\to ".join(spelled) if re.search("[A-Z]", text) else text


def _script(match: re.Match[str]) -> str:
    return match.group(1) or rf"^{{{match.group(2)}}}"


def _in_base(match: re.Match[str]) -> str:
    digits, base = (group for group in match.groups() if group is not None)
    number = number_in_words(base) if base.isalpha() else base.strip("{()}")
    return match.group() if number is None else f"{digits.upper()}_{{{number}}}"


def without_chemistry(text: str) -> str:
    """Replace chemical formulas in commands by what they hold."""
    return _CHEMICAL.sub(_formula, text)


_VECTOR = re.compile(r"<([^<>=]{1,80},[^<>=]{1,80})>")


def with_brackets(text: str) -> str:
    """Return `(3, 4)` for `<3, 4>`, and `(1; 3)` for `]1; 3[`, as much of Europe writes open ends."""
    text = _VECTOR.sub(r"(\1)", text) if text[:1] == "<" else text
    # Turkish and Arabic put the sign first.
    text = f"{text[1:].strip()}%" if text[:1] == "%" and text[1:].strip(" \n.,").isdecimal() else text
    if text[-1:] in ("[", "]") and text[:1] in ("[", "]") and (";" in text or "," in text):
        text = f"{'(' if text[0] == ']' else '['}{text[1:-1]}{')' if text[-1] == '[' else ']'}"
    return text


def with_subscripts(text: str) -> str:
    """Return `1011_{2}` for `(1011)_2` and `1011 (base 2)`, and `H2O` for `H_2O`."""
    if _HAS_SUBSCRIPTS.search(text) is None:
        return text
    if (prefixed := _PREFIXED.fullmatch(text)) is not None:
        digits = next(group for group in prefixed.groups() if group)
        return f"{digits.upper()}_{{{_PREFIXES[text[1].lower()]}}}"
    text = reaction(_BASE.sub(_in_base, text))
    if _ELEMENTS.fullmatch(text) and len(re.findall("[A-Z]", text)) > 1:
        return re.sub(r"_\{?(\d{1,3})\}?", r"\1", text)
    return text


def with_round_groups(text: str) -> str:
    """Put braces in `\\sqrt(2)` and `x^(1/2)`, whose parentheses group rather than multiply."""
    for head in (r"\sqrt", "^"):
        position = 0
        # An answer has few groups; the bound keeps unclosed parentheses cheap.
        for _ in range(32):
            if (position := text.find(head, position)) < 0:
                break
            start = position + len(head)
            while start < len(text) and text[start] == " ":
                start += 1
            end = closing(text, start) if start < len(text) and text[start] == "(" else -1
            if end > 0:
                text = f"{text[:position]}{head}{{{text[start + 1 : end]}}}{text[end + 1 :]}"
            position += len(head)
    return text


def closing(text: str, start: int) -> int:
    """Return where a parenthesis at a place closes; -1 where it never does."""
    depth = 0
    for index in range(start, len(text)):
        depth += (text[index] == "(") - (text[index] == ")")
        if depth == 0:
            return index
    return -1


_MONTHS = turns("month")
_NAMES = next(names for language, names in spellings("month") if language == "en")
_MONTHS |= {name[:3].casefold(): month for month, name in enumerate(_NAMES, 1)}
_YEAR = r"(?:,? (?:del? )?(?P<y>\d{4})(?: ?(?:г|года|год)\.?)?)?"
_DATES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<d>\d{{1,2}})(?:st|nd|rd|th|er|\.|°)? (?:of |de )?(?P<m>\D{{3,12}}?)\.?{_YEAR}",
        rf"(?P<m>[A-Z]{{3,9}})\.? (?P<d>\d{{1,2}})(?:st|nd|rd|th)?{_YEAR}",
        r"(?P<y>\d{4})-(?P<m>\d\d)-(?P<d>\d\d)",
        r"(?P<y>\d{4}) ?[年년] ?(?P<m>\d{1,2}) ?[月월] ?(?P<d>\d{1,2}) ?[日号일]",
        r"(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
    )
)
# A German or French clock, one of East Asia, and the halves of the day.
_CLOCK = re.compile(
    r"(?:(上午|早上|午前|오전)|(下午|晚上|午後|오후))? ?0?(\d{1,2})"
    r"(?: ?(?:[点點时時시]钟?) ?(?:(\d{1,2}) ?[分분]|(半|반))?| (?:Uhr|o'clock)(?: (\d\d))?| ?[hH] ?([0-5]\d)"
    r"|[:.](\d\d) Uhr)"
)
_TIME = re.compile(r"(\d{1,2}):([0-5]\d)(?: ([ap])m)?")
_SPOKEN = re.compile(r"(?:it is |it's )?(.{1,14}?)(?: minutes?)? (to|past) (.{1,8})", re.IGNORECASE)
_QUARTERS = {"half": 30, "quarter": 15, "a quarter": 15}


def date(text: str) -> str | None:
    """Return `17 May 2023` for `May 17, 2023`, `17. Mai 2023` and `2023-05-17`; None for other text."""
    if not 6 <= len(text) <= 32 or not any(map(str.isdecimal, text)):
        return None
    match = next((match for pattern in _DATES if (match := pattern.fullmatch(text))), None)
    if match is None:
        return None
    day, month = int(match["d"]), match["m"].casefold()
    number = int(month) if month.isdecimal() else _MONTHS.get(month, 0)
    return f"{day} {_NAMES[number - 1]} {match['y'] or ''}".strip() if 1 <= day <= 31 and 1 <= number <= 12 else None


def clock(text: str) -> str | None:
    """Return `10:10` for `10 Uhr 10`, `10h10` and `10点10分`, and `3:30 pm` for `下午3点半`; None for other text."""
    match = _CLOCK.fullmatch(text) if len(text) <= 16 and text[-1:] != "." else None
    if match is None or int(match[3]) > 24:
        return None
    past = int("30" if match[5] else match[4] or match[6] or match[7] or match[8] or 0)
    half = " am" if match[1] else " pm" if match[2] and int(match[3]) <= 12 else ""
    return f"{match[3]}:{past:02}{half}" if past < 60 else None


def spoken_time(text: str) -> str | None:
    """Return `9:50` for `10 to 10` and `3:30` for `half past three`; None for other text."""
    if (match := _SPOKEN.fullmatch(text)) is None:
        return None
    past, hour = (
        _QUARTERS.get(word) or (int(word) if word.isdecimal() else number_in_words(word))
        for word in (match[1].casefold(), match[3].casefold())
    )
    if past is None or hour is None or not (0 < past < 60 and 0 < hour < 13):
        return None
    hour, past = (hour, past) if match[2].casefold() == "past" else ((hour - 2) % 12 + 1, 60 - past)
    return f"{hour}:{int(past):02}"


def minutes(text: str) -> int | None:
    """Return the minute of the day of `4:35 pm` and `16:35`; None for 4:35, which may be either, and other text."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    hour, half = int(match.group(1)), match.group(3)
    if half is None:
        return hour * 60 + int(match.group(2)) if hour == 0 or 12 < hour < 24 else None
    return (hour % 12 + 12 * (half == "p")) * 60 + int(match.group(2)) if 1 <= hour <= 12 else None
