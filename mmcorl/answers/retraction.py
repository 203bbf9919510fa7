"""What follows an answer and takes it back: the sentences of the grammar in `assertion`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile

from mmcorl.answers.assertion import is_denied
from mmcorl.answers.closed_classes import classes
from mmcorl.answers.tokens import Token, classes_in, sentences_of

_BEHIND = 1000
_MARK, _VERB = classes("comma semicolon colon opening closing"), classes("copula auxiliary")
_NEGATION, _WRONG, _ANSWER = classes("negation"), classes("wrong"), classes("answer outcome option")
_RIGHT, _ERROR, _CONSEQUENCE = classes("right revised"), classes("error slip"), classes("consequence")


def is_retracted(before: str, behind: str) -> bool:
    """Return whether the words before an answer or those behind it keep it from being stated."""
    return is_taken_back(behind) or is_denied(before)


def is_taken_back(behind: str) -> bool:
    """Return whether the words behind an answer, the first of `behind`, take it back."""
    behind = behind[:_BEHIND]
    return bool(behind.strip(" $*.}\n")) and _is_taken_back(behind)


@lru_cache(maxsize=1 << 10)
def _is_taken_back(behind: str) -> bool:
    for number, sentence in enumerate(sentences_of(behind)):
        if number == 0 and (
            sentence[-1].classes & classes("question")
            or _is_objection(sentence[:5], of_it=True)
            or classes_in([*takewhile(_goes_on, sentence[:3])]) & classes("postposed")
        ):
            return True
        if (number and _opens_a_correction(sentence)) or _is_denied_in(sentence):
            return True
    return False


def _goes_on(token: Token) -> bool:
    return not token.classes & (_MARK | classes("mathematics end"))


def _opens_a_correction(sentence: Sequence[Token]) -> bool:
    """Return whether a sentence begins as those do in which one corrects himself."""
    passed = _MARK | classes("end")
    start = next(
        (at for at, token in enumerate(sentence) if not token.classes & passed and token.text[0] not in "-–—"), 0
    )
    first, behind = sentence[start].classes, sentence[start + 1 : start + 2]
    if first & classes("correction retraction"):
        return True
    ends = not behind or behind[0].classes & (passed | classes("correction retraction")) or behind[0].text[0] in "-–—"
    return bool(first & classes("interjection") and ends)


def _is_denied_in(sentence: Sequence[Token]) -> bool:
    """Return whether a sentence says that what stands before it is wrong, or drops it."""
    for at, token in enumerate(sentence):
        known, rest = token.classes, sentence[at + 1 : at + 6]
        if known & classes("retraction") or (known & classes("dropping") and _is_dropped(rest)):
            return True
        if known & classes("speaker"):
            following = classes_in(rest[:1])
            if following & classes("misdeed") or (following & classes("made") and classes_in(rest[1:4]) & _ERROR):
                return True
        if known & classes("pronoun") and classes_in(rest[:1]) & _WRONG:
            return True
        if token.text == "there is" and classes_in(rest[:1]) & classes("determiner") and classes_in(rest[1:3]) & _ERROR:
            return bool(classes_in(rest[1:]) & classes("speaker deixis"))
        subject = at > 0 and sentence[at - 1].classes & (_ANSWER | classes("pronoun deixis"))
        if subject and _is_objection(sentence[at : at + 5]):
            return True
    return False


def _is_objection(predicate: Sequence[Token], of_it: bool = False) -> bool:
    """Return whether a predicate is `is (quite) wrong`, `would not be right`, `isn't the answer`.

    `of_it`: its subject is the answer itself.
    """
    if not predicate[0].classes & _VERB:
        return False
    objecting = _WRONG | (classes("lapse") if of_it else 0)
    for at, token in enumerate(predicate[:4]):
        if token.classes & _NEGATION:
            return bool(classes_in(predicate[at + 1 : at + 4]) & (_RIGHT | _ANSWER | classes("allowed")))
        is_noun = at and predicate[at - 1].classes & classes("determiner")
        if token.classes & (objecting | (_ERROR if is_noun else 0)):
            return True
        if token.classes & (_MARK | classes("end")):
            break
    return False


def _is_dropped(rest: Sequence[Token]) -> bool:
    """Return whether behind `ignore` stands `that`, `my last answer`, `the box above`."""
    passed = classes("determiner pronoun speaker right")
    for at, token in enumerate(rest):
        if token.classes & (_ANSWER | classes("deixis")) or (at and token.classes & classes("speaker")):
            return True
        if not token.classes & passed:
            return bool(at and token.classes & (_MARK | classes("end")) and rest[at - 1].classes & classes("pronoun"))
    return bool(rest) and bool(rest[-1].classes & classes("pronoun"))


_STRIKES = (("~~", "~~"), ("<s>", "</s>"), ("<del>", "</del>"), ("<strike>", "</strike>"))
_STRUCK = re.compile("|".join(f"{opening}.*?{closing}" for opening, closing in _STRIKES))


def without_struck(text: str) -> str:
    """Return a text without what is struck out in it: `42` for `~~24~~ 42`."""
    return _STRUCK.sub(" ", text) if "~~" in text or "</" in text else text


def is_withdrawn(before: str, behind: str) -> bool:
    """Return whether an answer is struck out, or what follows anywhere takes it back."""
    line, rest = before[before.rfind("\n") + 1 :], behind.partition("\n")[0]
    for opening, closing in _STRIKES:
        opened = line.count("~~") % 2 == 1 if opening == closing else line.rfind(opening) > line.rfind(closing)
        if opened and closing in rest:
            return True
    return _is_taken_back(behind) or any(map(_fails_a_check, sentences_of(behind)))


def _fails_a_check(sentence: Sequence[Token]) -> bool:
    """Return whether a sentence says that it does not work, that there is no solution, or that nobody can answer."""
    for at, token in enumerate(sentence):
        rest = sentence[at + 1 : at + 5]
        denied = next((k for k, other in enumerate(rest) if other.classes & classes("negation absence")), 4)
        if token.classes & classes("pronoun checking linking") and (
            classes_in(rest[:1]) & classes("lapse")
            or (denied < 2 and classes_in(rest[denied + 1 :]) & classes("suffice"))
        ):
            return True
        if token.classes & _CONSEQUENCE and classes_in(rest[denied : denied + 1]) & classes("absence"):
            return bool(classes_in(rest) & _ANSWER)
        if token.text in ("cannot", "can't") and classes_in(rest[:1]) & classes("suffice"):
            return classes_in(rest[1:2]) & classes("pronoun determiner") != 0
    return False
