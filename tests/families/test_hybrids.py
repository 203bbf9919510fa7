"""Decoders with states of convolutions and linear attention: padding, joined rows, prompts computed once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from adapter_passes import each_family, gradient_error, load, needs, policy_of
from mmcorl.apps.doctor.adapter_checks import CHECKS
from mmcorl.engines.base import Sampling
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.policy.forked_states import _States, fork, install
from model_adapters.base import Encoded
from model_adapters.testing.contract import check_adapter
from model_adapters.testing.tiny import build_tiny
from worker_parts import encoded, gradients, mixed_prompts, prompt, rollout, worker

pytestmark = needs("lfm2_vl")
hybrids = each_family("lfm2_vl", "qwen3_5")


def engine_and_prompts(path: Path) -> tuple[TransformersEngine, list[Encoded]]:
    """Prompts of unequal length, shortest first: one shorter than a convolution reaches, one beyond a chunk of 64."""
    loaded = load(path.name, path)
    texts = [*mixed_prompts(path.name), prompt("How many dots, dice and bars are there? " * 8)]
    prompts = sorted(encoded(loaded, texts), key=lambda one: len(one.input_ids))
    first = prompts[0]
    short = Encoded(first.input_ids[:2], first.positions[:, :2], 2)
    assert len(prompts[-1].input_ids) > 64
    return TransformersEngine(policy_of(loaded)), [short, *prompts]


def states(cache: Any) -> list[Tensor]:
    """All states of a cache that have no length, (B, ...) each."""
    kinds = [
        getattr(layer, kind)
        for layer in cache.layers
        for kind in ("conv_states", "recurrent_states")
        if hasattr(layer, kind)
    ]
    return [part for kind in kinds for part in kind.values() if part is not None]


@pytest.mark.slow
@hybrids
@torch.no_grad()
def test_padding_enters_no_state(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    engine, prompts = engine_and_prompts(tiny_checkpoints[family])
    _, together = engine._prefill_part(prompts)
    assert len(states(together)) == {"lfm2_vl": 1, "qwen3_5": 2}[family]
    for row, one in enumerate(prompts):
        _, alone = engine._prefill_part([one])
        for state, own in zip(states(together), states(alone), strict=True):
            torch.testing.assert_close(state[row : row + 1], own, atol=1e-5, rtol=0)


@pytest.mark.slow
@hybrids
@torch.no_grad()
def test_caches_are_joined_and_their_rows_chosen(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    engine, prompts = engine_and_prompts(tiny_checkpoints[family])
    _, together = engine._prefill_part(prompts)
    engine.prefill_tokens = 1
    _, joined = engine._prefill(prompts)
    assert joined.get_seq_length() == together.get_seq_length()
    chosen = torch.tensor([4, 1, 1, 0])
    for cache in (together, joined):
        cache.batch_select_indices(chosen)
    for state, expected in zip(states(joined), states(together), strict=True):
        torch.testing.assert_close(state, expected, atol=1e-5, rtol=0)
    for row, index in enumerate(chosen.tolist()):
        length = len(prompts[index].input_ids)
        for layer, other in zip(joined.layers, together.layers, strict=True):
            if not hasattr(layer, "conv_states"):
                keys, expected = (each.keys[row, :, -length:] for each in (layer, other))
                torch.testing.assert_close(keys, expected, atol=1e-5, rtol=0)


@hybrids
def test_a_prompt_is_sampled_in_company_as_alone(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """The first prompt, which has the same noise; rows that end leave the batch while others go on."""
    engine, prompts = engine_and_prompts(tiny_checkpoints[family])
    engine.compact_at = 1.0
    sampling = Sampling(temperature=1.5, max_new_tokens=40)
    company, alone = (engine.generate(batch, 6, sampling, 1) for batch in (prompts, prompts[:1]))
    assert len({len(sample.ids) for group in company for sample in group}) > 1
    for sample, expected in zip(company[0], alone[0], strict=True):
        assert torch.equal(sample.ids, expected.ids)
        torch.testing.assert_close(sample.logprobs, expected.logprobs, atol=1e-5, rtol=0)


# -- prompts computed once; that numbers and gradients are those of the plain path is in test_every_family ------------


def updated(path: Path, **training: Any) -> tuple[bool, dict[str, Tensor]]:
    """Whether prompts are computed once, and the gradient of an update."""
    agent = worker(path, training=training)
    rollout(agent, mixed_prompts(path.name))
    rewards = ((1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0))
    agent.update(dict(zip(agent.rollouts.pending, rewards, strict=True)), 1)
    return agent.shared_prefix, gradients(agent)


def test_states_that_lose_their_gradient_fail_the_contract(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities are right then: a run would not see it."""
    choose = _States.choose

    def detached(states: _States, rows: Tensor) -> None:
        states.conv_states = {index: state.detach() for index, state in states.conv_states.items()}
        choose(states, rows)

    monkeypatch.setattr(_States, "choose", detached)
    checks = check_adapter(tiny_checkpoints["lfm2_vl"], more=CHECKS)
    (failed,) = (check for check in checks if not check.passed)
    assert failed.name == "scores through the policy"
    assert "prompts once have another gradient" in failed.detail


@pytest.mark.slow
@hybrids
@pytest.mark.parametrize("training", [{"gradient_checkpointing": True}, {"tokens_per_microbatch": 60}], ids=str)
def test_an_update_is_that_of_the_plain_path(
    family: str, training: dict[str, Any], tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Also when a layer runs again from the backward pass, and in micro-batches that cut a group."""
    forked, found = updated(tiny_checkpoints[family], shared_prefix="auto", **training)
    plain, expected = updated(tiny_checkpoints[family], shared_prefix="off")
    assert (forked, plain) == (True, False)
    assert gradient_error(found, expected) < 1e-4


def test_places_of_tokens_by_hand() -> None:
    """Prompts of 3 and 1 tokens end together; completions of 2, 1 and 3 begin together; no completion at all."""
    order = [(0, None), (0, 1), (0, 0), (1, None), (1, 0)]
    plan = fork(order, [3, 2, 1, 1, 3], torch.device("cpu"))
    assert (plan.prompts, plan.completions, plan.owners.tolist()) == ((2, 3), (3, 3), [0, 0, 1])
    assert plan.places.tolist() == [0, 1, 2, 6, 7, 9, 5, 12, 13, 14]
    alone = fork([(0, None)], [4], torch.device("cpu"))
    assert (alone.prompts, alone.completions, alone.owners.tolist()) == ((1, 4), (1, 2), [0])


@pytest.mark.parametrize(
    ("name", "kinds", "more"),
    [
        ("Lfm3", ["conv", "full_attention", "sliding_attention"], {}),
        ("Lfm2Moe", ["conv", "full_attention"], {"num_experts": 2, "num_dense_layers": 1}),
        ("Qwen3_5MoeText", ["linear_attention", "full_attention"], {"num_experts": 2}),
        ("Qwen3Next", ["linear_attention", "full_attention"], {"num_experts": 2}),
    ],
)
def test_layers_with_states_are_known_by_how_they_are_called(name: str, kinds: list[str], more: dict[str, int]) -> None:
    """Whatever their class is called, of families that have no adapter here."""
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = getattr(transformers, f"{name}Config", None)
    if config is None:
        pytest.skip(f"this transformers has no {name}")
    made = config(
        vocab_size=64, pad_token_id=0, num_hidden_layers=len(kinds), layer_types=kinds, head_dim=16, **sizes, **more
    )
    with torch.device("meta"):
        decoder = transformers.AutoModel.from_config(made, attn_implementation="sdpa")
    assert install(decoder, "layout", kinds) == {kinds[0]}
    assert install(decoder, "layout", kinds) == {kinds[0]}  # once more changes nothing


@pytest.mark.slow
def test_convolutions_that_padding_would_reach_are_computed_per_completion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a bias, rows of zeros leave a state; the run says so in one line and goes on."""
    path = build_tiny("lfm2_vl", tmp_path / "lfm2_vl", text_config={"conv_bias": True})
    assert not worker(path, training={"shared_prefix": "auto"}).shared_prefix
    assert capsys.readouterr().err.count("this model has layers of conv") == 1
