"""The rule stage: what a response commits to, and whether rules alone credit it.

Rules never guess. What they cannot show to be right is left to a judge, and what a response does not commit to
is graded by nobody.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Literal

from eval_suite.grading.gold import clean_gold
from eval_suite.grading.options import LETTERS, parse_options, plain_options
from eval_suite.grading.verdict import McqPolicy
from eval_suite.items import Item
from mmcorl.answers import Equivalence, extract
from mmcorl.answers.numbers import approximate
from mmcorl.answers.parse import Reading, read
from mmcorl.errors import UserError

AnswerType = Literal["integer", "float", "list", "text"]
MCQ_POLICIES: tuple[McqPolicy, ...] = ("letter_or_value", "letter_only")

TIMEOUT = 0.75
"""Wall-clock seconds of one symbolic comparison, so that no response takes a second."""

_MAX_REMEMBERED = 8192
_LETTER = re.compile(r"[A-Z]")
_EITHER = re.compile(r"\bor\b|或")


@dataclass(frozen=True)
class RuleResult:
    """What the rules say about one response."""

    answer: str | None
    """The answer the response commits to; None when there is none."""
    committed: bool
    cut_off: bool
    """Ended in the middle of an answer or a draft; never true of a committed response."""
    rule: bool
    """Whether the rules credit it; only ever true of a committed response."""
    reason: str
    """A few words for people."""


@dataclass(frozen=True)
class Task:
    """What a response is graded against: the gold and all that says how to compare with it."""

    gold: str
    question: str | None = None
    choices: tuple[str, ...] | None = None
    """Option values in order A, B, C, ...; when None they are looked for in the question."""
    answer_type: AnswerType | None = None
    precision: int | None = None
    relative_tolerance: float | None = None
    unit: str | None = None
    """The unit that was asked for; an answer in another one is wrong."""

    @staticmethod
    def of(item: Item) -> Task:
        """The task of one benchmark item."""
        return Task(
            item.gold,
            item.for_judge,
            item.choices,
            item.answer_type,
            item.precision,
            item.relative_tolerance,
            item.unit,
        )


class Rules:
    """Applies the rules; safe to use from any thread, with memory that does not grow with the responses.

    Args:
        mcq_policy: `letter_or_value` credits an option by its letter or its value; `letter_only` (the legacy
            grader) by its letter, or, where the gold is the option's text, by that text.
        relation: the equivalence to use; one is made, and closed by `close`, when None.
    """

    def __init__(self, mcq_policy: McqPolicy = "letter_or_value", relation: Equivalence | None = None) -> None:
        if mcq_policy not in MCQ_POLICIES:
            raise UserError(f"mcq_policy {mcq_policy!r} is not known; use one of {', '.join(MCQ_POLICIES)}.")
        self.mcq_policy: McqPolicy = mcq_policy
        self._owned = relation is None
        self.relation = Equivalence(timeout=TIMEOUT) if relation is None else relation

    def __enter__(self) -> Rules:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes of a relation that was made here."""
        if self._owned:
            self.relation.close()

    def apply(self, response: str, task: Task, finish_reason: str = "unknown") -> RuleResult:
        """The result for one response; never raises, whatever its text.

        `finish_reason` is `length` when the token limit ended the response; any other value says nothing.
        """
        found = extract(response, "length" if finish_reason == "length" else "stop")
        if found.answer is None:
            cut_off = found.source == "cut_off"
            why = "cut off before an answer" if cut_off else "no answer in a recognised format"
            return RuleResult(None, False, cut_off, False, why)
        rule, reason = self._compare(found.answer, task)
        return RuleResult(found.answer, True, False, rule, reason)

    def options_of(self, task: Task) -> tuple[str, ...] | None:
        """The options a judge should read: those given, or those that stand in the question."""
        return _choices_of(task)

    def _compare(self, answer: str, task: Task) -> tuple[bool, str]:
        gold = clean_gold(task.gold)
        if not gold:
            # Nothing is known, so nothing can be right.
            return False, "the gold is blank"
        choices = _choices_of(task)
        if choices is not None:
            # The commonest case by far: one letter against one letter.
            if answer == gold and _LETTER.fullmatch(gold) and LETTERS.find(gold) < len(choices):
                return True, f"option {gold}"
            wanted = self._labels(gold, choices)
            if wanted:
                return self._option(answer, gold, wanted, choices)
            if task.choices is None:
                choices = None
        return self._free_form(answer, gold, task)

    # --- multiple choice ------------------------------------------------------------------------------------

    def _labels(self, gold: str, choices: tuple[str, ...]) -> frozenset[str]:
        """The options that the gold names; empty when it names none, and the question is then free form."""
        named = self.relation.options(gold, choices)
        if named.labels or named.conflict:
            return named.labels
        return self._values(re.split(r"[\n;]", gold), choices)

    def _values(self, parts: Sequence[str], choices: tuple[str, ...]) -> frozenset[str]:
        """The labels of several options named one by one; empty unless each part names exactly one."""
        labels: set[str] = set()
        for part in parts:
            named = self.relation.options(part.strip(), choices).labels if part.strip() else frozenset()
            if len(named) != 1 or named & labels:
                return frozenset()
            labels |= named
        return frozenset(labels) if len(labels) > 1 else frozenset()

    def _option(self, answer: str, gold: str, wanted: frozenset[str], choices: tuple[str, ...]) -> tuple[bool, str]:
        named = self.relation.options(answer, choices)
        if named.conflict:
            return False, "a letter with the value of another option"
        labels, by_letter = named.labels, named.by_letter
        if not labels and len(wanted) > 1:
            reading = read(answer)
            # `60° or 90°` leaves open which, where both are asked for.
            if reading.kind == "list" and not _EITHER.search(answer):
                labels = self._values([part.text for part in reading.parts], choices)
        # The legacy grader compares a value with the gold alone, and only where the gold is a value.
        legacy = self.mcq_policy == "letter_only" and self.relation.options(gold, choices).by_letter
        if legacy and labels and not by_letter:
            return False, "an option's value, and letter_only credits letters"
        if not labels:
            return False, "names no option for certain"
        shown = "".join(sorted(labels))
        if labels == wanted:
            return True, f"option {shown}" if by_letter else f"value of option {shown}"
        return False, f"option {shown}, not {''.join(sorted(wanted))}"

    # --- free form ------------------------------------------------------------------------------------------

    def _free_form(self, answer: str, gold: str, task: Task) -> tuple[bool, str]:
        typed = self._typed(answer, gold, task)
        if typed is not None:
            return typed
        if answer == gold:
            return True, "same text"
        if task.unit is not None:
            gold = _with_unit(gold, task.unit)
        # One value per line is a list of values.
        gold = ", ".join(gold.splitlines())
        if self.relation.same(answer, gold):
            return True, "equal"
        return False, "not shown to be equal"

    def _typed(self, answer: str, gold: str, task: Task) -> tuple[bool, str] | None:
        """Comparison by the type a benchmark declares; None when the type decides nothing."""
        if task.answer_type == "list":
            return self._ordered(answer, gold)
        # MathVista's own int(float(x)) would credit 14.9 for the integer 14: integers are compared as they are.
        if task.precision is None and task.relative_tolerance is None:
            return None
        value, unit = _value(answer)
        wanted, own_unit = _value(gold)
        if value is None or wanted is None:
            return None
        asked = _unit(task.unit) or own_unit
        if unit is not None and asked is not None and unit != asked:
            return False, f"in {unit}, not in {asked}"
        if task.relative_tolerance is not None:
            return _within(value, unit, wanted, task)
        assert task.precision is not None
        places = task.precision
        return round(value, places) == round(wanted, places), f"to {places} decimal{'s' * (places != 1)}"

    def _ordered(self, answer: str, gold: str) -> tuple[bool, str] | None:
        """Lists in order, whatever their brackets."""
        one, other = read(answer), read(gold)
        if one.kind != "list" or other.kind != "list":
            return None
        same = len(one.parts) == len(other.parts) and all(
            self.relation.same(x.text, y.text) for x, y in zip(one.parts, other.parts, strict=True)
        )
        return same, "as lists"


def _value(text: str) -> tuple[float | None, str | None]:
    """(value, unit) of an answer that is one real number, constants such as `2\\sqrt{3}` included."""
    reading = read(text)
    if reading.number is not None:
        return _float(reading), reading.unit
    if reading.kind == "expression":
        value, again = approximate(reading.body, 1), approximate(reading.body, 2)
        if value is not None and value == again and not value.imag:
            return value.real, reading.unit
    return None, None


def _float(reading: Reading) -> float | None:
    assert reading.number is not None
    value = reading.number.value
    try:
        return float(value)
    except OverflowError:
        return None


def _unit(unit: str | None) -> str | None:
    """The unit in the one spelling of `mmcorl.answers`; None for none, or for what it does not know."""
    return None if unit is None else read(f"1 {clean_gold(unit)}").unit


def _with_unit(gold: str, unit: str) -> str:
    return f"{gold} {clean_gold(unit)}" if _unit(unit) is not None and read(gold).unit is None else gold


_SCALED = re.compile(r"\\?(?:times|cdot)?\s*10\s*\^\s*\{?\s*(-?\d{1,3})\s*\}?")


def _within(value: float, unit: str | None, wanted: float, task: Task) -> tuple[bool, str]:
    """Relative tolerance; SciBench's units hold powers of ten (`10^{-19} J`), which an answer may write out."""
    assert task.relative_tolerance is not None
    tolerance = task.relative_tolerance
    scaled = _SCALED.search(task.unit or "")
    targets = [wanted] if scaled is None or unit is None else []
    if scaled is not None:
        targets.append(wanted * 10.0 ** int(scaled.group(1)))
    same = any(abs(value - target) <= tolerance * abs(target) for target in targets)
    return same, f"within {tolerance:.3g} of the value" if same else f"not within {tolerance:.3g} of the value"


# --- options --------------------------------------------------------------------------------------------------


def _choices_of(task: Task) -> tuple[str, ...] | None:
    if task.choices:
        return plain_options(task.choices)
    if not task.question:
        return None
    return _parsed(task.question) if len(task.question) <= _MAX_REMEMBERED else parse_options(task.question)


_parsed = lru_cache(maxsize=1 << 12)(parse_options)
