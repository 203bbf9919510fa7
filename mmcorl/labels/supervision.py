"""Supervision: from the rollouts of all agents to the pseudo-labels of each.

Vote in each group, then apply a rule of `mmcorl.labels.rules`. Labels are computed from the rollouts of all agents
before any policy moves, and joined to prompts by uid, never by position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mmcorl.errors import UserError
from mmcorl.labels.adaptive import Agreements
from mmcorl.labels.rules import RULES, CohortRollouts, LabelTable, RuleRow, apply_rule
from mmcorl.labels.voting import Relation, TieRule, Vote, majority, pairwise_agreement
from mmcorl.types import Group, Prompt, PseudoLabel

T = TypeVar("T", Group, PseudoLabel)


class MismatchError(RuntimeError):
    """Agents, prompts or labels that belong together differ in uids: the run's fault, not the user's."""


@dataclass(frozen=True)
class Labels:
    """The votes of one batch and what each agent is rewarded against; rows in the order of the prompts."""

    votes: tuple[tuple[Vote, ...], ...]
    """[N][B] each agent's own vote, for metrics and logs."""
    labels: LabelTable
    """[N][B] what each agent is taught."""


class Supervision:
    """Turns the rollouts of all agents into the pseudo-label of every agent and prompt.

    `kind` names a row of `mmcorl.labels.rules.RULES`, `agents` the names in cohort order, `relation` the run's one
    equivalence of answers; `tie`, `min_votes` and `min_share` are the voting rule (see `majority`), `teachers` is the
    map of `kind` `map`, `seed` that of `random_peer`. Raises UserError for agents or values that do not fit.
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
        teachers: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        self.rule = RULES.find(kind)
        _require_fitting(self.rule, agents, teachers, min_votes, min_share)
        majority([], relation, tie=tie)  # refuses a rule that is none
        self.kind = kind
        self.agents = tuple(agents)
        self.relation = relation
        self.tie: TieRule = tie
        self.min_votes = min_votes
        self.min_share = min_share
        self.teachers = teachers
        self.seed = seed
        self.agreements = Agreements()

    def labels(self, groups: Sequence[Sequence[Group]], prompts: Sequence[Prompt], step: int | None = None) -> Labels:
        """Vote in every group and label every prompt for every agent, [N][B] in the order of `prompts`.

        `groups[i]` are agent i's, one per prompt, in any order. Raises MismatchError, naming the agent, the
        step if given, and the uid, when an agent's groups are not exactly those of the prompts, UserError for a prompt
        that the rule cannot label.
        """
        uids = [prompt.uid for prompt in prompts]
        for prompt in prompts:
            if self.rule.needs_gold and prompt.gold is None:
                raise UserError(
                    f"row {prompt.row_id!r} has no answer, but supervision {self.kind!r} needs one on every row: add "
                    "the answers, or use 'ring' or 'self', which need none"
                )
            if self.rule.needs_twins and prompt.twin not in uids:
                raise UserError(
                    f"row {prompt.row_id!r} has no other wording in its batch, which supervision {self.kind!r} needs: "
                    "name the view that holds it in supervision.pair"
                )
        if len(groups) != len(self.agents):
            raise MismatchError(f"groups of {len(groups)} agents for a cohort of {len(self.agents)}{_at(step)}")
        joined = tuple(
            tuple(join(name, agent_groups, uids, step)) for name, agent_groups in zip(self.agents, groups, strict=True)
        )
        votes = tuple(
            tuple(self._elect(group.ballots, prompt) for group, prompt in zip(row, prompts, strict=True))
            for row in joined
        )
        rollouts = CohortRollouts(
            self.agents,
            tuple(prompts),
            joined,
            votes,
            relation=self.relation,
            elect=self._elect,
            tie=self.tie,
            step=step or 0,
            seed=self.seed,
            teachers=self.teachers,
            agreement=dict(self.agreements.pairs),
        )
        labels = apply_rule(self.kind, rollouts)
        if self.rule.keeps_agreement:
            answers = {name: [vote.answer for vote in row] for name, row in zip(self.agents, votes, strict=True)}
            self.agreements.add(pairwise_agreement(answers, self.relation, [prompt.choices for prompt in prompts]))
        return Labels(votes, labels)

    def _elect(self, answers: Sequence[str | None], prompt: Prompt) -> Vote:
        return majority(
            answers,
            self.relation,
            choices=prompt.choices,
            tie=self.tie,
            min_votes=self.min_votes,
            min_share=self.min_share,
        )


def _require_fitting(
    rule: RuleRow, agents: Sequence[str], teachers: Mapping[str, str] | None, min_votes: int, min_share: float
) -> None:
    """Raise UserError for what no vote or rule could use; a config has been checked by then, calls from Python not."""
    if len(set(agents)) < len(agents) or len(agents) < rule.min_agents:
        raise UserError(
            f"the agents of supervision {rule.name!r} are {list(agents)}: give {rule.min_agents} or more, each once"
        )
    if min_votes < 1 or not 0 <= min_share <= 1:
        raise UserError(
            f"min_votes is {min_votes} and min_share {min_share}: give at least one vote and a share from 0 to 1"
        )
    if (rule.setting == "teachers") != (teachers is not None):
        raise UserError(f"supervision {rule.name!r} with teachers {teachers}: give them with 'map' and only there")
    if teachers is not None and not ({*agents} <= {*teachers} and {*teachers, *teachers.values()} <= {*agents}):
        raise UserError(f"teachers is {dict(teachers)}: name one of {', '.join(agents)} for each of them")


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
