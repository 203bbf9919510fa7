"""What a judge's reply says: the verdict of a menu that stands in it as a statement.

    reply      = [thoughts up to their last closing mark] statements     none where thoughts, or any tag, stay open
    statement  = a sentence; it ends at an empty line, at the end of a line behind `.!?;`, and within a line where no
                 lower case follows. What a colon announces belongs to it. A JSON object is a statement, too.
    verdict    = {label ":"} word {separator word}     a whole statement, all of whose words mean the same
    label      = some of the row's label words; the row's `label`, where it has one, has to stand
    word       = a word of the row's menu in any emphasis, quotes, brackets, LaTeX box or tag; letters in their case

The reply says what its last statement says, if that is a verdict and no other verdict of the reply differs. So what
denies, doubts or strikes a word (`not correct`, `correct?`, `~~correct~~`) makes it another statement, and what takes a
verdict back (`Correct. Wait, no.`) is the last one: no list of denials is needed, and what is not known is unclear.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from mmcorl.answers.thinking import without_thoughts

LONGEST = 1 << 14
"""Characters of a reply that is read at all: one of so many is no verdict."""

_BRACES = 100
"""Braces without an object behind them, after which none is looked for: each may take a while."""
_TAG, _END_TAG = re.compile(r"<([A-Za-z]\w*)>"), re.compile(r"</([A-Za-z]\w*)>")
_ENDS = re.compile(r"(?:\s|</s>|<\|\w+\|>|<end_of_turn>)+\Z")
_FENCE = re.compile(r"```\w*\s*\Z")
_EMPHASIS = str.maketrans("", "", "*`#")
_ANNOUNCED = re.compile(r"(?<=[:：])\s+")
_BREAK = re.compile(r"\n\s*\n|(?<=[.!?;。！？；])(?:[ \t]*\n\s*|[ \t]+(?![a-z\s]))")
_PART = re.compile(r"\s*[:：=]\s*|\s+[-–—]\s+")
_REMARK = re.compile(r"(.*\S)\s*\(([^()]*)\)")
_BULLET = re.compile(r"\A[-•+]\s+")
_WRAPPED = re.compile(
    r"\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{(.*)\}|\\\((.*)\\\)|\\\[(.*)\\\]|\$(.*)\$|_(.*)_|\{(.*)\}"
    r"|\"(.*)\"|'(.*)'|“(.*)”|‘(.*)’|«(.*)»|\((.*)\)|\[(.*)\]|【(.*)】"
    r"|<(?:b|i|em|strong|code|answer|verdict|judg[e]?ment|decision|result)>(.*)</[a-z]+>",
    re.DOTALL | re.IGNORECASE,
)


def read_reply(text: str, menu: Mapping[str, bool], labels: Collection[str], label: str = "") -> bool | None:
    """Return the verdict of a reply by the grammar above; None where it states none.

    `menu`: verdicts by word, lower case but for single letters; `labels`: words that a label is made of, lower case;
    `label`: the label that has to stand, lower case, or empty.
    """
    rest = _behind_thoughts(text) if len(text) <= LONGEST else None
    if rest is None:
        return None
    last, verdicts = None, set()
    for text_or_pairs in _pieces(_ENDS.sub("", rest)):
        statements = [text_or_pairs] if isinstance(text_or_pairs, list) else _statements(text_or_pairs)
        for statement in statements:
            read = _of_object if isinstance(statement, list) else _of_statement
            last = read(statement, menu, labels, label)  # type: ignore[arg-type]
            verdicts.add(last)
    return last if len(verdicts - {None}) == 1 else None


def _behind_thoughts(text: str) -> str | None:
    """Return what follows the thoughts; None where they, or what is in any other tag, never close."""
    rest, open_thought = without_thoughts(text)
    opened = Counter(name.lower() for name in _TAG.findall(rest))
    closed = Counter(name.lower() for name in _END_TAG.findall(rest))
    return None if open_thought or opened - closed else rest


def _pieces(text: str) -> Iterator[str | list[tuple[str, object]]]:
    """Yield the JSON objects of a text, each as its pairs, and what is around them."""
    decoder = json.JSONDecoder(object_pairs_hook=list)
    start, opening, failed = 0, text.find("{"), 0
    while opening >= 0 and failed < _BRACES:
        try:
            pairs, end = decoder.raw_decode(text, opening)
        except (ValueError, RecursionError):
            opening, failed = text.find("{", opening + 1), failed + 1
            continue
        yield _FENCE.sub("", text[start:opening])
        yield pairs
        start, opening = end, text.find("{", end)
    yield text[start:]


def _of_object(
    pairs: list[tuple[str, object]], menu: Mapping[str, bool], labels: Collection[str], label: str
) -> bool | None:
    """Return the verdict of a JSON object: that of `"verdict": "correct"`, `"is_correct": true` or both."""
    verdicts: set[bool | None] = set()
    for key, value in pairs:
        name = key.replace("_", " ").lower()
        means = menu.get(name.removeprefix("is ").strip())
        if isinstance(value, str):
            verdict = _of_statement(f"{name}: {value}", menu, labels, label)
            if verdict is not None or means is not None or all(word in labels for word in name.split()):
                verdicts.add(verdict)
        elif means is not None and not label:
            verdicts.add(means is value if isinstance(value, bool) and (means or value) else None)
    return verdicts.pop() if len(verdicts) == 1 else None


def _statements(text: str) -> Iterator[str]:
    text = _ANNOUNCED.sub(" ", text.translate(_EMPHASIS))
    return (statement for part in _BREAK.split(text) if (statement := part.strip()))


def _of_statement(statement: str, menu: Mapping[str, bool], labels: Collection[str], label: str) -> bool | None:
    remark = _REMARK.fullmatch(statement.rstrip(".!"))
    parts = [_bare(part) for text in (remark.groups() if remark else (statement,)) for part in _PART.split(text)]
    labelled = False
    while parts and (words := parts[0].lower().split()) and all(word in labels for word in words):
        labelled = labelled or " ".join(words).endswith(label)
        del parts[0]
    verdicts = {menu.get(part if len(part) == 1 else part.lower()) for part in parts}
    return verdicts.pop() if len(verdicts) == 1 and (labelled or not label) else None


def _bare(text: str) -> str:
    """Return a text without what may stand around a word."""
    while True:
        text = _BULLET.sub("", text.strip().rstrip(".!,;。！ "))
        wrapped = _WRAPPED.fullmatch(text)
        if wrapped is None:
            return text
        text = next(group for group in wrapped.groups() if group is not None)
