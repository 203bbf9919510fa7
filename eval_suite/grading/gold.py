"""Known answers as data sets hold them, brought to the spelling in which answers are compared.

Done once per gold. Nothing that carries meaning is dropped: `Area $=9\\pi \\mathrm{cm}^2$` keeps its name and its
unit, so an answer in metres, or of another quantity, is still told apart.
"""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from mmcorl.answers.cleanup import strip_noise
from mmcorl.answers.extract import extract
from mmcorl.answers.parse import read

# UTF-8 read as GBK or Latin-1 by whoever made the file. Single Chinese characters are only believed next to
# what they would be the degree or the exponent of.
_MOJIBAKE = (
    (re.compile(r"(?<=[\d)}\s])掳"), "°"),
    (re.compile(r"(?<=[\dA-Za-z)}])虏"), "^2"),
    (re.compile(r"(?<=[\dA-Za-z)}])鲁"), "^3"),
    (re.compile("蟺"), r"\\pi "),
    (re.compile("Â(?=[°²³])"), ""),
    (re.compile("Ï€"), r"\\pi "),
    (re.compile("âˆš"), "√"),
    (re.compile("Ã—"), "×"),
)
# `{8}{5} \pi` has lost its \frac; two braced groups in a row mean nothing else.
_LOST_FRACTION = re.compile(r"(?<![\\A-Za-z}\])^_])\{(\d{1,9})\}\s*\{(\d{1,9})\}")
# `8\sqrt{3}{squareinches}`: words in braces of their own are a unit.
_BRACED_UNIT = re.compile(r"(?<=[}\d)i])\s*\{([A-Za-z][A-Za-z. ]{3,20})\}\s*$")
_DISPLAY_DOT = re.compile(r"(\\\]|\\\)|\$)\s*\.\s*$")
_GSM8K = "####"
MAX_GOLD = 4096


@lru_cache(maxsize=1 << 13)
def clean_gold(gold: str) -> str:
    """The known answer without what its file added: dollars, boxes, worked solutions, broken characters.

    For loaders (once per row) and for the rule stage, which applies it to whatever gold it is given; cleaning
    what is clean changes nothing. Never raises; blank golds stay blank.
    """
    text = strip_noise(gold).strip()
    if len(text) > MAX_GOLD:
        return text
    if text.startswith("['") and text.endswith("']"):
        text = _listed(text)
    for broken, repaired in _MOJIBAKE:
        text = broken.sub(repaired, text)
    if _GSM8K in text:
        text = text.rpartition(_GSM8K)[2].strip() or text
    text = _unboxed(text)
    text = _DISPLAY_DOT.sub(r"\1", text)
    text = _LOST_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _without_dollars(text)
    braced = _BRACED_UNIT.search(text)
    if braced is not None and read(f"1 {braced.group(1)}").unit is not None:
        text = f"{text[: braced.start()]} {braced.group(1)}"
    # `=\frac{7}{4}`: what stood before the sign is in the question.
    text = re.sub(r"^=\s*(?=\S)", "", text)
    return " ".join(line.strip() for line in text.splitlines()) if not _is_several(text) else text


def _listed(text: str) -> str:
    """The first of a list printed by Python, as Minerva's file holds several spellings of one answer."""
    try:
        values = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return text
    return values[0].strip() if values else text


def _unboxed(text: str) -> str:
    if "boxed" not in text and "fbox" not in text:
        return text
    # Inside tags `extract` replaces one box by its content, and several by theirs in their places.
    inner = extract(f"<answer>{text}</answer>").answer if "answer>" not in text.lower() else None
    return inner or text


def _without_dollars(text: str) -> str:
    """`text` without math delimiters; a dollar that is money stays."""
    for opening, closing in ((r"\[", r"\]"), (r"\(", r"\)")):
        if text.startswith(opening) and text.endswith(closing):
            text = text[2:-2].strip()
    bare = text.replace(r"\$", "")
    return re.sub(r"(?<!\\)\$", "", text).strip() if bare.count("$") > 1 else text


def _is_several(text: str) -> bool:
    """`C\\nD`: one label or value per line, which the line ends keep apart."""
    lines = [line.strip() for line in text.splitlines()]
    return len(lines) > 1 and all(line and " " not in line for line in lines)
