"""Time slicing: an agent that is not working keeps its weights and optimizer in CPU memory.

Agents that take turns on one GPU then need room for one of them, besides what each needs while it works.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from mmcorl.engines.base import Engine


class CpuOffload:
    """Moves one agent's tensors off their device between its calls, and back for each call.

    On a GPU the copies on the CPU are pinned and kept: moving back runs at the speed of the bus, and leaving costs
    nothing while the weights have not changed. Nothing moves where the agent works on a CPU. A weight sync wakes its
    engine, so it is put to sleep again before leaving. `tensors` gives everything that stays on the device between
    calls.
    """

    def __init__(self, device: torch.device, engine: Engine, tensors: Callable[[], Iterable[Tensor]]):
        self.device, self._engine, self._tensors = device, engine, tensors
        self._copies: dict[Tensor, Tensor] = {}
        """Each tensor's copy on the CPU."""
        self._seconds = 0.0

    @contextlib.contextmanager
    def working(self, changes: bool) -> Iterator[None]:
        """Be on the device for one call; `changes` says whether it changes weights or optimizer.

        After an error nothing moves: the run ends, and moving half-done work would only raise another error over it.
        """
        start = time.perf_counter()
        with torch.no_grad():
            for tensor, copy in self._copies.items():
                tensor.data = copy.to(self.device, non_blocking=True)
        self._seconds += time.perf_counter() - start
        yield
        self.leave(changes)

    @torch.no_grad()
    def leave(self, changed: bool) -> None:
        """Leave the device."""
        if self.device.type == "cpu":
            return
        start = time.perf_counter()
        if changed:
            self._engine.wake()
            self._engine.sleep()
        present = [tensor for tensor in self._tensors() if tensor.device.type != "cpu"]
        kept, self._copies = self._copies, {}
        for tensor in present:
            copy = kept.get(tensor)
            if copy is None or changed:
                copy = torch.empty_like(tensor, device="cpu", pin_memory=True) if copy is None else copy
                copy.copy_(tensor, non_blocking=True)
            self._copies[tensor] = copy
        torch.cuda.synchronize(self.device)
        for tensor in present:
            tensor.data = self._copies[tensor]
        torch.cuda.empty_cache()
        self._seconds += time.perf_counter() - start

    def take_seconds(self) -> float:
        """Seconds spent moving since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds
