"""What a run writes down of its episodes: a line per call in episodes.jsonl, numbers per agent in metrics.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from mmcorl.interactions.base import Call, Episode, cut
from mmcorl.labels.voting import Relation, same_answer


def call_records(step: int, agents: Sequence[str], episode: Episode, characters: int) -> list[dict[str, Any]]:
    """A line per call: who was asked what about whose solution, what was shown, said and earned.

    `characters` is the most that is kept of what an agent said; `shortened` counts shown texts that were cut.
    """
    return [
        {
            "step": step,
            "uid": call.ask.prompt.uid,
            "problem": call.ask.talk.problem.uid,
            "row": call.ask.talk.problem.row_id,
            "conversation": call.ask.talk.number,
            "turn": call.ask.turn,
            "role": call.ask.role,
            "agent": agents[call.ask.agent],
            "author": agents[call.ask.author],
            "shown": list(call.ask.shown),
            "shortened": call.ask.shortened,
            "text": cut(call.completion.text, characters) if characters else "",
            "answer": call.completion.answer if call.ask.role == "solver" else None,
            "tokens": call.completion.tokens,
            "finish_reason": call.completion.finish_reason,
            "reward": episode.outcome.rewards[call.ask.prompt.uid],
            **episode.outcome.notes.get(call.ask.prompt.uid, {}),
        }
        for call in episode.calls
    ]


def agent_metrics(agent: int, episode: Episode, relation: Relation) -> dict[str, float | None]:
    """One agent's share in an episode; None for the mean of nothing.

    `calls` that it answered, `shortened_share` of those that showed a cut text; `reward_ROLE` by role; `accuracy_turnT`
    of its solutions by turn, where answers are known. `NOTE_mean` of what the workflow noted of its calls (`tau` and
    `verified` of its solutions, `score` it gave), over those that have it, and `NOTE_missing_share` of the others: for
    `score`, replies from which no score could be read.
    """
    own = [call for call in episode.calls if call.ask.agent == agent]
    found: dict[str, float | None] = {
        "calls": float(len(own)),
        "shortened_share": _mean(call.ask.shortened > 0 for call in own if call.ask.shown),
    }
    for role in sorted({call.ask.role for call in episode.calls}):
        found[f"reward_{role}"] = _mean(_reward(call, episode) for call in own if call.ask.role == role)
    for turn in sorted({call.ask.turn for call in episode.calls}):
        found[f"accuracy_turn{turn}"] = _mean(
            same_answer(call.completion.answer, problem.gold, relation, problem.choices) is True
            for call in own
            for problem in [call.ask.talk.problem]
            if call.ask.role == "solver" and call.ask.turn == turn and problem.gold is not None
        )
    noted = [episode.outcome.notes.get(call.ask.prompt.uid, {}) for call in own]
    for key in sorted({key for notes in episode.outcome.notes.values() for key in notes}):
        values = [notes[key] for notes in noted if key in notes]
        found[f"{key}_mean"] = _mean(value for value in values if value is not None)
        found[f"{key}_missing_share"] = _mean(value is None for value in values)
    return found


def _reward(call: Call, episode: Episode) -> float:
    return episode.outcome.rewards[call.ask.prompt.uid]


def _mean(values: Iterable[float]) -> float | None:
    numbers = [float(value) for value in values]
    return fmean(numbers) if numbers else None
