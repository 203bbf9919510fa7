r"""What the prose around a box says of it: another answer, or the unit of its approximation.

    statement = subject [adverb] verb [adverb] value end | value copula "the answer"
    subject   = answer | the quantity that the question asks for | pronoun, where it `should be` or `is actually`
    verb      = copula | ":" | saying (`the answer key says 8`)
    mention   = (pronoun | nobody: `è 8`, `8です`) copula value end | `x = value`, a sentence alone

A statement in the sentence before the box, or anywhere behind it, contradicts the box where its value is another one:
there is no answer. A mention behind it may be of something else: rules only leave that answer to a judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mmcorl.answers import Equivalence
from mmcorl.answers.assertion import NEUTRAL, is_denied, sentence_before
from mmcorl.answers.boxes import BOX, box_spans
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.extract import Source, last_tag
from mmcorl.answers.options import LETTERS
from mmcorl.answers.parse import parse
from mmcorl.answers.tokens import Token, classes_in, sentences_of, tokens_of
from mmcorl.grading.quantity import sought_by
from mmcorl.grading.wording import are_neutral, plain

_VALUE = re.compile(
    r"(-?(?:\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.\d{1,12})?(?:/\d{1,9})?|-?\\d?frac\{\d{1,9}\}\{\d{1,9}\}|[A-H](?![\w']))"
    r"[\s$*)\\}]*(?:\\text\{)?([A-Za-z%°]{1,12})?[\s$*)\\}]*"
    r"(?=\s?(?:[.,;!。，)]|\n|\Z|です|である|だ|입니다|이다|이에요|after all|instead))(?![.,]\d)"
)
_APPROXIMATELY = re.compile(
    r"[\s$*\\)\]]{0,8}[(（]?\s?(?:which is |or |that is |i\.e\.,? )?(?:approximately|about|roughly|approx\.?|ca\.|≈"
    r"|\$?\\approx|etwa|environ|aproximadamente|circa|约|大约)\s?\$?"
    r"((?:\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.\d{1,12})?(?:\s|\\[ ,]){0,3}"
    r"(?:\\(?:text|mathrm)\{[^{}]{1,24}\}|[A-Za-z°%]{1,12}(?:/[a-z]{1,6})?)(?:\^\{?[23]\}?|²|³)?)"
)
_PURE = re.compile(r"(?:\\[A-Za-z]+|[^A-Za-z]|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))+")
_WORDS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}){0,2}")
_LETTER_BEFORE = re.compile(r"([A-Za-z]) ?= ?\Z")
_BEFORE, _BEHIND = 320, 1 << 14
_BOXES = 4
"""Boxes at the end of a response among which the last that closes is looked for."""
_VERB, _SAYING = classes("copula particle colon"), classes("saying")
_ANSWER, _PRONOUN, _EMPHASIS = classes("answer outcome option"), classes("pronoun"), classes("emphasis")
_STARTS, _MATHEMATICS = classes("comma semicolon end consequence contrast"), classes("mathematics")
_BEFORE_VERB, _BEHIND_VERB = classes("auxiliary adverb emphasis"), classes("adverb emphasis consequence colon opening")
_STATES = _VERB | _SAYING | _ANSWER | _PRONOUN | classes("equals")
_ENDS_LEAD = (".", "!", "。", ":", "：", ",", "nswer", "so", "thus", "herefore")


def around_the_answer(response: str, source: Source) -> tuple[str, str]:
    """Return what stands before the last answer tag or box of a response, as its source says, and behind it."""
    if source == "answer_tags":
        start, end = last_tag(response) or (0, len(response))
    else:
        start, end = _last_box(response)
        if not end:
            return "", ""
    return response[max(0, start - _BEFORE) : start], response[end : end + _BEHIND]


def _last_box(response: str) -> tuple[int, int]:
    """Return where the last box that closes begins and ends; zeros without one."""
    at = len(response)
    for _ in range(_BOXES):
        if (at := response.rfind("box", 0, at)) < 0:
            break
        start = max(0, at - 8)
        if spans := box_spans(response[start:])[0]:
            content, end = (start + edge for edge in spans[-1])
            # None for `unboxed{`, of which the stretch may show the end alone.
            begins = [box.start() for box in BOX.finditer(response, start, content) if box.end() == content]
            if begins:
                return begins[0], end + 1
    return 0, 0


def last_box(response: str) -> str:
    """Return the content of the last box that closes."""
    start, end = _last_box(response)
    return response[start:end].partition("{")[2][:-1]


def approximation(behind: str) -> str | None:
    """Return the 13.33 seconds of `(approximately 13.33 seconds)` directly behind a box; None without a unit."""
    match = _APPROXIMATELY.match(behind)
    return match.group(1) if match else None


def _statements(text: str, quantity: str | None) -> Iterator[tuple[str, str]]:
    """Yield (`answer` | `mention` | `named`, what it says) for each statement and mention of a text."""
    for sentence in sentences_of(text):
        if not classes_in(sentence) & _STATES:
            continue
        content = [token for token in sentence if not token.classes & classes("end")]
        if len(content) == 1 and content[0].classes & classes("equals"):
            yield "equation", text[content[0].start : sentence[-1].start if len(sentence) > 1 else None]
        for at, token in enumerate(sentence):
            if not token.classes & (_STATES | classes("comma")) or at + 1 == len(sentence):
                if token.classes & _MATHEMATICS and at == 0 and len(sentence) > 1 and "다" in text:
                    yield from _valued("mention", text, token)
                continue
            kind = _kind(sentence, at, quantity)
            start = at + 1
            while start < min(at + 4, len(sentence) - 1) and sentence[start].classes & _BEHIND_VERB:
                kind = "answer" if kind and sentence[start].classes & _EMPHASIS else kind
                start += 1
            if kind is None:
                continue
            values = list(_valued(kind, text, sentence[start]))
            yield from values
            if not values and kind == "answer" and token.classes & classes("copula"):
                yield "named", text[sentence[start].start : sentence[-1].start].strip(" *$")


def _valued(kind: str, text: str, token: Token) -> Iterator[tuple[str, str]]:
    if (match := _VALUE.match(text, token.start)) is not None and not is_denied(text[: token.start]):
        yield kind, match.group(1)


def _kind(sentence: Sequence[Token], at: int, quantity: str | None) -> str | None:
    """Return what a value behind a verb is by the subject of the verb; None for nothing."""
    verb, subject = sentence[at], at - 1
    if verb.classes & (_ANSWER | _PRONOUN):
        # `it's 7`, `ответ 7`
        return "mention" if verb.classes & _VERB or not verb.text.isascii() else None
    while subject > max(0, at - 4) and sentence[subject].classes & _BEFORE_VERB:
        subject -= 1
    insists = any(token.classes & classes("direction emphasis") for token in sentence[subject + 1 : at])
    known = sentence[subject].classes if subject >= 0 else _STARTS
    noun = sentence[subject].text if subject >= 0 else ""
    revised = subject > 0 and sentence[subject - 1].classes & classes("revised" if noun == "value" else "right revised")
    if verb.classes & classes("comma"):
        return "answer" if known & _ANSWER and revised else None
    if verb.classes & _SAYING:
        return "mention" if known & classes("source") else None
    if known & _ANSWER:
        if revised or noun in {"answer", "result", quantity} or not noun.isascii():
            return "answer"
        return None if noun == "value" else "mention"
    if quantity and noun == quantity:
        return "answer"
    if known & _PRONOUN:
        return "answer" if insists else "mention"
    if known & _STARTS and verb.classes & classes("copula") and not verb.classes & classes("auxiliary"):
        return "mention"
    return "emphasis" if not known & (_MATHEMATICS | classes("closing")) else None


def contradicts(
    answer: str, before: str, behind: str, relation: Equivalence, question: str | None, choices: tuple[str, ...] | None
) -> bool:
    """Return whether the prose around a box states another answer than the box does."""
    follows, leads = bool(behind.strip(" $*.}\n")), before.rstrip(" *$#\\([\n").endswith(_ENDS_LEAD)
    if not (leads or follows):
        return False
    sought = sought_by(question) if question else None
    quantity = (sought.quantity or sought.noun) if sought else None
    values: list[str] = []
    lead = sentence_before(before) if leads else ""
    if leads and are_neutral(lead, [token for token in tokens_of(lead) if token.text[0].isalpha()], None):
        # Only the sentence before that of the box; an earlier one may be a draft.
        previous = sentence_before(before[: len(before) - len(lead)].rstrip(" .!?。！？\n"))
        values = [value for kind, value in _statements(previous, quantity) if kind == "answer"]
    if follows:
        values += [value for kind, value in _statements(behind, quantity) if kind == "answer"]
        values += _called_the_answer(behind)
    return any(_differ(answer, value, relation, choices) for value in values)


def _called_the_answer(behind: str) -> Iterator[str]:
    """Yield the 42 of `42 is the answer`."""
    for sentence in sentences_of(behind):
        for value, verb, first, *rest in (sentence[at : at + 6] for at in range(len(sentence) - 3)):
            is_named = first.classes & classes("determiner speaker") and any(
                word.classes & _ANSWER for word in rest[:2]
            )
            match = _VALUE.match(behind[value.start : value.end])
            if match is not None and is_named and verb.classes & classes("copula"):
                yield match.group(1)


def mentions_another(
    answer: str, before: str, behind: str, relation: Equivalence, choices: tuple[str, ...] | None
) -> bool:
    """Return whether what follows an answer mentions another value of its kind, as if it were the answer."""
    letter = _LETTER_BEFORE.search(before.rstrip("$ "))
    for kind, content in _statements(behind, None):
        if kind == "named":
            differs = _are_two(answer, content, relation, choices)
        elif kind == "equation":
            name, _, value = (side.strip() for side in content.strip(" $*").partition("="))
            match = _VALUE.match(value)
            alike = len(name) == 1 and name.isalpha() and (letter is None or letter.group(1) == name)
            differs = match is not None and alike and _differ(answer, match.group(1), relation, choices)
        else:
            differs = kind != "emphasis" and _differ(answer, content, relation, choices)
        if differs:
            return True
    return False


def _are_two(answer: str, value: str, relation: Equivalence, choices: tuple[str, ...] | None) -> bool:
    """Return whether an answer and what `the answer is` are two options, values, expressions or short names."""
    if not value or choices or parse(value).number is not None:
        return bool(value) and _differ(answer, value, relation, choices)
    if relation.same(answer, value):
        return False
    if _PURE.fullmatch(value):
        return _PURE.fullmatch(answer) is not None
    names = _WORDS.fullmatch(value) and _WORDS.fullmatch(plain(answer))
    return bool(names) and not classes_in(tokens_of(value)) & NEUTRAL


def _differ(answer: str, value: str, relation: Equivalence, choices: tuple[str, ...] | None) -> bool:
    """Return whether two plain answers, each a number or a letter, are two; rounded and in percent they are not."""
    if relation.same(answer, value, choices):
        return False
    if choices:
        labels = [relation.options(text, choices).labels for text in (answer, value)]
        return all(labels) and labels[0] != labels[1]
    if value in LETTERS:
        return len(answer.strip()) == 1 and answer.strip() in LETTERS
    left, right = parse(answer).number, parse(value).number
    if left is None or right is None:
        return False
    a, b = abs(float(left.value)), abs(float(right.value))
    return all(abs(a * scale - b) > 0.01 * max(a * scale, b) for scale in (1, 100, 0.01))
