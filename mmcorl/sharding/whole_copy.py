"""A whole copy of sharded weights, for an engine that samples from the model itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mmcorl.config import Config
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.policy.weights import lower_frozen


class WholeCopy:
    """The policy, whole on every rank; for models of which a rank's memory holds a second copy.

    Sharded modules gather their weights at every call, so all ranks must call them equally often; sampling cannot,
    because completions differ in length.
    """

    def __init__(self, config: Config, encoder: PromptEncoder, device: torch.device):
        model = encoder.adapter.load_model(encoder.path, torch.float32, config.training.attention)
        model.requires_grad_(False)
        if config.training.dtype == "bf16":
            lower_frozen(model, encoder.adapter)
        self.policy = Policy(model, encoder.adapter, encoder.processor).to(device)

    @torch.no_grad()
    def take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy weights by their names in the model."""
        parameters = dict(self.policy.model.named_parameters(remove_duplicate=False))
        for name, tensor in weights:
            parameters[name].copy_(tensor)
