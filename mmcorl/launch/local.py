"""Every agent on this machine without Ray: a CPU, one GPU, tests.

In this process and one after the other, or at the same time in branches of it (see `mmcorl.launch.forked`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch

from mmcorl.agent import in_turn
from mmcorl.config import Config
from mmcorl.errors import UserError
from mmcorl.launch.agent_threads import Lanes
from mmcorl.launch.forked import ForkedTeam, may_fork
from mmcorl.launch.host import Host
from mmcorl.launch.ray_agent import Cohort, TeamAgent
from mmcorl.policy.prompt_encoder import Reader
from mmcorl.trainer.worker import Worker


class LocalTeam:
    """One worker, called directly."""

    size = 1

    def __init__(self, host: Host):
        self._host = host

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]], during: str) -> list[Any]:
        """Call it here and now; errors pass through."""
        (own,) = arguments
        return [self._host.call(method, *own)]


class LocalLauncher:
    """Raises UserError where this machine lacks the device that the config asks for."""

    def __init__(self, config: Config):
        self.config, self.device = config, _device(config.device)
        require_one_sleeper(config, self.device)
        self._forked: list[ForkedTeam] = []
        self._lanes: Lanes | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing outlives the run."""
        for team in self._forked:
            team.end()
        if self._lanes is not None:
            self._lanes.close()

    def cohort(self, readers: Sequence[Reader], steps: int) -> Cohort:
        """The agents, their models loaded."""
        names, builds = [reader.name for reader in readers], [partial(self._host, reader, steps) for reader in readers]
        if self.config.engine.kind != "transformers" or not may_fork(len(names), self.config.threads, self.device):
            agents = [TeamAgent(name, LocalTeam(build())) for name, build in zip(names, builds, strict=True)]
            return Cohort(agents, in_turn)
        for name, build in zip(names, builds, strict=True):
            self._forked.append(ForkedTeam(name, build))
        for team in self._forked:
            team.ready()
        # Only now: threads are not there in what branches off after they were started.
        self._lanes = Lanes(names)
        return Cohort([TeamAgent(team.name, team) for team in self._forked], self._lanes)

    def _host(self, reader: Reader, steps: int) -> Host:
        return Host(Worker(self.config, reader, steps, self.device), self.config.time_sliced)


def require_one_sleeper(config: Config, device: torch.device) -> None:
    """Raise UserError where several vLLM engines of this process would free memory: vLLM lets one per process do so."""
    engine, agents = config.engine, len(config.agents)
    if engine.kind == "vllm" and engine.sleep and agents > 1 and device.type == "cuda":
        raise UserError(
            f"launcher is 'local' and engine.sleep is true, but {agents} agents have a vLLM engine each, and on a GPU "
            "only one engine of a process can sleep: use launcher=ray, with time_sliced=true on one GPU, or "
            "engine.sleep=false"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device is {name!r} but torch sees no GPU: use device=cpu, or device=auto")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"device is {name!r} but torch sees {torch.cuda.device_count()} GPU(s), from cuda:0 on")
    return device
