"""The rule stage: what answer a response commits to, and whether rules alone credit it.

Rules never guess. What they cannot show to be right is left to a judge; a response without an answer is graded by
nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mmcorl.answers import Equivalence, extract
from mmcorl.answers.assertion import CHANGING, is_asserted, sentence_before
from mmcorl.answers.boxes import BOX
from mmcorl.answers.closed_classes import classes_of
from mmcorl.answers.extract import extract_prose
from mmcorl.answers.grammar import split_top_level
from mmcorl.answers.intervals import interval
from mmcorl.answers.language import with_decimal_points, without_braced_commas, writes_decimal_commas
from mmcorl.answers.latex import clean
from mmcorl.answers.numbers import constant_value
from mmcorl.answers.parse import ParsedAnswer, parse
from mmcorl.answers.relation_base import LONGEST
from mmcorl.answers.retraction import is_retracted, is_withdrawn
from mmcorl.answers.thinking import CLOSES, OPENS
from mmcorl.answers.units import UNIT_WORDS
from mmcorl.grading.finish import finish_of
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.items import McqPolicy
from mmcorl.grading.option_words import option_said
from mmcorl.grading.options import LETTERS, parse_options, plain_options
from mmcorl.grading.quantity import asks_for, counts_others, is_swapped, names_another
from mmcorl.grading.question import (
    as_asked,
    asks_for_order,
    asks_for_percent,
    asks_for_ratio,
    asks_for_size,
    is_in_form,
)
from mmcorl.grading.reference import Reference
from mmcorl.grading.statements import approximation, around_the_answer, contradicts, last_box, mentions_another
from mmcorl.grading.wording import (
    has_words,
    listed,
    plain,
    same_version,
    says_words,
    says_yes_or_no,
    solutions_said,
    value_said,
)

_CACHED_QUESTION = 8192
_NUMBERS = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_LETTER = re.compile(r"[A-Z]")
_NOTHING = re.compile(r"-?0+(?:\.0+)?\s*[A-Za-z]\w*")
_NEXT_LETTER = re.compile(r"(?:[;,]|,? and) ?(?=[A-H][.):] )")
_BLANK = re.compile(r"□|\\square|_{2,}")
_EITHER = re.compile(r"\bor\b|或")
_POWER_OF_TEN = re.compile(r"\\?(?:times|cdot)?\s*10\s*\^\s*\{?\s*(-?\d{1,3})\s*\}?")

Reading = Literal["commitment", "last_number", "whole", "verbatim", "first_place", "prose"]
"""What the answer of a response is; see `mmcorl.grading.items.Item`, and for prose `mmcorl.answers.prose`."""
OUT_OF_TIME = "not shown to be equal in time"
"""The reason of a response whose comparison ran out of processor time; summaries count it."""
NOT_EQUAL = "not shown to be equal"
TOO_LONG = f"over {LONGEST:,} characters, so not the same as any other text"


@dataclass(frozen=True)
class RuleResult:
    """The outcome of the rule stage for one response."""

    answer: str | None
    """The answer the response commits to, if any."""
    committed: bool
    cut_off: bool
    """The token limit ended it before an answer; never true of a committed response."""
    rule: bool
    """Whether the rules credit it; only ever true of a committed response."""
    reason: str
    """A few words for people."""
    score: float | None = None
    """How good the answer is, 0.0 to 1.0, where a relation or a metric says so; None by rules of mathematics."""
    unclosed: bool = False
    """It ended by itself in an answer tag, box or think block that never closes; never true of a committed response."""


CUT_OFF, UNCLOSED = "cut off before an answer", "ended in a tag, box or think block that never closes"


def _has_blank(question: str | None) -> bool:
    return asks_for("blank", question) or (question is not None and _BLANK.search(question) is not None)


def without_answer(source: str, score: float | None = None) -> RuleResult:
    """Return the result of a response in which no answer was found, for the reason that its extraction names."""
    reason = {"cut_off": CUT_OFF, "unclosed": UNCLOSED}.get(source, "no answer in a recognised format")
    return RuleResult(None, False, source == "cut_off", False, reason, score, source == "unclosed")


def apply_rules(
    response: str,
    reference: Reference,
    relation: Equivalence,
    mcq_policy: McqPolicy,
    finish_reason: object = "unknown",
    reading: Reading = "commitment",
    *,
    thinking: bool = False,
) -> RuleResult:
    """Return the result for one response; never raises, whatever its text.

    `finish_reason`: why it ended, see `mmcorl.grading.finish`; `reading`: what its answer is; `thinking`: the prompt
    opened a thought, which the response continues.
    """
    if reading == "last_number" and (number := last_number(response)) is not None:
        credited, reason = _compare(number, reference, relation, mcq_policy)
        return RuleResult(number, True, False, credited, reason)
    cut_off = finish_of(finish_reason) == "length"
    if reading == "prose" and not cut_off:
        extraction = extract_prose(response, thinking=thinking, choices=choices_of(reference))
    else:
        extraction = extract(
            "" if reading == "last_number" else response,
            "length" if cut_off else "stop",
            "whole" if reading in ("whole", "verbatim") else "commit",
            thinking=thinking,
        )
    if extraction.answer is None:
        return without_answer(extraction.source)
    if thinking and CLOSES.search(response) is None:
        # Training takes the answer tag at the end of a thought that never closes; scores do not.
        return without_answer("cut_off" if cut_off else "unclosed")
    answer = extraction.answer
    if "," in answer:
        decimal = writes_decimal_commas(reference.question or response)
        answer = without_braced_commas(answer, decimal)
        answer = with_decimal_points(answer) if decimal else answer
    if extraction.source == "boxed" and "=" in answer and "=" not in reference.gold and _has_blank(reference.question):
        # What fills a blank of an equation is the answer, and the equation is none.
        answer = last_box(response)
    credited, reason = _compare(answer, reference, relation, mcq_policy)
    if extraction.source in ("boxed", "answer_tags"):
        before, behind = around_the_answer(response, extraction.source)
        # Extraction, by which training votes, reads tags without the words around them; a tag ends its sentence.
        if extraction.source == "answer_tags" and is_retracted(before, f"\n{behind}"):
            return without_answer("cut_off" if cut_off else "none")
        if contradicts(answer, before, behind, relation, reference.question, choices_of(reference)):
            return RuleResult(None, False, False, False, "the prose around the box states another answer")
        if credited and (rounded := approximation(behind)) is not None:
            credited, reason = _compare(rf"{answer} \approx {rounded}", reference, relation, mcq_policy)
        if credited and reference.question and is_swapped(sentence_before(before), reference.question):
            credited, reason = False, "a ratio the other way round"
        if credited and not _stands(answer, response, before, behind, reference, relation):
            credited, reason = False, "the words around the answer may change it or take it back"
    return RuleResult(extraction.answer, True, False, credited, reason)


def _stands(answer: str, response: str, before: str, behind: str, reference: Reference, relation: Equivalence) -> bool:
    """Return whether a response states its answer, and neither takes it back nor mentions another one."""
    if not is_asserted(before, behind, reference.question):
        return False
    if not behind.strip(" $*.}\n"):
        return True
    if BOX.search(behind) or "<answer>" in behind or is_withdrawn(before, behind):
        return False
    if mentions_another(answer, before, behind, relation, choices_of(reference)):
        return False
    thinks = "<" in behind or "[T" in behind or "◁" in behind
    return not thinks or OPENS.search(behind) is None


def last_number(text: str) -> str | None:
    """Return the last number of a text, without currency and thousands separators; None without one.

    Read as lm-evaluation-harness's `flexible-extract` of GSM8K reads it.
    """
    numbers = _NUMBERS.findall(text)
    number = numbers[-1].replace(",", "").replace("$", "").removesuffix(".") if numbers else ""
    return number or None


def choices_of(reference: Reference) -> tuple[str, ...] | None:
    """Return the options of a reference, without their labels, else those in its question."""
    if reference.choices:
        return plain_options(reference.choices)
    if not reference.question:
        return None
    if len(reference.question) <= _CACHED_QUESTION:
        return _cached_options(reference.question)
    return parse_options(reference.question)


_cached_options = lru_cache(maxsize=1 << 12)(parse_options)


def _compare(answer: str, reference: Reference, relation: Equivalence, mcq_policy: McqPolicy) -> tuple[bool, str]:
    gold = clean_gold(reference.gold)
    if not gold:
        return False, "the gold is blank"
    if len(answer) > LONGEST and answer != gold:
        return False, TOO_LONG
    choices = choices_of(reference)
    if choices is not None:
        # By far the commonest case: one letter against one letter.
        if answer == gold and _LETTER.fullmatch(gold) and LETTERS.find(gold) < len(choices):
            return True, f"option {gold}"
        correct = _gold_labels(gold, choices, relation)
        if correct:
            # The legacy grader compares a value with the gold alone, and only where the gold is a value.
            letters_only = mcq_policy == "letter_only" and relation.options(gold, choices).by_letter
            return _compare_option(answer, correct, choices, relation, letters_only)
    return _compare_free_form(answer, gold, reference, relation)


# --- multiple choice ----------------------------------------------------------------------------------------


def _gold_labels(gold: str, choices: tuple[str, ...], relation: Equivalence) -> frozenset[str]:
    """Return the options that the gold names; empty when it names none, and the question is free form."""
    named = relation.options(gold, choices)
    if named.labels or named.conflict:
        return named.labels
    return _labels_of_values(re.split(r"[\n;]", gold), choices, relation)


def _labels_of_values(parts: Sequence[str], choices: tuple[str, ...], relation: Equivalence) -> frozenset[str]:
    """Return the labels of several options named one by one; empty unless each part names exactly one."""
    labels: set[str] = set()
    for part in parts:
        named = relation.options(part.strip(), choices).labels if part.strip() else frozenset()
        if len(named) != 1 or named & labels:
            return frozenset()
        labels |= named
    return frozenset(labels) if len(labels) > 1 else frozenset()


def _compare_option(
    answer: str, correct: frozenset[str], choices: tuple[str, ...], relation: Equivalence, letters_only: bool
) -> tuple[bool, str]:
    named = relation.options(answer, choices)
    labels, by_letter = named.labels, named.by_letter
    if (
        not labels
        and len(answer) > 1
        and (letter := option_said(answer, choices, lambda text: relation.options(text, choices).labels))
    ):
        labels, by_letter = frozenset({letter}), True
    if not labels and len(correct) > 1 and not _EITHER.search(answer):
        # `C. Iron; D. Copper`
        labels = _labels_of_values(_NEXT_LETTER.split(plain(answer)), choices, relation)
    if named.conflict and not labels:
        return False, "a letter with something else than its own value"
    if not labels and len(correct) > 1:
        parsed = parse(answer)
        # `60° or 90°` leaves open which, where both are asked for.
        if parsed.kind == "list" and not _EITHER.search(answer):
            labels = _labels_of_values([part.text for part in parsed.parts], choices, relation)
    if letters_only and labels and not by_letter:
        return False, "an option's value, and letter_only credits letters"
    if not labels:
        late = relation.out_of_time(answer, answer, choices)
        return False, OUT_OF_TIME if late else "names no option for certain"
    shown = "".join(sorted(labels))
    if labels == correct:
        return True, f"option {shown}" if by_letter else f"value of option {shown}"
    return False, f"option {shown}, not {''.join(sorted(correct))}"


# --- free form ----------------------------------------------------------------------------------------------


def _compare_free_form(answer: str, gold: str, reference: Reference, relation: Equivalence) -> tuple[bool, str]:
    """Compare an answer as it stands, else what a sentence says, where that is what the answer is."""
    if (same := same_version(answer, gold, reference.question)) is not None:
        return same, "the same version" if same else "another version"
    credited, reason = _compare_values(answer, gold, reference, relation)
    if not credited and (respelled := as_asked(answer, gold, reference.question)) is not None:
        credited, reason = _compare_values(respelled, gold, reference, relation)
    if credited or reason != NOT_EQUAL:
        return credited, reason
    if (solutions := solutions_said(gold)) is not None and solutions == solutions_said(answer):
        return True, "the same words"
    if not has_words(answer):
        return credited, reason
    question = reference.question
    if says_yes_or_no(answer, gold, question) or says_words(answer, gold, question):
        return True, "as a sentence says"
    if (words := listed(gold)) is not None and (others := listed(answer)) is not None:
        ordered = asks_for_order(question) and not any(count for _, count in words)
        same = words == others if ordered else sorted(words, key=str) == sorted(others, key=str)
        return same, "the same words" if same else "other words"
    value = value_said(answer, question)
    if value is None or parse(gold).kind in ("words", "opaque") or is_swapped(plain(answer), question):
        return False, reason
    credited, why = _compare_values(value, gold, reference, relation)
    return credited, "as a sentence says" if credited else why


def _compare_values(answer: str, gold: str, reference: Reference, relation: Equivalence) -> tuple[bool, str]:
    question = reference.question
    by_type = _compare_by_type(answer, gold, reference, relation)
    if by_type is not None:
        return by_type
    if answer == gold:
        return True, "same text"
    if reference.unit is not None and _unit_name(reference.unit) is not None and parse(gold).unit is None:
        gold = f"{gold} {clean_gold(reference.unit)}"
    # One value per line is a list of values.
    gold = ", ".join(gold.splitlines())
    left, right = parse(answer), parse(gold)
    if right.sides and not left.sides and "=" not in answer:
        # Where the gold is an equation, one of its sides is not the answer.
        return False, "not the equation asked for"
    if (
        right.kind in ("list", "union")
        and left.kind == "relation"
        and not (right.joined or r"\{" in answer or _NO_INEQUALITY.search(left.body) or _is_solved(left, question))
    ):
        # The inequality may be the one to be solved; the set is its solution either way round.
        return False, "an inequality where a set is asked for"
    # In MathVista `1 & 3` is a list, as `[1, 3]` is; parts with names need no order.
    if (
        left.kind == right.kind == "list"
        and (asks_for_order(question) or "&" in gold)
        and not any(part.name for part in (*left.parts, *right.parts))
    ):
        return _in_order(left, right, relation), "in the order asked for"
    if question is not None:
        if asks_for_size(question) and (r"\times" in left.body or r"\times" in right.body):
            return _same_size(left, right, relation), "as a size"
        if "ratio" in (left.kind, right.kind) and is_swapped(_names(answer), question):
            return False, "a ratio the other way round"
    if left.unit is not None and any(
        word not in UNIT_WORDS and classes_of(word) & CHANGING for word in left.unit.split()
    ):
        # `12 minus` and `12 mindestens` count no things.
        return False, "a word that changes the value"
    if question is not None:
        if left.name is not None and left.name != right.name and names_another(left.name, question):
            return False, "another quantity than the question asks for"
        if (
            left.unit is not None
            and right.unit is None
            and counts_others(left.unit, question, left.number == right.number)
        ):
            return False, "another unit than the question asks for"
    if (
        asks_for_percent(question)
        and right.unit == "%" != left.unit
        and left.number is not None
        and right.number is not None
        and left.number.value != right.number.value
    ):
        return False, "a share where percent are asked for"
    if right.kind == "number" and left.kind == "expression" and _NOTHING.fullmatch(left.body):
        # `0H` is 0 whatever H is, but no number.
        return False, "an unknown where a number is asked for"
    if relation.same(answer, gold) or (
        "ratio" in (left.kind, right.kind) and relation.same_value(answer, gold, asks_for_ratio(question))
    ):
        return (True, "equal") if is_in_form(answer, gold, question) else (False, "not in the form asked for")
    return False, OUT_OF_TIME if relation.out_of_time(answer, gold) else NOT_EQUAL


def _names(answer: str) -> str:
    """Return what an answer says beside its value: what stands before `=` or in words behind it."""
    text = clean(answer)
    return text.rpartition("=")[0] or "".join(re.findall(r"\(([^()]*[A-Za-z]{2}[^()]*)\)", text))


_NO_INEQUALITY = re.compile(r"=|\\ne(?![A-Za-z])")


def _is_solved(inequality: ParsedAnswer, question: str | None) -> bool:
    """Return whether `x > 2` bounds a variable, as an interval does, and is not what the question itself says."""
    return interval(inequality) is not None and inequality.body not in clean(question or "")


def _same_size(left: ParsedAnswer, right: ParsedAnswer, relation: Equivalence) -> bool:
    """Compare `3\\times 4` factor by factor: a matrix of that size has neither 4 rows nor is it a 12."""
    sizes = [split_top_level(size.body, frozenset({r"\times"})) for size in (left, right)]
    return len(sizes[0]) == len(sizes[1]) and all(relation.same(x, y) for x, y in zip(*sizes, strict=True))


def _in_order(left: ParsedAnswer, right: ParsedAnswer, relation: Equivalence) -> bool:
    return len(left.parts) == len(right.parts) and all(
        relation.same(x.text, y.text) for x, y in zip(left.parts, right.parts, strict=True)
    )


def _compare_by_type(answer: str, gold: str, reference: Reference, relation: Equivalence) -> tuple[bool, str] | None:
    """Compare as the benchmark declares (ordered lists, precision, tolerance); None when that decides nothing."""
    if reference.answer_type == "list":
        left, right = parse(answer), parse(gold)
        if left.kind != "list" or right.kind != "list":
            return None
        return _in_order(left, right, relation), "as lists"
    # MathVista's own int(float(x)) would credit 14.9 for the integer 14; here integers are compared as they are.
    if (reference.precision, reference.relative_tolerance, reference.absolute_tolerance) == (None, None, None):
        return None
    parsed, parsed_gold = parse(answer), parse(gold)
    value, expected = _real_value(parsed), _real_value(parsed_gold)
    if value is None or expected is None:
        return None
    unit = _unit_name(reference.unit) or parsed_gold.unit
    if (parsed.unit == "%") != (unit == "%") and {parsed.unit, unit} == {"%", None}:
        # 28% is 0.28, and people write 28 for it; a share that is no more than 1 is none of percent.
        plain = expected if parsed.unit == "%" else value
        scale = 1.0 if abs(plain) > 1 else 0.01
        value, expected = (value * scale, expected) if parsed.unit == "%" else (value, expected * scale)
    elif parsed.unit is not None and unit is not None and parsed.unit != unit:
        return False, f"in {parsed.unit}, not in {unit}"
    if reference.relative_tolerance is not None:
        return _within(value, parsed.unit, expected, reference.relative_tolerance, reference.unit or "")
    if reference.absolute_tolerance is not None:
        near = abs(value - expected) <= reference.absolute_tolerance
        return near, f"{'' if near else 'not '}within {reference.absolute_tolerance:.3g}"
    assert reference.precision is not None
    places = reference.precision
    return round(value, places) == round(expected, places), f"to {places} decimal{'s' * (places != 1)}"


def _real_value(parsed: ParsedAnswer) -> float | None:
    """Return the value of an answer that is one real number, constants such as `2\\sqrt{3}` included."""
    if parsed.number is not None:
        try:
            return float(parsed.number.value)
        except OverflowError:
            return None
    value = constant_value(parsed.body) if parsed.kind == "expression" else None
    return None if value is None or value.imag else value.real


def _unit_name(unit: str | None) -> str | None:
    """Return the normal spelling of a unit; None for none and for an unknown one."""
    return None if unit is None else parse(f"1 {clean_gold(unit)}").unit


def _within(value: float, answer_unit: str | None, expected: float, tolerance: float, unit: str) -> tuple[bool, str]:
    """Apply a relative tolerance; SciBench's units hold powers of ten (`10^{-19} J`), which an answer may write out."""
    power = _POWER_OF_TEN.search(unit)
    targets = [expected] if power is None or answer_unit is None else []
    if power is not None:
        targets.append(expected * 10.0 ** int(power.group(1)))
    same = any(abs(value - target) <= tolerance * abs(target) for target in targets)
    return same, f"within {tolerance:.3g} of the value" if same else f"not within {tolerance:.3g} of the value"


# --- partial scores -----------------------------------------------------------------------------------------

PARTS_LIMIT = 10
"""Parts of a list up to which pairs of them are compared one by one."""


def share_of_parts(answer: str, reference: Reference, relation: Equivalence) -> float:
    """Return the share of a list's parts that an answer gets right, 0.0 to 1.0; parts too many count as wrong ones.

    The parts of a tuple, and of a list whose question asks for an order, are compared by position, others in any
    order. 0.0 where the gold is no list of at most `PARTS_LIMIT`, or the answer has more than that.
    """
    left, right = parse(answer), parse(", ".join(clean_gold(reference.gold).splitlines()))
    given = left.parts if left.kind == "list" else (left,)
    if right.kind != "list" or not 0 < max(len(right.parts), len(given)) <= PARTS_LIMIT:
        return 0.0
    if right.brackets == "()" or reference.answer_type == "list" or asks_for_order(reference.question):
        hits = sum(relation.same(x.text, y.text) for x, y in zip(given, right.parts, strict=False))
    else:
        hits, rest = 0, list(given)
        for part in right.parts:
            if (match := next((x for x in rest if relation.same(x.text, part.text)), None)) is not None:
                rest.remove(match)
                hits += 1
    return hits / max(len(right.parts), len(given))
