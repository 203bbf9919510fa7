"""Norms as one kernel each: what the models' own compute, to the rounding of fp32."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_passes import (
    TEXT_FAMILIES,
    VISION_FAMILIES,
    each_family,
    gradient_error,
    load,
    policy_of,
    scores_and_gradients,
    three_groups,
)
from model_adapters import norms


@each_family(*VISION_FAMILIES, "gemma4", *TEXT_FAMILIES)
def test_a_model_with_the_kernel_gives_the_same(
    family: str, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(family, tiny_checkpoints[family])
    noise = torch.Generator().manual_seed(0)
    reached: set[Any] = set()  # Gemma-4 has norms of sound, and of keys that a layer takes from an earlier one
    for module in loaded.model.modules():
        if type(module).__name__.endswith("RMSNorm") and getattr(module, "weight", None) is not None:
            module.register_forward_hook(lambda module, *_: reached.add(module))
            module.weight.data += 0.3 * torch.randn(module.weight.shape, generator=noise)  # they begin at one or zero
    policy, rows = policy_of(loaded), three_groups(loaded)
    before, expected = scores_and_gradients(policy, rows)
    calls: list[float] = []
    product = norms.rms_norm

    def counted(states: Tensor, shape: Any, weight: Tensor, epsilon: float) -> Tensor:
        calls.append(epsilon)
        return product(states, shape, weight, epsilon)

    monkeypatch.setattr(norms, "rms_norm", counted)
    monkeypatch.setattr(norms, "FUSED", {"cpu"})
    after, found = scores_and_gradients(policy, rows)
    assert len(calls) >= len(reached) > 0
    assert set(calls) == {getattr(module, "variance_epsilon", None) or module.eps for module in reached}
    assert float((after - before).abs().max()) < 1e-5
    assert gradient_error(found, expected) < 1e-4


def test_other_norms_of_that_name_stay_as_they_are() -> None:
    class HalfRMSNorm(nn.Module):
        """Half of a norm."""

        def __init__(self, size: int, eps: float) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(size))
            self.variance_epsilon = eps

        def forward(self, states: Tensor) -> Tensor:
            return (
                0.5 * self.weight * states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
            )

    class GatedRMSNorm(nn.Module):
        """Takes more than a size."""

        def __init__(self, size: int, gate: Tensor) -> None:
            super().__init__()

    model = nn.ModuleList([HalfRMSNorm(4, 1e-6), GatedRMSNorm(4, torch.ones(1))])
    norms.fuse(model)
    assert [type(module) for module in model] == [HalfRMSNorm, GatedRMSNorm]


def test_bf16_states_are_rounded_where_the_model_rounds_them(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms of queries and keys get bf16 under autocast: Qwen3 rounds before its weights, Gemma-3 after them."""
    monkeypatch.setattr(norms, "FUSED", set())
    states = torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for family in ("qwen3", "gemma3"):
        decoder: Any = load(family, tiny_checkpoints[family]).model.get_decoder()
        norm = decoder.layers[0].self_attn.q_norm
        norm.weight.data += torch.linspace(-0.5, 0.5, len(norm.weight))
        own = states[..., : len(norm.weight)]
        plain = norm(own)
        norms.FUSED.add("cpu")
        assert torch.equal(norm(own), plain)
        norms.FUSED.clear()
