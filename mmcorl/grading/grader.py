"""Two-stage grading: rules first, then a judge, if there is one, for what they could not credit."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from mmcorl.grading.gold import clean_gold
from mmcorl.grading.grade_by_relation import Relations, apply_relation, score_of
from mmcorl.grading.items import GradedReading, Item, McqPolicy, Response
from mmcorl.grading.reference import AnswerType, Reference, check_arguments
from mmcorl.grading.rules import RuleResult, apply_rules, choices_of, share_of_parts
from mmcorl.grading.verdict import Stage, Verdict

READINGS: tuple[GradedReading, ...] = ("commitment", "prose")
MCQ_POLICIES: tuple[McqPolicy, ...] = ("letter_or_value", "letter_only")

_LETTER = re.compile(r"[A-Z]")
Judge = Callable[[str | None, Sequence[str] | None, str, str], bool | None]
"""Maps (question, options, gold, extracted answer) to whether they agree, None without a clear answer.

`mmcorl.grading.judge.as_callable` makes one of an endpoint or a model."""


class Grader:
    """Grades responses; a context manager, usable from any thread, with bounded memory.

    Args:
        mcq_policy: `letter_or_value` credits an option by its letter or its value; `letter_only` is the legacy
            grader, which credits letters (and, where the gold is the text of an option, that text).
        relation: the equivalence to compare with; by default the grader opens and closes its own.
        reading: `prose` also reads answers in sentences (`mmcorl.answers.prose`), of items that are read by what they
            commit to.

    Raises UserError for an unknown policy or reading.
    """

    def __init__(
        self,
        mcq_policy: McqPolicy = "letter_or_value",
        relation: Equivalence | None = None,
        reading: GradedReading = "commitment",
    ) -> None:
        if mcq_policy not in MCQ_POLICIES:
            raise UserError(f"mcq_policy {mcq_policy!r} is not known; use one of {', '.join(MCQ_POLICIES)}.")
        if reading not in READINGS:
            raise UserError(f"reading {reading!r} is not known; use one of {', '.join(READINGS)}.")
        self.reading: GradedReading = reading
        self.mcq_policy: McqPolicy = mcq_policy
        self.relation = Equivalence() if relation is None else relation
        self._owns_relation = relation is None
        self._relations = Relations(self.relation)

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes of the grader's own relation."""
        self._relations.close()
        if self._owns_relation:
            self.relation.close()

    def rule(self, item: Item, response: Response) -> RuleResult:
        """Return the rule stage of one response to a benchmark item.

        Raises ValueError for code, which tests grade, and UserError for places in unknown coordinates.
        """
        if item.kind == "code":
            raise ValueError(f"{item.benchmark} {item.id} is code, which tests grade and rules do not")
        text, reason = response.text, response.finish_reason
        for stop in item.stops:
            text, stopped, _ = text.partition(stop)
            reason = "stop" if stopped else reason
        if item.relation is not None:
            return apply_relation(item, replace(response, text=text, finish_reason=reason), self._relations.of(item))
        reading = self.reading if item.reading == "commitment" else item.reading
        return apply_rules(
            text, Reference.of(item), self.relation, self.mcq_policy, reason, reading, thinking=response.thinking
        )

    def score(self, item: Item, answer: str) -> tuple[float, bool]:
        """Return the score of an answer to an item that has a relation, 0.0 to 1.0, and whether it is right."""
        return score_of(answer, item, self._relations.of(item))

    def grade(
        self,
        response: str,
        reference: Reference,
        judge: Judge | None = None,
        finish_reason: str | None = None,
        *,
        thinking: bool = False,
    ) -> Verdict:
        """Return the verdict of both stages; never raises for any text. See `grade` for the arguments."""
        result = apply_rules(
            response, reference, self.relation, self.mcq_policy, finish_reason, self.reading, thinking=thinking
        )
        if result.answer is None:
            return _verdict(result, False, "no_answer", result.reason)
        if result.rule or judge is None or not clean_gold(reference.gold):
            return _verdict(result, result.rule, "rule", result.reason)
        try:
            agrees = judge(
                reference.question, reference.choices or choices_of(reference), reference.gold, result.answer
            )
        except Exception as error:
            # A judge that fails says nothing about the answer, so the failure is recorded and not scored.
            return _verdict(result, False, "judge_failed", f"the judge failed: {type(error).__name__}: {error}"[:300])
        if agrees is True or agrees is False:
            return _verdict(result, agrees, "judge", "the judge: same" if agrees else "the judge: not the same")
        return _verdict(result, False, "judge_unclear", "the judge gave no clear answer")


def _verdict(result: RuleResult, correct: bool, stage: Stage, reason: str) -> Verdict:
    return Verdict(
        correct, stage, result.answer, reason, result.rule, result.committed, result.cut_off, result.unclosed
    )


def grade(
    response: str,
    gold: str | float,
    question: str | None = None,
    choices: Sequence[str] | None = None,
    judge: Judge | None = None,
    *,
    finish_reason: str | None = None,
    thinking: bool = False,
    reading: GradedReading = "commitment",
    mcq_policy: McqPolicy = "letter_or_value",
    answer_type: AnswerType | None = None,
    precision: int | None = None,
    relative_tolerance: float | None = None,
    unit: str | None = None,
    relation: Equivalence | None = None,
    partial: bool = False,
) -> Verdict:
    """Grade one response by rules and then, if given, by a judge; never raises for any text.

    `gold`, `question`, `choices`, `answer_type`, `precision`, `relative_tolerance` and `unit` are the fields of
    `Reference`.

    Args:
        response: the model's whole output.
        judge: asked only about a committed, complete answer that the rules do not credit. A judge that raises is
            recorded as `judge_failed`, one that returns neither True nor False as `judge_unclear`; neither scores.
        finish_reason: `length`, `max_tokens` or whatever else an API calls it, when the token limit ended the response.
        thinking: whether the prompt opened a block of thinking, as templates of thinking models do, so that the
            response holds its closing mark alone. One that never closes it is a draft without an answer.
        reading: `prose` reads answers in sentences as well, by the grammar of `mmcorl.answers.prose`.
        mcq_policy: `letter_or_value` or `letter_only` (legacy), see `Grader`.
        relation: an open equivalence; by default all calls share one.
        partial: give the verdict a `score`: of a list, the share of its parts that are right, see `share_of_parts`.

    Raises UserError where the policy is not known, the response is not text (a model that said nothing said ''), the
    gold is neither text nor number, `choices` is not a list of these, or the gold is a letter beyond them or a number
    that none of them is.
    """
    if judge is not None and not callable(judge):
        raise UserError(f"judge is {judge!r:.60}: pass a function; `mmcorl grade --judge URL` asks a served model")
    response, known, options = check_arguments(response, gold, choices)
    reference = Reference(known, question, options, answer_type, precision, relative_tolerance, unit)
    relation = relation or _shared_relation()
    if options and (not isinstance(gold, str) or _LETTER.fullmatch(known.strip())):
        _check_is_option(known, options, relation)
    verdict = Grader(mcq_policy, relation, reading).grade(response, reference, judge, finish_reason, thinking=thinking)
    if not partial:
        return verdict
    parts = 0.0 if verdict.answer is None else share_of_parts(verdict.answer, reference, relation)
    return replace(verdict, score=1.0 if verdict.correct else parts)


def _check_is_option(gold: str, options: tuple[str, ...], relation: Equivalence) -> None:
    if not relation.options(gold, options).labels:
        raise UserError(
            f"gold {gold!r} is none of the {len(options)} options: pass the letter (A is the first) or the text of one"
        )


def grade_many(rows: Iterable[Mapping[str, Any]], judge: Judge | None = None, **options: Any) -> Iterator[Verdict]:
    """Yield the verdict of each row, in order, as `grade` gives it; `rows` may be a generator, too.

    Args:
        rows: `response` and `gold`, what else of `grade` belongs to a response, such as question or choices, and an
            `id` by which messages name the row.
        judge: see `grade`.
        options: what is the same for all rows, by the names of `grade`, such as `partial=True`.

    Raises UserError, which names the row, for one that lacks a response or a gold, or has what `grade` does not take.
    """
    names = inspect.signature(grade).parameters
    for number, row in enumerate(rows, start=1):
        given = {name: value for name, value in row.items() if name != "id"}
        named = f", id {row['id']!r}" if "id" in row else ""
        where = f"row {number} (counted from 1{named})"
        if missing := [name for name in ("response", "gold") if name not in given]:
            raise UserError(f"{where} has no {missing[0]!r}: give each row a response and a gold")
        if unknown := [name for name in given if name not in names or name in options or name == "judge"]:
            raise UserError(f"{where} has {unknown[0]!r}: a row holds response, gold, question, choices, ...")
        try:
            verdict = grade(**given, judge=judge, **options)
        except UserError as error:
            raise UserError(f"{where}: {error}") from error
        yield verdict


_shared: list[Equivalence] = []
_lock = threading.Lock()


def _shared_relation() -> Equivalence:
    with _lock:
        if not _shared:
            _shared.append(Equivalence())
            _shared[0].warm_up()
        return _shared[0]
