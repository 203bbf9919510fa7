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
from functools import lru_cache
from itertools import pairwise
from math import gcd, isqrt

from mmcorl.answers.grammar import split_top_level
from mmcorl.answers.latex import clean
from mmcorl.answers.names import QUANTITY
from mmcorl.answers.parse import ParsedAnswer, parse

_LEAST, _GREATEST = "(?:least|smallest|lowest|shortest|lightest)", "(?:greatest|largest|highest|longest|heaviest)"
_COUNT = r"(?:\d{1,2}|two|three|four|five|six|seven|eight|nine|ten|few|several)"
_TERMS = r"(?:terms?|numbers?|values?|elements?|members?|digits?|coefficients?|iterates?)"
_ORDERED = re.compile(
    r"\b(?:in (?:the )?(?:\w+ ){0,2}order|(?:order|arrange|sort|rank|list) (?:them|these|those|the \w+ (?:from|by|so))"
    r"|ascending|descending|(?:in|de)creasing order|respective(?:ly)?|ordered (?:pair|triple|tuple|list)|coordinates"
    rf"|{_LEAST} (?:\w+ )?to (?:the )?{_GREATEST}|{_GREATEST} (?:\w+ )?to (?:the )?{_LEAST}"
    rf"|(?:first|next|last|initial) {_COUNT} (?:\w+ ){{0,2}}{_TERMS}"
    r"|(?:ersten|nächsten) \w+ (?:glieder|zahlen|terme)|(?:premiers \w+|\w+ premiers) termes"
    r"|(?:primeros \w+|\w+ primeros) términos|primi \w+ termini|primeiros \w+ termos"
    r"|(?:первые|первых) \w+ член\w*|pierwsze \w+ wyrazy|ilk \w+ terim\w*)\b|前.{1,2}项|最初の.{1,3}項|처음.{1,4}항",
    re.IGNORECASE,
)
_ANY_ORDER = re.compile(
    r"\b(?:any|no particular|whatever|irrespective of|regardless of)(?: the)? order\b|\bin order (?:to|for|that)\b"
    r"|\b(?:in )?beliebiger reihenfolge\b|\bn'importe quel ordre\b|\bcualquier orden\b|任意顺序",
    re.IGNORECASE,
)
_ORDER_TEXT = (
    "jeweils|reihenfolge|der reihe nach|aufsteigend|absteigend|der größe nach|ordne|respectivement|"
    "respectivamente|dans l'ordre|cet ordre|ordre croissant|ordre décroissant|du plus petit|du plus grand|"
    "rangez|range les|ese orden|este orden|orden ascendente|orden descendente|de menor a mayor|"
    "de mayor a menor|rispettivamente|in ordine|ordine crescente|dal più|questo ordine|ordem crescente|"
    "ordem decrescente|nessa ordem|nesta ordem|do menor|do maior|volgorde|respectievelijk|van klein naar|"
    "van groot naar|ordning|respektive|rækkefølge|rekkefølge|henholdsvis|järjesty|kolejno|w kolejności|"
    "rosnąco|malejąco|odpowiednio|pořadí|postupně|vzestupně|sestupně|sorrend|növekvő|csökkenő|"
    "соответственно|по порядку|по возрастанию|по убыванию|в порядке|от меньшего|от большего|відповідно|"
    "за зростанням|sırasıyla|sıralay|küçükten|büyükten|αντίστοιχα|με τη σειρά|thứ tự|lần lượt|"
    "berturut-turut|urutan|urutkan|בהתאמה|בסדר|على الترتيب|بالترتيب|ترتيب تصاعدي|क्रमशः|क्रम में|ตามลำดับ|"
    "เรียง|依次|依序|分别|按顺序|从小到大|从大到小|由小到大|由大到小|升序|降序|それぞれ|順に|順番|"
    "小さい順|大きい順|각각|순서|것부터|오름차순|내림차순"
)
_ORDER_WORDS = _ORDER_TEXT.split("|")
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
# `x- and y-intercept`, `how many boys and how many girls`, `first the mean, then the mode`, `left and right`.
_PAIRED = re.compile(
    r"\b(?:[xyz]- and (?:the )?[xyz]-\w+|how many \w+ and (?:how many )?\w+"
    r"|(?:find|state|give|list|write|name)\b[^.?]{1,80}\bthen\b|first\b[^.?]{0,40} and [^.?]{0,20}\bsecond"
    r"|left and (?:the )?right|home and (?:the )?away)\b",
    re.IGNORECASE,
)
_RATIO = re.compile(r"\b(?:ratios?|odds|proportions?)\b|比", re.IGNORECASE)
_RATIO_OF = re.compile(
    r"\b(?:ratio|proportion) of (?:the )?([^?.,;]{1,60}?) to (?:the )?([^?.,;]{1,60}?)(?=[?.,;]| in | is | if |\Z)",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\b(?:what|as an?|in|which) percent(?:age)?\b", re.IGNORECASE)
_SIZE = re.compile(r"\b(?:sizes?|dimensions?|matrix|matrices|rows?|columns?)\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")


def asks_for_order(question: str | None) -> bool:
    return question is not None and _asks_for_order(question[:8192])


@lru_cache(maxsize=1 << 10)
def _asks_for_order(question: str) -> bool:
    question = _ANY_ORDER.sub("", question)
    folded = question.casefold()
    if _ORDERED.search(question) or _SEVERAL.search(question) or _PAIRED.search(question):
        return True
    return any(words in folded for words in _ORDER_WORDS)


def asks_for_ratio(question: str | None) -> bool:
    return question is not None and _RATIO.search(question) is not None


def asks_for_percent(question: str | None) -> bool:
    return question is not None and _PERCENT.search(question) is not None


def asks_for_size(question: str | None) -> bool:
    return question is not None and _SIZE.search(question) is not None


def is_other_way_round(words: str, question: str | None) -> bool:
    """Return whether words (`girls to boys`, `G:B`) name the two of a ratio in the other order than the question."""
    match = _RATIO_OF.search(question or "")
    if match is None:
        return False
    first, second = (_WORD.findall(name)[-1:] for name in match.groups())
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
    rf"|\b(?:({'|'.join(_BASES)})|base[ -](\d{{1,2}})) (?:representation|form|equivalent|notation|expansion)",
    re.IGNORECASE,
)
_IN_BASE = re.compile(r"([0-9A-F]+)_\{?(\d{1,2})\}?")
_SCALE_ASKED = re.compile(
    r"\b(?:how many|in|of) \W?(thousand|million|billion|trillion)s?\b(?! (?:years|and))", re.IGNORECASE
)
_COUNT_ASKED = re.compile(
    r"\bhow many\b|\bwie ?viele\b|\bcombien\b|\bcuánt[oa]s\b|\bquant[aeio]s?\b|\bhoeveel\b|сколько|几[个条]|多少个"
    r"|いくつ|몇",
    re.IGNORECASE,
)
_NONE_TEXT = (
    "none nothing nil keine keins aucun aucune ninguno ninguna nessuno nessuna nenhum nenhuma geen нет 没有 无 "
    "なし 없음"
)
_NONE = frozenset(_NONE_TEXT.split())
_KINDS = {
    "triangle": "triangle", "angle": "angle", "circle": "odot", "arc": "overset{\\frown}", "ray": "vec",
    "vector": "vec", "line": "overleftrightarrow",
}  # fmt: skip
_SEGMENTS = (
    "segment|side|line|chord|radius|diameter|hypotenuse|leg|base|altitude|median|edge|diagonal|bisector|height|tangent"
)
_SEGMENT = re.compile(r"\\overline\{([A-Z]{2})\}")
_BOX_ASKED = re.compile(r"\bbounding box|\bbbox|\bcorners?\b|\b[xX]_?1\b.{1,24}\b[yY]_?2\b", re.IGNORECASE)
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
    if _COUNT_ASKED.search(question) and (spelled.casefold() in _NONE or _denies_all(spelled, question)):
        return "0"
    if _BOX_ASKED.search(question):
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

_FACTORED = re.compile(
    r"\bfactori[sz]e|\bfactor(?= |:)(?! of| by| is| pairs?\b)(?: (?:completely|fully|out|the|each|this|it)\b"
    r"|\W{0,3}[$\\(\d]|\W{0,3}[a-z]\b)"
    r"|\bfactored form|\bfactoris|\bfactorice|\bfactoriza|\bzerleg|\bfaktorisier|\bscompon|\bfatore"
    r"|разлож\w+ на множители|因式分解|因数分解"
    r"|인수분해",
    re.IGNORECASE,
)
_COMPLETELY = re.compile(
    r"\b(?:completely|fully)\b|vollständig|complètement|completamente|полностью|完全", re.IGNORECASE
)
_EXPANDED = re.compile(
    r"\bexpand\b|\bmultiply out|\bausmultipl|\bdévelopp|\bdesarroll|\bsvilupp|\bexpand[ai]\b|раскр\w+ скобки"
    r"|展开|展開|전개",
    re.IGNORECASE,
)
_REDUCED = re.compile(
    r"\b(?:lowest|simplest) (?:terms|form|radical form|whole)|\bsimplif|\breduced? |\bkürze|\bvereinfach|\birréductible"
    r"|\birreducible|\bridotta|\bsimplifi|сократи|упрост|最简|化简|約分|簡単に|기약|간단히",
    re.IGNORECASE,
)
_EXACT = re.compile(r"\bexact(?:ly)?\b|\bin terms of \W{0,3}pi\b", re.IGNORECASE)
_DECIMAL = re.compile(r"-?\d*\.\d+")
_PRIMES = re.compile(r"\bprime factori[sz]ation|\bproduct of (?:\w+ )?primes?\b|\bprime factors\b", re.IGNORECASE)
_POWER = re.compile(r" ?(\d{1,6})(?:\^\{?\d+\}?)? ?")
_WRITTEN = tuple(
    (re.compile(words, re.IGNORECASE), re.compile(form))
    for words, form in (
        (r"\bscientific notation|\bstandard form", r"\A-?[1-9](?:\.\d+)?(?: ?\\(?:times|cdot) ?10\^|[eE]-?\d)"),
        (r"\bmixed (?:number|fraction)", r"\A-?\d+ ?(?:\\frac| \d+/\d)"),
        (r"\bimproper fraction", r"\A-?(?:\\frac\{-?\d+\}\{\d+\}|\d+/\d+)\Z"),
        (r"\bas an? (?:\w+ )?fraction\b", r"\\frac|/"),
        (r"\bas a (?:\w+ )?decimal\b", r"\A[^/\\%]*\Z"),
        (r"\bslope[- ]intercept", r"\A(?:y|[fg]\(x\))=[^y=]*\Z"),
        (r"\bpoint[- ]slope", r"\A[a-z][-+][^=(]*=[^=]*\(|\A[a-z]=[^=]*\([^()]*\)[-+][\d/]+\Z"),
        (r"\bvertex form", r"\A(?:[a-z]|[fg]\(x\))=[^=]*\)\^2[^=()]*\Z"),
        (r"\b(?:standard|general) form", r"\A-?\d*[a-z][^=()]*[-+]\d*[a-z]?[^=()]*=-?\d+\Z"),
        (r"\bstandard form", r"\A(?:[a-z]=|[fg]\(x\)=)?-?\d*[a-z]\^\d[^=()]*(?:=0)?\Z"),
        (r"\binterval notation", r"\A[(\[].*[)\]]\Z"),
        (r"\bset[- ]builder", r"\\mid|\||:"),
        (r"\b(?:as an inequality|inequality notation)", r"[<>]|\\[lg]e(?![a-z])"),
        (r"\b(?:exponential|index) (?:form|notation)|\bas a (?:single )?power\b", r"\^"),
        (r"\b(?:polar|trigonometric) form", r"\\cos|e\^|\\angle"),
        (r"\brectangular form|\ba ?\+ ?bi\b", r"\A(?!.*(?:e\^|\\cos))"),
        (r"\blogarithmic form", r"\\l(?:og|n)"),
        (r"\broman numerals?", r"\A[IVXLCDM]+\Z"),
        (r"\bas a (?:\w+ )?ratio\b", r":"),
    )
)
"""What a question says of how a value is written, and what a value so written looks like."""
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
    if "(" in gold and _FACTORED.search(question):
        return _is_factored(answer.rpartition("=")[2], gold.rpartition("=")[2], bool(_COMPLETELY.search(question)))
    if _EXPANDED.search(question) and "(" not in gold:
        return not any(_is_sum(match.group(1)) for match in _SUM.finditer(answer))
    if _REDUCED.search(question) and _is_reduced(gold) and not _is_reduced(answer):
        return False
    if _EXACT.search(question) and _DECIMAL.fullmatch(answer):
        left, right = parse(answer).number, parse(gold).number
        return left is not None and right is not None and left.value == right.value
    if _PRIMES.search(question) and _is_of_primes(gold):
        return _is_of_primes(answer)
    return all(
        form.search(answer) is not None
        for words, form in _WRITTEN
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
            end, depth = at, 0
            for end in range(at, len(text)):
                depth += (text[end] == "(") - (text[end] == ")")
                if depth == 0:
                    break
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
