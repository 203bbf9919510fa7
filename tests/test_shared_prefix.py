"""A prompt computed once for all its completions: the same numbers and gradients as computed for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, Loaded, encode_all, load
from adapter_passes import rows as three_rows
from mmcorl.policy import Policy, Rows

FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)
LENGTHS = ((9, 5, 12, 7, 12, 1), (4, 4, 4), (1, 30, 2, 29))
"""Tokens of the completions of each prompt: ragged, all alike, and far apart."""


def policy_of(loaded: Loaded) -> Policy:
    policy = Policy(loaded.model, loaded.adapter, loaded.processor)
    return policy


def three_groups(loaded: Loaded, lengths: tuple[tuple[int, ...], ...] = LENGTHS) -> Rows:
    """Completions of three prompts (vision families: with one, no and two images), one group after the other."""
    generator = torch.Generator().manual_seed(0)
    config: Any = loaded.model.config
    banned = set(loaded.adapter.banned_ids(loaded.processor, config))
    allowed = torch.tensor([token for token in range(config.get_text_config().vocab_size) if token not in banned])
    owners = [owner for owner, own in enumerate(lengths) for _ in own]
    ids = [allowed[torch.randint(len(allowed), (size,), generator=generator)] for own in lengths for size in own]
    return Rows(encode_all(loaded, three_rows(loaded.family)), owners, ids)


def scores_and_gradients(policy: Policy, rows: Rows, temperature: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
    """Log-probabilities and the gradient of an uneven sum of them."""
    policy.zero_grad()
    logp = policy(rows, temperature)
    (logp * torch.linspace(-1, 1, len(logp))).sum().backward()
    return logp.detach(), {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}


def assert_shared_is_plain(policy: Policy, rows: Rows, temperature: float = 1.0) -> None:
    """Log-probabilities within 1e-5, gradients within 1e-4 of their norm, all of them and each by itself."""
    plain, expected = scores_and_gradients(policy, rows, temperature)
    shared, found = scores_and_gradients(policy, replace(rows, shared=True), temperature)
    assert float((plain - shared).abs().max()) < 1e-5
    assert found.keys() == expected.keys()
    whole = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    error = torch.stack([(found[name] - gradient).norm() for name, gradient in expected.items()])
    assert float(error.norm()) < 1e-4 * float(whole)
    for name, gradient in expected.items():
        assert float((found[name] - gradient).norm()) < 1e-4 * float(gradient.norm()) + 1e-6 * float(whole), name


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_and_gradients_are_those_of_repeated_prompts(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load(family, tiny_checkpoints[family])
    assert_shared_is_plain(policy_of(loaded), three_groups(loaded), 0.7)
