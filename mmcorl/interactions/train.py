"""Algorithm 1 with episodes in place of groups: agents converse, every call earns its reward, each policy moves.

The same loop as `mmcorl.cotrain`, and the same journal. What differs is where rewards come from: out of the
conversation, and not from labels. Votes and labels are still told, of all solutions an agent gave to a problem, so that
the record, its accuracies and its plots read like those of any other run; nothing is taught by them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from mmcorl.agent import Agent, Parallel, in_turn
from mmcorl.cotrain import Prompts
from mmcorl.interactions.base import Episode, Workflows, converse
from mmcorl.labels.supervision import Labels, Supervision
from mmcorl.types import Group, Prompt


class Journal(Protocol):
    """What accompanies the loop without steering it; see `mmcorl.cotrain.Journal`."""

    step: int

    def phase(self, what: str) -> None: ...

    def record(
        self,
        step: int,
        batch: Sequence[Prompt],
        groups: Sequence[Sequence[Group]],
        labels: Labels,
        rewards: Sequence[Mapping[str, Sequence[float]]],
        updates: Sequence[Future[dict[str, float]]],
        episode: Episode,
    ) -> None: ...

    def evaluate_when_due(self, step: int, agents: Sequence[Agent]) -> None: ...

    def checkpoint_when_due(self, step: int, agents: Sequence[Agent]) -> None: ...


def train_on_episodes(
    agents: Sequence[Agent],
    prompts: Prompts,
    workflows: Workflows,
    supervision: Supervision,
    journal: Journal,
    steps: int,
    parallel: Parallel = in_turn,
) -> None:
    """Train N agents on their conversations up to `steps`; continues after `journal.step`.

    Args:
        agents: the cohort; workflows know them by their place in it.
        prompts: B problems per step.
        workflows: the workflow over the problems of a step, see `mmcorl.interactions.base`.
        supervision: for the record alone.
        journal: logs, evaluates and checkpoints.
        steps: last step.
        parallel: starts one call per agent; each agent makes its calls in the order they were started.
    """
    numbers = range(len(agents))
    journal.evaluate_when_due(journal.step, agents)
    for step in range(journal.step + 1, steps + 1):
        batch = prompts.batch(step)
        journal.phase("rollout")
        episode = converse(agents, workflows(batch, step), step, parallel)
        journal.phase("update")
        updates = parallel(partial(agent.update, episode.rewards(i), step) for i, agent in enumerate(agents))
        groups = [episode.solutions(i, batch) for i in numbers]  # [N][B] all that an agent answered to a problem
        labels = supervision.labels(groups, batch, step)
        rewards = [episode.solution_rewards(i, batch) for i in numbers]
        journal.record(step, batch, groups, labels, rewards, updates, episode)
        journal.evaluate_when_due(step, agents)
        journal.checkpoint_when_due(step, agents)
