"""Two-stage grading: rules first, then, for what they could not credit, a judge if there is one.

    from eval_suite.grading import grade
    verdict = grade(response, gold, question, choices)

Many responses are graded by one `Grader`, which keeps its worker process and its memory of comparisons.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import TracebackType

from eval_suite.grading.given import checked
from eval_suite.grading.gold import clean_gold
from eval_suite.grading.options import parse_options
from eval_suite.grading.rules import AnswerType, RuleResult, Rules, Task
from eval_suite.grading.verdict import GRADER, McqPolicy, Stage, Verdict
from eval_suite.items import Item, Response
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError

__all__ = [
    "GRADER",
    "Grader",
    "Judge",
    "McqPolicy",
    "RuleResult",
    "Verdict",
    "clean_gold",
    "grade",
    "parse_options",
]

Judge = Callable[[str | None, Sequence[str] | None, str, str], bool | None]
"""(question, options, gold, extracted answer) to whether they agree; None when the judge did not say clearly.

`eval_suite.grading.judge.as_callable` makes one of an endpoint or a model."""


class Grader:
    """Grades responses; use it as a context manager, from any thread, for as many responses as you like.

    Args:
        mcq_policy: `letter_or_value` credits an option by its letter or its value; `letter_only` is the legacy
            grader, which credits letters (and, where the gold is the text of an option, that text).
        relation: the equivalence to compare with; the grader makes and closes its own when None.

    Raises:
        UserError: the policy is not known.
    """

    def __init__(
        self, mcq_policy: McqPolicy = "letter_or_value", relation: Equivalence | None = None, *, warm: bool = False
    ) -> None:
        self._rules = Rules(mcq_policy, relation)
        if warm:
            self._rules.relation.warm_up()

    @property
    def relation(self) -> Equivalence:
        """The equivalence it compares with."""
        return self._rules.relation

    @property
    def mcq_policy(self) -> McqPolicy:
        """The policy by name, to be stored beside every score."""
        return self._rules.mcq_policy

    def __enter__(self) -> Grader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes of the grader's own relation."""
        self._rules.close()

    def rule(self, item: Item, response: Response) -> RuleResult:
        """The rule stage for one response to a benchmark item.

        Raises ValueError for an item of kind `code`: what code is worth is for its tests to say.
        """
        if item.kind == "code":
            raise ValueError(f"{item.benchmark} {item.id} is code, which tests grade and rules do not")
        return self._rules.apply(response.text, Task.of(item), response.finish_reason)

    def grade(
        self,
        response: str,
        gold: str | float,
        question: str | None = None,
        choices: Sequence[str] | None = None,
        judge: Judge | None = None,
        *,
        finish_reason: str = "unknown",
        answer_type: AnswerType | None = None,
        precision: int | None = None,
        relative_tolerance: float | None = None,
        unit: str | None = None,
    ) -> Verdict:
        """Both stages for one response; see `grade`."""
        response, gold, options = checked(response, gold, choices)
        task = Task(gold, question, options, answer_type, precision, relative_tolerance, unit)
        result = self._rules.apply(response, task, finish_reason)
        if not result.committed:
            return _verdict(result, False, "no_answer", result.reason)
        if result.rule or judge is None:
            return _verdict(result, result.rule, "rule", result.reason)
        assert result.answer is not None
        try:
            said = judge(question, options or self._rules.options_of(task), gold, result.answer)
        except Exception as error:
            # Whatever kept the judge from answering says nothing about the answer: it is told apart, not scored.
            return _verdict(result, False, "judge_failed", f"the judge failed: {type(error).__name__}: {error}"[:300])
        if said is True or said is False:
            return _verdict(result, said, "judge", "the judge: same" if said else "the judge: not the same")
        return _verdict(result, False, "judge_unclear", "the judge gave no clear answer")


def _verdict(result: RuleResult, correct: bool, stage: Stage, reason: str) -> Verdict:
    return Verdict(correct, stage, result.answer, reason, result.rule, result.committed, result.cut_off)


def grade(
    response: str,
    gold: str | float,
    question: str | None = None,
    choices: Sequence[str] | None = None,
    judge: Judge | None = None,
    *,
    finish_reason: str = "unknown",
    mcq_policy: McqPolicy = "letter_or_value",
    answer_type: AnswerType | None = None,
    precision: int | None = None,
    relative_tolerance: float | None = None,
    unit: str | None = None,
    relation: Equivalence | None = None,
) -> Verdict:
    """Whether one response is right, by rules and then, if given, by a judge; never raises for any text.

    Args:
        response: all the model wrote.
        gold: the known answer, as its data set holds it; a number stands for its text.
        question: its text; options are looked for in it when `choices` is None, and the judge reads it.
        choices: option values in order A, B, C, ...
        judge: asked only about a committed, complete answer that the rules do not credit. A judge that raises is
            recorded as `judge_failed`, one that returns neither True nor False as `judge_unclear`; neither scores.
        finish_reason: `length` when the token limit ended the response.
        mcq_policy: `letter_or_value` or `letter_only` (legacy).
        answer_type: `integer`, `float`, `list` or `text`, as MathVista has them; only lists are compared differently.
        precision: decimals to which both are rounded.
        relative_tolerance: as SciBench's 0.05.
        unit: the unit that was asked for.
        relation: an equivalence of your own; by default one is shared by all calls.

    Raises:
        UserError: the policy is not known.
        TypeError: the response is no text, the gold is neither text nor number, or `choices` is no list of these.
    """
    return _grader(mcq_policy, relation).grade(
        response,
        gold,
        question,
        choices,
        judge,
        finish_reason=finish_reason,
        answer_type=answer_type,
        precision=precision,
        relative_tolerance=relative_tolerance,
        unit=unit,
    )


_shared: dict[McqPolicy, Grader] = {}
_lock = threading.Lock()


def _grader(policy: McqPolicy, relation: Equivalence | None) -> Grader:
    if relation is not None:
        return Grader(policy, relation)
    if not isinstance(policy, str):
        raise UserError(f"mcq_policy {policy!r} is not known; use letter_or_value or letter_only.")
    with _lock:
        if policy not in _shared:
            # Both policies share one relation, whose process is ready by the time it is needed.
            first = next(iter(_shared.values()), None)
            _shared[policy] = Grader(policy, first.relation if first else None, warm=first is None)
        return _shared[policy]
