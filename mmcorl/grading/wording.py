r"""Sentences around an answer: the value, the words or the option that they say, where no word changes it.

    said   = [lead] value [tail] [gloss]
    lead   = label ":" | words | preposition
    gloss  = "(" reason | "in" unit | "not" other | number in words ")"
    words  = neutral words of some thirty languages (`the answer is`) and words of the question
    none   of these where a word changes a value: denies, hedges, compares, calculates or counts

Only the grader reads sentences; votes compare answers as they stand.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from mmcorl.answers.assertion import CHANGING, HEDGING, NEUTRAL, words_asked
from mmcorl.answers.cleanup import strip_noise
from mmcorl.answers.closed_classes import classes, classes_of
from mmcorl.answers.latex import clean
from mmcorl.answers.names import is_name
from mmcorl.answers.parse import parse
from mmcorl.answers.tokens import classes_in, tokens_of
from mmcorl.answers.units import UNIT_WORDS
from mmcorl.answers.words import number_in_words
from mmcorl.grading.quantity import names_another, sought_by, stem, words_of
from mmcorl.grading.question import asks_for_ratio

_TAIL_TEXT = "in all total altogether each together left remaining long tall wide old high apiece overall of them Uhr"
_TAIL = frozenset(_TAIL_TEXT.split())
_PER_ONE = frozenset({"each", "apiece"})
_WORDS = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_VALUE = re.compile(r"(?:[-+]?[\d.(\[$]|\\(?!text)|-?(?<![^\W\d_'])[A-Za-z](?![A-Za-z']))")
_NAMED = re.compile(r"[A-Za-z] is ")
_GOVERNING = frozenset({"number", "amount", "quantity"})
"""Nouns before a value that make another of it: number 12; so do prepositions, the root *of* 3."""
_NOUNS = UNIT_WORDS - {"in", "year"}
_LABEL = re.compile(r"([^\W\d_]{1,24}(?:[ '-][^\W\d_]{1,24}){0,5}) ?[:：]\s*(?=\S)")
_CJK_COUNT = re.compile(
    r"(-?\d[\d,]*(?:\.\d+)?)([万萬亿億]?)([\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3]*?)(?:です|である|입니다|이다)?"
)
_CJK_SCALES = {"": 1, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_GLOSS = re.compile(r"(.+?) ?\(((?:[^()]|\([^()]*\)){2,200})\)", re.DOTALL)
_OTHER = re.compile(r"(?:not|reject) ", re.IGNORECASE)
_DASH_BEHIND = re.compile(r"[.,;]? ?--? (?=[a-z])|--(?=[A-Za-z])")
_CONGRUENCE = re.compile(r".*(?<!\\not)\\equiv\s*(.+?)\s*(?:\\p?mod.*|\(?\\?mod\b.*)", re.DOTALL)
_RATIO_IN_WORDS = re.compile(r"(\d{1,9}) to (\d{1,9})(?: to (\d{1,9}))?")
_MEANT = ("number", "expression", "list", "union", "ratio", "relation", "matrix")


_ROMAN = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s?\{([^{}]{0,400})\}")
_SPACING = re.compile(r"\\[ ,;:]|\\q?quad(?![A-Za-z])|\$|\*\*|(?<=[\w}])~(?=[\w\\])|\s")
_DASHES = str.maketrans("–—−’“”", '---\'""')


_LONGEST = 400
_WRITTEN_OUT = re.compile(r"[^\W\d_](?<![\\A-Za-z].)[^\W\d_]|[^\x00-\x7f]|\\equiv|\\text")


def has_words(answer: str) -> bool:
    """Return whether an answer holds a word and is short, so that it may be a sentence."""
    return len(answer) <= _LONGEST and _WRITTEN_OUT.search(answer) is not None


def plain(answer: str) -> str:
    """Return the text of an answer without what sets it in type; unlike `latex.clean`, words keep their spaces."""
    text = strip_noise(answer)
    while (bare := _ROMAN.sub(r" \1 ", text)) != text:
        text = bare
    text = unicodedata.normalize("NFKC", _SPACING.sub(" ", text)).translate(_DASHES)
    text = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(' "')
    return text if text.endswith("..") else text.rstrip(".")


def are_neutral(words: list[str], question: str | None) -> bool:
    """Return whether words leave a value as it is: neutral ones, and names and words of what the question asks for."""
    folded = [word.casefold() for word in words]
    if any(classes_of(word) & CHANGING for word in folded):
        return False
    known = words_of(sought_by(question).clause) if question else frozenset()
    if question and any(is_name(word) and word != "a" and names_another(word, question) for word in words):
        return False
    return all(
        classes_of(word) & NEUTRAL or word in UNIT_WORDS or is_name(word) or stem(word) in known
        for word in folded
        if word != "a"
    )


def without_gloss(text: str, question: str | None = None) -> str | None:
    """Return `12 cm` for `12 (in cm)` and `5` for `5 (since it must be positive)`; None for any other text."""
    match = _GLOSS.fullmatch(text)
    if match is None:
        return None
    value, gloss = match.group(1), match.group(2).strip()
    if gloss.startswith("in ") and gloss[3:] in UNIT_WORDS:
        return f"{value} {gloss[3:]}" if parse(value).unit is None else None
    if asks_for_ratio(question) and re.fullmatch(r".+ to .+", gloss):
        return value if are_neutral(_WORDS.findall(gloss), question) else None
    if _is_reason(gloss):
        return value
    known, in_words = parse(value), number_in_words(gloss)
    if in_words is not None:
        return value if known.number is not None and known.number.value == in_words else None
    if (match := _OTHER.match(gloss)) is None:
        return None
    other = parse(gloss[match.end() :])
    return value if other.kind in _MEANT and other.text != known.text else None


def _is_reason(text: str) -> bool:
    tokens = tokens_of(text)
    return bool(tokens) and bool(tokens[0].classes & classes("reason")) and not _gives_no_reason(text)


def _gives_no_reason(text: str) -> bool:
    """Return whether words say of an answer what no reason does: a number, a condition or a doubt."""
    unlike = HEDGING | classes("rejection approximation error") & ~classes("negation absence")
    return re.search(r"[\d?]", text) is not None or bool(
        classes_in(tokens_of(text)) & unlike & ~classes("negation absence")
    )


def without_reason(text: str) -> tuple[str, str]:
    """Return what stands before a reason (`because ...`, `-- ...`), and the reason; it may be empty."""
    dash = _DASH_BEHIND.search(text)
    reason = next((token for token in tokens_of(text) if token.classes & classes("reason")), None)
    start = min(dash.start() if dash else len(text), reason.start if reason else len(text))
    return (text, "") if start in (0, len(text)) else (text[:start].rstrip(" ,;"), text[start:])


def value_said(answer: str, question: str | None) -> str | None:
    """Return the value that a sentence around it says; None where there is no sentence or a word may change it."""
    text = plain(answer)
    if (congruence := _CONGRUENCE.fullmatch(text)) is not None:
        return congruence.group(1)
    if (ratio := _RATIO_IN_WORDS.fullmatch(text)) is not None:
        return ":".join(part for part in ratio.groups() if part)
    if text.casefold() == "none" and question and sought_by(question).counted:
        return "0"
    core = without_gloss(text, question) if text.endswith(")") else without_denied(text)
    core = _without_rounding(core or text, question) or core
    core = _without_sentence(core or text, question) or core
    return core if core is not None and parse(core).kind in _MEANT else None


def without_denied(text: str) -> str | None:
    """Return 24 for `24, not 48` and C for `not A but C`; None where a text denies no other value beside its own."""
    tokens = tokens_of(text)
    denials = [at for at, token in enumerate(tokens) if token.classes & classes("negation instead")]
    if len(denials) != 1 or classes_in(tokens) & CHANGING & ~classes("negation instead contrast"):
        return None
    at = denials[0]
    if at == 0:
        turns = next((token for token in tokens[2:-1] if token.classes & classes("contrast")), None)
        return text[turns.end :].strip() if turns is not None else None
    value, other = text[: tokens[at].start].rstrip(" ,;"), text[tokens[at].end :].strip()
    alike = parse(value).kind == parse(other).kind and parse(value).text != parse(other).text
    return value if other and alike and not classes_in(tokens) & classes("contrast copula") else None


def _without_rounding(text: str, question: str | None) -> str | None:
    """Return 12.6 for `about 12.6` where the question asks to round."""
    tokens = tokens_of(text)
    is_asked = tokens and tokens[0].classes & classes("approximation") and tokens[0].text in words_asked(question)
    return text[tokens[0].end :].strip() if is_asked and len(tokens) > 1 else None


def _without_sentence(text: str, question: str | None) -> str | None:
    label = _LABEL.match(text)
    if label is not None:
        rest, name = text[label.end() :], label.group(1).strip()
        if is_name(name):
            return f"{name} = {rest}" if len(name) > 2 else None
        return rest if are_neutral(_WORDS.findall(label.group(1)), question) else None
    if not text.isascii():
        tokens = tokens_of(text)
        start = next((k for k, token in enumerate(tokens) if not token.classes & (NEUTRAL | _SEPARATES)), 0)
        rest = text[tokens[start].start :] if tokens else text
        if (count := _counted_in_cjk(rest, question)) is not None:
            return count
        if start and tokens[start - 1].text[-1] > "\u2fff":
            return _without_copula(rest) if rest[:1].isdigit() or rest[:1] in "-\\([" else None
    value_start = _value_start(text)
    if value_start is None:
        return None
    lead, core = text[:value_start], text[value_start:]
    words = core.split(" ")
    while len(words) > 1 and (
        (words[-1] in _TAIL and not (question and words[-1] in _PER_ONE))
        or (question and _is_of(words[-1], question) and words[-1] not in UNIT_WORDS)
    ):
        words.pop()
    core = _without_place(" ".join(words).rstrip(","))
    if not lead.strip() and core == text:
        return None
    words = _WORDS.findall(lead)
    last = words[-1].casefold() if words else ""
    if (
        re.search(r"[^\w\s'-]", lead)
        or last in _GOVERNING
        or classes_of(last) & classes("of")
        or last in _NOUNS
        or (last != "a" and is_name(last))
    ):
        return None
    return core if are_neutral(words, question) else None


def _without_place(text: str) -> str:
    """Return `5 apples` for `5 apples in the picture`."""
    tokens = tokens_of(text)
    at = len(tokens) - 3
    is_place = at > 0 and tokens[-1].classes & classes("scene") and tokens[at].classes & classes("in")
    return text[: tokens[at].start].rstrip() if is_place else text


_SEPARATES = classes("comma colon reason")


def _without_copula(text: str) -> str:
    """Return `3` for `3입니다` and `3です`."""
    last = tokens_of(text)[-1]
    return text[: last.start].strip() if last.classes & classes("copula") and last.start else text


def _counted_in_cjk(text: str, question: str | None) -> str | None:
    """Return 8 for `8個です` and 50000 for `5万`; what is counted must stand in the question, if there is one."""
    match = _CJK_COUNT.fullmatch(text)
    if match is None or parse(text).unit is not None or classes_in(tokens_of(match.group(3))) & CHANGING:
        return None
    number, scale, things = match.groups()
    things = things.lstrip("个個개")
    if not (scale or match.group(3)) or (things and things not in (question or "")):
        return None
    return str(Decimal(number.replace(",", "")) * _CJK_SCALES[scale])


def _is_of(word: str, question: str) -> bool:
    return word.isalpha() and not classes_of(word) & CHANGING and stem(word) in words_of(sought_by(question).clause)


def _value_start(text: str) -> int | None:
    """Return where the value begins behind words: the first sign, digit or letter alone, or a number in words."""
    for match in re.finditer(r"\S+", text):
        token = match.group()
        if _VALUE.match(token) and token not in ("a", "A", "I") and not _NAMED.match(text, match.start()):
            return match.start()
        if match.start() and number_in_words(token.rstrip(",.")) is not None and token not in ("one", "a"):
            return match.start()
        if not _WORDS.fullmatch(token.rstrip(":,")):
            return None
    return None


# --- words --------------------------------------------------------------------------------------------------

_YES_NO = {
    "yes": True,
    "no": False,
    "oui": True,
    "non": False,
    "ja": True,
    "nein": False,
    "sí": True,
    "да": True,
    "нет": False,
}
_FIRST_WORD = re.compile(r"([^\W\d_]+)\s*[,.;:!-]+\s*(.+)", re.DOTALL)
_OF_NUMBERS = re.compile(r"(?:[^A-Za-z]|\\[A-Za-z]+)+")
_SHORT = re.compile(
    r"(?:it|they|he|she|this|that|these|those|there|we|you|i)"
    r" (?:is|are|was|were|do|does|did|can|could|will|would|has|have|had)"
    r"(?P<not>n't| not|not)?",
    re.IGNORECASE,
)
"""`it does not`, which repeats a question's verb alone."""
_IS = re.compile(r"(?<=\b[Ii]t)'s\b|(?<=[Tt]hat)'s\b|(?<=\b[SsHh]he)'s\b|(?<=\b[Hh]e)'s\b")
_LETTERS_ONLY = re.compile(r"[^\W\d_]{1,3}(?: [^\W\d_]{3,})+|[^\W\d_]{3,}(?: [^\W\d_]+)*")
_ARTICLES_TEXT = "the a an le la les un une el los las o os as um uma il lo der die das"
_ARTICLES = frozenset(_ARTICLES_TEXT.split())
_QUESTION = re.compile(
    r"(?:.*[.?!,:]\s*)?(is|are|was|were|do|does|did|can|could|will|would|has|have|had)\s+([^?.]{2,200})\?\s*",
    re.I | re.S,
)


def says_yes_or_no(answer: str, gold: str, question: str | None) -> bool:
    """Return whether a sentence says the gold, `yes` or `no`: first, or as an answer in full to the question."""
    wanted = _YES_NO.get(gold.casefold().strip(" ."))
    text = plain(answer)
    if wanted is None or "?" in text:
        return False
    if text.casefold() in ("true", "false") and "true" in words_asked(question):
        return (text.casefold() == "true") is wanted
    match = _FIRST_WORD.fullmatch(text)
    first = match.group(1).casefold() if match else ""
    if match is None or first not in _YES_NO:
        return question is not None and _echo(text, question) is wanted
    if first != gold.casefold().strip(" ."):
        return False
    rest = match.group(2)
    if _is_reason(rest) or _OF_NUMBERS.fullmatch(rest):
        return True
    means = next((token for token in tokens_of(rest) if token.text == "by" or token.classes & classes("reason")), None)
    if means is not None and means.start and not _gives_no_reason(rest[means.end :]):
        rest = rest[: means.start].rstrip(" ,")
    short = _SHORT.fullmatch(rest)
    return (short["not"] is None) is wanted if short else question is not None and _echo(rest, question) is wanted


def _echo(text: str, question: str) -> bool | None:
    """Return True for `they are parallel` and False for `they are not parallel`, where `are the lines parallel?`."""
    match = _QUESTION.fullmatch(question)
    if match is None:
        return None
    verb, rest = match.group(1).casefold(), [stem(word) for word in _WORDS.findall(match.group(2))]
    words = [word.casefold() for word in _WORDS.findall(text.replace("n't", " not").replace("cannot", "can not"))]
    if re.search(r"[^\w\s.'-]", text) or "not" in rest or words.count("not") > 1:
        return None
    clause = [stem(word) for word in words if word not in ("not", verb, "do", "does", "did")]
    holds = "not" not in words
    if verb not in words and not (verb in ("do", "does", "did") and holds):
        return None
    if clause and classes_of(words[0]) & classes("pronoun"):
        clause = clause[1:]
        return holds if clause and clause == rest[-len(clause) :] else None
    return holds if clause == rest else None


def says_words(answer: str, gold: str, question: str | None) -> bool:
    """Return whether a sentence says the words of the gold: `it is a triangle`, `Ann is taller`."""
    text = _IS.sub(" is", plain(answer))
    if re.search(r"[^\w\s.'-]", text):
        return False
    words, named = (
        [word for word in _WORDS.findall(words.casefold()) if word not in _ARTICLES] for words in (text, plain(gold))
    )
    if words == named:
        # `a água`: the article is all that differs.
        return all(map(_LETTERS_ONLY.fullmatch, (text, plain(gold)))) and text.casefold() != plain(gold).casefold()
    starts = [k for k in range(len(words) - len(named) + 1) if words[k : k + len(named)] == named]
    if not named or len(starts) != 1 or len(words) == len(named) or re.search(r"\d", text):
        return False
    before, behind = words[: starts[0]], words[starts[0] + len(named) :]
    if not are_neutral(before + behind, question):
        return False
    is_copula = classes("copula")
    leads = not before or before == ["to"] or classes_of(before[-1]) & (is_copula | classes("in"))
    return bool(leads) and (not behind or (not before and bool(classes_of(behind[0]) & is_copula)))


_SOLUTIONS = re.compile(
    r"(?:there (?:is|are) )?(?:(?P<no>no)|infinitely many|infinite|an infinite number of) ?"
    r"(?P<which>real|integer|positive)? ?(?P<noun>solutions?)?(?: exists?)?",
    re.IGNORECASE,
)


def solutions_said(text: str) -> str | None:
    """Return the same for `no solutions`, `there is no solution` and the empty set; None for other texts."""
    if clean(text) in (r"\emptyset", r"\varnothing", "∅"):
        return "no None"
    match = _SOLUTIONS.fullmatch(plain(text))
    if match is None or (match["no"] and not match["noun"]):
        return None
    return f"{'no' if match['no'] else 'infinitely many'} {match['which'] and match['which'].casefold()}"


_AND = re.compile(r",? and |, ?| & |；|; ?")


def words_listed(text: str) -> list[str] | None:
    """Return the words of `red, green and blue`; None for a text that is no such list."""
    items = [item.strip().casefold() for item in _AND.split(plain(text)) if item.strip()]
    items = [item.partition(" ")[2] if item.partition(" ")[0] in _ARTICLES else item for item in items]
    known = all(
        item.replace(" ", "").replace("-", "").isalpha() and len(item) > 1 and item.count(" ") < 3 for item in items
    )
    if len(items) < 2 or not known or any(classes_of(word) & CHANGING for item in items for word in item.split()):
        return None
    return items
