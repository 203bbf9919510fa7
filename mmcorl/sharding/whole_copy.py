"""A whole copy of divided weights, for an engine that samples from the model itself."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from mmcorl.config import Config
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.policy.weights import lower_frozen


class WholeCopy:
    """The starting policy, whole on every rank; meant for models that fit into a rank's memory once more.

    Modules that gather their weights whenever they are called must be called equally often on all ranks, which
    sampling cannot promise: completions end where they end.
    """

    def __init__(self, config: Config, encoder: PromptEncoder, device: torch.device):
        model = encoder.adapter.load_model(encoder.path, torch.float32, config.training.attention)
        model.requires_grad_(False)
        if config.training.dtype == "bf16":
            lower_frozen(model, encoder.adapter)
        self.policy = Policy(model, encoder.adapter, encoder.processor).to(device)

    @torch.no_grad()
    def take(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take over weights by their names in the model."""
        own = dict(self.policy.model.named_parameters(remove_duplicate=False))
        for name, tensor in weights:
            own[name].copy_(tensor)
