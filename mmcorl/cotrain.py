"""Algorithm 1 of the paper on one page: roll out, vote, reward, update.

Several agents that share no parameters answer the same prompts. Each takes a majority vote over its own K
completions; each is then rewarded for agreeing with a *peer's* vote. Labels are fixed before any policy moves,
and no known answer is used unless `supervision` is `gold`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from mmcorl.agent import Agent, Parallel, in_turn, results
from mmcorl.labels.supervision import Labels, Supervision
from mmcorl.types import Group, Prompt, PseudoLabel

Rewards = dict[str, tuple[float, ...]]
Reward = Callable[[Sequence[Group], Sequence[PseudoLabel], Sequence[Prompt]], Rewards]


class Prompts(Protocol):
    """Where prompts come from: the same batch for every agent, a function of the step alone."""

    def batch(self, step: int) -> Sequence[Prompt]: ...


class Journal(Protocol):
    """What accompanies the loop without steering it: logs, evaluation, checkpoints. See `mmcorl.run.recorder.Run`."""

    step: int
    """The last finished step; 0 before the first."""

    def phase(self, what: str) -> None: ...

    def record(
        self,
        step: int,
        batch: Sequence[Prompt],
        groups: Sequence[Sequence[Group]],
        labels: Labels,
        rewards: Sequence[Mapping[str, Sequence[float]]],
        updates: Sequence[Future[dict[str, float]]],
    ) -> None: ...

    def evaluate_when_due(self, step: int, agents: Sequence[Agent]) -> None: ...

    def checkpoint_when_due(self, step: int, agents: Sequence[Agent]) -> None: ...


def cotrain(
    agents: Sequence[Agent],
    prompts: Prompts,
    supervision: Supervision,
    reward: Reward,
    journal: Journal,
    steps: int,
    parallel: Parallel = in_turn,
) -> None:
    """Train N agents together up to `steps`; continues after `journal.step`.

    Agents wait for each other's votes and for nothing else: where `parallel` starts calls without waiting for them,
    an agent that has finished its update rolls out for the next step while its peers still update, unless the
    journal has an evaluation or a checkpoint due.

    Args:
        agents: the cohort, in the order that `supervision` teaches.
        prompts: B prompts per step.
        supervision: from all rollouts to everyone's pseudo-labels.
        reward: from one agent's groups and labels to K rewards per prompt uid.
        journal: logs, evaluates and checkpoints.
        steps: last step.
        parallel: starts one call per agent; each agent makes its calls in the order they were started.
    """
    journal.evaluate_when_due(journal.step, agents)
    for step in range(journal.step + 1, steps + 1):
        batch = prompts.batch(step)
        journal.phase("rollout")
        groups = results(parallel(partial(agent.rollout, batch, step) for agent in agents))  # [N][B] groups of K
        journal.phase("vote")
        labels = supervision.labels(groups, batch, step)  # [N][B], fixed before any policy moves
        rewards = [reward(*pair, batch) for pair in zip(groups, labels.labels, strict=True)]  # [N] uid -> K
        journal.phase("update")
        updates = parallel(partial(agent.update, own, step) for agent, own in zip(agents, rewards, strict=True))
        journal.record(step, batch, groups, labels, rewards, updates)
        journal.evaluate_when_due(step, agents)
        journal.checkpoint_when_due(step, agents)
