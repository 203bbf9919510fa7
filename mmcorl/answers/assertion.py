r"""Whether the words around an answer assert it: a grammar over the classes of `closed_classes`.

    text      = {sentence} lead ANSWER tail {sentence}
    lead      = {token}                      the sentence before the answer, `tail` what follows in it
    asserted  = a lead in which no operator reaches the answer, and a tail and sentences that do not change it

An operator of the lead reaches the answer where nothing between them closes it:

    operator                                     where          closed by                                answer is
    supposition                                  opening        consequence                              denied
    condition                                    opening        consequence | mark | second predicate    denied
    example                                      anywhere       consequence | mark behind other words    denied
    frequent error | slip to | wrongly           anywhere       contrast | right                         denied
    wrong answer | answer wrong                  anywhere       contrast | right                         denied
    negation | instead                           3 words        mark | contrast                          denied
    rejection | negation ":"                      4 words        mark                                     unasserted
    source saying | according source             anywhere       contrast | consequence | right           unasserted
    unsure                                       anywhere       consequence                              unasserted
    doubt                                        anywhere       contrast | consequence | mark            unasserted
    condition irrealis                           anywhere                                                unasserted
    tentative                                    the head of the clause's subject                        unasserted
    what changes a value                         the noun phrase of the answer: 3 words behind the last
                                                 mark, copula, verb of having or linking word            unasserted

Whatever the grammar does not know is of an open class and describes the quantity (`the cyclist travelled ANSWER km`).

    tail      = {unit | noun} (predicate | change | ", " afterthought | end)
    predicate = copula negation right | copula wrong         denied
              | copula (negation | tentative | doubt | other words) | lapse | rejection       unasserted
    change    = alternative | condition | negation | arithmetic | bound | doubt | source saying  unasserted
    end       = "?"                                          denied
    sentence  = correction ... | interjection mark ... | ... retraction ... | speaker (misdeed | made error)
              | (pronoun | answer | deixis) copula (wrong | negation right) | dropping deixis     denied
              | ... unsure ...                               unasserted

What is denied is no answer, also for votes; what is unasserted may still be right, and rules leave it to a judge. Words
that the question itself says change nothing in answers to it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mmcorl.answers.closed_classes import classes
from mmcorl.answers.thinking import CLOSES
from mmcorl.answers.tokens import Token, classes_in, sentences_of, tokens_of

Standing = Literal["asserted", "unasserted", "denied"]

CHANGING = classes(
    "negation absence instead alternative condition modal unsure doubt bound relative direction approximation"
    " arithmetic operation share wrong rejection contrast lapse retraction"
)
"""Classes of words that make another value of one, or no value at all."""
NEUTRAL = classes(
    "copula having answer outcome option right pronoun determiner quantity of in consequence chosen particle"
)
"""Classes of words that name an answer or state it, and leave it as it is."""
HEDGING = classes(
    "negation absence instead alternative condition modal unsure doubt contrast wrong retraction correction question"
)
"""Classes of words that take back or leave open what stands before them."""
_IN_PHRASE = (CHANGING & ~classes("direction operation")) | classes("habit provisional")
_BEFORE, _BEHIND = 320, 1000
_ABBREVIATIONS = frozenset({"e.g", "z.B", "i.e"})
_NUMBER = re.compile(r"[-−]?\d[\d.,]*")
_MARK, _STOP = classes("comma semicolon colon opening closing"), classes("semicolon")
_COPULA, _VERB = classes("copula particle"), classes("copula auxiliary")
_NEGATION, _WRONG, _TENTATIVE = classes("negation"), classes("wrong"), classes("tentative")
_ANSWER = classes("answer outcome option")
_CONSEQUENCE, _CONTRAST, _CONDITION = classes("consequence"), classes("contrast"), classes("condition")
_RIGHT, _ERROR, _DOUBT, _FAILS = (
    classes(names) for names in ("right revised", "error slip", "doubt unsure", "lapse rejection")
)
_SOURCE, _SAYING, _OF, _MATHEMATICS = classes("source name"), classes("saying"), classes("of"), classes("mathematics")
_STATES_AGAIN = _CONTRAST | _RIGHT | _STOP


@dataclass(frozen=True)
class _Operator:
    """A sequence of classes, each at most `gap` words behind the other, in the lead of an answer."""

    sequence: tuple[int, ...]
    closed_by: int
    standing: Standing
    opens: bool = False
    """It stands at the beginning of its sentence."""
    reach: int = 99
    """How many words behind it the answer stands at most."""
    gap: int = 2


_OPERATORS = (
    _Operator((classes("supposition"),), _CONSEQUENCE | _STOP, "denied", opens=True),
    _Operator((_CONDITION,), _CONSEQUENCE | _MARK, "denied", opens=True),
    _Operator((classes("example"),), _CONSEQUENCE | _MARK, "denied"),
    _Operator((classes("frequent"), _ERROR), _STATES_AGAIN, "denied"),
    _Operator((_ERROR, classes("frequent")), _STATES_AGAIN, "denied", gap=1),
    _Operator((classes("slip"), _VERB | _OF), _STATES_AGAIN, "denied", gap=1),
    _Operator((classes("wrongly"),), _STATES_AGAIN, "denied"),
    _Operator((_WRONG, _ANSWER | _TENTATIVE | classes("reasoning")), _STATES_AGAIN, "denied", gap=1),
    _Operator((_ANSWER, _WRONG), _STATES_AGAIN, "denied", gap=0),
    _Operator((_NEGATION | classes("instead"),), _CONTRAST | _MARK | _MATHEMATICS, "denied", reach=3),
    # `si x = 3`, `se la`, `falls der`: before a verb these are no conditions.
    _Operator(
        (classes("homograph"), _MATHEMATICS | classes("determiner pronoun")),
        _CONSEQUENCE | _MARK,
        "denied",
        True,
        gap=0,
    ),
    _Operator((classes("inverted"), classes("pronoun determiner source")), _MARK, "denied", opens=True, gap=0),
    _Operator((_CONDITION,), _CONSEQUENCE | _MARK, "unasserted"),
    _Operator((classes("trial"),), _CONSEQUENCE | _MARK | _COPULA, "unasserted", opens=True),
    _Operator((classes("role"), _TENTATIVE), _CONTRAST | _CONSEQUENCE, "unasserted"),
    _Operator((classes("between"), classes("linking")), _MARK, "unasserted", reach=0, gap=3),
    _Operator((classes("modal"), classes("having yielding")), _MARK | _COPULA, "unasserted", reach=2, gap=1),
    _Operator((_WRONG | _NEGATION | classes("lapse"), classes("colon")), 0, "unasserted", reach=0, gap=0),
    _Operator((classes("absence"), _VERB), _MARK | _CONSEQUENCE, "unasserted", opens=True, gap=4),
    _Operator((classes("lapse"), _OF), _CONTRAST | _CONSEQUENCE | _MARK, "unasserted", gap=0),
    _Operator((classes("rejection"),), _MARK | _CONSEQUENCE, "unasserted", reach=4),
    _Operator((_SOURCE, _SAYING), _STATES_AGAIN | _CONSEQUENCE, "unasserted"),
    _Operator((classes("according"), _SOURCE), _STATES_AGAIN | _CONSEQUENCE, "unasserted"),
    _Operator((classes("unsure"),), _CONSEQUENCE, "unasserted"),
    _Operator((classes("doubt"),), _CONTRAST | _CONSEQUENCE | _MARK, "unasserted"),
)
_OPERATES = 0
for _operator in _OPERATORS:
    _OPERATES |= _operator.sequence[0]


# --- before the answer --------------------------------------------------------------------------------------


def is_denied(before: str) -> bool:
    """Return whether the words before an answer, the last of `before`, keep it from being stated."""
    return bool(sentence := sentence_before(before)) and _lead(sentence, frozenset()) == "denied"


def sentence_before(before: str) -> str:
    """Return the sentence that the end of a text stands in, at most its last 320 characters."""
    return _last_sentence(before[-_BEFORE:])


@lru_cache(maxsize=1 << 6)
def _last_sentence(window: str) -> str:
    start = 1 + window.rfind("\n")
    if not window.isascii():
        start = max(start, *(1 + window.rfind(end) for end in "。！？"))
    for end in (". ", "! ", "? ", ".$", ".*", '."'):
        at = window.rfind(end, start)
        while at >= 0 and window[max(0, at - 3) : at] in _ABBREVIATIONS:
            at = window.rfind(end, start, at)
        start = max(start, at + 1)
    # A thought is another text.
    thought = max((match.end() for match in CLOSES.finditer(window, start)), default=start) if ">" in window else start
    return window[thought:]


@lru_cache(maxsize=1 << 12)
def _lead(sentence: str, question_words: frozenset[str]) -> Standing:
    """Return what the lead makes of its answer; `question_words`: the words of the question."""
    tokens = tokens_of(sentence)
    there = classes_in(tokens)
    standing: Standing = "asserted"
    for operator in _OPERATORS if there & _OPERATES else ():
        if not (there & operator.sequence[0] and there & operator.sequence[-1]):
            continue
        for start, end in _occurrences(tokens, operator):
            if _is_closed(tokens, end, operator) or (
                operator.standing != "denied" and _is_asked(tokens[start], question_words)
            ):
                continue
            if operator.standing == "denied":
                return "denied"
            standing = "unasserted"
    return standing


_OPENING = classes("opener modal consequence contrast comma colon opening adverb emphasis mathematics")


def _occurrences(tokens: Sequence[Token], operator: _Operator) -> list[tuple[int, int]]:
    """Return where an operator begins and ends, as often as it occurs."""
    occurrences = []
    first, *others = operator.sequence
    for start, token in enumerate(tokens):
        if not token.classes & first:
            if operator.opens and not token.classes & _OPENING:
                break
            continue
        end = start
        for needed in others:
            behind = range(end + 1, min(len(tokens), end + 2 + operator.gap))
            end = next((at for at in behind if tokens[at].classes & needed), -1)
            if end < 0 or classes_in(tokens[start:end]) & _MARK:
                break
        else:
            occurrences.append((start, end + 1))
        if operator.opens:
            break
    return occurrences


def _is_closed(tokens: Sequence[Token], end: int, operator: _Operator) -> bool:
    """Return whether something between an operator and the answer ends what it reaches."""
    if operator.closed_by & _MARK:
        # `for example, 3`: the comma behind the words themselves closes nothing.
        while end < len(tokens) and tokens[end].classes & _MARK:
            end += 1
    rest = tokens[end:]
    if len(rest) > operator.reach or classes_in(rest) & operator.closed_by:
        return True
    predicates = [at for at, token in enumerate(rest) if token.classes & (_COPULA | classes("equals"))]
    return (
        operator.sequence[0] & (_CONDITION | classes("supposition")) > 0
        and bool(predicates)
        and predicates[-1] - predicates[0] > 2
    )


def _is_asked(token: Token, question_words: frozenset[str]) -> bool:
    return bool(question_words) and not question_words.isdisjoint(token.text.split())


def is_asserted(before: str, behind: str, question: str | None) -> bool:
    """Return whether the clause of an answer says its value and nothing else of it, and no word behind it doubts."""
    question_words, sentence = words_asked(question), sentence_before(before)
    if sentence.strip() and not (
        _lead(sentence, question_words) == "asserted" and _leads_to_a_value(sentence, question_words)
    ):
        return False
    if not behind.strip(" $*.}\n"):
        return True
    sentences = sentences_of(behind[:_BEHIND])
    if sentences and not _is_plain_tail(sentences[0], question_words):
        return False
    return not any(classes_in(sentence) & classes("unsure") for sentence in sentences)


_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_SUPERLATIVE = re.compile(r"\b(?:most|least|max\w*|min\w*|(?:larg|small|great|few|high|low)est)\b", re.IGNORECASE)
_ROUNDED = re.compile(r"\b(?:about|approx\w*|nearest|round\w*|estimat\w*|decimal)\b", re.IGNORECASE)
_BOUNDS = frozenset({"least", "most", "than", "more", "fewer", "less", "up", "of", "bound"})
_ROUNDS = frozenset({"about", "approximately", "approx", "roughly", "around"})


@lru_cache(maxsize=1 << 10)
def words_asked(question: str | None) -> frozenset[str]:
    """Return the words that change no value in answers to a question: its own, and those of bounds or rounding."""
    if not question:
        return frozenset()
    words = frozenset(_WORD.findall(question[:8192].casefold()))
    words |= _BOUNDS if _SUPERLATIVE.search(question) else frozenset()
    return words | _ROUNDS if _ROUNDED.search(question) else words


_STARTS_PHRASE = _MARK | _CONSEQUENCE | _COPULA | classes("equals having yielding linking end")
_STARTS_CLAUSE = _CONSEQUENCE | _CONTRAST | classes("linking comma semicolon end")
_ENDS_SUBJECT = _VERB | _OF | _MATHEMATICS | classes("relative in yielding having colon pronoun linking in")
_BE = frozenset({"be", "equal"})


@lru_cache(maxsize=1 << 12)
def _leads_to_a_value(sentence: str, question_words: frozenset[str]) -> bool:
    """Return whether no word in the noun phrase of an answer, or of its clause's subject, makes another value of it."""
    tokens = list(tokens_of(sentence))
    there = classes_in(tokens)
    inverted = tokens and tokens[0].classes & classes("absence inverted homograph")
    unreal = there & (_CONDITION | classes("supposition")) or inverted
    stops = (at + 1 for at, token in enumerate(tokens) if token.classes & (_CONSEQUENCE | classes("semicolon colon")))
    if (
        unreal
        and classes_in(tokens[max(stops, default=0) :]) & classes("irrealis")
        and question_words.isdisjoint({"if", "were", "would", "suppose"})
    ):
        return False
    if there & (_TENTATIVE | classes("provisional arithmetic")) and _is_tentative(tokens, question_words):
        return False
    while tokens and tokens[-1].classes & _MATHEMATICS:
        if tokens.pop().classes & classes("equals"):
            return True
    starts = (at for at, token in enumerate(tokens) if token.classes & _STARTS_PHRASE and token.text not in _BE)
    phrase = tokens[max(starts, default=-1) + 1 :][-3:]
    last = phrase[-1] if phrase else None
    if last is None:
        return True
    if last.text == "or":
        other = any(_NUMBER.fullmatch(token.text) for token in tokens[-3:-1])
        return not other and all(token.text != "either" for token in tokens)
    if last.classes & _CONTRAST and classes_in(tokens[:-1]) & (_NEGATION | _MARK):
        # `not 4 but`, `..., but`.
        return True
    if len(phrase) > 1 and last.classes & _OF and phrase[-2].classes & classes("part"):
        return not question_words.isdisjoint(_BOUNDS)
    if last.text == "by" and len(phrase) > 1 and not phrase[-2].classes:
        # `rises by`: by how much it does.
        return True
    governing = classes("relative")
    return all(
        not token.classes & _IN_PHRASE
        or _is_asked(token, question_words)
        or (token.classes & governing and distance > 1)
        for distance, token in enumerate(reversed(phrase))
    )


def _is_tentative(tokens: Sequence[Token], question_words: frozenset[str]) -> bool:
    """Return whether the subject of a clause up to the answer is a guess, a bound, an example or part of the answer."""
    starts = [0, *(at + 1 for at, token in enumerate(tokens) if token.classes & _STARTS_CLAUSE)]
    for start in starts:
        while start < len(tokens) and tokens[start].classes & classes("pronoun"):
            start += 1
        end = next((at for at in range(start, len(tokens)) if tokens[at].classes & _ENDS_SUBJECT), len(tokens))
        subject, rest = tokens[start:end], tokens[end:]
        if classes_in(rest) & (_CONSEQUENCE | _CONTRAST | classes("comma semicolon")):
            continue
        is_verb = classes_in(rest[:1]) & _VERB
        if (not is_verb and classes_in(rest) & classes("linking")) or classes_in(rest[:1]) & classes("having"):
            continue
        size = 2 if is_verb else 1
        if any(token.classes & _TENTATIVE and not _is_asked(token, question_words) for token in subject[-size:]):
            return True
        known = classes_in(subject)
        if known & classes("arithmetic") and known & _ANSWER:
            return True
        if any(token.classes & classes("provisional") and not _is_asked(token, question_words) for token in subject):
            return True
    # `this is a first attempt: ANSWER`
    return classes_in(tokens[-1:]) & classes("colon") > 0 and any(
        token.classes & _TENTATIVE and classes_in(tokens[:at]) & _VERB
        for at, token in enumerate(tokens[-2:], len(tokens) - 2)
    )


# --- behind the answer --------------------------------------------------------------------------------------

_CHANGES_TAIL = classes("condition negation absence arithmetic operation modal interjection")
_ENDS_TAIL = _CONSEQUENCE | classes("reason cause linking colon end")
_NAMES_IT = classes(
    "determiner speaker right answer outcome option consequence adverb emphasis opener linking end suffice"
)


def _is_plain_tail(tail: Sequence[Token], question_words: frozenset[str]) -> bool:
    """Return whether what follows an answer in its sentence neither changes it nor makes it the subject of a verb."""
    if tail[0].classes & classes("opening"):
        return _is_plain_gloss(tail[1:], question_words)
    if tail[0].text == "and" and classes_in(tail[1:3]) & classes("part"):
        return False
    nouns = 0
    for at, token in enumerate(tail):
        known, rest = token.classes, tail[at + 1 : at + 5]
        following = classes_in(rest[:1])
        if known & _ENDS_TAIL:
            return True
        if _is_asked(token, question_words):
            nouns += 1
        elif known & classes("alternative"):
            if following & (_MATHEMATICS | classes("bound")) or (
                nouns < 2 and not classes_in(tail[:at]) & _MARK and not following & classes("approximation restating")
            ):
                return False
        elif (
            known & (_CONDITION | _DOUBT)
            or (at == 0 and known & classes("bound") and (not rest or following & (_MARK | classes("end relative"))))
            or (known & (_CHANGES_TAIL | _FAILS) and at == 0)
            or (known & _SOURCE and classes_in(tail[max(0, at - 2) : at + 3]) & (_SAYING | classes("according")))
        ):
            return False
        elif known & _CONTRAST:
            return not classes_in(tail[at:]) & (_NEGATION | _FAILS | _WRONG | _DOUBT | classes("absence"))
        elif known & _VERB:
            unlike = _TENTATIVE | _NEGATION | _FAILS | _WRONG | _DOUBT
            return not classes_in(rest) & unlike and (nouns > 0 or not rest or bool(following & _NAMES_IT))
        nouns += not known & classes("opening comma determiner")
    return True


def _is_plain_gloss(gloss: Sequence[Token], question_words: frozenset[str]) -> bool:
    """Return whether brackets behind an answer change nothing, as `(in cm)`, `(not 5)` and `(about 3.3)` do."""
    if not gloss or not gloss[0].classes & _IN_PHRASE & ~classes("relative") or _is_asked(gloss[0], question_words):
        return True
    spares = gloss[0].classes & classes("negation rejection approximation instead")
    return bool(spares and classes_in(gloss[1:2]) & _MATHEMATICS)
