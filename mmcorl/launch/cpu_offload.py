"""Time slicing: an agent that is not working keeps its weights and optimizer in CPU memory.

Agents that take turns on one GPU then need room for one of them, besides what each needs while it works.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mmcorl.trainer.worker import Worker


class Resting:
    """Moves one worker off its device between its calls, and back.

    On a GPU the copies on the CPU are pinned and kept, so that coming back runs at the speed of the bus, and leaving
    costs nothing where nothing has changed since.
    """

    def __init__(self, worker: Worker):
        self.worker = worker
        self._asleep: dict[Tensor, Tensor] = {}
        """Each tensor's copy on the CPU."""

    @torch.no_grad()
    def rest(self, changed: bool) -> None:
        """Leave the device; `changed` says whether weights or optimizer differ from what they were at `ready`."""
        if self.worker.device.type == "cpu":
            return
        if changed:
            # A sync has woken an engine's own weights.
            self.worker.engine.wake()
            self.worker.engine.sleep()
        here = list(self._tensors())
        kept, self._asleep = self._asleep, {}
        for tensor in here:
            copy = kept.get(tensor)
            if copy is None or changed:
                copy = torch.empty_like(tensor, device="cpu", pin_memory=True) if copy is None else copy
                copy.copy_(tensor, non_blocking=True)
            self._asleep[tensor] = copy
        torch.cuda.synchronize(self.worker.device)
        for tensor in here:
            tensor.data = self._asleep[tensor]
        torch.cuda.empty_cache()

    @torch.no_grad()
    def ready(self) -> None:
        """Be on the device, as before."""
        for tensor, copy in self._asleep.items():
            tensor.data = copy.to(self.worker.device, non_blocking=True)

    def _tensors(self) -> Iterator[Tensor]:
        """Everything of the worker that stays on its device between calls."""
        worker = self.worker
        for module in (worker.policy, worker.reference):
            if isinstance(module, nn.Module):
                yield from (one for one in (*module.parameters(), *module.buffers()) if one.device.type != "cpu")
        for state in worker.optimizer.state.values():
            yield from (one for one in state.values() if isinstance(one, Tensor) and one.device.type != "cpu")
