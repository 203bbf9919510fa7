"""Call a user's own functions once before a run does, on made-up answers to rows of its data: `mmcorl doctor CONFIG`.

A run does not: a function may count its calls or write a log, and its first batch is its first call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from mmcorl.algo.loss import call_surrogate
from mmcorl.algo.objectives import OBJECTIVES
from mmcorl.answers.regions import Form
from mmcorl.answers.relation_table import RELATIONS, open_relation
from mmcorl.answers.settings import AnswerSettings
from mmcorl.config import Config
from mmcorl.cotrain import in_turn
from mmcorl.interactions.settings import VerifierSettings
from mmcorl.prompts.settings import PromptSettings
from mmcorl.prompts.styles import STYLES
from mmcorl.registry import shown
from mmcorl.rewards import MEASURED, SCORED
from mmcorl.training import interaction_of, reward_of, supervision_of
from mmcorl.types import Completion, Group, Prompt, twins

ANSWERS: dict[Form | None, tuple[str, str]] = {
    None: ("1", "2"),
    "point": ("[100, 200]", "[600, 700]"),
    "points": ("[[100, 200]]", "[[600, 700]]"),
    "box": ("[100, 200, 300, 400]", "[500, 600, 700, 800]"),
    "boxes": ("[[100, 200, 300, 400]]", "[[500, 600, 700, 800]]"),
}
"""Two answers that differ, by the form of the run's relation."""
WRITTEN = {"answer_tags": "<think>Let me see.</think><answer>{}</answer>", "boxed": "\\boxed{{{}}}", "plain": "{}"}
"""A response by the form that is asked for."""


def questions(pair: str | None) -> list[Prompt]:
    """Make up rows, where no data are read, with the wording of `supervision.pair`."""
    texts = [f"What is {n} + 1?" for n in range(3)]
    views = [{pair: text} if pair else {} for text in texts]
    return [Prompt(f"made-up-{n}", str(n), texts[n], gold=str(n + 1), views=views[n]) for n in range(3)]


def called_once(config: Config, rows: Sequence[Prompt]) -> Iterator[str]:
    """Call the user's relation, rule, reward, workflow and objective on made-up answers to `rows`; yield the calls.

    The last row gets none, as a real one may. Raises UserError or RunError, in one sentence, for what raises or
    returns what a run would refuse.
    """
    named = {
        "answers.relation": config.answers.relation,
        "supervision.kind": config.supervision.kind,
        "reward.kind": config.reward.kind,
    }
    if config.episode is not None:  # whose rewards come out of the conversation
        del named["reward.kind"]
        named["episode.kind"] = config.episode.kind
    named_by_user = [f"{key} {shown(name)}" for key, name in named.items() if ":" in name]
    if named_by_user and rows:
        pair = config.supervision.pair
        batch = [twin for row in rows for twin in twins(row, pair)] if pair else list(rows)
        groups = _made_up(batch, len(config.agents), config.batch.completions, config.answers, config.prompt)
        with open_relation(config.answers.relation, config.answers.vote_by, config.answers.threshold) as relation:
            supervision = supervision_of(config.supervision, config.agents, relation, seed=config.seed)
            reward = reward_of(config.reward, config.prompt, relation)
            votes = supervision.votes([_finished(group) for group in groups], batch, 1)
            for agent in votes.as_ready():
                labels = votes.labels(agent)
                if config.episode is None:
                    reward(groups[agent], labels, batch)
            if config.episode is not None and ":" in config.episode.kind:
                agents: list[Any] = [
                    _MadeUp(agent.name, cycle(completion for group in made_up for completion in group.completions))
                    for agent, made_up in zip(config.agents, groups, strict=True)
                ]
                interaction = interaction_of(
                    config.episode.model_copy(update={"verifier": VerifierSettings()}),  # no served one is asked
                    relation,
                    Path(),
                    agents=config.agents,
                    batch=config.batch,
                    objective=config.objective,
                    supervision=config.supervision,
                    seed=config.seed,
                )
                interaction.rollout(agents, rows, 1, in_turn)
        yield from named_by_user
    objective = config.objective
    if objective.kind and ":" in objective.kind:
        logp = torch.full((4,), -1.0, requires_grad=True)
        given = {"logp": logp, "old_logp": logp.detach(), "ratio": torch.exp(logp - logp.detach())}
        given |= {"advantages": torch.tensor([1.0, 1.0, -1.0, -1.0])}
        measured = {"entropy": -logp, "ref_logp": logp.detach() - 0.5}
        given |= {name: values for name, values in measured.items() if objective.takes(name)}
        clips = {"clip_low": objective.clip_low, "clip_high": objective.clip_high}
        if (surrogate := OBJECTIVES.find(objective.kind).function) is not None:  # else a row of settings alone
            call_surrogate(surrogate, given | clips)
        yield f"objective.kind {shown(objective.kind)}"


@dataclass(frozen=True)
class _MadeUp:
    """Replies to each prompt with the next of some completions."""

    name: str
    completions: Iterator[Completion]

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        return [Group(prompt.uid, (next(self.completions),)) for prompt in prompts]


def _made_up(
    batch: Sequence[Prompt], agents: int, count: int, answers: AnswerSettings, prompt: PromptSettings
) -> list[list[Group]]:
    """Make up a group of `count` completions for each agent and prompt; those of the last prompt have no answer."""
    form, written = RELATIONS.find(answers.relation).form, WRITTEN[STYLES[prompt.style].form]
    return [
        [_group(row, agent, count, form=form, written=written, silent=row is batch[-1]) for row in batch]
        for agent in range(agents)
    ]


def _finished(groups: list[Group]) -> Future[list[Group]]:
    rollout: Future[list[Group]] = Future()
    rollout.set_result(groups)
    return rollout


def _group(prompt: Prompt, agent: int, count: int, *, form: Form | None, written: str, silent: bool) -> Group:
    """Make up `count` completions: two answers in turn, and one without; none has an answer with `silent`."""
    first, second = ANSWERS[None if prompt.in_text else form]
    turns = [(first, second, None)[(number + agent) % 3] for number in range(count)]
    measured = dict.fromkeys(MEASURED, 1.0) | dict.fromkeys(SCORED, -1.0)
    with_answer = Completion(written, None, 8, "stop", measured, logprob=-0.5)
    without = Completion("I do not know", None, 9, "length", measured, logprob=-1.0)
    return Group(
        prompt.uid,
        tuple(
            without if silent or answer is None else replace(with_answer, text=written.format(answer), answer=answer)
            for answer in turns
        ),
    )
