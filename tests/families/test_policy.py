"""Prompts and completions in, log-probabilities out: one row at a time or many at once, the same numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, completions, each_family, load
from mmcorl.engines.base import Sample
from mmcorl.policy.policy import Policy, Rows
from model_adapters.text import TextAdapter
from worker_parts import Reference, encoded, mixed_prompts

FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)


def policy_and_rows(family: str, path: Path) -> tuple[Policy, Rows, Reference]:
    """Seven completions of 3 to 7 ids for three prompts, rows in no particular order."""
    loaded, prompts = load(family, path), mixed_prompts(family)
    owners, ids = [2, 0, 2, 1, 0, 0, 1], completions(loaded, 7)
    samples: list[list[Sample]] = [[], [], []]
    for owner, one in zip(owners, ids, strict=True):
        samples[owner].append(Sample(one, torch.zeros(len(one)), "length"))
    policy = Policy(loaded.model, loaded.adapter, loaded.processor)
    return policy, Rows(encoded(loaded, prompts), owners, ids), Reference(loaded, prompts, samples)


@each_family(*FAMILIES)
def test_rows_score_as_in_a_plain_forward(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    policy, rows, reference = policy_and_rows(family, tiny_checkpoints[family])
    with torch.no_grad():
        parts = policy(rows, 0.5).split([len(one) for one in rows.completions])
        met = [0, 0, 0]
        for owner, part in zip(rows.prompt_of, parts, strict=True):
            assert torch.allclose(part, reference.logp(owner, met[owner], 0.5), atol=1e-5)
            met[owner] += 1
    assert part.dtype == torch.float32


def test_banned_ids_beyond_the_head_change_nothing(tiny_checkpoints: Mapping[str, Path]) -> None:
    """As of an image's token that is the last of the tokenizer and has no row in the head."""

    class Beyond(TextAdapter):
        def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
            return (*super().banned_ids(processor, config), config.vocab_size, config.vocab_size + 7)

    policy, rows, _ = policy_and_rows("llama", tiny_checkpoints["llama"])
    beyond = Policy(policy.model, Beyond(), policy.processor)
    assert beyond.banned.equal(policy.banned)
    with torch.no_grad():
        assert beyond(rows).equal(policy(rows))


@each_family(*VISION_FAMILIES)
def test_images_of_a_prompt_pass_the_tower_once_for_all_its_rows(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    policy, rows, _ = policy_and_rows(family, tiny_checkpoints[family])
    seen: list[int] = []

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))))

    policy.adapter.vision_modules(policy.model)[0].register_forward_pre_hook(count, with_kwargs=True)
    policy(rows).sum().backward()
    assert seen == [sum(len(prompt.vision["pixel_values"]) for prompt in rows.prompts if prompt.vision)]


@each_family(*VISION_FAMILIES)
def test_a_picture_without_effect_reaches_every_weight_of_the_tower(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Text alone, and text beside a picture that counts nothing: one number, but gradients of zero instead of none."""
    policy, rows, _ = policy_and_rows(family, tiny_checkpoints[family])
    text, picture = rows.prompts[1], rows.prompts[0]
    results = []
    for one in (None, picture):
        policy.zero_grad()
        logp = policy(Rows([text], [0], [rows.completions[2]], dummy_image=one))
        logp.sum().backward()
        results.append((logp.detach(), {n: p.grad for n, p in policy.named_parameters()}))
    (alone, without), (beside, with_picture) = results
    assert torch.equal(alone, beside)
    missing = {name for name, gradient in without.items() if gradient is None}
    assert any("vis" in name for name in missing)
    for name, gradient in with_picture.items():
        expected = without[name]
        assert gradient is not None
        assert torch.equal(gradient, torch.zeros_like(gradient) if expected is None else expected)
