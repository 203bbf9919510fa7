"""Sharding of an agent's weights, gradients and optimizer state over its ranks.

Every backend gives the same update. Weights for an engine and checkpoints leave as whole tensors, so nothing outside of
this package depends on the sharding, and a run resumes with another number of ranks or another backend. DeepSpeed is
imported only when it is used.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import Any

import torch

from mmcorl.errors import UserError
from mmcorl.policy.policy import Policy
from mmcorl.sharding.base import Optimizer, Plain, Shards, size_of
from mmcorl.sharding.ranks import Ranks
from mmcorl.system.install_hints import install
from mmcorl.trainer.settings import TrainingSettings

__all__ = ["Shards", "loading", "require", "shard", "size_of"]


def require(training: TrainingSettings) -> None:
    """Refuse a sharding whose package is not installed; imports nothing."""
    sharding = training.sharding
    if sharding.startswith("zero") and importlib.util.find_spec("deepspeed") is None:
        raise UserError(
            f"training.sharding is {sharding!r} but DeepSpeed is not installed: {install('deepspeed')}, "
            "or use training.sharding=fsdp2"
        )


def loading(training: TrainingSettings, ranks: Ranks, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context for loading a model that will be sharded: ZeRO-3 partitions it while reading."""
    require(training)
    if training.sharding != "zero3":
        return contextlib.nullcontext()
    from mmcorl.sharding.deepspeed import loading_divided

    return loading_divided(training, ranks, device)


def shard(
    policy: Policy,
    optimizer: Optimizer,
    training: TrainingSettings,
    ranks: Ranks,
    device: torch.device,
    *,
    max_grad_norm: float,
) -> Shards:
    """Put a policy on its device with its optimizer, sharded by `training.sharding`."""
    kind: type[Shards] = Plain
    if training.sharding != "none":
        ranks.require_group(device)
    if training.sharding == "fsdp2":
        from mmcorl.sharding.fsdp2 import FSDP2

        kind = FSDP2
    elif training.sharding != "none":
        from mmcorl.sharding.deepspeed import Zero2, Zero3

        kind = Zero2 if training.sharding == "zero2" else Zero3
    return kind(policy, optimizer, training, ranks, device, max_grad_norm=max_grad_norm)
