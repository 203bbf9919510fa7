"""A prompt computed once for all its completions: the same numbers and gradients as computed for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

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
from mmcorl.errors import UserError
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.shared_prefix import CannotShare
from mmcorl.trainer.microbatches import shared_microbatches
from mmcorl.trainer.prefix_check import decide
from mmcorl.trainer.worker import Worker
from worker_parts import gradients, mixed_prompts, rollout, settings, worker

FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)
REWARDS = ((1.0, 0.0, 0.0, 1.0), (0.0, 0.0, 1.0, 0.0), (1.0, 1.0, 0.0, 1.0))


def assert_shared_is_plain(policy: Policy, rows: Rows, temperature: float = 1.0) -> None:
    """Log-probabilities within 1e-5, gradients within 1e-4 of their norm, all of them and each by itself."""
    plain, expected = scores_and_gradients(policy, rows, temperature)
    shared, found = scores_and_gradients(policy, replace(rows, shared=True), temperature)
    assert float((plain - shared).abs().max()) < 1e-5
    assert gradient_error(found, expected) < 1e-4


@each_family(*TEXT_FAMILIES)
def test_scores_and_gradients_are_those_of_repeated_prompts(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Those of images are in test_every_family."""
    loaded = load(family, tiny_checkpoints[family])
    assert_shared_is_plain(policy_of(loaded), three_groups(loaded), 0.7)


@pytest.mark.parametrize("window", [1, 2, 9, 40])
def test_a_sliding_window_counts_prompt_and_own_completion_alone(
    window: int, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Shorter than some or all of the prompts, images and completions; the prompts have 15 to 50 tokens."""
    loaded = load("gemma3", tiny_checkpoints["gemma3"])
    loaded.model.config.text_config.sliding_window = window
    sliding = [module for module in loaded.model.modules() if getattr(module, "sliding_window", None)]
    assert sliding
    for module in sliding:
        module.sliding_window = window
    rows = three_groups(loaded)
    full = load("gemma3", tiny_checkpoints["gemma3"])
    with torch.no_grad():
        assert not torch.allclose(policy_of(loaded)(rows), policy_of(full)(rows), atol=1e-3)
    assert_shared_is_plain(policy_of(loaded), rows)


@each_family("qwen2_5_vl", "gemma3", "qwen3")
def test_checkpointing_computes_the_same_a_second_time(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """The second forward runs from the backward pass, when nothing else says that the row is a shared one."""
    loaded = load(family, tiny_checkpoints[family])
    loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    policy = policy_of(loaded).train()
    calls: list[int] = []
    first = next(module for module in loaded.adapter.decoder(loaded.model).modules() if hasattr(module, "q_proj"))
    first.register_forward_hook(lambda *_: calls.append(1))
    assert_shared_is_plain(policy, three_groups(loaded))
    assert len(calls) == 4


# -- in training ------------------------------------------------------------------------------------------------------


def updated(path: Path, shared: str, **sections: Any) -> tuple[Worker, dict[str, float]]:
    """A worker after one update on three ragged groups, and what it reported."""
    training = {**sections.pop("training", {}), "shared_prefix": shared}
    agent = worker(path, training=training, **sections)
    rollout(agent, mixed_prompts(path.name))
    return agent, agent.update(dict(zip(agent.rollouts.pending, REWARDS, strict=True)), 1)


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"lora": {"rank": 4, "alpha": 8}}},
        {"training": {"freeze_vision": True}},
        {"training": {"gradient_checkpointing": True, "tokens_per_microbatch": 60}},
        {"objective": {"kl_coef": 0.3, "minibatches": 2, "passes": 2}},
        {"training": {"tokens_per_microbatch": 1}},
    ],
    ids=lambda sections: "-".join(key for part in sections.values() for key in part),
)
@each_family("qwen2_5_vl", "gemma3")
def test_the_update_is_that_of_the_plain_path(
    family: str, sections: dict[str, Any], tiny_checkpoints: Mapping[str, Path]
) -> None:
    plain, metrics = updated(tiny_checkpoints[family], "off", **sections)
    shared, found = updated(tiny_checkpoints[family], "on", **sections)
    assert found == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    expected = gradients(plain)
    assert any(float(gradient.abs().max()) > 1e-4 for gradient in expected.values())
    assert gradient_error(gradients(shared), expected) < 1e-4


def test_tokens_that_went_through_count_a_shared_prompt_once(tiny_checkpoints: Mapping[str, Path]) -> None:
    plain, _ = updated(tiny_checkpoints["qwen2_5_vl"], "off")
    shared, _ = updated(tiny_checkpoints["qwen2_5_vl"], "on")
    prompts = [len(plain.encoder.encode(one).input_ids) for one in mixed_prompts("qwen2_5_vl")]
    # The last token of each completion predicts none.
    completions = plain.timings["completion_tokens"] - plain.timings["completions"]
    assert plain.timings["update_tokens"] == 4 * sum(prompts) + completions
    assert shared.timings["update_tokens"] == sum(prompts) + completions


def test_groups_stay_whole_unless_they_exceed_the_budget() -> None:
    prompts, lengths = [10, 20, 30, 5], [(4, 4), (5, 1), (9, 9, 9, 9), (1, 1)]
    rows = [(group, k) for group in range(4) for k in range(len(lengths[group]))]

    def cut(budget: int) -> list[list[tuple[int, int]]]:
        return list(shared_microbatches(rows, prompts.__getitem__, lambda row: lengths[row[0]][row[1]], budget))

    # Whole groups have 10 + 8 = 18, 20 + 6 = 26, 30 + 36 = 66 and 5 + 2 = 7 tokens.
    assert cut(117) == [rows]
    assert cut(116) == [rows[:8], rows[8:]]
    assert cut(66) == [rows[:4], rows[4:8], rows[8:]]
    # The third in parts of 30 + 2 * 9 = 48 tokens; the second part leaves no room for the fourth group.
    assert cut(50) == [rows[:4], rows[4:6], rows[6:8], rows[8:]]
    assert cut(55) == [rows[:4], rows[4:6], rows[6:]]
    assert cut(1) == [[row] for row in rows]


# -- models that cannot -----------------------------------------------------------------------------------------------


def mixing(agent: Worker) -> None:
    """Let a layer mix tokens behind attention's back, as state-space layers do: each adds what preceded it."""

    def mix(_: Any, args: Any, output: Tensor) -> Tensor:
        return output + 0.1 * output.cumsum(1)

    agent.adapter.decoder(agent.policy.model).get_submodule("layers.0.mlp").register_forward_hook(mix)


@each_family(*FAMILIES)
def test_a_model_that_gives_other_numbers_keeps_to_the_plain_path_in_words(
    family: str, tiny_checkpoints: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    agent = worker(tiny_checkpoints[family])
    assert agent.shared_prefix
    capsys.readouterr()
    mixing(agent)
    assert not decide("ada", agent.shards, agent.dummy, agent.config.training, 1.0)
    assert "ada: the update computes prompts once per completion" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"'on' but agent 'ada' cannot share .* use auto or off"):
        decide("ada", agent.shards, agent.dummy, settings(training={"shared_prefix": "on"}).training, 1.0)


def test_a_layer_that_raises_on_a_row_of_several_keeps_to_the_plain_path(
    tiny_checkpoints: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As cross-attention does, which counts as attention. What raises on the plain path is no reason: it is a fault."""
    agent = worker(tiny_checkpoints["qwen3"])
    decoder: Any = agent.adapter.decoder(agent.policy.model)

    def cross(_: Any, args: Any, kwargs: dict[str, Any]) -> None:
        if everywhere or len(kwargs["hidden_states"]) == 1:  # all prompts and completions in one row
            raise RuntimeError("split_with_sizes expects 204\nat line 3")

    decoder.get_submodule("layers.1.self_attn").register_forward_pre_hook(cross, with_kwargs=True)
    everywhere = False
    assert not decide("ada", agent.shards, agent.dummy, agent.config.training, 1.0)
    told = "(a test prompt raised RuntimeError: split_with_sizes expects 204)"
    assert capsys.readouterr().err.splitlines()[-1].endswith(told)
    assert decoder.config._attn_implementation == "sdpa"
    everywhere = True
    with pytest.raises(RuntimeError, match="split_with_sizes"):
        decide("ada", agent.shards, agent.dummy, agent.config.training, 1.0)


def test_one_token_that_differs_and_modules_of_an_unknown_kind_keep_to_the_plain_path(
    tiny_checkpoints: Mapping[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The one of 19 tokens is 0.01 nats off: less than the tolerance on average."""
    agent = worker(tiny_checkpoints["qwen3"], training={"shared_prefix": "off"})
    decoder: Any = agent.adapter.decoder(agent.policy.model)

    def last(_: Any, args: Any, output: Tensor) -> Tensor:
        moved = output.clone()
        moved[:, -1] *= 0.998 if len(output) == 1 else 1.0  # all prompts and completions in one row
        return moved

    hook = decoder.norm.register_forward_hook(last)
    auto = settings(training={"shared_prefix": "auto"}).training
    assert not decide("ada", agent.shards, agent.dummy, auto, 1.0)
    apart = re.search(r"were (\S+) nats off", capsys.readouterr().err)
    assert apart is not None
    assert 1e-3 < float(apart[1]) < 19e-3
    hook.remove()
    assert decide("ada", agent.shards, agent.dummy, auto, 1.0)
    agent = worker(tiny_checkpoints["qwen3"], training={"shared_prefix": "off"})
    agent.adapter.decoder(agent.policy.model).get_submodule("layers.0.self_attn").sliding_window = "all"
    capsys.readouterr()
    assert not decide("ada", agent.shards, agent.dummy, auto, 1.0)
    assert "(a test prompt raised TypeError: unsupported operand" in capsys.readouterr().err


def test_a_soft_cap_is_not_passed_over(tiny_checkpoints: Mapping[str, Path]) -> None:
    loaded = load("qwen3", tiny_checkpoints["qwen3"])
    policy, rows = policy_of(loaded), replace(three_groups(loaded), shared=True)
    policy.share_prefixes()
    decoder: Any = loaded.adapter.decoder(loaded.model)

    def capped(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "softcap": 50.0}

    decoder.get_submodule("layers.1.self_attn").register_forward_pre_hook(capped, with_kwargs=True)
    with torch.no_grad(), pytest.raises(CannotShare, match="has softcap"):
        policy(rows)
    assert decoder.config._attn_implementation == "sdpa"
