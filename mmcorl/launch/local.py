"""Every agent in this process, one after the other: a CPU, one GPU, tests."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import torch

from mmcorl.agent import in_turn
from mmcorl.config import Config
from mmcorl.errors import Refused
from mmcorl.launch.host import Host
from mmcorl.launch.team import Cohort, TeamAgent
from mmcorl.reader import Reader
from mmcorl.worker import Worker


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
    """Raises Refused where this machine lacks the device that the config asks for."""

    def __init__(self, config: Config):
        self.config, self.device = config, _device(config.device)
        require_one_sleeper(config, self.device)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing outlives the process."""

    def cohort(self, readers: Sequence[Reader], steps: int) -> Cohort:
        """The agents, their models loaded."""
        sliced = self.config.time_sliced
        hosts = [Host(Worker(self.config, reader, steps, self.device), sliced) for reader in readers]
        agents = [TeamAgent(reader.name, LocalTeam(host)) for reader, host in zip(readers, hosts, strict=True)]
        return Cohort(agents, in_turn)


def require_one_sleeper(config: Config, device: torch.device) -> None:
    """Raise Refused where several vLLM engines of this process would free memory: vLLM lets one of a process do so."""
    engine, agents = config.engine, len(config.agents)
    if engine.kind == "vllm" and engine.sleep and agents > 1 and device.type == "cuda":
        raise Refused(
            f"launcher is 'local' and engine.sleep is true, but {agents} agents have a vLLM engine each, and on a GPU "
            "only one engine of a process can sleep: use launcher=ray, with time_sliced=true on one GPU, or "
            "engine.sleep=false"
        )


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refused(f"device is {name!r} but torch sees no GPU: use device=cpu, or device=auto")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise Refused(f"device is {name!r} but torch sees {torch.cuda.device_count()} GPU(s), from cuda:0 on")
    return device
