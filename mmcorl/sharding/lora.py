"""Low-rank adapters as what they do to the weights of their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

BASE = "base_layer."


def adapted_layers(model: nn.Module) -> dict[str, Any]:
    """The layers of a model that hold adapters of peft, by name."""
    if not hasattr(model, "peft_config"):
        return {}
    from peft.tuners.lora import LoraLayer

    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}


def without_base(name: str) -> str:
    """The name that a weight had before adapters were put around its layer."""
    return name.replace(f".{BASE}", ".")


def merged(layer: Any, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The weights of a layer with its adapters added, by their names without peft.

    `tensors` are the whole tensors of the layer's `named_parameters`; what the layer itself holds may be divided.
    """
    for name, tensor in tensors.items():
        if name == f"{BASE}weight":
            delta = sum(
                functional_call(_Delta(layer, adapter), {f"layer.{own}": value for own, value in tensors.items()}, ())
                for adapter in layer.active_adapters
            )
            yield "weight", tensor.detach() + delta
        elif name.startswith(BASE):
            yield name.removeprefix(BASE), tensor.detach()


class _Delta(nn.Module):
    """What an adapter adds, as a forward pass, so that its tensors can be lent."""

    def __init__(self, layer: Any, adapter: str):
        super().__init__()
        self.layer, self.adapter = layer, adapter

    def forward(self) -> Tensor:
        delta: Tensor = self.layer.get_delta_weight(self.adapter)
        return delta.detach()
