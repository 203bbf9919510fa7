r"""What the prose around a box says of it: another answer, or the unit of its approximation.

    statement = ("the answer" | the quantity that the question asks for) copula value, then the sentence ends;
                value "is the answer"
    mention   = (pronoun | noun of an answer, in many languages) copula value, and the clause ends; `x = value` alone

A statement in the sentence before the box, or anywhere behind it, contradicts the box where its value is another one:
there is no answer. A mention behind it may be of something else: rules only leave that answer to a judge.
"""

from __future__ import annotations

import re
from functools import lru_cache

from mmcorl.answers import Equivalence
from mmcorl.answers.assertion import is_denied, sentence_before
from mmcorl.answers.boxes import BOX
from mmcorl.answers.extract import Source, last_tag
from mmcorl.answers.options import LETTERS
from mmcorl.answers.parse import parse
from mmcorl.grading.wording import NEUTRAL, plain

_NUMBER = r"(?:-?(?:\d{1,3}(?:,\d{3})+|\d{1,12})(?:\.\d{1,12})?(?:/\d{1,9})?|-?\\d?frac\{\d{1,9}\}\{\d{1,9}\})"
_VALUE = rf"[*$(\\ ]{{0,6}}({_NUMBER}|[A-H](?![\w']))[*$)\\]{{0,4}}(?: ?(?:\\text\{{)?[A-Za-z%°]{{1,12}}\}}?\$?)?"
_END = r"(?=\s?(?:[.,;!。，)]|\n|\Z))(?![.,]\d)"
_IS = r" ?(?:is|should be|must be|equals|=|:)(?: (?:actually|really|in fact|instead|therefore|thus|then))? ?"
_CORRECTED = re.compile(
    r"(?:\b(?:it|this) (?:should|must|ought to) (?:actually |really )?be |\b(?:it|that|the \w+) (?:is"
    r"|was) (?:actually|really|in fact) "
    rf"|答案(?:是|为|应为)){_VALUE}{_END}",
    re.IGNORECASE,
)
_QUANTITY = re.compile(
    r"\b(?:what(?: is|'s)|find|determine|calculate|compute|give) (?:the )?(?:\w+ )?([a-z]{3,14})\b", re.IGNORECASE
)
_IS_THE_ANSWER = re.compile(rf"(?<![\w.])({_NUMBER}|[A-H]) (?:is|was) (?:the|my) (?:\w+ )?(?:answer|result)\b")
_LEAD = re.compile(
    r"[\s*$#\\(\[]{0,12}(?:(?:final |the )?answer ?[:：]?|therefore,?|so,?|thus,?)?[\s*$\\(\[:]{0,12}\Z", re.IGNORECASE
)
_APPROXIMATELY = re.compile(
    r"[\s$*\\)\]]{0,8}[(（]?\s?(?:which is |or |that is |i\.e\.,? )?(?:approximately|about|roughly|approx\.?|ca\.|≈"
    r"|\$?\\approx|etwa|environ|"
    rf"aproximadamente|circa|约|大约)\s?\$?({_NUMBER}(?:\s|\\[ ,]){{0,3}}(?:\\(?:text|mathrm)\{{[^{{}}]{{1,24}}\}}"
    rf"|[A-Za-z°%]{{1,12}}(?:/[a-z]{{1,6}})?)(?:\^\{{?[23]\}}?|²|³)?)"
)
_NOUN = (
    r"(?:it|that|this|answer|result|final|solution|respuesta|resultado|réponse|résultat|antwort|ergebnis"
    r"|risposta|risultato|resposta|antwoord|svar|ответ|відповідь|odpowiedź|cevap|jawaban(?:nya)?)"
)
_MENTION = re.compile(
    rf"(?:\b{_NOUN}(?:\s?[:：=—]|['’]s|(?<=ответ)"
    r"|\s(?:is|was|should be|must be|es|est|ist|è|é|war|равен|это|to|är|adalah|là))"
    r"(?: (?:actually|really|in fact|now|therefore))?\s"
    r"|\b(?:es|es ist|é|это|(?:(?:答案|结果|应该|應該)?[是为為])|(?:答え|正解)は|(?:정답|답)[은는])\s?"
    r"|(?<!\w)(?:è|c['’]est)\s|(?<=[。！，、 \n])(?=-?[\d.]+(?:です|입니다)))"
    rf"{_VALUE}(?:\s?(?:です|である|だ|입니다|이다|after all|instead)){{0,2}}{_END}",
    re.IGNORECASE,
)
_EQUATION = re.compile(rf"^[\s*$]{{0,6}}([A-Za-z]) ?= ?{_VALUE}\s?\.?[ \t]*$", re.MULTILINE)
_NAMED = re.compile(
    r"\b[Tt]he (?:final |correct |right )?answer (?:is|should be)[: ]\s?(?:actually |really )?"
    r"([^\n]{1,80}?)(?=[.!](?:\s|\Z)|\n|\Z)"
)
_LETTER_BEFORE = re.compile(r"([A-Za-z]) ?= ?\Z")
_PURE = re.compile(r"(?:\\[A-Za-z]+|[^A-Za-z]|(?<![A-Za-z])[A-Za-z](?![A-Za-z]))+")
_WORDS = re.compile(r"[^\W\d_]{2,}(?: [^\W\d_]{2,}){0,2}")
_BRACE = re.compile(r"[{}]")
_BEFORE, _BEHIND = 320, 1 << 14
_BOXES = 4
"""Boxes at the end of a response among which the last that closes is looked for."""
_ENDS_LEAD = (".", "!", "。", ":", "：", ",", "nswer", "so", "thus", "herefore")


@lru_cache(maxsize=1 << 10)
def _stated(quantity: str) -> re.Pattern[str]:
    """Return what finds the values that the prose gives as the answer, or as a quantity."""
    subjects = "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in ("answer", "result", quantity) if word)
    return re.compile(rf"(?:{subjects}){_IS}{_VALUE}{_END}")


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
        for box in reversed(list(BOX.finditer(response, max(0, at - 8), at + 16))):
            if end := _end_of(response, box.end()):
                return box.start(), end
    return 0, 0


def _end_of(text: str, start: int) -> int:
    """Return where a brace that opened before a place closes; 0 where it never does."""
    depth, end = 1, start
    while depth and (brace := _BRACE.search(text, end)) is not None:
        depth += 1 if brace.group() == "{" else -1
        end = brace.end()
    return 0 if depth else end


def approximation(behind: str) -> str | None:
    """Return the 13.33 seconds of `(approximately 13.33 seconds)` directly behind a box; None without a unit."""
    match = _APPROXIMATELY.match(behind)
    return match.group(1) if match else None


def contradicts(
    answer: str, before: str, behind: str, relation: Equivalence, question: str | None, choices: tuple[str, ...] | None
) -> bool:
    """Return whether the prose around a box states another answer than the box does."""
    values: list[str] = []
    follows, leads = bool(behind.strip(" $*.}\n")), before.rstrip(" *$#\\([\n").endswith(_ENDS_LEAD)
    if not (leads or follows):
        return False
    quantity = _QUANTITY.search(question or "")
    stated = _stated(quantity.group(1).casefold() if quantity and quantity.group(1).casefold() != "value" else "")
    lead = sentence_before(before) if leads else ""
    if leads and _LEAD.fullmatch(lead):
        # Only the sentence before that of the box; an earlier one may be a draft.
        previous = sentence_before(before[: len(before) - len(lead)].rstrip(" .!?。！？\n"))
        values = [match.group(1) for match in stated.finditer(previous) if not is_denied(previous[: match.start()])]
    for pattern in (stated, _CORRECTED, _IS_THE_ANSWER) if follows else ():
        values += [match.group(1) for match in pattern.finditer(behind) if not is_denied(behind[: match.start()])]
    return any(_differ(answer, value, relation, choices) for value in values)


def mentions_another(
    answer: str, before: str, behind: str, relation: Equivalence, choices: tuple[str, ...] | None
) -> bool:
    """Return whether what follows an answer mentions another value of its kind, as if it were the answer."""
    values = [match.group(1) for match in _MENTION.finditer(behind)]
    letter = _LETTER_BEFORE.search(before.rstrip("$ "))
    for match in _EQUATION.finditer(behind):
        values += [match.group(2)] if letter is None or match.group(1) == letter.group(1) else []
    if any(_differ(answer, value, relation, choices) for value in values):
        return True
    return any(_are_two(answer, match.group(1).strip(" *$"), relation, choices) for match in _NAMED.finditer(behind))


def _are_two(answer: str, value: str, relation: Equivalence, choices: tuple[str, ...] | None) -> bool:
    """Return whether an answer and what `the answer is` are two options, two expressions or two short names."""
    if not value or relation.same(answer, value, choices):
        return False
    if choices:
        labels = [relation.options(text, choices).labels for text in (answer, value)]
        return all(labels) and labels[0] != labels[1]
    if parse(value).number is not None:
        return _differ(answer, value, relation, choices)
    if _PURE.fullmatch(value):
        return _PURE.fullmatch(answer) is not None
    names = _WORDS.fullmatch(value) and _WORDS.fullmatch(plain(answer))
    return bool(names) and not NEUTRAL.intersection(value.casefold().split())


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
