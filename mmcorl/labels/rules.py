"""Supervision rules (who teaches whom): from the votes of all agents to the labels of each.

A rule is a function from `CohortRollouts` to labels and a row of `RULES`. No rule but `gold` sees a known answer. With
two agents every rule that asks only peers is the ring. A user's own rule is named by `supervision.kind:
package.module:function`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmcorl.algo.seeds import noise_seed
from mmcorl.errors import RunError
from mmcorl.labels import adaptive
from mmcorl.labels.voting import Relation, TieRule, Vote, majority
from mmcorl.registry import Row, Table, check_call
from mmcorl.types import Group, Prompt, PseudoLabel

Elect = Callable[[Sequence[str | None], Prompt], Vote]


@dataclass(frozen=True)
class CohortRollouts:
    """The rollouts and votes of all agents on one batch of prompts; rows are in the order of `prompts`."""

    agents: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    groups: tuple[tuple[Group, ...], ...]
    """[N][B]"""
    votes: tuple[tuple[Vote, ...], ...]
    """[N][B]"""
    relation: Relation
    elect: Elect
    """A vote over completions by the run's voting rule, thresholds included."""
    tie: TieRule = "first_seen"
    step: int = 0
    seed: int = 0
    """The run's seed, for rules that draw."""
    teachers: Mapping[str, str] | None = None
    """Pupil to teacher, for `map`."""
    agreement: Mapping[str, float] | None = None
    """Running pairwise agreement before this step, for `adaptive`."""


LabelTable = tuple[tuple[PseudoLabel, ...], ...]
"""[N][B]"""


@dataclass(frozen=True)
class RuleRow(Row):
    """A supervision rule and what it requires."""

    min_agents: int = 1
    needs_gold: bool = False
    """Whether every training row needs a known answer."""
    needs_twins: bool = False
    """Whether every prompt needs the same problem in another wording in its batch."""
    keeps_agreement: bool = False
    """Whether it reads `agreement`, which the run then keeps up to date."""
    setting: str | None = None
    """The setting of the `supervision` section that belongs to this rule alone and that it needs."""
    method: str = ""
    """Its name as a method, where the literature has another."""


RULES: Table[RuleRow] = Table(
    "supervision rule", RuleRow, lambda row: check_call(row, "supervision rule", "rule(rollouts)", None)
)


def apply_rule(name: str, rollouts: CohortRollouts) -> LabelTable:
    """Return the labels of rule `name`; RunError unless there is one for every agent and prompt, in order."""
    returned = RULES.find(name).function(rollouts)
    try:
        table = tuple(tuple(row) for row in returned)
    except TypeError:  # not a table
        table = ()
    uids = [prompt.uid for prompt in rollouts.prompts]
    if [[_uid(label) for label in row] for row in table] != [uids] * len(rollouts.agents):
        raise RunError(
            f"supervision rule {name!r} did not return a PseudoLabel for each of the {len(rollouts.agents)} agents and "
            f"{len(uids)} prompts, in their order and with text or None as answer: return labels[agent][prompt]"
        )
    return table


def _uid(label: Any) -> str | None:
    """Return the uid of a label whose answer is text or None."""
    return label.uid if isinstance(label, PseudoLabel) and isinstance(label.answer, str | None) else None


def _taught_by(teachers: Sequence[int], rollouts: CohortRollouts) -> LabelTable:
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


@RULES.add(
    "ring",
    "each agent learns from the next agent's majority vote (Co-RL, the paper's method)",
    title="Co-RL: a peer's votes",
    min_agents=2,
    method="co_rl",
)
def ring(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by the next one, the last by the first (Co-RL): A by B, B by C, C by A."""
    n = len(rollouts.agents)
    return _taught_by([(i + 1) % n for i in range(n)], rollouts)


@RULES.add(
    "self",
    "each agent learns from its own majority vote: the self-rewarding baseline (TTRL, MM-UPT)",
    title="self-rewarding: own votes",
)
def own(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by its own vote (TTRL, MM-UPT): the self-rewarding baseline."""
    return _taught_by(range(len(rollouts.agents)), rollouts)


@RULES.add(
    "gold",
    "the known answers are the labels: the supervised upper bound (GT-Reward)",
    title="gold labels: known answers",
    needs_gold=True,
    method="gt",
)
def gold(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by the known answer (GT-Reward): the supervised upper line."""
    row = tuple(PseudoLabel(prompt.uid, prompt.gold, "gold") for prompt in rollouts.prompts)
    return tuple(row for _ in rollouts.agents)


@RULES.add(
    "map",
    "each agent learns from the agent that `supervision.teachers` names",
    title="given teachers' votes",
    setting="teachers",
)
def by_map(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by the one that `supervision.teachers` names for it; it may be itself."""
    assert rollouts.teachers is not None
    return _taught_by([rollouts.agents.index(rollouts.teachers[name]) for name in rollouts.agents], rollouts)


@RULES.add(
    "random_peer",
    "each prompt has a peer drawn as its teacher (with two agents this is co_rl)",
    title="a random peer's votes",
    min_agents=2,
)
def random_peer(rollouts: CohortRollouts) -> LabelTable:
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


@RULES.add(
    "adaptive",
    "each agent learns from the peer that label-free agreement ranks highest (ours)",
    title="the likeliest peer's votes",
    min_agents=2,
    keeps_agreement=True,
)
def adapted(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by the peer that label-free agreement ranks highest (`mmcorl.labels.adaptive`); ours."""
    return _taught_by(adaptive.teachers(rollouts.agents, rollouts.agreement or {}), rollouts)


@RULES.add(
    "strict",
    "each agent learns what more than half of its peers voted, else nothing",
    title="strict majority of peers",
    min_agents=2,
)
def strict(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught what more than half of its peers voted; where there is no such answer, nothing."""

    def label(agent: int, b: int) -> PseudoLabel:
        peers = _peers(agent, len(rollouts.agents))
        prompt = rollouts.prompts[b]
        answers = [rollouts.votes[peer][b].answer for peer in peers]
        vote = _vote_of_votes(rollouts, answers, prompt)
        elected = vote.counts[0][0] if vote.counts and 2 * vote.support > len(peers) else None
        return PseudoLabel(prompt.uid, elected, _named(rollouts, peers))

    return _table(rollouts, label)


@RULES.add(
    "pooled",
    "all agents learn from the majority over all their completions together",
    title="votes of all pooled",
    min_agents=2,
)
def pooled(rollouts: CohortRollouts) -> LabelTable:
    """Everyone is taught the majority over the completions of all agents together, its own among them."""

    def label(agent: int, b: int) -> PseudoLabel:
        prompt = rollouts.prompts[b]
        # In cohort order, so that a tie is the same to everyone.
        answers = [answer for groups in rollouts.groups for answer in groups[b].ballots]
        return PseudoLabel(prompt.uid, rollouts.elect(answers, prompt).answer, "+".join(rollouts.agents))

    return _table(rollouts, label)


@RULES.add(
    "union",
    "agreement with any peer's vote is rewarded",
    title="any peer's votes",
    min_agents=2,
)
def union(rollouts: CohortRollouts) -> LabelTable:
    """An agent is rewarded for agreeing with any of its peers' votes."""

    def label(agent: int, b: int) -> PseudoLabel:
        peers = _peers(agent, len(rollouts.agents))
        prompt = rollouts.prompts[b]
        answers = [answer for peer in peers if (answer := rollouts.votes[peer][b].answer) is not None]
        return PseudoLabel(
            prompt.uid, answers[0] if answers else None, _named(rollouts, peers), also=tuple(answers[1:])
        )

    return _table(rollouts, label)


@RULES.add(
    "self_and_peers",
    "all agents learn from one vote per agent, the pupil's own included",
    title="own and peers' votes",
    min_agents=2,
)
def self_and_peers(rollouts: CohortRollouts) -> LabelTable:
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


@RULES.add(
    "paired",
    "each agent learns from its own vote on the same problem in another wording (Co-rewarding-I)",
    title="own votes on another wording",
    needs_twins=True,
    setting="pair",
)
def paired(rollouts: CohortRollouts) -> LabelTable:
    """Each agent is taught by its own vote on the same problem in another wording (Co-rewarding-I)."""
    place = {prompt.uid: b for b, prompt in enumerate(rollouts.prompts)}

    def label(agent: int, b: int) -> PseudoLabel:
        prompt = rollouts.prompts[b]
        assert prompt.twin is not None
        return PseudoLabel(prompt.uid, rollouts.votes[agent][place[prompt.twin]].answer, rollouts.agents[agent])

    return _table(rollouts, label)


def _table(rollouts: CohortRollouts, label: Callable[[int, int], PseudoLabel]) -> LabelTable:
    return tuple(tuple(label(agent, b) for b in range(len(rollouts.prompts))) for agent in range(len(rollouts.agents)))


def _vote_of_votes(rollouts: CohortRollouts, answers: Sequence[str | None], prompt: Prompt) -> Vote:
    """A plurality of agents; thresholds on completions have had their say in each agent's own vote."""
    return majority(answers, rollouts.relation, choices=prompt.choices, tie=rollouts.tie)


def _named(rollouts: CohortRollouts, agents: Sequence[int]) -> str:
    return "+".join(rollouts.agents[agent] for agent in agents)
