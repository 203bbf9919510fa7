"""Remove characters and tokens that carry no answer, before a response or an answer is parsed."""

from __future__ import annotations

import html
import json
import re
import unicodedata
from itertools import pairwise

from mmcorl.answers.numerals import ranked_elsewhere
from mmcorl.answers.spellings import spellings
from mmcorl.answers.words import MINUS, ranked

# An unescaped string literal turns the backslash and first letter of a LaTeX command into a control character
# (`"\boxed"` is backspace + "oxed"), which tells the letter.
_LETTERS = {"\x07": "a", "\x08": "b", "\t": "t", "\x0c": "f", "\r": "r"}
_COMMANDS = {name for kind in ("symbols", "command") for _, names in spellings(kind) for name in names if len(name) > 3}
_RESTS = sorted({name[1:] for name in _COMMANDS | {"fbox"} if name[0] in _LETTERS.values()}, key=len, reverse=True)
_SWALLOWED = re.compile(rf"([{''.join(_LETTERS)}])({'|'.join(_RESTS)})(?![A-Za-z])")
_TERMINAL_ESCAPE = re.compile(r"\x1b\[[0-9;]{0,32}[A-Za-z]")
SPECIAL_TOKEN = r"<\|[A-Za-z0-9_ ]{1,40}\|>|</?s>|<(?:bos|eos|pad|unk|end_of_turn|start_of_turn)>|<｜[^<>｜]{1,40}｜>"
"""A token of a chat template, as a pattern."""
_SPECIAL_TOKEN = re.compile(SPECIAL_TOKEN)
_BOX_TOKENS = (("<|begin_of_box|>", r"\boxed{"), ("<|end_of_box|>", "}"))
"""GLM writes its answer between these."""
_KEEP = frozenset("\n\t\r")
# A line end that was escaped once too often; `\\n` in a matrix is a row's end and an n.
_ESCAPED_LINE_END = re.compile(r"(?<!\\)\\n(?![A-Za-z])")
_CLEAN = re.compile(r"[\x20-\x7e\n\t\r]*")


def strip_noise(text: str) -> str:
    """Return `text` without byte-order marks, control characters, zero-width characters and lone surrogates."""
    text = _ESCAPED_LINE_END.sub("\n", text) if r"\n" in text else text
    if _CLEAN.fullmatch(text) and "\t" not in text and "\r" not in text:
        return text
    text = _SWALLOWED.sub(lambda match: f"\\{_LETTERS[match.group(1)]}{match.group(2)}", text)
    text = _TERMINAL_ESCAPE.sub("", text)
    return "".join(char for char in text if char in _KEEP or unicodedata.category(char) not in _INVISIBLE)


_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})


# Pairs of tags that set type; in `a<b>c` stands no pair. A power or index is mathematics.
_TAG = re.compile(
    r"<(sup|sub|b|i|u|p|em|strong|span|div|code|mark|small|big|font|center)(?:\s[^<>]{0,80})?>(.{0,400}?)</\1>",
    re.IGNORECASE | re.DOTALL,
)
_SCRIPTS = {"sup": "^", "sub": "_"}
_BREAK = re.compile(r"<br\s?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:#\d{2,5}|#x[\da-f]{2,5}|[A-Za-z]{2,8}\d{0,2});")
# As in CommonMark, marks touch what they emphasise and no other word: in `2**3**2` they are powers.
_EMPHASIS = re.compile(
    r"(?<![^\s(\[{:,;\"'=—–])(\*\*|__|`{1,3})(?=[^\s*`])([^*`\n]{1,400}?)(?<=\S)\1(?![\w*`])"
    r"|^([*_])(?=[^\s*_])([^*_\n]{1,400})(?<=\S)\3(?=[\s.,;:])|^\#{1,6} (?=\S)"
)
_MARKUP = re.compile(r"[<&*`#\n①-⑳]|__|^_|^1[.)]\s")
_BULLET = re.compile(r"[-*•+]\s+(\S.*)|(-?\d[\d.,/]*%?|[A-Z])")
_NUMBERED = re.compile(r"(?:(?<=[\s,;])|^)(?:([1-9])[.)]\s+(?=\S)|([①-⑨])\s?(?![①-⑨\s]))")
_CIRCLED_DIGITS = re.compile(r"[①-⑳](?=\d)|(?<=\d)[①-⑳]")
_CIRCLED = re.compile(r"[①-⑳](?:[\s、,，和;；]*[①-⑳])+")


def without_markup(text: str) -> str:
    """Return an answer without the marks of markdown and HTML that set type, and the one value of a JSON object."""
    text = ranked(text) or ranked_elsewhere(text) or text
    text = "does not exist" if text in ("DNE", "D.N.E.", r"\text{DNE}") else text
    if text[:1] in ("{", "[") and '"' in text:
        text = _value_of_object(text)
    minus = MINUS.match(text)
    if minus is not None and (
        text[minus.end()].isdigit() or text[minus.end() :].lower() in ("infinity", "∞", r"\infty")
    ):
        text = f"-{text[minus.end() :]}"
    if _MARKUP.search(text) is None:
        return text
    if "<" in text:
        for _ in range(4):
            text = _TAG.sub(_content, text)
        text = _BREAK.sub("\n", text)
    text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    return _listed(_EMPHASIS.sub(lambda mark: mark.group(2) or mark.group(4) or "", text))


def _listed(text: str) -> str:
    """Return `C, A` for one item a line, `(1) C (2) A` for numbered ones, and `1, 3` for the statements ①③."""
    if _CIRCLED.fullmatch(text):
        return ", ".join(str(int(unicodedata.numeric(char))) for char in text if "①" <= char <= "⑳")
    items = [_BULLET.fullmatch(line.strip()) for line in text.splitlines() if line.strip()]
    if len(items) > 1 and all(items):
        return ", ".join(item.group(1) or item.group(2) for item in items if item)
    marks = list(_NUMBERED.finditer(text))
    numbers = [unicodedata.digit(mark.group(1) or mark.group(2)) for mark in marks]
    apart = all(text[a.end() : b.start()].strip(" ,;\n") for a, b in pairwise(marks))
    if len(marks) < 2 or marks[0].start() or numbers != list(range(1, len(marks) + 1)) or not apart:
        # A label and its value make no number together.
        return _CIRCLED_DIGITS.sub(lambda mark: f"{mark.group()}# ", text)
    return _NUMBERED.sub(lambda mark: f", ({unicodedata.digit(mark.group(1) or mark.group(2))}) ", text).strip(" ,")


def _content(tag: re.Match[str]) -> str:
    script = _SCRIPTS.get(tag.group(1).lower())
    return f"{script}{{{tag.group(2)}}}" if script else tag.group(2)


def _value_of_object(text: str) -> str:
    """Return the one value of an object, or its one list: `[1, 2]` of `{"point_2d": [1, 2], "label": "dog"}`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if not isinstance(value, dict):
        return text
    values = [held for held in value.values() if len(value) == 1 or isinstance(held, list)]
    if len(values) != 1 or not isinstance(values[0], str | int | float | list):
        return text
    return values[0] if isinstance(values[0], str) else json.dumps(values[0])


def strip_special_tokens(text: str) -> str:
    """Return `text` without chat-template tokens such as `<|im_end|>`; those of GLM's box become a LaTeX one."""
    if "<" not in text:
        return text
    if "_of_box|>" in text:
        for token, latex in _BOX_TOKENS:
            text = text.replace(token, latex)
    return _SPECIAL_TOKEN.sub("", text)
