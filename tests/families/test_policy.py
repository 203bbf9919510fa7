"""Prompts and completions in, log-probabilities out: what images and banned ids may not change.

That rows score as in a plain forward is a check of the contract, and part of tests/unit/test_worker.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from adapter_passes import VISION_FAMILIES, each_family, load, policy_of, three_groups
from mmcorl.errors import UserError
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.trainer.worker import Worker
from model_adapters.base import Encoded
from model_adapters.text import TextAdapter
from worker_parts import CPU, STEPS, prompt, settings


def test_banned_ids_beyond_the_head_change_nothing(tiny_checkpoints: Mapping[str, Path]) -> None:
    """As of an image's token that is the last of the tokenizer and has no row in the head."""

    class Beyond(TextAdapter):
        def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
            return (*super().banned_ids(processor, config), config.vocab_size, config.vocab_size + 7)

    loaded = load("llama", tiny_checkpoints["llama"])
    policy, rows = policy_of(loaded), three_groups(loaded)
    beyond = Policy(policy.model, Beyond(), policy.processor)
    assert beyond.banned.equal(policy.banned)
    with torch.no_grad():
        assert beyond(rows).equal(policy(rows))


class Outside(TextAdapter):
    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        return (*super().banned_ids(processor, config), config.vocab_size)

    def encode(self, processor: Any, text: str, images: Sequence[Any] = (), **how: Any) -> Encoded:
        if "odd" in text:
            raise RuntimeError("stack expects each tensor to be equal size\nbut got [3, 16]")
        return super().encode(processor, text, images, **how)


def test_a_run_says_once_which_banned_ids_are_beyond_the_head(
    tiny_checkpoints: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_checkpoints["llama"]
    config = settings(agents=[{"name": "a", "model": str(path), "adapter": f"{__name__}:Outside"}])
    encoder = PromptEncoder(config, config.agents[0], str(path))
    agent = Worker(config, encoder, STEPS, CPU)
    size = agent.policy.model.config.vocab_size
    said = f"a: banned ids [{size}] are beyond the head, where nothing is sampled\n"
    assert capsys.readouterr().err.count(said) == 1


def test_whatever_encode_raises_over_a_row_names_the_row(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Where the data check has seen its length alone."""
    config = settings(agents=[{"name": "a", "model": str(tiny_checkpoints["llama"]), "adapter": f"{__name__}:Outside"}])
    encoder = PromptEncoder(config, config.agents[0], str(tiny_checkpoints["llama"]))
    encoder.encode(prompt("Is 4 even?"))
    with pytest.raises(UserError, match=r"'a' cannot read row Is 5 odd: RuntimeError: stack expects .* size; leave"):
        encoder.encode(prompt("Is 5 odd?"))


@each_family(*VISION_FAMILIES)
def test_images_of_a_prompt_pass_the_tower_once_for_all_its_rows(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    loaded = load(family, tiny_checkpoints[family])
    policy, rows = policy_of(loaded), three_groups(loaded)
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
    loaded = load(family, tiny_checkpoints[family])
    policy, rows = policy_of(loaded), three_groups(loaded)
    picture, text, _ = rows.prompts
    results = []
    for one in (None, picture):
        policy.zero_grad()
        logp = policy(Rows([text], [0], rows.completions[:1], dummy_image=one))
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
