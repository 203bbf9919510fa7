"""Remove characters and tokens that carry no answer, before a response or an answer is parsed."""

from __future__ import annotations

import re
import unicodedata

# An unescaped string literal turns the backslash and first letter of a LaTeX command into a control character
# (`"\boxed"` is backspace + "oxed"), which tells the letter.
_SWALLOWED = (
    ("\x08oxed", r"\boxed"),
    ("\x0cbox", r"\fbox"),
    ("\x0crac", r"\frac"),
    ("\x08inom", r"\binom"),
    ("\x08egin", r"\begin"),
    ("\text{", r"\text{"),
    ("\times", r"\times"),
    ("\theta", r"\theta"),
    ("\tfrac", r"\tfrac"),
    ("\x07lpha", r"\alpha"),
    ("\x08eta", r"\beta"),
    ("\right", r"\right"),
)
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
    for swallowed, command in _SWALLOWED:
        if swallowed in text:
            text = text.replace(swallowed, command)
    text = _TERMINAL_ESCAPE.sub("", text)
    return "".join(char for char in text if char in _KEEP or unicodedata.category(char) not in _INVISIBLE)


_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})


def strip_special_tokens(text: str) -> str:
    """Return `text` without chat-template tokens such as `<|im_end|>`; those of GLM's box become a LaTeX one."""
    if "<" not in text:
        return text
    if "_of_box|>" in text:
        for token, latex in _BOX_TOKENS:
            text = text.replace(token, latex)
    return _SPECIAL_TOKEN.sub("", text)
