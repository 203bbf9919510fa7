"""A slow average of an agent's weights that votes in its place (Co-rewarding-II).

theta_T <- (1 - a) theta_T + a theta before the rollout of each step from the first on, in fp32: a as small as 1e-5
would vanish in bf16. The share a falls from `start` to `end` along a cosine, so the teacher moves early and freezes
late. Source: tmlr-group/Co-rewarding, ray_trainer_coreward.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FILE = Path("teacher", "weights.safetensors")
"""In a folder of its own: vLLM loads every .safetensors file that lies beside a model's config."""


def share(step: int, total_steps: int, start: float, end: float) -> float:
    """a at a 1-based step: end + (start - end) (1 + cos(pi (step - 1) / total_steps)) / 2."""
    progress = min(max(step - 1, 0), total_steps) / total_steps
    return end + 0.5 * (start - end) * (1 + math.cos(math.pi * progress))


class Ema:
    """The averaged weights by name, whole, fp32, on the CPU; only those that training changes."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]]):
        self.weights = {name: _copy(tensor) for name, tensor in weights}

    @torch.no_grad()
    def follow(self, weights: Iterable[tuple[str, Tensor]], amount: float) -> None:
        """Take over a share of the student's weights."""
        for name, tensor in weights:
            self.weights[name].lerp_(tensor.detach().to("cpu", torch.float32), amount)

    def save(self, directory: Path) -> None:
        """Beside the student's."""
        (directory / FILE).parent.mkdir()
        save_file(self.weights, directory / FILE)

    def load(self, directory: Path) -> None:
        """Take over what `save` wrote."""
        self.weights = load_file(directory / FILE)


def copies(weights: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """The weights as they are now, on the CPU, to be put back later."""
    return {name: _copy(tensor) for name, tensor in weights}


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float32, copy=True)
