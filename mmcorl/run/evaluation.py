"""Validation sets and what their evaluations say about a run: responses to keep, scores, the best step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcorl.answers.regions import Form
from mmcorl.types import Completion, Prompt


@dataclass(frozen=True)
class HeldOut:
    """A validation set in memory."""

    name: str
    prompts: Sequence[Prompt]
    grade: Callable[[Prompt, Completion], bool] | None = None
    """How a benchmark grades; None compares answers by the run's relation."""
    grader: Mapping[str, str] | None = None
    """Name and version of that grader, for the record."""
    form: Form | None = None
    """What a benchmark's answers are, where they are places in a picture: then the run's have to be, too."""


def response_records(
    step: int,
    held_out: HeldOut,
    completions: Sequence[Sequence[Completion]],
    right: Mapping[str, Sequence[bool | None]],
) -> list[dict[str, Any]]:
    """Return every response of one evaluation as the lines of responses.jsonl.

    `completions` is [N][prompts]; `right` says by agent which of them are.
    """
    return [
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
        }
        for (agent, judged), row in zip(right.items(), completions, strict=True)
        for prompt, completion, is_right in zip(held_out.prompts, row, judged, strict=True)
    ]


def scores(validation: Sequence[Mapping[str, Any]], step: int) -> dict[str, float | None]:
    """Return mean accuracy and mean agreement over agents and sets at one step; None where not evaluated."""
    lines = [line for line in validation if line["step"] == step]
    return {
        "validation": _mean([agent["accuracy"] for line in lines for agent in line["agents"].values()]),
        "agreement": _mean([line["cohort"]["agreement"] for line in lines]),
    }


def is_best(validation: Sequence[Mapping[str, Any]], step: int) -> bool:
    """Whether no earlier evaluation equals this one, by accuracy or by agreement; step 0 does not count."""
    earlier = [scores(validation, other) for other in sorted({line["step"] for line in validation}) if 0 < other < step]
    return any(
        score is not None and all(known is None or known < score for known in (other[name] for other in earlier))
        for name, score in scores(validation, step).items()
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
