"""Who teaches whom: one function per rule, from what every agent voted to what every agent is taught.

A rule is a function from a `Round` to labels and a row in `KINDS`. It sees the votes of all agents and never a known
answer, `gold` excepted. With two agents every rule that asks peers alone is the ring.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mmcorl.algo.seeds import noise_seed
from mmcorl.labels import adaptive
from mmcorl.labels.voting import Relation, TieRule, Vote, majority
from mmcorl.types import Group, Prompt, PseudoLabel

Elect = Callable[[Sequence[str | None], Prompt], Vote]


@dataclass(frozen=True)
class Round:
    """What every agent rolled out and voted on one batch of prompts; rows are in the order of `prompts`."""

    agents: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    groups: tuple[tuple[Group, ...], ...]
    """[N][B]"""
    votes: tuple[tuple[Vote, ...], ...]
    """[N][B]"""
    relation: Relation
    elect: Elect
    """A vote over completions by the run's rule, its thresholds included."""
    tie: TieRule = "first_seen"
    step: int = 0
    seed: int = 0
    """Of the run; for rules that draw."""
    teachers: Mapping[str, str] | None = None
    """Pupil to teacher, for `map`."""
    agreement: Mapping[str, float] | None = None
    """Running pairwise agreement before this step, for `adaptive`."""


LabelTable = tuple[tuple[PseudoLabel, ...], ...]


def _taught_by(teachers: Sequence[int], rollouts: Round) -> LabelTable:
    """Labels when agent i is taught by the vote of agent `teachers[i]`."""
    return tuple(
        tuple(
            PseudoLabel(prompt.uid, vote.answer, rollouts.agents[teacher])
            for prompt, vote in zip(rollouts.prompts, rollouts.votes[teacher], strict=True)
        )
        for teacher in teachers
    )


def _peers(agent: int, n: int) -> list[int]:
    """The others in ring order, the next one first."""
    return [(agent + hop) % n for hop in range(1, n)]


def ring(rollouts: Round) -> LabelTable:
    """Each agent is taught by the next one, the last by the first (Co-RL): A by B, B by C, C by A."""
    n = len(rollouts.agents)
    return _taught_by([(i + 1) % n for i in range(n)], rollouts)


def own(rollouts: Round) -> LabelTable:
    """Each agent is taught by its own vote (TTRL, MM-UPT): the self-rewarding baseline."""
    return _taught_by(range(len(rollouts.agents)), rollouts)


def gold(rollouts: Round) -> LabelTable:
    """Each agent is taught by the known answer (GT-Reward): the supervised upper line."""
    row = tuple(PseudoLabel(prompt.uid, prompt.gold, "gold") for prompt in rollouts.prompts)
    return tuple(row for _ in rollouts.agents)


def by_map(rollouts: Round) -> LabelTable:
    """Each agent is taught by the one that `supervision.teachers` names for it; it may be itself."""
    assert rollouts.teachers is not None
    return _taught_by([rollouts.agents.index(rollouts.teachers[name]) for name in rollouts.agents], rollouts)


def random_peer(rollouts: Round) -> LabelTable:
    """Each prompt of each agent is taught by a peer drawn for it, by seed, step, agent and uid alone."""
    n = len(rollouts.agents)

    def teacher(agent: int, uid: str) -> int:
        noise = noise_seed(rollouts.seed, f"{rollouts.agents[agent]}/teacher/{uid}", rollouts.step, 0)
        return random.Random(noise).choice(_peers(agent, n))

    chosen = [[teacher(agent, prompt.uid) for prompt in rollouts.prompts] for agent in range(n)]
    return tuple(
        tuple(
            PseudoLabel(prompt.uid, rollouts.votes[teacher][b].answer, rollouts.agents[teacher])
            for b, (prompt, teacher) in enumerate(zip(rollouts.prompts, row, strict=True))
        )
        for row in chosen
    )


def adapted(rollouts: Round) -> LabelTable:
    """Each agent is taught by the peer that label-free agreement ranks highest (`mmcorl.labels.adaptive`); ours."""
    return _taught_by(adaptive.teachers(rollouts.agents, rollouts.agreement or {}), rollouts)


def strict(rollouts: Round) -> LabelTable:
    """Each agent is taught what more than half of its peers voted; where there is no such answer, nothing."""

    def label(agent: int, b: int) -> PseudoLabel:
        peers = _peers(agent, len(rollouts.agents))
        prompt = rollouts.prompts[b]
        answers = [rollouts.votes[peer][b].answer for peer in peers]
        vote = _vote_of_votes(rollouts, answers, prompt)
        elected = vote.counts[0][0] if vote.counts and 2 * vote.support > len(peers) else None
        return PseudoLabel(prompt.uid, elected, _named(rollouts, peers))

    return _table(rollouts, label)


def pooled(rollouts: Round) -> LabelTable:
    """Everyone is taught the majority over the completions of all agents together, its own among them."""

    def label(agent: int, b: int) -> PseudoLabel:
        prompt = rollouts.prompts[b]
        # In cohort order, so that a tie is the same to everyone.
        answers = [answer for groups in rollouts.groups for answer in groups[b].ballots]
        return PseudoLabel(prompt.uid, rollouts.elect(answers, prompt).answer, "+".join(rollouts.agents))

    return _table(rollouts, label)


def union(rollouts: Round) -> LabelTable:
    """An agent is rewarded for agreeing with any of its peers' votes."""

    def label(agent: int, b: int) -> PseudoLabel:
        peers = _peers(agent, len(rollouts.agents))
        prompt = rollouts.prompts[b]
        answers = [answer for peer in peers if (answer := rollouts.votes[peer][b].answer) is not None]
        return PseudoLabel(
            prompt.uid, answers[0] if answers else None, _named(rollouts, peers), also=tuple(answers[1:])
        )

    return _table(rollouts, label)


def self_and_peers(rollouts: Round) -> LabelTable:
    """Each agent is taught the plurality of one vote per agent, its own included.

    Of equally many votes the first counts, peers in ring order before the agent itself, unless `tie` says otherwise:
    with two agents that differ it is the ring.
    """

    def label(agent: int, b: int) -> PseudoLabel:
        voters = [*_peers(agent, len(rollouts.agents)), agent]
        prompt = rollouts.prompts[b]
        vote = _vote_of_votes(rollouts, [rollouts.votes[voter][b].answer for voter in voters], prompt)
        return PseudoLabel(prompt.uid, vote.answer, "+".join(rollouts.agents))

    return _table(rollouts, label)


def paired(rollouts: Round) -> LabelTable:
    """Each agent is taught by its own vote on the same problem in another wording (Co-rewarding-I)."""
    place = {prompt.uid: b for b, prompt in enumerate(rollouts.prompts)}

    def label(agent: int, b: int) -> PseudoLabel:
        prompt = rollouts.prompts[b]
        assert prompt.twin is not None
        return PseudoLabel(prompt.uid, rollouts.votes[agent][place[prompt.twin]].answer, rollouts.agents[agent])

    return _table(rollouts, label)


def _table(rollouts: Round, label: Callable[[int, int], PseudoLabel]) -> LabelTable:
    return tuple(tuple(label(agent, b) for b in range(len(rollouts.prompts))) for agent in range(len(rollouts.agents)))


def _vote_of_votes(rollouts: Round, answers: Sequence[str | None], prompt: Prompt) -> Vote:
    """A plurality of agents; thresholds on completions have had their say in each agent's own vote."""
    return majority(answers, rollouts.relation, choices=prompt.choices, tie=rollouts.tie)


def _named(rollouts: Round, agents: Sequence[int]) -> str:
    return "+".join(rollouts.agents[agent] for agent in agents)


@dataclass(frozen=True)
class Kind:
    """One row of the table: how labels come about, what it takes, and what people call it."""

    provide: Callable[[Round], LabelTable]
    label: str
    """For tables and plots."""
    min_agents: int = 1
    needs_gold: bool = False


KINDS: dict[str, Kind] = {
    "ring": Kind(ring, "Co-RL: a peer's votes", min_agents=2),
    "self": Kind(own, "self-rewarding: own votes"),
    "gold": Kind(gold, "gold labels: known answers", needs_gold=True),
    "map": Kind(by_map, "given teachers' votes"),
    "random_peer": Kind(random_peer, "a random peer's votes", min_agents=2),
    "adaptive": Kind(adapted, "the likeliest peer's votes", min_agents=2),
    "strict": Kind(strict, "strict majority of peers", min_agents=2),
    "pooled": Kind(pooled, "votes of all pooled", min_agents=2),
    "union": Kind(union, "any peer's votes", min_agents=2),
    "self_and_peers": Kind(self_and_peers, "own and peers' votes", min_agents=2),
    "paired": Kind(paired, "own votes on another wording"),
}
