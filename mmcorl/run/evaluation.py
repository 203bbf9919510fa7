"""Validation sets, and the records and scores of their evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcorl.answers.regions import Form
from mmcorl.answers.relation_base import Relation
from mmcorl.run.metrics import Record, graded, validation_metrics
from mmcorl.types import Completion, Prompt


@dataclass(frozen=True)
class HeldOut:
    """A validation set in memory."""

    name: str
    prompts: Sequence[Prompt]
    grade: Callable[[Prompt, Completion], bool] | None = None
    """A benchmark's grader; None compares answers by the run's relation."""
    grader: Mapping[str, str] | None = None
    """Name and version of that grader, for the record."""
    form: Form | None = None
    """Set where a benchmark's answers are places in a picture: the run's answers must have the same form."""


def evaluation_records(
    held_out: HeldOut, step: int, agents: Sequence[str], completions: Sequence[Sequence[Completion]], relation: Relation
) -> tuple[Record, list[Record]]:
    """Return the line of validation.jsonl and the lines of responses.jsonl of one evaluation.

    `completions` is [N][prompts].
    """
    right = graded(agents, held_out.prompts, completions, relation, held_out.grade)
    record = validation_metrics(
        agents,
        held_out.prompts,
        completions,
        relation,
        held_out.name,
        step,
        held_out.grade,
        places=held_out.form is not None,
        right=right,
    )
    if held_out.grader:
        record["grader"] = dict(held_out.grader)
    responses = [
        {
            "step": step,
            "set": held_out.name,
            "agent": agent,
            "id": prompt.row_id,
            "uid": prompt.uid,
            "response": completion.text,
            "answer": completion.answer,
            "gold": prompt.gold,
            **({} if is_right is None else {"right": is_right}),
            "finish_reason": completion.finish_reason,
            **({"thinking": True} if completion.thinking else {}),
        }
        for (agent, judged), row in zip(right.items(), completions, strict=True)
        for prompt, completion, is_right in zip(held_out.prompts, row, judged, strict=True)
    ]
    return record, responses


def scores(validation: Sequence[Mapping[str, Any]], step: int) -> dict[str, float | None]:
    """Return mean accuracy and mean agreement over agents and sets at one step; None where not evaluated."""
    lines = [line for line in validation if line["step"] == step]
    return {
        "validation": _mean([agent["accuracy"] for line in lines for agent in line["agents"].values()]),
        "agreement": _mean([line["cohort"]["agreement"] for line in lines]),
    }


def is_best(validation: Sequence[Mapping[str, Any]], step: int) -> bool:
    """Return whether an evaluation beats all earlier ones by accuracy or by agreement; step 0 does not count."""
    earlier = [scores(validation, other) for other in sorted({line["step"] for line in validation}) if 0 < other < step]
    return any(
        score is not None and all(known is None or known < score for known in (other[name] for other in earlier))
        for name, score in scores(validation, step).items()
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
