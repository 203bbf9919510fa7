"""Supervision rules between Co-RL and self-rewarding: a share of the labels are one's own votes, the rest a peer's.

    mmcorl train configs/overlap.yaml supervision.kind=tests.bench.own_share:half

Whose vote labels a prompt is drawn, so that the expected reward is the mixture of both. A rule for an experiment of
`tests.bench.thesis`, and an example of one that is not part of the package.
"""

from __future__ import annotations

import random

from mmcorl.labels.rules import CohortRollouts, LabelTable
from mmcorl.types import PseudoLabel


def mixed(rollouts: CohortRollouts, own_share: float) -> LabelTable:
    """Label with one's own vote with probability `own_share`, else with the next agent's; [N][B]."""
    agents = range(len(rollouts.agents))
    return tuple(tuple(drawn(rollouts, agent, b, own_share) for b in range(len(rollouts.prompts))) for agent in agents)


def drawn(rollouts: CohortRollouts, agent: int, b: int, own_share: float) -> PseudoLabel:
    uid = rollouts.prompts[b].uid
    draw = random.Random(f"{rollouts.seed}/{rollouts.step}/{rollouts.agents[agent]}/{uid}").random()
    teacher = agent if draw < own_share else rollouts.peers(agent)[0]
    return PseudoLabel(uid, rollouts.votes[teacher][b].answer, rollouts.agents[teacher])


def quarter(rollouts: CohortRollouts) -> LabelTable:
    return mixed(rollouts, 0.25)


def half(rollouts: CohortRollouts) -> LabelTable:
    return mixed(rollouts, 0.5)


def three_quarters(rollouts: CohortRollouts) -> LabelTable:
    return mixed(rollouts, 0.75)
