"""CoMAS: agents solve, evaluate each other's solutions and score them; rewards come out of the conversation alone.

Xue et al., "CoMAS: Co-evolving multi-agent systems via interaction rewards", 2025. In every round each agent solves the
problem, another one evaluates the solution, and one scores it from 1 to 3. With tau = (score - 1) / 2 the solver earns
tau and the evaluator 1 - tau, a constant sum; the scorer earns 0. Where no score can be read, it loses 1, and the
others earn 0. Agents have weights of their own and are trained by REINFORCE++ without KL.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmcorl.config import EpisodeSettings
from mmcorl.interactions import prompts
from mmcorl.interactions.base import Call, Outcome, Talk, Workflow, anybody, ask, others
from mmcorl.types import Completion


def comas(talks: Sequence[Talk], step: int, agents: int, settings: EpisodeSettings, seed: int) -> Workflow:
    """Every conversation of a step side by side, `settings.rounds` rounds each."""
    limit = settings.shown_characters
    rewards: dict[str, float] = {}
    notes: dict[str, dict[str, float | None]] = {}
    before: dict[Talk, list[tuple[Call, Call]]] = {talk: [] for talk in talks}  # solution, evaluation
    for turn in range(1, settings.rounds + 1):
        references = {
            talk: talk.random(seed, step, turn, "references").sample(said, min(settings.references, len(said)))
            for talk, said in before.items()
        }
        solutions = yield [
            ask(
                talk,
                turn,
                "solver",
                agent,
                prompts.solve,
                [call for pair in references[talk] for call in pair],
                limit=limit,
            )
            for talk in talks
            for agent in range(agents)
        ]
        evaluator = {talk: others(talk.random(seed, step, turn, "evaluator"), agents) for talk in talks}
        evaluations = yield [
            ask(
                talk,
                turn,
                "evaluator",
                evaluator[talk][author],
                prompts.evaluate,
                [one],
                author=author,
                limit=limit,
                style="plain",
            )
            for one in solutions
            for talk, author in [(one.ask.talk, one.ask.author)]
        ]
        scorer = {talk: anybody(talk.random(seed, step, turn, "scorer"), agents) for talk in talks}
        scores = yield [
            ask(
                talk,
                turn,
                "scorer",
                scorer[talk][author],
                prompts.score,
                [one, other],
                author=author,
                limit=limit,
                style="plain",
            )
            for one, other in zip(solutions, evaluations, strict=True)
            for talk, author in [(one.ask.talk, one.ask.author)]
        ]
        before = {talk: [] for talk in talks}
        for trio in zip(solutions, evaluations, scores, strict=True):
            score = read(trio[2].completion)
            for call, earned in zip(trio, shares(score), strict=True):
                rewards[call.ask.prompt.uid] = earned
            notes[trio[0].ask.prompt.uid] = {"tau": None if score is None else (score - 1) / 2}
            notes[trio[2].ask.prompt.uid] = {"score": score}
            before[trio[0].ask.talk].append(trio[:2])
    return Outcome(rewards, notes)


def shares(score: int | None) -> tuple[float, float, float]:
    """What solver, evaluator and scorer earn.

    >>> shares(3), shares(2), shares(None)
    ((1.0, 0.0, 0.0), (0.5, 0.5, 0.0), (0.0, 0.0, -1.0))
    """
    if score is None:
        return 0.0, 0.0, -1.0
    tau = (score - 1) / 2
    return tau, 1 - tau, 0.0


def read(said: Completion) -> int | None:
    """The score in a scorer's completion."""
    return prompts.read_score(said.text)
