r"""What a question asks for beside a value: an order, a ratio one way round, a size, or a form.

order   = words of order in any of some thirty languages, or several quantities that are named one by one
ratio   = `ratio of X to Y`: what names Y before X answers another question
size    = rows by columns
base, scale, count, kind, box = what the question names and an answer may say or omit: see `as_asked`
form    = factored, expanded, in lowest terms, exact, a fraction, ... where the gold is and the answer, though equal, is
          not
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache, partial
from itertools import pairwise
from math import gcd, isqrt
from pathlib import Path

from mmcorl.answers.grammar import split_top_level
from mmcorl.answers.latex import clean
from mmcorl.answers.names import QUANTITY
from mmcorl.answers.notation import closing, spoken_time
from mmcorl.answers.numerals import numeral, with_counter
from mmcorl.answers.parse import ParsedAnswer, parse
from mmcorl.answers.spellings import spellings
from mmcorl.answers.words import number_in_words

_ROWS = [row.split("\t") for row in Path(__file__).with_name("asked.tsv").read_text(encoding="utf-8").splitlines()[1:]]
_ASKED = {
    what: re.compile("|".join(pattern for name, pattern, _ in _ROWS if name == what), re.IGNORECASE)
    for what in dict.fromkeys(row[0] for row in _ROWS)
}
_FORMS = [(re.compile(words, re.IGNORECASE), re.compile(form)) for what, words, form in _ROWS if what == "form"]
"""What a question says of how a value is written, and what a value so written looks like."""
# `What are the mean and the median?`, `Find a and b.`, `the coefficients of x^2 and x`.
_ITEM = (
    rf"(?:(?:the |its |their |an? )?(?:(?i:{QUANTITY})|constants?|intercepts?|y-intercept|x-intercept|numerator"
    rf"|denominator|variance)"
    r"(?: of (?:the )?\w+)?|\$?[A-Za-z](?:\^\{?\d\}?)?\$?(?![\w^_]))"
)
_SEVERAL = re.compile(
    r"\b(?i:find|determine|compute|calculate|give|state|solve for|values? (?:of|for)|coefficients? of|what (?:is|are)) "
    rf"{_ITEM}(?:, {_ITEM})*,? and {_ITEM}"
)
_RATIO_OF = re.compile(
    r"\b(?:ratio|proportion) of (?:the )?([^?.,;]{1,60}?) to (?:the )?([^?.,;]{1,60}?)(?=[?.,;]| in | is | if |\Z)"
    r"|(?-i:\b([A-Z]{1,3})\$? ?: ?\$?([A-Z]{1,3})\b)",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d_]+")


def asks_for_order(question: str | None) -> bool:
    return question is not None and _asks_for_order(question[:8192])


@lru_cache(maxsize=1 << 10)
def _asks_for_order(question: str) -> bool:
    question = _ASKED["any order"].sub("", question)
    return bool(_ASKED["order"].search(question) or _SEVERAL.search(question))


def asks_for(what: str, question: str | None) -> bool:
    """Return whether a question asks for what a name of `asked.tsv` says."""
    return question is not None and _ASKED[what].search(question) is not None


asks_for_ratio, asks_for_percent, asks_for_size = (partial(asks_for, what) for what in ("ratio", "percent", "size"))


def is_other_way_round(words: str, question: str | None) -> bool:
    """Return whether words (`girls to boys`, `G:B`) name the two of a ratio in the other order than the question.

    What `10 to 10` says of a time is no ratio either.
    """
    if spoken_time(words) is not None and asks_for("time", question):
        return True
    match = _RATIO_OF.search(question or "")
    if match is None:
        return False
    first, second = (_WORD.findall(name)[-1:] for name in match.groups() if name)
    named = _WORD.findall(words)
    positions = []
    for head in (first, second):
        word = head[0].casefold() if head else ""
        # `G:B` by initials.
        known = {word, word[:1].upper()}
        at = next((k for k, name in enumerate(named) if (name if len(name) == 1 else name.casefold()) in known), None)
        if at is None:
            return False
        positions.append(at)
    return positions[1] < positions[0]


# --- what a question names ----------------------------------------------------------------------------------

_BASES = {"binary": 2, "ternary": 3, "octal": 8, "decimal": 10, "hexadecimal": 16, "hex": 16}
_BASE_ASKED = re.compile(
    rf"\b(?:to|in|into|as)(?: (?:an?|its?|the))? (?:({'|'.join(_BASES)})\b|base[ -]?(\d{{1,2}})\b)"
    rf"|\b(?:({'|'.join(_BASES)})|base[ -](\d{{1,2}})) (?:representation|form|equivalent|notation|expansion"
    r"|value|numbers?|numerals?|digits?|code)",
    re.IGNORECASE,
)
_IN_BASE = re.compile(r"([0-9A-F]+)_\{?(\d{1,2})\}?")
_SCALE_ASKED = re.compile(
    r"\b(?:how many|in|of) \W?(thousand|million|billion|trillion)s?\b(?! (?:years|and))", re.IGNORECASE
)
_NONE = frozenset(word for _, words in spellings("none") for word in words)
_KINDS = {
    "triangle": "triangle", "angle": "angle", "circle": "odot", "arc": "overset{\\frown}", "ray": "vec",
    "vector": "vec", "line": "overleftrightarrow",
}  # fmt: skip
_SEGMENTS = (
    "segment|side|line|chord|radius|diameter|hypotenuse|leg|base|altitude|median|edge|diagonal|bisector|height|tangent"
)
_SEGMENT = re.compile(r"\\overline\{([A-Z]{2})\}")
_LEFT_SIDE = re.compile(r"(?:y|[fgh]\(x\))=")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_VERSION_WORDS = re.compile(r"(?:v(?:er(?:sion)?)?\.?|section|chapter|release) ?(?=\d)|版本", re.IGNORECASE)
_IDENTIFIER = re.compile(r"[+(]?\d[\d() ./-]{5,30}\d")
_ITEM_COUNTED = re.compile(
    r"(?:(\d{1,9}|[a-z-]{2,20}) ([a-z][a-z ]{1,30})|([a-z][a-z ]{1,30}?) ?[:=] ?(\d{1,9}))", re.IGNORECASE
)
_BETWEEN_ITEMS = re.compile(r",? and |[,;] ?")
_PLAIN = re.compile(r"-?[\d.]+|[A-Z]")
_SIGNS = re.compile(r"(?<![<>])([<>])(?![=<>])")


def as_asked(answer: str, gold: str, question: str | None) -> str | None:
    """Return an answer as the gold would be written, where they differ in what the question names; else None.

    base  = `0b1011` and `1011_2` where 1011 in binary is asked for, and the other way round
    scale = `54 million` where `how many million` are asked for
    count = `none` for 0
    kind  = `\\triangle ABC` for ABC where a triangle is asked for, a segment with a bar or without
    order = `1 < 2 < 3` for a list in the order asked for
    box   = two corners for four numbers
    counts = `3 dogs and 2 cats` for `cats: 2, dogs: 3`; equation = `f(x)=` for `y=`; time = `9:50` for `10 to 10`
    version = `v2.1` for 2.1; identifier = `(020) 7946-0018` for `020 7946 0018`
    """
    if question is None or (_PLAIN.fullmatch(answer) and _PLAIN.fullmatch(gold)):
        return None
    spelled, known = clean(answer), clean(gold)
    if (bases := list(_BASE_ASKED.finditer(question))) and ("_" in spelled) != ("_" in known):
        named = next(group for group in bases[-1].groups() if group)
        base = _BASES.get(named.casefold(), named)
        based, bare = (spelled, known) if "_" in spelled else (known, spelled)
        match = _IN_BASE.fullmatch(based)
        return gold if match is not None and match.groups() == (bare.upper(), str(base)) else None
    if (scale := _SCALE_ASKED.search(question)) is not None and scale.group(1).casefold() not in known.casefold():
        value, word, things = spelled.partition(f" {scale.group(1).casefold()}")
        return _number_of(value, things, question) if word and value[-1:].isdigit() else None
    if asks_for("count", question):
        if spelled.casefold() in _NONE or _denies_all(spelled, question):
            return "0"
        if (counts := _counts(spelled)) is not None:
            return gold if counts == _counts(known) else None
        return _number_counted(spelled, question)
    if asks_for("time", question) and (time := spoken_time(answer.strip(" ."))) is not None:
        return time
    if asks_for("version", question) and (version := _VERSION.findall(spelled)) == _VERSION.findall(known):
        return gold if version and _VERSION_WORDS.sub("", spelled) == _VERSION_WORDS.sub("", known) else None
    if asks_for("identifier", question) and all(map(_IDENTIFIER.fullmatch, (answer.strip(" ."), gold))):
        return gold if re.sub(r"\D", "", answer) == re.sub(r"\D", "", gold) else None
    left, right = (_LEFT_SIDE.match(text) for text in (spelled, known))
    if left and right and "y=" in (left[0], right[0]) and asks_for("equation", question):
        return right[0] + spelled[left.end() :]
    if asks_for("corners", question):
        corners, sides = _coordinates(parse(answer)), _coordinates(parse(gold))
        return gold if len(corners) == 4 and corners == sides else None
    if asks_for_order(question) and len(set(_SIGNS.findall(spelled))) == 1 and parse(gold).brackets != "()":
        return _in_turn(_SIGNS.split(spelled)) if not _SIGNS.search(known) else None
    names = [_without_kind(text, question) for text in (spelled, known)]
    return gold if names[0] == names[1] and names != [spelled, known] else None


def _number_of(value: str, things: str, question: str) -> str:
    """Return a number without the things or the unit that the question names: 54 for `54 million dollars`."""
    unit = parse(f"1 {things}").unit
    named = any(unit == parse(f"1 {word}").unit for word in _WORD.findall(question)[:64]) if unit else False
    return value if named or things.removeprefix("s").strip() in question else value + things


def _in_turn(sides: list[str]) -> str | None:
    """Return `1, 2, 3` for `1 < 2 < 3`; None where numbers are in another order."""
    numbers = [number.value if (number := parse(side).number) else None for side in sides[::2]]
    pairs = pairwise(numbers if sides[1] == "<" else numbers[::-1])
    return ", ".join(sides[::2]) if all(x is None or y is None or x < y for x, y in pairs) else None


def _counts(text: str) -> list[tuple[str, Fraction]] | None:
    """Return how many there are of each of several things; None for other text."""
    items = [_ITEM_COUNTED.fullmatch(item.strip()) for item in _BETWEEN_ITEMS.split(text)]
    counts = []
    for item in items:
        number = (item[1] or item[4]) if item else ""
        value = Fraction(number) if number.isdecimal() else number_in_words(number)
        if item is None or value is None:
            return None
        thing = item[2] or item[3]
        counts.append((parse(f"1 {thing}").unit or thing.casefold(), value))
    return sorted(counts) if len(counts) > 1 else None


def _number_counted(answer: str, question: str) -> str | None:
    """Return 25 for `vingt-cinq élèves` and `二十五人`, where the question counts these by the same word."""
    if "how many" not in question.casefold() and (number := numeral(answer, alone=False)) is not None:
        return str(number)
    number, things = with_counter(answer) or (None, "")
    things = re.escape(things.lstrip("个個"))
    return str(number) if number is not None and re.search(rf"(?<![a-z]){things}(?![a-z])", question, re.I) else None


def _denies_all(answer: str, question: str) -> bool:
    """Return whether an answer is `no right angles`, and these are what the question counts."""
    denial, _, things = answer.casefold().partition(" ")
    return denial == "no" and things != "" and things in question.casefold()


def _coordinates(answer: ParsedAnswer) -> list[Fraction | None]:
    if answer.kind not in ("list", "matrix"):
        return [answer.number.value if answer.number else None]
    return [number for part in answer.parts for number in _coordinates(part)]


def _without_kind(text: str, question: str) -> str:
    """Return ABC for `\\triangle ABC` where the question speaks of triangles, and AB for a segment AB with its bar."""
    for kind, command in _KINDS.items():
        if text.startswith(f"\\{command}") and re.search(rf"\b{kind}s?\b", question, re.IGNORECASE):
            return text.removeprefix(f"\\{command}").strip("{} ")
    segment = _SEGMENT.fullmatch(text)
    return segment.group(1) if segment and re.search(rf"\b(?:{_SEGMENTS})", question, re.IGNORECASE) else text


# --- forms --------------------------------------------------------------------------------------------------

_DECIMAL = re.compile(r"-?\d*\.\d+")
_POWER = re.compile(r" ?(\d{1,6})(?:\^\{?\d+\}?)? ?")
_RATIO_OF_NUMBERS = re.compile(r"\d{1,12}(?:\s?:\s?\d{1,12})+")
_FRACTION = re.compile(r"-?(?:\\frac\{(\d{1,12})\}\{(\d{1,12})\}|(\d{1,12})/(\d{1,12}))")
_ROOT = re.compile(r"\\sqrt\{(\d{1,9})\}")
_SUM = re.compile(r"\(([^()]*[A-Za-z][^()]*)\)")
_EXPONENT = re.compile(r"\^\{?(\d{1,3})\}?")
_LEADING = re.compile(r"\d+")


def is_in_form(answer: str, gold: str, question: str | None) -> bool:
    """Return whether an equal answer has the form that the question asks for, as far as the gold has it."""
    if question is None:
        return True
    answer, gold = clean(answer), clean(gold)
    if "(" in gold and asks_for("factors", question):
        return _is_factored(answer.rpartition("=")[2], gold.rpartition("=")[2], asks_for("complete", question))
    if asks_for("version", question) and (version := _VERSION.findall(gold)):
        return version == _VERSION.findall(answer)
    if asks_for("sums", question) and "(" not in gold:
        return not any(_is_sum(match.group(1)) for match in _SUM.finditer(answer))
    if asks_for("lowest terms", question) and _is_reduced(gold) and not _is_reduced(answer):
        return False
    if asks_for("exact", question) and _DECIMAL.fullmatch(answer):
        left, right = parse(answer).number, parse(gold).number
        return left is not None and right is not None and left.value == right.value
    if asks_for("primes", question) and _is_of_primes(gold):
        return _is_of_primes(answer)
    return all(
        form.search(answer) is not None
        for words, form in _FORMS
        if words.search(question) and form.search(gold) is not None
    )


def _is_of_primes(product: str) -> bool:
    factors = [_POWER.fullmatch(factor) for factor in re.split(r"\\cdot|\\times", product)]
    primes = [int(factor.group(1)) for factor in factors if factor]
    return len(primes) == len(factors) and all(
        prime > 1 and all(prime % divisor for divisor in range(2, isqrt(prime) + 1)) for prime in primes
    )


def _is_sum(text: str) -> bool:
    return len(split_top_level(text.strip().lstrip("-"), frozenset("+-"))) > 1


def _is_factored(answer: str, gold: str, completely: bool) -> bool:
    expected, given = _factors(gold), _factors(answer)
    if expected is None or given is None or expected < 2:
        return True
    return given >= expected and not (completely and _has_content(answer) and not _has_content(gold))


def _factors(text: str) -> int | None:
    """Return how many factors with unknowns a product has, each as often as it is multiplied; None: cannot tell."""
    text = text.strip()
    if _is_sum(text):
        return 1
    count, at = 0, 0
    while at < len(text):
        if text[at] == "(":
            end = closing(text, at) if closing(text, at) > 0 else len(text) - 1
            inner = _factors(text[at + 1 : end]) if re.search("[A-Za-z]", text[at:end]) else 0
            if inner is None:
                return None
            at = end + 1
        elif text.startswith((r"\frac", r"\sqrt"), at):
            return None
        elif text.startswith(r"\cdot", at):
            at += len(r"\cdot")
            continue
        else:
            inner = int(text[at].isalpha())
            at += 1
        power = _EXPONENT.match(text, at)
        count += inner * (int(power.group(1)) if power else 1)
        at = power.end() if power else at
    return count


def _has_content(product: str) -> bool:
    """Return whether a factor such as 2x-4 still has a whole number in all of its terms."""
    for match in _SUM.finditer(product):
        terms = [term.strip() for term in split_top_level(match.group(1), frozenset("+-")) if term.strip()]
        leading = [_LEADING.match(term) for term in terms]
        if gcd(*(int(number.group()) if number else 1 for number in leading)) > 1:
            return True
    return False


def _is_reduced(text: str) -> bool:
    """Return whether a fraction or ratio of whole numbers is in lowest terms, and no root has a square in it."""
    if (fraction := _FRACTION.fullmatch(text)) is not None:
        above, below = (int(number) for number in fraction.groups() if number is not None)
        if gcd(above, below) > 1 or below == 1:
            return False
    if _RATIO_OF_NUMBERS.fullmatch(text) and gcd(*map(int, text.split(":"))) > 1:
        return False
    return not any(_has_square(int(root.group(1))) for root in _ROOT.finditer(text))


def _has_square(number: int) -> bool:
    return any(number % (root * root) == 0 for root in range(2, isqrt(number) + 1))
