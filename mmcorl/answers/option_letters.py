"""Letters of options in cleaned answers: `B`, `(B)`, `the answer is B`, `B. 45°`."""

from __future__ import annotations

import re

from mmcorl.answers.assertion import HEDGING
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.tokens import classes_in, tokens_of

_OPTION_PREFIX = (
    r"(?:(?:the )?(?:correct |final |best )?(?:answer|option|choice)s?(?: is)? ?:? ?"
    r"|(?:故|应|因此|所以)?(?:正确)?(?:答案|选项|选择|选)(?:应)?(?:是|为|选)?:? ?)?"
)
_LETTER = re.compile(rf"(?i:{_OPTION_PREFIX})[(\[【<]? ?([A-Z]) ?[)\]】>]? ?[.:!]?(?:选项|项)?")
LISTED_LETTER = re.compile(r"[(\[]?[A-Z][)\]]?,")
_SMALL_LETTER = re.compile(rf"(?i:{_OPTION_PREFIX})[(\[【<]? ?([a-z]) ?[)\]】>]? ?[.:!]?")
_PREFIX = re.compile(rf"(?i:{_OPTION_PREFIX})")
_WITH_TEXT = re.compile(
    rf"(?i:{_OPTION_PREFIX})(?:[(\[【<] ?([A-Z]) ?[)\]】>] ?[.:,]?|([A-Z]) ?[.:)]) ?(?=\S)"
    r"(?![+*/^=>_)\],]|<(?!image)|\\(?:approx|le|ge|ne|to)(?![A-Za-z]))(.+)",
    re.DOTALL,
)


def option_letter(text: str) -> str | None:
    """Return `B` for a cleaned answer that is only an upper-case option letter, whatever its decoration."""
    match = _LETTER.fullmatch(text)
    return match.group(1) if match else None


def lower_case_option_letter(text: str) -> str | None:
    """Return `B` for a cleaned answer that is only a lower-case letter; only safe with known options."""
    match = _SMALL_LETTER.fullmatch(text)
    return match.group(1).upper() if match else None


def labelled_option(text: str) -> tuple[str, str] | None:
    """Return (`B`, `45°`) for a cleaned answer such as `B. 45°`, `(B) 45°` or `B: 45°`."""
    match = _WITH_TEXT.fullmatch(text)
    if match is None:
        return None
    letter, rest = match.group(1) or match.group(2), match.group(3).strip()
    return (letter, rest) if rest else None


# Another letter as a label, or words that take back or leave open what stands before.
_OTHER_LETTER = re.compile(r"(?<![A-Za-z\\_^{])[A-H](?![A-Za-z'_^=(]|[)\]]? ?=)")
_ARROW = re.compile(r"\\to(?![A-Za-z])|->")
_HEDGES = (HEDGING | classes("emphasis")) & ~classes("absence")


def offers_more(text: str, label: str = "") -> bool:
    """Return whether the text after an option letter names another letter, hedges or denies."""
    others = {match.group() for match in _OTHER_LETTER.finditer(text)} - {label}
    return bool(others) or classes_in(tokens_of(text)) & _HEDGES != 0 or _ARROW.search(text) is not None


def without_option_prefix(text: str) -> str:
    """Return `C and D` for a cleaned answer such as `Options C and D`."""
    match = _PREFIX.match(text)
    return text[match.end() :] if match else text
