"""Who teaches whom: from every agent's rollouts to every agent's pseudo-labels.

A kind of supervision is one function from a `Round` to labels and one row in `KINDS`. Labels are computed
from the rollouts of all agents before any policy moves, and joined to prompts by uid, never by position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mmcorl.errors import Refused
from mmcorl.types import Group, Prompt, PseudoLabel
from mmcorl.voting import Relation, TieRule, Vote, check_rule, majority

T = TypeVar("T", Group, PseudoLabel)


class MismatchError(RuntimeError):
    """Agents, prompts or labels that belong together differ in uids: the run's fault, not the user's."""


@dataclass(frozen=True)
class Round:
    """What every agent rolled out and voted on one batch of prompts; rows are in the order of `prompts`."""

    agents: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    groups: tuple[tuple[Group, ...], ...]
    """[N][B]"""
    votes: tuple[tuple[Vote, ...], ...]
    """[N][B]"""


@dataclass(frozen=True)
class Labels:
    """The votes of one batch and what each agent is rewarded against; rows in the order of the prompts."""

    votes: tuple[tuple[Vote, ...], ...]
    """[N][B] each agent's own vote, for metrics and logs."""
    labels: tuple[tuple[PseudoLabel, ...], ...]
    """[N][B] what each agent is taught."""


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


@dataclass(frozen=True)
class Kind:
    """One row of the table: how labels come about, and what it takes."""

    provide: Callable[[Round], LabelTable]
    min_agents: int = 1
    needs_gold: bool = False


KINDS: dict[str, Kind] = {
    "ring": Kind(ring, min_agents=2),
    "self": Kind(own),
    "gold": Kind(gold, needs_gold=True),
}


class Supervision:
    """Turns the rollouts of all agents into the pseudo-label of every agent and prompt.

    `kind` is a row of `KINDS`, `agents` the names in cohort order, `relation` the run's one equivalence of
    answers; `tie`, `min_votes` and `min_share` are the voting rule (see `majority`). Raises Refused for
    settings that cannot work.
    """

    def __init__(
        self,
        kind: str,
        agents: Sequence[str],
        *,
        relation: Relation,
        tie: TieRule = "first_seen",
        min_votes: int = 1,
        min_share: float = 0.0,
    ) -> None:
        if kind not in KINDS:
            raise Refused(f"supervision {kind!r} is unknown: use one of {', '.join(KINDS)}")
        twice = {name for name in agents if list(agents).count(name) > 1}
        if twice:
            raise Refused(f"two agents are named {min(twice)!r}: labels are joined by agent, give each its own name")
        if len(agents) < KINDS[kind].min_agents:
            raise Refused(
                f"supervision {kind!r} needs {KINDS[kind].min_agents} agents or more and this run has "
                f"{len(agents)}: add an agent, or use 'self' to let an agent learn from its own vote"
            )
        check_rule(tie, min_votes, min_share)
        self.kind = kind
        self.agents = tuple(agents)
        self.relation = relation
        self.tie: TieRule = tie
        self.min_votes = min_votes
        self.min_share = min_share

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts this kind cannot label; call it on the whole data set before a run starts."""
        if KINDS[self.kind].needs_gold:
            for prompt in prompts:
                if prompt.gold is None:
                    raise Refused(
                        f"row {prompt.row_id!r} has no answer, but supervision {self.kind!r} needs one on "
                        "every row: add the answers, or use 'ring' or 'self', which need none"
                    )

    def labels(self, groups: Sequence[Sequence[Group]], prompts: Sequence[Prompt], step: int | None = None) -> Labels:
        """Vote in every group and say what each agent is taught, [N][B] in the order of `prompts`.

        `groups[i]` are agent i's, one per prompt, in any order. Raises MismatchError, naming the agent, the
        step if given, and the uid, when an agent's groups are not exactly those of the prompts.
        """
        self.check(prompts)
        if len(groups) != len(self.agents):
            raise MismatchError(f"groups of {len(groups)} agents for a cohort of {len(self.agents)}{_at(step)}")
        uids = [prompt.uid for prompt in prompts]
        joined = tuple(
            tuple(join(name, agent_groups, uids, step)) for name, agent_groups in zip(self.agents, groups, strict=True)
        )
        votes = tuple(
            tuple(
                majority(
                    group.answers,
                    self.relation,
                    choices=prompt.choices,
                    tie=self.tie,
                    min_votes=self.min_votes,
                    min_share=self.min_share,
                )
                for group, prompt in zip(row, prompts, strict=True)
            )
            for row in joined
        )
        return Labels(votes, KINDS[self.kind].provide(Round(self.agents, tuple(prompts), joined, votes)))


def join(who: str, items: Sequence[T], uids: Sequence[str], step: int | None = None) -> list[T]:
    """Order `items` (anything with a uid) as `uids`; MismatchError unless both hold the same, once each."""
    if len(set(uids)) != len(uids):
        twice = next(uid for i, uid in enumerate(uids) if uid in uids[:i])
        raise MismatchError(f"prompt {twice} stands twice in one batch{_at(step)}: a batch must hold a prompt once")
    found: dict[str, T] = {}
    for item in items:
        if item.uid in found:
            raise MismatchError(f"agent {who!r} has prompt {item.uid} twice{_at(step)}")
        found[item.uid] = item
    for uid in uids:
        if uid not in found:
            raise MismatchError(f"agent {who!r} has nothing for prompt {uid}{_at(step)}, which the batch holds")
    for uid in found.keys() - set(uids):
        raise MismatchError(f"agent {who!r} has prompt {uid}{_at(step)}, which the batch does not hold")
    return [found[uid] for uid in uids]


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step}"
