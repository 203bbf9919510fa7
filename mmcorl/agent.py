"""The policy interface: what `cotrain` asks of an agent, and nothing more.

Strings go up, floats come down; tensors stay with the worker that made them. `mmcorl.launch.ray_agent.TeamAgent` is the
agent of a run, over one worker in this process or over many; a toy in a test implements the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol, TypeVar

from mmcorl.types import Completion, Group, Prompt

Result = TypeVar("Result")

Parallel = Callable[[Iterable[Callable[[], Any]]], "list[Future[Any]]"]
"""Takes one call per agent, in the order of the cohort, and starts them; an agent's calls run one after the other."""


class Agent(Protocol):
    """One policy of the cohort."""

    name: str

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample K completions of each prompt and keep what the update needs; one group per prompt.

        In an episode one completion, and several rollouts may belong to one step: its update takes them all.
        """
        ...

    def update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        """One policy step on the step's rollouts; `rewards` maps each prompt uid to its K rewards. Metrics."""
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


def in_turn(calls: Iterable[Callable[[], Result]]) -> list[Future[Result]]:
    """The `parallel` of one process: each agent's call after the other, done when this returns.

    An error of a call is raised here, and the calls after it are not made.
    """
    made: list[Future[Result]] = []
    for call in calls:
        future: Future[Result] = Future()
        future.set_result(call())
        made.append(future)
    return made


def results(calls: Iterable[Future[Result]]) -> list[Result]:
    """Wait for started calls; their results in order."""
    return [call.result() for call in calls]
