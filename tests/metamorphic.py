"""spelleds of a gold answer that mean the same, and spoiled ones that do not.

Each maker takes a gold and a random generator and returns another spelling, or None where it has nothing to change.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

Maker = Callable[[str, random.Random], str | None]

_TOKEN = re.compile(
    r"\\(?:text|mathrm|textbf|operatorname|mbox)\s*\{[^{}]*\}|\\[A-Za-z]+|\\.|\d[\d.,]*|[A-Za-z]+|\s+|.", re.DOTALL
)
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox|operatorname)")


def is_mathematics(gold: str) -> bool:
    """Return whether a gold holds no words, in which spaces count, and no environment or money."""
    plain = re.sub(r"\\[A-Za-z]+", " ", gold)
    return bool(gold) and not (
        _WORDS.search(plain) or _TEXT.search(gold) or re.search(r"\\begin|\$|[^\x20-\x7e]|\\ ", gold)
    )


def _changed(gold: str, other: str) -> str | None:
    return None if other == gold else other


def _spaced(gold: str, rng: random.Random) -> str | None:
    """Put spaces between tokens, where TeX sees none."""
    if not is_mathematics(gold):
        return None
    tokens = _TOKEN.findall(gold)
    out = ""
    for token, after in zip(tokens, [*tokens[1:], ""], strict=True):
        glued = token.isspace() or after.isspace() or (token[-1:].isdigit() and after[:1].isdigit()) or not after
        # A letter is not moved from a number: `5 m` is a length.
        glued = (
            glued or (token[-1:].isdigit() and after[:1].isalpha()) or token in ("-", "+", "\\") or after in ("!", "'")
        )
        out += token + ("" if glued or rng.random() < 0.5 else " ")
    return _changed(gold, out)


def _squeezed(gold: str, rng: random.Random) -> str | None:
    """Drop spaces between tokens that TeX keeps apart without them."""
    if not is_mathematics(gold) or re.search(r"[\dA-Za-z] +[\dA-Za-z]", re.sub(r"\\[A-Za-z]+", r"\\", gold)):
        return None
    return _changed(
        gold,
        re.sub(
            r"(\\[A-Za-z]+) +(?=[A-Za-z])|(?<![A-Za-z]) +| +(?![A-Za-z])",
            lambda m: f"{m.group(1)} " if m.group(1) else "",
            gold,
        ),
    )


def _replaced(*pairs: tuple[str, str]) -> Maker:
    def make(gold: str, rng: random.Random) -> str | None:
        out = gold
        for pattern, replacement in pairs:
            out = re.sub(pattern, replacement, out)
        return _changed(gold, out)

    return make


def _wrapped(before: str, after: str) -> Maker:
    def make(gold: str, rng: random.Random) -> str | None:
        return None if "$" in gold or "\\\\" in gold or (before == "**" and "*" in gold) else f"{before}{gold}{after}"

    return make


def _doubled(gold: str, rng: random.Random) -> str | None:
    return None if "\\\\" in gold or "\\" not in gold else gold.replace("\\", "\\\\")


def _capital(gold: str, rng: random.Random) -> str | None:
    names = sorted(
        set(
            re.findall(
                r"\\(frac|dfrac|sqrt|text|left|right|le|ge|infty|cup|cdot|times|sin|cos|log|ln|pm|circ)(?![A-Za-z])",
                gold,
            )
        )
    )
    if not names:
        return None
    name = rng.choice(names)
    return re.sub(rf"\\{name}(?![A-Za-z])", lambda _: f"\\{name.capitalize()}", gold)


SAME: dict[str, Maker] = {
    "dollars": _wrapped("$", "$"),
    "round delimiters": _wrapped(r"\(", r"\)"),
    "display": _wrapped(r"\[ ", r" \]"),
    "two dollars": _wrapped("$$", "$$"),
    "bold": _wrapped("**", "**"),
    "box": _wrapped(r"\boxed{", "}"),
    "display style": _wrapped(r"\displaystyle ", ""),
    "full stop": _wrapped("", "."),
    "line break": _wrapped("", r" \\"),
    "thin space": _wrapped(r"\,", r"\,"),
    "sentence": _wrapped("The answer is ", ""),
    "spaced": _spaced,
    "squeezed": _squeezed,
    "doubled backslashes": _doubled,
    "capital command": _capital,
    "other fraction": _replaced((r"\\d?frac(?![A-Za-z])", r"\\tfrac")),
    "space before arguments": _replaced(
        (r"(\\(?:d?frac|sqrt|text|mathrm|binom))(?=[{\[])", r"\1 "), (r"(?<=[^\\]\})(?=\{)", " ")
    ),
    "space after commands": _replaced(
        (r"(\\(?:pi|cdot|times|le|ge|cup|infty|sqrt|sin|cos|log|left|right))(?![A-Za-z ])", r"\1 ")
    ),
    "sized brackets": _replaced((r"(?<!\\left)(?<!\\)\(", r"\\left("), (r"(?<!\\right)(?<!\\)\)", r"\\right)")),
    "plain brackets": _replaced((r"\\(?:left|right)(?=[()\[\]])", "")),
    "space after commas": _replaced((r",(?=\S)(?!\\!)(?!\d{3}(?!\d))", ", ")),
    "spaces at commas": _replaced((r",\s+", r",\\ ")),
    "other relation": _replaced((r"\\leq?(?![A-Za-z])", r"\\leqslant "), (r"\\geq?(?![A-Za-z])", ">=")),
    "dash": _replaced((r"(?<![A-Za-z])-", "−")),
    "braces": _replaced((r"(?<=\^)(\d|[A-Za-z])(?![A-Za-z\d])", r"{\1}")),
    "root sign": _replaced((r"\\sqrt\{(\d+)\}", r"√\1")),
    "pi": _replaced((r"\\pi(?![A-Za-z])", "π")),
    "degree sign": _replaced((r"\^\s*\{?\\circ\}?", "°")),
    "mathrm": _replaced((r"\\text\{", r"\\mathrm{")),
}  # fmt: skip


def _digit(gold: str, rng: random.Random) -> str | None:
    places = [match.start() for match in re.finditer(r"\d", gold)]
    if not places:
        return None
    at = rng.choice(places)
    # The last of many decimals may be rounded away, and 0 times anything is 0.
    if re.search(r"\.\d{5,}|(?<![\d.])0(?![\d.])|\\overline|\^\{?0|10\^|\d!", gold):
        return None
    return gold[:at] + str((int(gold[at]) + rng.randrange(1, 10)) % 10) + gold[at + 1 :]


# Where a sign may not matter: even functions, squares, zeros, both signs at once.
_EVEN = re.compile(r"\\pm|\\mp|\\cos|\||\\infty|=|\^\{?\(|\)\^|[-+]\s*0(?![.\d])|^-?0$|\}\^|\d-\d.*-\d|\{[^{}]*\}-")
_POSITIVE = re.compile(r"\d+(?:\.\d+)?|\\d?frac\{\d+\}\{\d+\}|\d*\\sqrt\{\d+\}")


def _sign(gold: str, rng: random.Random) -> str | None:
    if _EVEN.search(gold):
        return None
    signs = [match.start() for match in re.finditer(r"(?<=[\w)} ])[-+](?=[\w\\( ])", gold)]
    places = [at for at in signs if "^" not in gold[max(0, at - 3) : at]]
    if not places:
        return f"-{gold}" if _POSITIVE.fullmatch(gold) and re.search("[1-9]", gold) else None
    at = rng.choice(places)
    return gold[:at] + ("+" if gold[at] == "-" else "-") + gold[at + 1 :]


def _bracket(gold: str, rng: random.Random) -> str | None:
    """Close or open an end of an interval, make a point a set."""
    if (
        not re.fullmatch(r"(?:\\left)?[(\[](?:(?!\\cup).)*,(?:(?!\\cup).)*(?:\\right)?[)\]]", gold)
        or "infty" in gold
        or re.search(r"\)\s*,", gold)
    ):
        return None
    if rng.random() < 0.5:
        return re.sub(r"^(\\left)?([(\[])", lambda m: f"{m.group(1) or ''}{'[' if m.group(2) == '(' else '('}", gold)
    return re.sub(r"([)\]])$", lambda m: "]" if m.group(1) == ")" else ")", gold)


_OTHER_UNITS = {
    "cm": "m", "degrees": "radians", "^\\circ": "\\text{ cm}", "\\%": "\\text{ cm}", "feet": "inches", "inches": "feet",
    "hours": "minutes", "minutes": "hours", "cents": "dollars", "units": "cm", "meters": "km",
}  # fmt: skip


def _unit(gold: str, rng: random.Random) -> str | None:
    """Another unit for a unit."""
    for unit, other in _OTHER_UNITS.items():
        match = re.search(rf"(?<=[\d}} ~]){re.escape(unit)}(?=[\s}}.]*(?:\^\{{?\d\}}?)?$)", gold)
        if match:
            return gold[: match.start()] + other + gold[match.end() :]
    return None


def _order(gold: str, rng: random.Random) -> str | None:
    """Two coordinates swapped."""
    match = re.fullmatch(r"(\\left)?\(([^(),]+),([^(),]+)((?:,[^(),]+)*?)(\\right)?\)", gold)
    if match is None or match.group(2).strip() == match.group(3).strip():
        return None
    left, first, second, rest, right = match.groups(default="")
    return f"{left}({second},{first}{rest}{right})"


def _term(gold: str, rng: random.Random) -> str | None:
    """One more in a list, one more in a sum, a factor."""
    if not is_mathematics(gold) or re.search(r"\\infty|\\pm|=|<|>|\\le|\\ge|\\in|:|,\s*$|\\emptyset|\\mathbb|!$", gold):
        return None
    if "," in gold and not re.fullmatch(r"\d{1,3}(?:(?:,|\{,\}|,\\!)\d{3})+", gold):
        return (
            f"{gold}, 1234"
            if not re.search(r"[)\]}]$", gold)
            else re.sub(r"((?:\\right)?\\?[)\]}])$", r", 1234\1", gold)
        )
    return f"{gold}+1" if rng.random() < 0.5 else rf"{gold}+\sqrt{{2}}"


SPOILED: dict[str, Maker] = {
    "digit": _digit, "sign": _sign, "bracket": _bracket, "unit": _unit, "order": _order, "term": _term,
}  # fmt: skip
