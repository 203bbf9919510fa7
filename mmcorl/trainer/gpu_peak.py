"""The most memory that tensors hold on a GPU, beside an engine that sleeps."""

from __future__ import annotations

import torch

from mmcorl.engines.base import Engine


class GpuPeak:
    """torch's own peak, less what a sleeping engine gave back to the GPU, which torch goes on counting."""

    def __init__(self, device: torch.device, engine: Engine):
        self._device, self._engine = device, engine
        self._most = 0

    def note(self) -> None:
        """Before an engine sleeps or wakes: end a stretch of time in which it did neither."""
        if self._device.type == "cuda":
            held = torch.cuda.max_memory_allocated(self._device) - self._engine.given_back
            self._most = max(self._most, held)
            torch.cuda.reset_peak_memory_stats(self._device)

    def take(self) -> int:
        """Bytes, the most since this was last asked."""
        self.note()
        most, self._most = self._most, 0
        return most
