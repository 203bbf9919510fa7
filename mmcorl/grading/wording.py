r"""Answers in words: which value they state, or whether they state the gold.

An answer states a value or the gold where, that aside, it holds only words of closed classes that change nothing and
words of the question, in the order that says so:

    said   = [label ":"] [lead] value [tail] [gloss] [reason]
    lead   = words | names and units; no preposition, unit or name stands last in it
    tail   = words without units
    words  = neutral (`the answer is`) | asked, in some thirty languages
    gloss  = "(" reason | "in" unit | "not" other | number in words | summands ")"
    yes    = affirmation | denial [mark (reason | echo)] | echo
    echo   = the words of a question, in their order, with a verb, denied or not

Only the grader reads sentences; votes compare answers as they stand.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction

from mmcorl.answers.assertion import CHANGING, HEDGING, NEUTRAL, words_asked
from mmcorl.answers.cleanup import strip_noise
from mmcorl.answers.closed_classes import classes, classes_of
from mmcorl.answers.latex import clean
from mmcorl.answers.names import is_name
from mmcorl.answers.numerals import numeral
from mmcorl.answers.parse import parse
from mmcorl.answers.retraction import without_struck
from mmcorl.answers.tokens import UNSPACED, Token, classes_in, tokens_of
from mmcorl.answers.units import UNIT_WORDS
from mmcorl.answers.words import number_in_words
from mmcorl.grading.quantity import asks_for, is_asked, measure_asked, names_another, sought_by, stem
from mmcorl.grading.question import asks_for_percent, asks_for_ratio

_MATHEMATICS, _COPULA, _MARK = (
    classes("mathematics"),
    classes("copula"),
    classes("comma semicolon colon quote question"),
)
_NAME, _BRACKET, _REASON, _NEGATION = (
    classes("name"),
    classes("opening closing"),
    classes("reason"),
    classes("negation"),
)
_FREE = NEUTRAL | classes("in scene case")
_GRAMMATICAL = classes("copula auxiliary having pronoun determiner article of in particle case")
_TAIL = _GRAMMATICAL & ~classes("auxiliary") | classes("quantity scene measured")
_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")
_GOVERNING = frozenset({"number", "amount", "quantity"})
"""Nouns before a value that make another of it: number 12; so do prepositions, the root *of* 3."""
_LABEL = re.compile(r"([^\W\d_]{1,24}(?:[ '-][^\W\d_]{1,24}){0,5}) ?[:：]\s*(?=\S)")
_SCALED = re.compile(r"(-?\d[\d,]*(?:\.\d+)?)([万萬亿億])")
_SCALES = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_GLOSS = re.compile(r"(.+?) ?\(((?:[^()]|\([^()]*\)){2,200})\)", re.DOTALL)
_NUMERIC_GLOSS = re.compile(r" ?\([^()A-Za-z]*\)")
_OTHER = re.compile(r"(?:not|reject) ", re.IGNORECASE)
_DASH_BEHIND = re.compile(r"[.,;]? ?--? (?=[a-z])|--(?=[A-Za-z])")
_CONGRUENCE = re.compile(r".*(?<!\\not)\\equiv\s*(.+?)\s*(?:\\p?mod.*|\(?\\?mod\b.*)", re.DOTALL)
_RATIO_IN_WORDS = re.compile(r"(\d{1,9}) to (\d{1,9})(?: to (\d{1,9}))?")
_MEANT = ("number", "expression", "list", "union", "ratio", "relation", "matrix")
_TYPE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|emph)\s?\{([^{}]{0,400})\}")
_SPACING = re.compile(r"\\[ ,;:]|\\q?quad(?![A-Za-z])|\$|\*\*|(?<=[\w}])~(?=[\w\\])|\s")
_DASHES = str.maketrans({"²": "^2", "³": "^3"} | dict(zip("–—−’“”", '---\'""', strict=True)))
_LONGEST = 400
_WRITTEN_OUT = re.compile(r"[^\W\d_](?<![\\A-Za-z].)[^\W\d_]|[^\x00-\x7f]|\\equiv|\\text|~~|</")


def has_words(answer: str) -> bool:
    """Return whether an answer holds a word and is short, so that it may be a sentence."""
    return len(answer) <= _LONGEST and _WRITTEN_OUT.search(answer) is not None


def plain(answer: str) -> str:
    """Return the text of an answer without what sets it in type; unlike `latex.clean`, words keep their spaces."""
    text = without_struck(strip_noise(answer))
    while (bare := _TYPE.sub(r" \1 ", text)) != text:
        text = bare
    text = unicodedata.normalize("NFKC", _SPACING.sub(" ", text).translate(_DASHES))
    text = " ".join(text.replace("( ", "(").replace(" )", ")").split()).strip(' "')
    return text if text.endswith("..") else text.rstrip(".。")


def _changes(token: Token, question: str | None) -> bool:
    """Return whether a word makes another value of one; `about` does not where the question asks to round."""
    rounds = token.classes & classes("approximation") and token.text in words_asked(question)
    return bool(token.classes & CHANGING) and not rounds


def are_neutral(text: str, tokens: Sequence[Token], question: str | None) -> bool:
    """Return whether words leave a value as it is: neutral ones, and names and words of what the question asks for."""
    if any(_changes(token, question) or token.classes & (_MARK | _BRACKET) for token in tokens):
        return False
    words = [text[token.start : token.end] for token in tokens]
    if question and any(is_name(word) and word != "a" and names_another(word, question) for word in words):
        return False
    measured = [token.text for token in tokens if token.classes & classes("measure")]
    if question and measured and not question.isascii() and measure_asked(question) not in (None, *measured):
        return False
    return all(
        token.classes & (_FREE | classes("approximation"))
        or token.text in UNIT_WORDS
        or is_name(word)
        or is_asked(token, question)
        for token, word in zip(tokens, words, strict=True)
    )


# --- values -------------------------------------------------------------------------------------------------


def value_said(answer: str, question: str | None) -> str | None:
    """Return the value that a sentence around it says; None where there is no sentence or a word may change it."""
    text = plain(answer)
    if (congruence := _CONGRUENCE.fullmatch(text)) is not None:
        return congruence.group(1)
    if (ratio := _RATIO_IN_WORDS.fullmatch(text)) is not None:
        return ":".join(part for part in ratio.groups() if part)
    if question and asks_for("counting", question) and _says_none(text, question):
        return "0"
    core = without_gloss(text, question) if text.endswith(")") else without_denied(text)
    core = _without_sentence(core or text, question) or core
    if core is None and without_struck(answer) != answer:
        core = text
    return core if core is not None and parse(core).kind in _MEANT else None


def without_gloss(text: str, question: str | None = None) -> str | None:
    """Return `12 cm` for `12 (in cm)` and `5` for `5 (since it must be positive)`; None for any other text."""
    match = _GLOSS.fullmatch(text)
    if match is None:
        return None
    value, gloss = match.group(1), match.group(2).strip()
    if gloss.startswith("in ") and gloss[3:] in UNIT_WORDS:
        return f"{value} {gloss[3:]}" if parse(value).unit is None else None
    tokens = tokens_of(gloss)
    if asks_for_ratio(question) and re.fullmatch(r".+ to .+", gloss):
        return value if are_neutral(gloss, tokens, question) else None
    if _is_reason(gloss):
        return value
    known, in_words = parse(value), number_in_words(gloss)
    if known.number is not None and (in_words == known.number.value or _adds_up(gloss, known.number.value)):
        return value
    if in_words is not None or (match := _OTHER.match(gloss)) is None:
        return None
    other = parse(gloss[match.end() :])
    return value if other.kind in _MEANT and other.text != known.text else None


def _adds_up(gloss: str, total: Fraction) -> bool:
    """Return whether a gloss counts the parts of a total: `3 red and 4 green`."""
    numbers = re.findall(r"\d{1,9}", gloss)
    plainly = re.fullmatch(r"[\w\s,+&;]+", gloss) and not classes_in(tokens_of(gloss)) & CHANGING
    return bool(plainly) and len(numbers) > 1 and sum(map(int, numbers)) == total


def _is_reason(text: str) -> bool:
    tokens = tokens_of(text)
    return bool(tokens) and bool(tokens[0].classes & _REASON) and not _gives_no_reason(text)


_UNREASONED = (HEDGING | classes("rejection approximation error")) & ~classes("negation absence")


def _gives_no_reason(text: str) -> bool:
    """Return whether words say of an answer what no reason does: a number, a condition or a doubt."""
    return re.search(r"[\d?]", text) is not None or bool(classes_in(tokens_of(text)) & _UNREASONED)


def without_reason(text: str) -> tuple[str, str]:
    """Return what stands before a reason (`because ...`, `-- ...`), and the reason; it may be empty."""
    dash = _DASH_BEHIND.search(text)
    reason = next((token for token in tokens_of(text) if token.classes & _REASON), None)
    start = min(dash.start() if dash else len(text), reason.start if reason else len(text))
    return (text, "") if start in (0, len(text)) else (text[:start].rstrip(" ,;"), text[start:])


def without_denied(text: str) -> str | None:
    """Return 24 for `24, not 48` and C for `not A but C`; None where a text denies no other value beside its own."""
    tokens, denies = tokens_of(text), classes("negation instead")
    denials = [at for at, token in enumerate(tokens) if token.classes & denies]
    if len(denials) != 1 or classes_in(tokens) & CHANGING & ~(denies | classes("contrast")):
        return None
    at = denials[0]
    if at == 0:
        turns = next((token for token in tokens[2:-1] if token.classes & classes("contrast")), None)
        return text[turns.end :].strip() if turns is not None else None
    value, other = text[: tokens[at].start].rstrip(" ,;"), text[tokens[at].end :].strip()
    alike = parse(value).kind == parse(other).kind and parse(value).text != parse(other).text
    return value if other and alike and not classes_in(tokens) & classes("contrast copula") else None


def _says_none(text: str, question: str) -> bool:
    """Return whether a text says that there are none of what a question counts: `There are no dogs`."""
    tokens = tokens_of(text)
    denials = [token for token in tokens if token.classes & classes("absence")]
    rest = [token for token in tokens if token not in denials and not token.text.startswith("n'")]
    if len(denials) != 1 or any(token.classes & _MATHEMATICS for token in rest):
        return False
    return (not rest and text.casefold() == "none") or (
        are_neutral(text, rest, question)
        and any(not token.classes & ~_NAME and is_asked(token, question) for token in rest)
    )


def _without_sentence(text: str, question: str | None) -> str | None:
    if (label := _LABEL.match(text)) is not None:
        rest, name = text[label.end() :], label.group(1).strip()
        if is_name(name):
            return f"{name} = {rest}" if len(name) > 2 else None
        return rest if are_neutral(name, tokens_of(name), question) else None
    tokens = tokens_of(text)
    counts = asks_for("counting", question)
    for start, token in enumerate(tokens):
        if not _begins_a_value(token, tokens[start + 1 : start + 2], counts):
            continue
        end = _end_of_value(tokens, start, question)
        value = text[tokens[start - 1].end if start else 0 : tokens[end].start if end < len(tokens) else None]
        core = _in_digits(value.strip(" ,"), counts)
        if end < len(tokens) and core is not None and asks_for_percent(question) and parse(core).unit != "%":
            # 35 of those asked are no 35 %.
            return None
        if core is not None and core != text and _leads(text, tokens[:start], question):
            return core
    return None


def _begins_a_value(token: Token, following: Sequence[Token], counts: bool) -> bool:
    if token.classes & _MATHEMATICS or (len(token.text) == 1 and token.text.isascii() and token.text.isalpha()):
        is_subject = len(token.text) == 1 and token.text.isalpha() and classes_in(following) & _COPULA
        return token.text not in ("a", "i") and not token.text.startswith("=") and not is_subject
    if token.classes & classes("opening") or (counts and UNSPACED.match(token.text)):
        return True
    number = numeral(token.text, alone=False) if counts else number_in_words(token.text)
    return number is not None and not token.classes & classes("article")


def _end_of_value(tokens: Sequence[Token], start: int, question: str | None) -> int:
    """Return behind which token the words end that follow a value and change nothing."""
    end = len(tokens)
    while end > start + 1:
        token = tokens[end - 1]
        free = token.classes & _TAIL and not (end == len(tokens) and token.classes & classes("in"))
        if token.text in ("each", "apiece"):
            free = not question
        of_question = is_asked(token, question) and token.text not in UNIT_WORDS
        if token.classes & (CHANGING | _MATHEMATICS | _MARK | _BRACKET) or not (free or of_question):
            break
        end -= 1
    return end


def _in_digits(core: str, counts: bool) -> str | None:
    """Return a value without words, 7 for `seven` and 50000 for `5万`; None where a text is no value."""
    if (scaled := _SCALED.fullmatch(core)) is not None:
        return str(Fraction(scaled.group(1).replace(",", "")) * _SCALES[scaled.group(2)])
    number = numeral(core, alone=False) if counts else number_in_words(core)
    if number is not None:
        return str(number)
    return core if core.count("{") == core.count("}") and parse(core).kind in _MEANT else None


def _leads(text: str, lead: Sequence[Token], question: str | None) -> bool:
    """Return whether words before a value lead to it."""
    if not lead:
        return True
    last, word = lead[-1], text[lead[-1].start : lead[-1].end]
    # `est de 24`
    of_it = last.classes & classes("of") and not classes_in(lead[-2:-1]) & _COPULA
    if last.text in _GOVERNING or of_it or last.text in UNIT_WORDS - {"in", "year"}:
        return False
    if last.classes & _MATHEMATICS or (last.text != "a" and is_name(word)):
        return False
    return are_neutral(text, lead, question)


# --- words --------------------------------------------------------------------------------------------------

_POLES = {"affirmation": True, "denial": False, "truth": True, "falsity": False}
_PAIRS = ("affirmation denial", "truth falsity")
_OF_NUMBERS = re.compile(r"(?:[\W\d_]|\\[A-Za-z]+)+")
_IS = re.compile(r"(?<=\b[Ii]t)'s\b|(?<=[Tt]hat)'s\b|(?<=\b[SsHh]he)'s\b|(?<=\b[Hh]e)'s\b")
_LETTERS_ONLY = re.compile(r"[^\W\d_]{1,3}(?: [^\W\d_]{3,})+|[^\W\d_]{3,}(?: [^\W\d_]+)*")


def _pole(token: Token, kinds: str) -> bool | None:
    """Return whether a word affirms or denies."""
    return next((_POLES[kind] for kind in kinds.split() if token.classes & classes(kind)), None)


def says_yes_or_no(answer: str, gold: str, question: str | None) -> bool:
    """Return whether a text says the gold, `yes` or `no`, `true` or `false`, in any language.

    First, alone or before an echo of the question or a reason; or as an answer in full.
    """
    known, text = tokens_of(plain(gold)), plain(answer)
    kinds = next((pair for pair in _PAIRS if len(known) == 1 and _pole(known[0], pair) is not None), None)
    if kinds is None or "?" in text:
        return False
    wanted = _pole(known[0], kinds)
    if question and any(token.classes & classes("truth") for token in tokens_of(question)):
        kinds = " ".join(_POLES)
    text = _NUMERIC_GLOSS.sub("", text)
    tokens = tokens_of(text)
    first = _pole(tokens[0], kinds) if tokens else None
    if first is None or (len(tokens) > 1 and not tokens[1].classes & (_MARK | classes("end"))):
        stated = [token for token in tokens if not token.classes & (NEUTRAL | classes("claim negation"))]
        if "truth" in kinds and len(stated) == 1 and _pole(stated[0], "truth falsity") is not None:
            denials = sum(token.classes & _NEGATION > 0 for token in tokens)
            return denials < 2 and (_pole(stated[0], kinds) is wanted) is (denials == 0)
        return question is not None and _echo(tokens, question, alone=True) is wanted
    if first is not wanted:
        return False
    rest = text[tokens[1].end :].strip() if len(tokens) > 1 else ""
    if not rest or _is_reason(rest) or _OF_NUMBERS.fullmatch(rest):
        return True
    clause = tokens[2:]
    means = next((at for at, token in enumerate(clause) if token.text == "by" or token.classes & _REASON), None)
    if means and not _gives_no_reason(text[clause[means].end :]):
        clause = clause[:means]
    return _echo(clause, question or "", alone=False) is wanted


def _echo(tokens: Sequence[Token], question: str, alone: bool) -> bool | None:
    """Return True for `they are parallel` and False for `they are not parallel`, where `are the lines parallel?`.

    `alone`: nothing but the echo answers, so it has a verb and says the question to its end.
    """
    sought = [
        token for token in tokens_of(sought_by(question).clause) if not token.classes & (_GRAMMATICAL | classes("end"))
    ]
    if classes_in(sought) & _NEGATION:
        return None
    at, denials = 0, 0
    for token in tokens:
        if token.classes & _NEGATION:
            # Of `ne ... pas` the second counts.
            denials += not (token.text == "ne" or token.text.startswith("n'"))
        elif token.classes & _GRAMMATICAL and not token.classes & HEDGING:
            continue
        else:
            there = next((k for k in range(at, len(sought)) if stem(sought[k].text) == stem(token.text)), None)
            if there is None:
                return None
            at = there + 1
    clause = sought_by(question).clause.casefold()
    has_verb = classes_in(tokens) & classes("copula auxiliary having") or clause.startswith(("do ", "does ", "did "))
    if denials > 1 or (alone and not (has_verb and 0 < at == len(sought))):
        return None
    return denials == 0


def says_words(answer: str, gold: str, question: str | None) -> bool:
    """Return whether a sentence says the words of the gold: `it is a triangle`, `Ann is taller`."""
    text, known = _IS.sub(" is", plain(answer)), plain(gold)
    if re.search(r"[^\w\s.'-]", text):
        return False
    words, named = ([t for t in tokens_of(words) if not t.classes & classes("article")] for words in (text, known))
    texts, wanted = [t.text for t in words], [t.text for t in named]
    if texts == wanted:
        # `a água`: the article is all that differs.
        return all(map(_LETTERS_ONLY.fullmatch, (text, known))) and (
            text.casefold() != known.casefold() or without_struck(answer) != answer
        )
    starts = [k for k in range(len(texts) - len(wanted) + 1) if texts[k : k + len(wanted)] == wanted]
    if not wanted or len(starts) != 1 or re.search(r"\d", text):
        return False
    before, behind = words[: starts[0]], words[starts[0] + len(wanted) :]
    rivals = _rivals(question)
    if any(token.text in rivals for token in before):
        return False
    leads = not before or [t.text for t in before] == ["to"] or before[-1].classes & (_COPULA | classes("in"))
    return bool(leads) and are_neutral(text, before, question) and _follows(text, before, behind, question, rivals)


def _follows(
    text: str, before: Sequence[Token], behind: Sequence[Token], question: str | None, rivals: frozenset[str]
) -> bool:
    """Return whether words behind those of the gold only say of them what the question asks."""
    if not behind or (not before and behind[0].classes & _COPULA and are_neutral(text, behind, question)):
        return True
    if not question or classes_in(behind) & HEDGING or classes_in(before) & _COPULA:
        return False
    compares = not before and (behind[0].classes & classes("copula having") or is_asked(behind[0], question))
    # `more than` is one word, and asked where `more` is.
    than = next(
        (
            k
            for k, token in enumerate(behind)
            if token.classes & classes("than")
            or (" than" in token.text and token.text.split()[0] in words_asked(question))
        ),
        len(behind),
    )
    if any(token.text in rivals for token in behind[:than]) or (than < len(behind) and not compares):
        return False
    return all(
        k == than or is_asked(token, question, bool(compares)) or (compares and token.classes & _GRAMMATICAL)
        for k, token in enumerate(behind)
    )


def _rivals(question: str | None) -> frozenset[str]:
    """Return the words of a question among which it lets one choose: `Anna or Ben`."""
    tokens = tokens_of(question or "")
    ors = [k for k, token in enumerate(tokens) if token.classes & classes("alternative")]
    near = [token.text for k in ors for token in tokens[max(0, k - 2) : k + 3] if not token.classes & _GRAMMATICAL]
    return frozenset(word for word in near if near.count(word) == 1)


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


_COUNTED = re.compile(
    r"(?P<before>\d{1,9}|[^\W\d_]+) (?P<noun>[^\W\d_]+)|(?P<label>[^\W\d_]+) ?[:=] ?(?P<behind>\d{1,9}|[^\W\d_]+)"
)
_AND = re.compile(r",? and |, ?| & |；|; ?")


def listed(text: str) -> list[tuple[str, Fraction | None]] | None:
    """Return the words of `red and blue`, and how many of each of `dogs: 3, cats: 2`; None for other texts."""
    items: list[tuple[str, Fraction | None]] = []
    for item in filter(None, map(str.strip, _AND.split(plain(text).casefold()))):
        head, gap, rest = item.partition(" ")
        item = rest if classes_of(head) & classes("article") and rest else head + gap + rest
        counted = _COUNTED.fullmatch(item)
        number = counted and (counted["behind"] or counted["before"])
        value = number and (Fraction(number) if number.isdigit() else number_in_words(number))
        letters = item.replace(" ", "").replace("-", "")
        if counted and value:
            items.append((stem(counted["noun"] or counted["label"]), value))
        elif not letters.isalpha() or len(item) < 2 or item.count(" ") > 2 or classes_in(tokens_of(item)) & CHANGING:
            return None
        else:
            items.append((item, None))
    return items if len(items) > 1 else None


_VERSION = re.compile(r"(?P<lead>(?:[^\W\d]+ )*)v?(?P<number>\d+(?:\.\d+)+)", re.IGNORECASE)


def same_version(answer: str, gold: str, question: str | None) -> bool | None:
    """Return whether both are one version, which 2.1 and 2.10 are not; None where the question asks for none."""
    if "." not in gold or not asks_for("version", question):
        return None
    given, known = _VERSION.fullmatch(plain(answer)), _VERSION.fullmatch(plain(gold))
    if given is None or known is None:
        return None
    return given["number"] == known["number"] and are_neutral(given["lead"], tokens_of(given["lead"]), question)
