"""An engine in a process of its own, on a GPU of its own: a Ray actor around the engine that a rank would hold.

Ranks start it, ask it and feed it through `mmcorl.engines.remote.RemoteEngine`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from mmcorl.launch.actor import Broke, Seated, caught

if TYPE_CHECKING:
    from torch import Tensor

    from mmcorl.config import AgentSettings, Config
    from mmcorl.engines.base import Sample, Sampling
    from mmcorl.engines.remote import Packet
    from model_adapters.base import Encoded

POLL = 0.2
"""Seconds between two looks at whether the engine still takes weights."""


class Sampler(Seated):
    """As an actor, `engine.separate` per agent."""

    def build(self, config: Config, settings: AgentSettings, path: str, device: str, threads: str) -> Broke | None:
        """Set up the process and be ready for `start`."""
        os.environ["OMP_NUM_THREADS"] = threads

        def build() -> None:
            from mmcorl.engines import require_engine
            from mmcorl.launch.host import prepare
            from mmcorl.policy.prompt_encoder import Reader

            prepare(config)
            require_engine(config)
            self._desk = Desk(config, Reader(config, settings, path), device)

        result: Broke | None = caught(build)
        return result

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of `Desk`; what it raises is returned as Broke, and its trace printed here."""
        return caught(lambda: getattr(self._desk, method)(*arguments))


class Desk:
    """What ranks ask of an engine.

    Args:
        config: the run.
        reader: of the agent.
        device: `cuda` or `cpu`.
    """

    def __init__(self, config: Config, reader: Any, device: str):
        # Nobody else uses this GPU.
        engine = config.engine.model_copy(update={"sleep": False})
        self.config, self.reader, self.device = config.model_copy(update={"engine": engine}), reader, device
        self._engine: Any = None
        self._delivery: Delivery | None = None

    def start(self, stop_ids: Sequence[int], banned: Tensor, lora: Any) -> None:
        """Load the engine; what the trainer's model knows and a checkpoint alone does not tell comes along."""
        import torch

        from mmcorl.engines import build_engine
        from mmcorl.engines.base import Voice

        device = torch.device(self.device)
        voice = Voice(self.reader.adapter, self.reader.processor, stop_ids, banned, device, lora)
        self._engine = build_engine(self.config, voice, self.reader)
        self._delivery = Delivery(self._engine)

    def generate(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, seed: int) -> list[list[Sample]]:
        """See `Engine.generate`."""
        drawn: list[list[Sample]] = self._engine.generate(prompts, n, sampling, seed)
        return drawn

    def fingerprints(self) -> dict[str, Tensor]:
        """See `mmcorl.engines.weight_check`."""
        found: dict[str, Tensor] = self._engine.fingerprints()
        return found

    def take(self, packet: Packet | None) -> None:
        """The next packet of a sync, or None after the last one; returns when the engine is ready for another."""
        assert self._delivery is not None
        self._delivery.take(packet)


class Delivery:
    """Makes of packets that come one call at a time the one stream that an engine's `sync` reads.

    The engine reads in a thread of its own, while every call waits until it has room for what the call brought.
    """

    def __init__(self, engine: Any):
        self._engine = engine
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self._waiting: Queue[Packet | None] = Queue(1)
        self._sync: Future[None] | None = None

    def take(self, packet: Packet | None) -> None:
        """Hand over a packet; raises what the engine raised over this one or those before."""
        from mmcorl.engines.remote import unpacked

        if self._sync is None:
            self._sync = self._thread.submit(lambda: self._engine.sync(unpacked(self._arriving())))
        while not self._sync.done():
            try:
                self._waiting.put(packet, timeout=POLL)
                break
            except Full:
                continue
        if packet is None or self._sync.done():
            sync, self._sync = self._sync, None
            sync.result()

    def _arriving(self) -> Iterator[Packet]:
        while (packet := self._waiting.get()) is not None:
            yield packet
