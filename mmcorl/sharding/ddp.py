"""Data parallelism: everything whole on every rank, gradients summed before each step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mmcorl.policy.policy import Policy, Rows
from mmcorl.sharding.base import LogProbs, Part, Shards, sum_gradients


class Plain(Shards):
    """One rank alone, or data-parallel ranks."""

    lockstep = False
    whole = True

    def _placed(self, policy: Policy) -> Policy:
        return policy.to(self.device)

    def logprobs(self, rows: Rows, temperature: float) -> Tensor:
        return self.policy(rows, temperature)

    def backward(self, loss: Tensor) -> None:
        if loss.requires_grad:  # It does not where only the vision tower is trained and no prompt has an image.
            loss.backward()

    def step(self) -> float:
        # Parameters without a gradient step with a zero one, so that AdamW's moments decay at every step.
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self.ranks.size > 1:
            sum_gradients(self.trainable)
        norm = float(nn.utils.clip_grad_norm_(self.trainable, self.config.optimizer.max_grad_norm))
        if norm < float("inf"):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # Frees memory for the next rollout.
        return norm if norm < float("inf") else float("nan")

    def freeze(self, policy: Policy) -> LogProbs:
        return policy.to(self.device)

    def gather(self, parameters: Sequence[nn.Parameter], part: Part) -> list[Tensor]:
        return [self._part(parameter, part) for parameter in parameters]

    def put(self, parameter: nn.Parameter, whole: Tensor, part: Part) -> None:
        self._part(parameter, part).copy_(whole)

    def held(self, parameter: nn.Parameter) -> Tensor:
        return parameter.detach()
