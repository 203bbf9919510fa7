"""The rule grader as a scorer of inspect_ai, `mmcorl/rules`; made when it is asked for, as the package is optional."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from mmcorl.grading import GRADER, grade

if TYPE_CHECKING:
    rules: Callable[[], Any]


def __getattr__(name: str) -> Any:
    """Return `rules`: the entry point `inspect_ai` of this package asks for it, which registers it."""
    if name != "rules":
        raise AttributeError(name)
    return _registered()


@cache
def _registered() -> Any:
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
    from inspect_ai.solver import TaskState

    def rules() -> Scorer:
        """Grade by rules: numbers, expressions and options are compared by value; any of several targets counts."""

        async def score(state: TaskState, target: Target) -> Score:
            verdicts = [
                grade(
                    state.output.completion,
                    gold,
                    state.input_text,
                    [choice.value for choice in state.choices] or None,
                    finish_reason=state.output.stop_reason,
                )
                for gold in target
            ]
            best = next((verdict for verdict in verdicts if verdict.correct), verdicts[0])
            return Score(
                value=CORRECT if best.correct else INCORRECT,
                answer=best.answer,
                explanation=best.reason,
                metadata={"grader": " ".join(GRADER), "stage": best.stage},
            )

        return score

    rules.__module__ = "mmcorl"  # By which the scorer is named, and found through the entry point of that name.
    return scorer(metrics=[accuracy(), stderr()])(rules)
