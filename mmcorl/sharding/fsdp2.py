"""torch's own fully sharded data parallelism: one group of weights per block of the language model or the tower.

The policy is the outermost group, so its forward gathers what belongs to no block (embeddings, head, projector) once
and keeps it for the whole pass, tied weights and chunks of the head included. Gathered matrices are bf16 under
`training.dtype: bf16`; the parts that are held, their gradients and AdamW's moments are fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mmcorl.config import Config
from mmcorl.policy import Policy, Rows
from mmcorl.ranks import Ranks
from mmcorl.sharding.base import LogProbs, Part, Shards


class FSDP2(Shards):
    """Weights, gradients and optimizer state divided by torch."""

    def __init__(
        self,
        policy: Policy,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.AdamW],
        config: Config,
        ranks: Ranks,
        device: torch.device,
    ):
        super().__init__(ranks)
        self.config, self.mesh = config, init_device_mesh(device.type, (ranks.size,))
        self.policy: Any = _divided(policy, config, self.mesh)
        self.trainable = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(self.trainable)

    def logprobs(self, rows: Rows, temperature: float) -> Tensor:
        """The policy's own; its hooks gather and let go."""
        return _forward(self.policy, rows, temperature)

    def backward(self, loss: Tensor) -> None:
        """Gradients are averaged over ranks as they come, and every loss is a part of one sum."""
        if loss.requires_grad:
            (loss * self.ranks.size).backward()

    def step(self) -> float:
        """Clip by the norm over all ranks, step."""
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        total: Any = torch.nn.utils.clip_grad_norm_(self.trainable, self.config.optimizer.max_grad_norm)
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm if math.isfinite(norm) else math.nan

    def freeze(self, policy: Policy) -> LogProbs:
        """Divided likewise."""
        divided = _divided(policy, self.config, self.mesh)
        return lambda rows, temperature: _forward(divided, rows, temperature)

    def gather(self, parameters: Sequence[nn.Parameter], part: Part) -> list[Tensor]:
        """One all-gather per parameter: torch sends them off without waiting in between."""
        return [self._part(parameter, part).full_tensor() for parameter in parameters]

    def put(self, parameter: nn.Parameter, whole: Tensor, part: Part) -> None:
        """Every rank cuts out its own part; nothing is sent."""
        held = self._part(parameter, part)
        whole = whole.to(self.mesh.device_type, held.dtype)
        own = distribute_tensor(whole, self.mesh, held.placements, src_data_rank=None)
        held.to_local().copy_(own.to_local())

    def held(self, parameter: nn.Parameter) -> Tensor:
        """The local part."""
        return self._part(parameter, "weight").to_local()

    def _part(self, parameter: nn.Parameter, part: Part) -> DTensor:
        tensor: Any = parameter.detach() if part == "weight" else self.optimizer.state[parameter][part]
        return tensor


def _divided(policy: Policy, config: Config, mesh: DeviceMesh) -> Any:
    offload = CPUOffloadPolicy() if config.training.offload == "all" else OffloadPolicy()
    # Only matrices may be gathered in bf16, so blocks are told apart from what their residual stream runs through.
    lowered = torch.bfloat16 if config.training.dtype == "bf16" else None
    blocks = MixedPrecisionPolicy(param_dtype=lowered, reduce_dtype=torch.float32, cast_forward_inputs=False)
    rest = MixedPrecisionPolicy(cast_forward_inputs=False)
    for block in _blocks(policy):
        fully_shard(block, mesh=mesh, mp_policy=blocks, offload_policy=offload)
    fully_shard(policy, mesh=mesh, mp_policy=rest, offload_policy=offload)
    return policy


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The outermost repeated blocks: decoder layers and blocks of the vision tower."""
    found: list[nn.Module] = []
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            found += [block for block in child if any(True for _ in block.parameters())]
        else:
            found += _blocks(child)
    return found


def _forward(policy: Any, rows: Rows, temperature: float) -> Tensor:
    logp: Tensor = policy(rows, temperature)
    if not torch.is_grad_enabled():
        # The outermost group waits for a backward pass, and would meet the next step with the old weights.
        policy.reshard()
    return logp
