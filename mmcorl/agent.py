"""The policy interface: what `cotrain` asks of an agent, and nothing more.

Strings go up, floats come down; tensors stay with the worker that made them. `mmcorl.worker.Worker` is the
agent that lives in this process; a cohort spread over GPUs, or a toy in a test, implements the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mmcorl.types import Completion, Group, Prompt

Result = TypeVar("Result")


class Agent(Protocol):
    """One policy of the cohort."""

    name: str

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample K completions of each prompt and keep what the update needs; one group per prompt."""
        ...

    def update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        """One policy step on the last rollout; `rewards` maps each prompt uid to its K rewards. Metrics."""
        ...

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One greedy completion per prompt, in order."""
        ...

    def save(self, directory: Path) -> None:
        """Write weights, processor and optimizer state into a new folder."""
        ...

    def load(self, directory: Path) -> None:
        """Continue exactly from what `save` wrote."""
        ...

    def export(self, directory: Path) -> None:
        """Write the weights and processor alone, in the format transformers and vLLM open."""
        ...


def in_turn(calls: Iterable[Callable[[], Result]]) -> list[Result]:
    """The `parallel` of one process: each agent's call after the other, results in order."""
    return [call() for call in calls]
