"""Independent sampling: every agent answers every prompt by itself, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from mmcorl.agent import Agent, Parallel, results
from mmcorl.types import Group, Prompt


class Independent:
    """The interaction without any: K completions per prompt and agent. See `mmcorl.interactions.base.Interaction`."""

    def play(
        self, agents: Sequence[Agent], batch: Sequence[Prompt], step: int, parallel: Parallel
    ) -> tuple[list[list[Group]], None]:
        """Roll out every agent on the whole batch, all at the same time."""
        return results(parallel(partial(agent.rollout, batch, step) for agent in agents)), None
