r"""The clause of a box or an answer tag, and what follows it: is that value stated, and no other one?

    clause    = subject [copula] words formula ANSWER words
    stated    = no word next to the answer, behind the last copula or comma, changes its value: `at least`, `half of`;
                the clause is no rejection, sample, habit of others or counterfactual;
                directly behind it stands no alternative, condition, operation or verb, of which it were the subject
    withdrawn = struck out, or behind it the vocabulary of being wrong, or another answer that never closes

An answer that is not stated so may still be right: rules leave it to a judge.
"""

from __future__ import annotations

import re

from mmcorl.answers.boxes import BOX
from mmcorl.answers.denials import sentence_before
from mmcorl.grading.wording import CHANGING, without_gloss

_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
# What sets words in type.
_TYPE = re.compile(r"\\(?:text\w*|mathrm)\s?\{|\\[,;:! \[(]|\\q?quad(?![A-Za-z])|<answer>|[*_${}>#|~]")
_BREAK = re.compile(
    r"[,;.:!?，。；：、—()=⇒]|\b(?:is|are|was|were|equals?|has|have|had|gets?|gives?|yields?|obtain|find|so|thus|hence"
    r"|therefore|then|that|which|and|ist|sind|est|sont|es|son|è|sono|é|são|равен|равна|равно)\b|是|为|は",
    re.IGNORECASE,
)
# Those that lead to a value (`comes up to`, `should be`), that formulas read (`minus`) or that begin a reason.
_LEADING_TEXT = "since after would should minus plus que als other another up most"
_FURTHER_TEXT = "unlikely unlike different often usually commonly frequently typically sometimes modulo"
_CHANGES = (CHANGING - set(_LEADING_TEXT.split())) | set(_FURTHER_TEXT.split())
_PLAIN = (" is", " are", "answer:", "=", " have", " get", " gives", " so", " then")
"""Ends of by far the most clauses: they lead to a value, and nothing is left to change it."""
_GOVERNING_TEXT = "from by between within over under above below beyond until till before than per"
_GOVERNING = frozenset(_GOVERNING_TEXT.split())
"""Prepositions: they change what stands directly behind them."""
_COMPUTES = re.compile(
    r"\b(?:half|third|quarter|fifth|tenth|root|square|cube|power|multiples?|factors?|divisors?|reciprocal|inverse"
    r"|negative|opposite|complement|logarithm|log|factorial|successor|predecessor|some|any|each|none|part|out) of\W*\Z"
    r"|(?<!add )(?<!adds )(?<!sums )(?<!sum )\bup to\W*\Z|\bat most\W*\Z|\b(?:before|after)\W*\Z",
    re.IGNORECASE,
)
_REJECTS = re.compile(
    r"\b(?:reject|rul(?:e|es|ed|ing) out|exclud|discard|eliminat|dismiss|disregard|ignor|avoid|refut)\w*"
    r"\W{0,4}(?:\w+\W{1,4}){0,3}\Z"
    r"|\b(?:wrong|false|incorrect|invalid|not|extraneous)\s?[:：]\W*\Z",
    re.IGNORECASE,
)
_SAMPLE = re.compile(
    r"(?:\A\W*(?:(?:the|your|an?|my|this|first|\w+ing) )*|\bformat )(?:example|format|template|placeholder|guess)s?"
    r"(?:\s?[:：]|\s(?:is|was|were|would be)\b)\W*\Z",
    re.IGNORECASE,
)
# `$14 \\cdot 10$, or 140` says it again; `either 7 or 6`, `7, or 6` do not.
_EITHER = re.compile(r"\beither\b|(?:[$(=]|\b(?:is|are|be|get|equals|to) )\s?-?[\d.]+[$)]?,? or\W*\Z", re.IGNORECASE)
_SUPERLATIVE = re.compile(
    r"\b(?:most|least|max\w*|min\w*|largest|smallest|greatest|fewest|highest|lowest)\b", re.IGNORECASE
)
_ROUNDED = re.compile(r"\b(?:about|approx\w*|nearest|round\w*|estimat\w*|decimal)\b", re.IGNORECASE)
_BOUNDS = frozenset(["least", "than", "more", "fewer", "less"])
_ROUNDS = frozenset(["about", "approximately", "approx", "roughly", "around"])
# Every rejection, sample and counterfactual holds one of these: looking for them is cheap.
_SUSPECT = re.compile(
    r"reject|rul|exclud|discard|eliminat|dismiss|disregard|ignor|avoid|refut|wrong|false|correct|valid|not|extran|exampl"
    r"|format|template|placeholder|guess|if",
    re.IGNORECASE,
)
_COUNTERFACTUAL = re.compile(
    r"\bif\b[^,]{1,80}\bwere\b.*\b(?:would|could|might)\b|\bif\b[^,]{1,80}\bhad\b.*\bwould have\b",
    re.IGNORECASE | re.DOTALL,
)
_SUPPOSED = re.compile(r"\b(?:if|were|would)\b", re.IGNORECASE)
# Behind the answer: what closes its formula, then the clause.
_CLOSES = re.compile(r"(?:[ \t*_}\])$~]|\\[)\],;! ])*")
_AUXILIARY = (
    r"(?:is|are|was|were|does|do|did|can|could|will|would|should|must|may|might|has been|have been|cannot"
    r"|(?:is|was|does|did|do|could|would|wo|ca)n['’]t)"
)
_GOES_ON = re.compile(
    r"(?:\\text\s?\{\s?)?(?:(?:or|oder|ou|o|или)\b(?! (?:\\?approx|about|roughly|equivalent|simply|just|in other)\w*)"
    r"|and (?:a|one)[ -](?:half|quarter|third)|at (?:most|least)\b|(?:if|unless|provided|depending|except|squared|cubed"
    r"|doubled|halved|mod|modulo|not|never|without|minus|plus|dozens?|hundreds?|maybe|perhaps|probably)\b"
    rf"|{_AUXILIARY}\b(?! (?:be )?(?:the|our|my|your|also|indeed|thus|therefore|correct|right|what|how|when"
    r"|a solution|a root)\b)"
    r"|(?:fail|violat|contradict|exceed|reject|exclud|discard|leads? to a contr)\w*)",
    re.IGNORECASE,
)
_GLOSS = re.compile(r"[\s$*}]{0,4}[(（\[]([^()（）\[\]]{1,120})[)）\]]")
_NO_SUCH = re.compile(
    r"[^.\n]{0,80}[,;] but\b[^.\n\d]{0,60}(?:\bno such|\b(?:is|are|can|does) ?not|n't|\bfails?)\b", re.IGNORECASE
)
_STRIKES = (("~~", "~~"), ("<s>", "</s>"), ("<del>", "</del>"), ("<strike>", "</strike>"))
_SOLVED = r"(?:(?:does|do|did)(?: not|n['’]t) (?:satisfy|work|hold|fit|check|match|solve)|fails?\b|failed\b|has failed)"
# The vocabulary of being wrong; said of what stands above, not of what others get wrong.
_WITHDRAWN = re.compile(
    r"\b(?:disregard|ignore|forget|scratch|strike|withdraw|retract|cancel|discard)(?:ing|ed)?"
    r" (?:(?:the|my|this|that|it)\b|what i)(?! (?:negative|other|second|units?|extraneous|case|solution|root))"
    r"|\bi (?:am )?(?:retract|withdraw)"
    rf"|\bnever ?mind\b|\bon reflection\b|\bafter all\b|\b(?:verification|check|it|this|that|which) {_SOLVED}"
    r"|\bso (?:there (?:is|are) |\w+ has )?no (?:\w+ )?(?:solutions?|answers?)\b|\bcan(?:not|'t) (?:solve|answer) th"
    r"|\b(?:me (?:he )?equivo|me suis tromp|habe mich \w{0,16}(?:vertan|geirrt|verrechnet|vermaakt)|m[ie] sono sbagliat"
    r"|me enganei|heb me vergist|ошиб(?:ся|лась|ка)|pomyli)"
    r"|有误|有誤|算错|算錯|作废|間違え|間違い|誤りで|撤回|틀렸|잘못",
    re.IGNORECASE,
)


def is_stated(before: str, behind: str, question: str | None) -> bool:
    """Return whether the clause of an answer says its value, and nothing else of it."""
    return _is_led_to(sentence_before(before), question) and not _goes_on(behind, question)


def _is_led_to(sentence: str, question: str | None) -> bool:
    start = max(sentence.rfind("$"), sentence.rfind("\\["), sentence.rfind("\\("))
    if start < 0 and sentence.endswith(("=", "= ")):
        start = max(0, len(sentence) - 6)
    formula = sentence[start:] if start >= 0 else ""
    lead = sentence[:start] if formula else sentence
    if not lead or lead.isspace():
        return True
    if _SUSPECT.search(lead) is not None and _is_no_statement(_TYPE.sub(" ", lead).rstrip(), question):
        return False
    if "=" in formula:
        return True
    clause = _TYPE.sub(" ", lead[-80:]).rstrip().casefold()
    if clause.endswith(_PLAIN):
        return True
    clause = clause[max((match.end() for match in _BREAK.finditer(clause)), default=0) :]
    words = _WORD.findall(clause)[-3:]
    if not words:
        return True
    if words[-1] == "or":
        return not _EITHER.search(sentence[:start] if formula else sentence)
    changing = {word for word in words if _changes(word)}
    changing -= _asked_for(question) if changing else frozenset()
    if changing - _GOVERNING or (changing & set(words[-2:]) and words[-2:] != ["given", "by"]):
        return False
    return _COMPUTES.search(clause) is None or bool(_SUPERLATIVE.search(question or ""))


def _is_no_statement(lead: str, question: str | None) -> bool:
    if _REJECTS.search(lead) or _SAMPLE.search(lead):
        return True
    return _COUNTERFACTUAL.search(lead) is not None and not _SUPPOSED.search(question or "")


def _changes(word: str) -> bool:
    return word in _CHANGES or word.endswith("n't")


def _asked_for(question: str | None) -> frozenset[str]:
    """Return the words that change no value in answers to a question: its own, and those of bounds or rounding."""
    if not question:
        return frozenset()
    words = frozenset(_WORD.findall(question.casefold()))
    words |= _BOUNDS if _SUPERLATIVE.search(question) else frozenset()
    return words | _ROUNDS if _ROUNDED.search(question) else words


def _goes_on(behind: str, question: str | None) -> bool:
    gloss = _GLOSS.match(behind)
    if gloss is not None and without_gloss(f"1 ({gloss.group(1).strip()})") is None:
        words = _WORD.findall(gloss.group(1).casefold())
        rounded = _ROUNDS if re.search(r"\d", gloss.group(1)) else frozenset()
        return bool(words) and _changes(words[0]) and words[0] not in _asked_for(question) | _GOVERNING | rounded
    closes = _CLOSES.match(behind)
    follows = _GOES_ON.match(behind, closes.end() if closes else 0)
    if follows is not None:
        return follows.group().casefold() not in (question or "").casefold()
    return _NO_SUCH.match(behind) is not None


def is_withdrawn(before: str, behind: str) -> bool:
    """Return whether an answer is struck out, or what follows anywhere takes it back."""
    line, rest = before[before.rfind("\n") + 1 :], behind.partition("\n")[0]
    for opening, closing in _STRIKES:
        opened = line.count("~~") % 2 == 1 if opening == closing else line.rfind(opening) > line.rfind(closing)
        if opened and closing in rest:
            return True
    return BOX.search(behind) is not None or "<answer>" in behind or _WITHDRAWN.search(behind) is not None
