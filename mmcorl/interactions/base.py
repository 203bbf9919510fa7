"""What an episode is made of, and how a workflow is driven through it.

A workflow is a generator: it yields what to ask next, is sent the calls that came of it, in the same order, and
returns what each of them earned. It knows agents by number and talks of strings and floats; `converse` does the asking.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

from mmcorl.agent import Agent, Parallel, in_turn, results
from mmcorl.algo.seeds import noise_seed
from mmcorl.types import Completion, Group, Prompt, PromptStyle

Role = Literal["solver", "evaluator", "scorer"]
CUT = "\n[...]\n"
"""Stands where a text was cut."""


@dataclass(frozen=True, eq=False)
class Talk:
    """One conversation of all agents about one problem."""

    problem: Prompt
    number: int = 0
    """Conversations about the same problem are counted from 0."""

    @property
    def uid(self) -> str:
        """Of all prompts in a batch, this conversation's alone."""
        return f"{self.problem.uid}/{self.number}"

    def random(self, seed: int, step: int, turn: int, purpose: str) -> random.Random:
        """Draws that depend on what they are for and on nothing else, such as the place in the batch."""
        return random.Random(noise_seed(seed, f"episode/{purpose}/{self.uid}/{turn}", step, 0))


@dataclass(frozen=True)
class Ask:
    """One call to be made; see `ask`."""

    talk: Talk
    turn: int
    """From 1."""
    role: Role
    agent: int
    """Who is asked."""
    author: int
    """Whose solution it is about; a solver's own."""
    prompt: Prompt
    """Its uid is unique among all asks of a step."""
    shown: tuple[str, ...] = ()
    """Uids of the calls whose texts stand in the prompt."""
    shortened: int = 0
    """How many of these were cut."""


@dataclass(frozen=True)
class Call:
    """A call that was made."""

    ask: Ask
    completion: Completion


@dataclass(frozen=True)
class Outcome:
    """What a workflow returns; both by uid of the ask's prompt."""

    rewards: Mapping[str, float]
    """Of every ask."""
    notes: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Numbers for the record, such as a score; None where there is none."""


Workflow = Generator[Sequence[Ask], Sequence[Call], Outcome]
Workflows = Callable[[Sequence[Prompt], int], Workflow]
"""The workflow over the problems of a step."""


@dataclass(frozen=True)
class Episode:
    """All calls of a step, in the order in which they were asked, and what they earned."""

    calls: tuple[Call, ...]
    outcome: Outcome

    def rewards(self, agent: int) -> dict[str, tuple[float]]:
        """By prompt uid, the reward of every call of one agent: what its `update` is given."""
        own = (call.ask.prompt.uid for call in self.calls if call.ask.agent == agent)
        return {uid: (self.outcome.rewards[uid],) for uid in own}

    def solutions(self, agent: int, problems: Sequence[Prompt]) -> list[Group]:
        """One agent's solutions of each problem, of all conversations and turns."""
        return [
            Group(uid, tuple(call.completion for call in calls)) for uid, calls in self._by(agent, problems).items()
        ]

    def solution_rewards(self, agent: int, problems: Sequence[Prompt]) -> dict[str, tuple[float, ...]]:
        """By problem uid, what those solutions earned, in the order of `solutions`."""
        return {
            uid: tuple(self.outcome.rewards[call.ask.prompt.uid] for call in calls)
            for uid, calls in self._by(agent, problems).items()
        }

    def _by(self, agent: int, problems: Sequence[Prompt]) -> dict[str, list[Call]]:
        found: dict[str, list[Call]] = {problem.uid: [] for problem in problems}
        for call in self.calls:
            if call.ask.role == "solver" and call.ask.agent == agent:
                found[call.ask.talk.problem.uid].append(call)
        return found


def ask(
    talk: Talk,
    turn: int,
    role: Role,
    agent: int,
    wording: Callable[..., str],
    shown: Sequence[Call] = (),
    *,
    author: int | None = None,
    limit: int,
    style: PromptStyle | None = None,
) -> Ask:
    """An ask about the problem of a conversation, its images included, in every view that the problem has.

    Args:
        talk, turn, role, agent: see `Ask`.
        wording: from the problem's question and the texts of `shown` to the prompt.
        shown: calls whose texts are shown.
        author: whose solution it is about; by default the agent's own.
        limit: most characters of each of these texts; see `cut`.
        style: the instruction after it; by default the run's, which asks for an answer.
    """
    author = agent if author is None else author
    texts = [cut(call.completion.text, limit) for call in shown]
    say = partial(_say, wording, texts)
    problem = talk.problem
    prompt = replace(
        problem,
        uid=f"{talk.uid}/{turn}/{role}/{author}",
        text=say(problem.text),
        views={view: say(text) for view, text in problem.views.items()},
        style=style,
        quotes=bool(shown),
    )
    shortened = sum(len(call.completion.text.strip()) > limit for call in shown)
    uids = tuple(call.ask.prompt.uid for call in shown)
    return Ask(talk, turn, role, agent, author, prompt, uids, shortened)


def _say(wording: Callable[..., str], texts: Sequence[str], question: str) -> str:
    return wording(question, *texts)


def cut(text: str, limit: int) -> str:
    """A text of at most so many characters, CUT not counted: beginnings and ends say most, so the middle goes.

    >>> cut("0123456789", 4)
    '01\\n[...]\\n89'
    """
    text = text.strip()
    if len(text) <= limit:
        return text
    return text[: limit - limit // 2] + CUT + text[len(text) - limit // 2 :]


def talks_of(problems: Sequence[Prompt], conversations: int) -> list[Talk]:
    """So many conversations about each problem."""
    return [Talk(problem, number) for problem in problems for number in range(conversations)]


def others(noise: random.Random, agents: int) -> list[int]:
    """Somebody else for each agent, every one once, all such orders equally likely; with one agent, itself."""
    order = list(range(agents))
    while agents > 1 and any(one == other for one, other in enumerate(order)):
        noise.shuffle(order)
    return order


def anybody(noise: random.Random, agents: int) -> list[int]:
    """An agent for each agent, every one once, itself not excluded."""
    return noise.sample(range(agents), agents)


def converse(agents: Sequence[Agent], workflow: Workflow, step: int, parallel: Parallel = in_turn) -> Episode:
    """Drive a workflow to its end: agents work on what they are asked at the same time, one turn after the other.

    An agent that is asked nothing in a turn is not called. Raises ValueError where a workflow breaks the rules: each
    uid once in a step, a reward for each ask, and every agent is asked something.
    """
    calls: list[Call] = []
    asks = next(workflow)
    while True:
        calls += (made := _made(agents, asks, step, parallel))
        try:
            asks = workflow.send(made)
        except StopIteration as end:
            outcome: Outcome = end.value
            break
    asked = [call.ask.prompt.uid for call in calls]
    if len(set(asked)) != len(asked):
        raise ValueError(f"step {step}: a workflow asked {max(asked, key=asked.count)!r} twice")
    if odd := sorted(set(asked) ^ set(outcome.rewards)):
        raise ValueError(f"step {step}: rewards and asks do not belong together, first at {odd[0]!r}")
    silent = set(range(len(agents))) - {call.ask.agent for call in calls}
    if silent:
        raise ValueError(f"step {step}: agent {agents[min(silent)].name!r} was asked nothing")
    return Episode(tuple(calls), outcome)


def _made(agents: Sequence[Agent], asks: Sequence[Ask], step: int, parallel: Parallel) -> list[Call]:
    """The calls of one turn, in the order of the asks."""
    own = [[one.prompt for one in asks if one.agent == number] for number in range(len(agents))]
    groups = results(
        parallel(
            partial(agent.rollout, prompts, step) if prompts else _nothing
            for agent, prompts in zip(agents, own, strict=True)
        )
    )
    said = {group.uid: group.completions for row in groups for group in row}
    made = []
    for one in asks:
        (completion,) = said[one.prompt.uid]
        made.append(Call(one, completion))
    return made


def _nothing() -> list[Any]:
    return []
