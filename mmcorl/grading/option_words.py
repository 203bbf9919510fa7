"""Options named in words: `Вариант Б`, `the second option`, `Rice (Option A)`, a letter with its text and a reason."""

from __future__ import annotations

import re
from collections.abc import Callable

from mmcorl.answers.assertion import NEUTRAL
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.option_letters import offers_more
from mmcorl.answers.options import LETTERS
from mmcorl.answers.tokens import classes_in, tokens_of
from mmcorl.grading.wording import has_words, plain, without_denied, without_reason

_OTHER_ALPHABETS = {
    letter: index
    # `В` and `С` of Cyrillic look like B and C, and nobody can say which was meant.
    for letters in (("А", "Б", "", "Г", "Д", "Е"), ("Α", "", "Γ", "Δ"), ("أ", "ب", "ج", "د"), ("가", "나", "다", "라"),
                    ("ア", "イ", "ウ", "エ", "オ"), ("甲", "乙", "丙", "丁"), ("①", "②", "③", "④", "⑤"))
    for index, letter in enumerate(letters) if letter
}  # fmt: skip
_ORDINALS = {
    word: index
    for index, words in enumerate((
        "first 1st erste premier première primera primeira prima первый 第一 첫번째",
        "second 2nd zweite deuxième segunda seconda второй 第二 두번째",
        "third 3rd dritte troisième tercera terceira terza третий 第三 세번째",
        "fourth 4th vierte quatrième cuarta quarta четвёртый четвертый 第四 네번째",
        "fifth 5th fünfte cinquième quinta пятый 第五", "sixth 6th sechste sixième sexta шестой 第六",
    ))
    for word in words.split()
}  # fmt: skip
_NOUNS = classes("answer option")
_NUMBERED = re.compile(r"(?:the )?(?:option|choice|alternative|opción|opção|вариант|选项) ?#?([1-8])", re.IGNORECASE)
_LABEL = re.compile(
    r"[(\[（【] ?([A-H]) ?[)\]）】]|(?<![A-Za-zÀ-ӿ'])(?<![\\$^_{])([A-H])(?![^\W\d_]*[A-Za-z_^'])(?! ?[=+*/])"
)
_TOKEN = re.compile(r"[^\W_]+(?:'[^\W\d_]+)?|[①-⑧]")


def option_said(
    answer: str, choices: tuple[str, ...], by_value: Callable[[str], frozenset[str]], question: str | None = None
) -> str | None:
    """Return the letter of the only option that a sentence names; None where it names none, several or hedges.

    `by_value` gives the letters of the options with the value of a text.
    """
    if not has_words(answer) or "?" in answer:
        return None
    text = plain(answer)
    text, reason = without_reason(without_denied(text) or text)
    labels = [first or second for first, second in _LABEL.findall(text)]
    if text.startswith("A ") and labels == ["A"] and not classes_in(tokens_of(text)) & _NOUNS:
        return None
    if len(labels) > 1:
        return None
    rest = _LABEL.sub(" ", text)
    positions = {LETTERS.index(label) for label in labels}
    if classes_in(tokens_of(rest)) & _NOUNS:
        if (numbered := _NUMBERED.fullmatch(rest)) is not None and not by_value(numbered.group(1)):
            return LETTERS[int(numbered.group(1)) - 1] if 0 < int(numbered.group(1)) <= len(choices) else None
        rest, ordinals = _without_ordinals(rest)
        positions |= ordinals
    if len(positions) != 1 or max(positions) >= len(choices):
        return None
    label = LETTERS[positions.pop()]
    if reason and (offers_more(reason, label) or _names_another(reason, label, choices)):
        return None
    return label if _is_only(rest, label, by_value) else None


def _names_another(reason: str, label: str, choices: tuple[str, ...]) -> bool:
    others = [plain(choice) for letter, choice in zip(LETTERS, choices, strict=False) if letter != label]
    return any(other and re.search(rf"(?<![\w.]){re.escape(other)}(?!\w)", reason, re.IGNORECASE) for other in others)


def _without_ordinals(text: str) -> tuple[str, set[int]]:
    """Return a text without the letters of other alphabets and ordinals that count options, and their places."""
    positions = set()
    for word, index in _ORDINALS.items():
        if re.search(rf"(?<![^\W\d_]){word}(?![^\W\d_]*[A-Za-z])", text, re.IGNORECASE):
            positions.add(index)
            text = re.sub(rf"(?<![^\W\d_]){word}", " ", text, flags=re.IGNORECASE)
    for token in _TOKEN.findall(text):
        if token in _OTHER_ALPHABETS:
            positions.add(_OTHER_ALPHABETS[token])
            text = text.replace(token, " ", 1)
    return text, positions


def _is_only(rest: str, label: str, by_value: Callable[[str], frozenset[str]]) -> bool:
    """Return whether what stands beside a label is neutral or the value of its option."""
    rest = rest.strip(" ,.;:-()[]")
    return any(not text or by_value(text) == {label} for text in (rest, _without_neutral(rest)))


def _without_neutral(text: str) -> str:
    kept = [text[token.start : token.end] for token in tokens_of(text) if not token.classes & NEUTRAL]
    return " ".join(kept).strip(" ,.;:-()[]")
