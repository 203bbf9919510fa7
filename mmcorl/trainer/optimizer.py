"""AdamW and the learning-rate schedule of a run."""

from __future__ import annotations

import math

import torch
from torch import nn

from mmcorl.config import Config


def adamw(parameters: list[nn.Parameter], config: Config, lr: float) -> torch.optim.AdamW:
    """The run's AdamW at peak learning rate `lr`."""
    settings = config.optimizer
    return torch.optim.AdamW(
        parameters,
        lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        # One pass over each weight and no temporaries; sharding packages bring their own step.
        fused=True if config.training.sharding == "none" else None,
    )


def learning_rate_factor(step: int, total_steps: int, config: Config) -> float:
    """Learning rate after `step` finished steps as a share of the peak: linear warm-up, then the schedule."""
    settings = config.optimizer
    warmup = math.ceil(settings.warmup_ratio * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    falling = 0.5 * (1 + math.cos(math.pi * progress)) if settings.schedule == "cosine" else 1 - progress
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * falling
