"""Data parallelism: everything whole on every rank, gradients summed before each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mmcorl.config import Config
from mmcorl.policy.policy import Policy, Rows
from mmcorl.sharding.base import LogProbs, Part, Shards, sum_gradients
from mmcorl.sharding.ranks import Ranks


class Plain(Shards):
    """One rank alone, or data-parallel ranks."""

    lockstep = False
    whole = True

    def __init__(
        self,
        policy: Policy,
        optimizer: Callable[[list[nn.Parameter]], torch.optim.AdamW],
        config: Config,
        ranks: Ranks,
    ):
        super().__init__(ranks)
        self.policy = policy
        self.trainable = [parameter for parameter in policy.parameters() if parameter.requires_grad]
        self.optimizer = optimizer(self.trainable)
        self.max_norm = config.optimizer.max_grad_norm

    def logprobs(self, rows: Rows, temperature: float) -> Tensor:
        """The policy's own."""
        return self.policy(rows, temperature)

    def backward(self, loss: Tensor) -> None:
        """Plain autograd."""
        if loss.requires_grad:  # It does not where only the vision tower is trained and no prompt has an image.
            loss.backward()

    def step(self) -> float:
        """Add up the gradients of all ranks, clip, step."""
        # Parameters without a gradient step with a zero one, so that AdamW's moments decay at every step.
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.ranks.size > 1:
            sum_gradients(self.trainable)
        norm = float(torch.nn.utils.clip_grad_norm_(self.trainable, self.max_norm))
        if norm < float("inf"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # Frees memory for the next rollout.
        return norm if norm < float("inf") else float("nan")

    def freeze(self, policy: Policy) -> LogProbs:
        """Whole as well."""
        return policy.to(self.policy.device)

    def gather(self, parameters: Sequence[nn.Parameter], part: Part) -> list[Tensor]:
        """What is there."""
        return [self._part(parameter, part) for parameter in parameters]

    def put(self, parameter: nn.Parameter, whole: Tensor, part: Part) -> None:
        """Copy all of it."""
        self._part(parameter, part).copy_(whole)

    def held(self, parameter: nn.Parameter) -> Tensor:
        """All of it."""
        return parameter.detach()

    def _part(self, parameter: nn.Parameter, part: Part) -> Tensor:
        return parameter.detach() if part == "weight" else self.optimizer.state[parameter][part]
