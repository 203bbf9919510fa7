"""A trainer's side of an engine that has a process and a GPU of its own (`mmcorl.launch.engine_actor.Sampler`).

Prompts go to it and completions come back through Ray. After an update all ranks put the weights together, and each
engine is fed by one rank, in packets through Ray's object store, so that no process ever holds a second whole copy. The
engine is the same `VllmEngine` with the same requests: what it samples does not depend on where it lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmcorl.engines.base import Sample, Sampling, Weights
from mmcorl.engines.vllm import unmerged
from mmcorl.engines.weight_check import check_weights
from mmcorl.launch.actor import Broke, EngineBroke
from mmcorl.policy.policy import Policy
from mmcorl.sharding.ranks import Ranks
from model_adapters.base import Encoded

PACKET = 16 * 2**20
"""Bytes of weights that travel at once. Two packets per engine are under way, and all of them share one store."""
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class RemoteEngine:
    """Asks the engine that this rank shares with those whose numbers are equal to its own modulo the engines.

    An engine answers one rank after the other. Raises EngineBroke where it dies or fails.

    Args:
        policy: the policy being trained.
        engines: the agent's actors, at most one per rank; rank e starts and feeds engine e.
        ranks: the agent's ranks, who all make one of these at the same time.
        name: the agent, for messages.
        dtype: `fp32`, `bf16` or `fp16`, of the engine's weights.
    """

    def __init__(self, policy: Policy, engines: Sequence[Any], ranks: Ranks, *, name: str, dtype: str):
        self.name, self.ranks = name, ranks
        self.number = ranks.rank % len(engines)
        self.feeds = ranks.rank < len(engines)
        self._actor, self._dtype = engines[self.number], _DTYPES[dtype]
        lora = unmerged(policy)
        self.adapters = lora is not None
        if self.feeds:
            self._ask("start", policy.stop_ids, policy.banned.cpu(), lora)
        ranks.barrier()

    def generate(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, seed: int) -> list[list[Sample]]:
        """As `VllmEngine.generate`; what only a trainer reads of a prompt stays here."""
        lean = [replace(one, positions=one.positions[:, :0], vision={}) for one in prompts]
        drawn: list[list[Sample]] = self._ask("generate", lean, n, sampling, seed)
        return drawn

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As `VllmEngine.sync`; all ranks at once. Afterwards every engine of the agent has taken over everything."""
        self.ranks.barrier()  # Others may still sample from this engine.
        if self.feeds:
            self._feed(weights)
        else:
            for _ in weights:
                pass
        self.ranks.barrier()

    def check(self, weights: Weights) -> None:
        """Raise RunError unless the engine computes with exactly these, all weights of the trainer; all ranks."""
        check_weights(self, weights)

    def fingerprints(self) -> dict[str, Tensor]:
        """Of the engine that this rank feeds; none where it feeds none."""
        found: dict[str, Tensor] = self._ask("fingerprints") if self.feeds else {}
        return found

    def sleep(self, until_sync: bool = False) -> None:
        """Nothing to give back: the GPU is the engine's alone."""

    def wake(self) -> None:
        """Always ready."""

    def _feed(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        under_way = None
        for packet in packets(self._rounded(weights), PACKET):
            # The next packet is put together while the engine takes this one.
            if under_way is not None:
                self._answer(under_way)
            under_way = self._actor.call.remote("take", packet)
        if under_way is not None:
            self._answer(under_way)
        self._ask("take", None)

    def _rounded(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """To the engine's dtype, as it would do itself, so that fewer bytes travel."""
        for name, tensor in weights:
            wider = tensor.is_floating_point() and tensor.element_size() > self._dtype.itemsize
            yield name, tensor.detach().to(self._dtype) if wider else tensor.detach()

    def _ask(self, method: str, *arguments: Any) -> Any:
        return self._answer(self._actor.call.remote(method, *arguments))

    def _answer(self, reference: Any) -> Any:
        import ray

        try:
            reply = ray.get(reference)
        except ray.exceptions.RayActorError as error:
            raise EngineBroke(self.number, Broke(str(error), echo=False, died=True)) from error
        if isinstance(reply, Broke):
            raise EngineBroke(self.number, reply)
        return reply


@dataclass(frozen=True)
class Piece:
    """A part of a tensor, or all of it, in a packet."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """First byte of it in the tensor."""
    count: int
    """Bytes of it."""


@dataclass(frozen=True)
class Packet:
    """Some bytes of some weights, pieces one after the other."""

    pieces: tuple[Piece, ...]
    data: NDArray[np.uint8]


def packets(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[Packet]:
    """All weights in packets of `size` bytes; the last one may be smaller."""
    pieces: list[Piece] = []
    data, used = np.empty(size, np.uint8), 0
    for name, tensor in weights:
        whole = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        start = 0
        while start < len(whole) or start == 0:
            if used == size:
                yield Packet(tuple(pieces), data)
                pieces, data, used = [], np.empty(size, np.uint8), 0
            part = whole[start : start + size - used]
            data[used : used + len(part)] = part
            pieces.append(Piece(name, tensor.dtype, tuple(tensor.shape), start, len(part)))
            used, start = used + len(part), start + max(len(part), 1)
    if pieces:
        yield Packet(tuple(pieces), data[:used])


def unpacked(arriving: Iterable[Packet]) -> Iterator[tuple[str, Tensor]]:
    """The weights of packets as they arrive, each in memory of its own."""
    whole = torch.empty(0)
    for packet in arriving:
        at = 0
        for piece in packet.pieces:
            if piece.start == 0:
                whole = torch.empty(piece.shape, dtype=piece.dtype)
            flat = whole.view(-1).view(torch.uint8).numpy()
            flat[piece.start : piece.start + piece.count] = packet.data[at : at + piece.count]
            at += piece.count
            if piece.start + piece.count == len(flat):
                yield piece.name, whole
