"""An agent as `cotrain` sees it, over the ranks that share its work."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from mmcorl.agent import Parallel
from mmcorl.run.throughput import peak_flops, rates
from mmcorl.types import Completion, Group, Prompt

Item = TypeVar("Item")


class Team(Protocol):
    """The workers of one agent: one in this process, or one actor per GPU."""

    size: int

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], during: str) -> list[Any]:
        """Call a method of `mmcorl.launch.host.Host` on every rank, each with its own arguments; results by rank.

        `during` says what is going on, for the message of a failure.
        """
        ...


class TeamAgent:
    """One agent over one or more ranks. Implements `mmcorl.agent.Agent`.

    Prompts are shared out in order, groups come back in order; a group stays with the rank that sampled it.
    """

    def __init__(self, name: str, team: Team):
        self.name, self.team = name, team
        (self.facts, device_name), *_ = self._all("facts", (), "its start")
        """`facts` is what the summary says of this agent."""
        peak = peak_flops(device_name)
        self._peak = None if peak is None else peak * team.size
        self._rates: dict[int, dict[str, float | None]] = {}
        """By step, until they are taken."""
        self._rank_of: dict[str, int] = {}
        """Of the prompts that were rolled out in this step."""
        self._step: int | None = None
        self.coming: Callable[[int], Sequence[Prompt]] = _unknown
        """The prompts of a later step, where they are known: each rank prepares its share during the update before."""

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Completions of each prompt; every rank is called, with its share of them, which may be empty."""
        shares = split(prompts, self.team.size)
        if step != self._step:
            self._rank_of, self._step = {}, step
        self._rank_of |= {prompt.uid: rank for rank, share in enumerate(shares) for prompt in share}
        replies = self.team.call("rollout", [(share, step) for share in shares], f"the rollout of step {step}")
        return [group for groups in replies for group in groups]

    def update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        """One policy step on what was rolled out in this step; every rank gets the rewards of its own groups."""
        own: list[dict[str, Sequence[float]]] = [{} for _ in range(self.team.size)]
        for uid, values in rewards.items():
            # One that nobody rolled out goes to a rank all the same: the worker knows what to say of it.
            own[self._rank_of.get(uid, 0)][uid] = values
        shares = split(self.coming(step + 1), self.team.size)
        arguments = [(part, step, share) for part, share in zip(own, shares, strict=True)]
        (metrics, timings), *_ = self.team.call("update", arguments, f"the update of step {step}")
        self._rates[step] = rates(timings, len(rewards), self._peak)
        return dict(metrics)

    def profile(self, folder: Path) -> None:
        """Let every rank find out where its time goes, as the config says, and write it into a folder."""
        self._all("profile", (folder,), "its start")

    def take_rates(self, step: int) -> dict[str, float | None]:
        """How fast a finished step went, once."""
        return self._rates.pop(step)

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One greedy completion per prompt, in order."""
        shares = split(prompts, self.team.size)
        replies = self.team.call("evaluate", [(share,) for share in shares], "an evaluation")
        return [completion for completions in replies for completion in completions]

    def differences(self, prompts: Sequence[Prompt], tokens: int) -> list[Tensor]:
        """log pi_train - log pi_engine per token, one tensor per prompt and rank: each rank's engine is asked all."""
        replies = self._all("differences", (prompts, tokens), "the comparison of engine and trainer")
        return [one for differences in replies for one in differences]

    def save(self, directory: Path) -> None:
        """All ranks together; rank 0 writes."""
        self._all("save", (directory,), "a checkpoint")

    def load(self, directory: Path) -> None:
        """All ranks together."""
        self._all("load", (directory,), f"the return to {directory.parent.name}")

    def export(self, directory: Path) -> None:
        """All ranks together; rank 0 writes."""
        self._all("export", (directory,), "the export")

    def _all(self, method: str, arguments: tuple[Any, ...], during: str) -> list[Any]:
        return self.team.call(method, [arguments] * self.team.size, during)


def split(items: Sequence[Item], parts: int) -> list[Sequence[Item]]:
    """Share items out in order; where they do not divide evenly, the first parts get one more.

    >>> split("abcde", 2)
    ['abc', 'de']
    """
    size, more = divmod(len(items), parts)
    ends = [part * size + min(part, more) for part in range(parts + 1)]
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def _unknown(step: int) -> Sequence[Prompt]:
    """Nothing can be prepared."""
    return ()


def _no_logs(folder: Path) -> None:
    """Agents of this process print where it prints."""


@dataclass(frozen=True)
class Cohort:
    """What a launcher hands to a run."""

    agents: Sequence[TeamAgent]
    parallel: Parallel
    places: Sequence[str] = ()
    """A line per agent about where it lives, for people; none where that needs no saying."""
    keep_logs: Callable[[Path], None] = _no_logs
    """Makes every worker write what it prints to AGENT-rankN.log in a folder, what it printed so
    far first."""
