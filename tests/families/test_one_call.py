"""Attention in one call of a variable-length kernel, as GPUs do it: the numbers of today's masks and windows.

Nothing but the kernel itself is replaced, by a loop that says what it must compute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from adapter_passes import (
    GEMMA4_31B,
    LENGTHS,
    TEXT_FAMILIES,
    Loaded,
    each_family,
    gradient_error,
    load,
    needs,
    noise,
    policy_of,
    scores_and_gradients,
    three_groups,
)
from mmcorl.policy import shared_prefix
from mmcorl.policy.policy import Policy, Rows
from mmcorl.trainer.prefix_check import decide, log_vision_tower_path
from model_adapters import varlen
from model_adapters.testing.tiny import build_tiny
from segments import loop, loop_on_a_cpu
from worker_parts import worker

CASES = {
    "ragged": LENGTHS,
    "alike": ((6, 6, 6), (6, 6, 6), (6, 6, 6)),
    "single tokens": ((1, 1), (1,), (1, 1)),
    "one prompt": ((11, 3, 30),),
}


def sliding(loaded: Loaded, window: int) -> None:
    """Let every other layer of a text model see `window` tokens, as Gemma-3's and Qwen2's layers may."""
    decoder: Any = loaded.adapter.decoder(loaded.model)
    for layer in decoder.layers[::2]:
        layer.self_attn.sliding_window = window


def rows_of(loaded: Loaded, lengths: tuple[tuple[int, ...], ...]) -> Rows:
    return replace(three_groups(loaded, lengths), shared=True)


def differences(policy: Policy, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> tuple[float, float]:
    """By how much log-probabilities differ at most, and gradients by their norm, once the CPU has a kernel."""
    masks, expected = scores_and_gradients(policy, rows, 0.7)
    loop_on_a_cpu(monkeypatch)
    one_call, found = scores_and_gradients(policy, rows, 0.7)
    return float((masks - one_call).abs().max()), gradient_error(found, expected)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("window", [None, 9], ids=["full", "window"])
@each_family("gemma3", "qwen2_5_vl", "internvl3_5", *TEXT_FAMILIES)
def test_the_numbers_are_those_of_the_masks(
    family: str, window: int | None, case: str, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of Gemma's three prompts have images, whose tokens see each other both ways; the middle one is text."""
    loaded = load(family, tiny_checkpoints[family])
    loaded.model.double()
    if window:
        sliding(loaded, window)
    assert max(differences(policy_of(loaded), rows_of(loaded, CASES[case]), monkeypatch)) < 1e-12


@pytest.mark.slow
@needs("gemma4")
@pytest.mark.parametrize(("family", "text"), [("gemma4", {}), ("gemma4", GEMMA4_31B), ("gemma4_unified", {})])
def test_gemma4_gives_the_numbers_of_the_masks(
    family: str, text: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images that see themselves are computed apart; later layers of the small size use keys of earlier ones."""
    loaded = load(family, build_tiny(family, tmp_path / family, text_config=text))
    loaded.model.double()
    assert max(differences(policy_of(loaded), rows_of(loaded, LENGTHS), monkeypatch)) < 1e-12


def test_a_layer_makes_one_call_also_when_it_is_computed_a_second_time(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load("gemma3", tiny_checkpoints["gemma3"])
    loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    policy, rows = policy_of(loaded).train(), rows_of(loaded, LENGTHS)
    monkeypatch.setattr(shared_prefix, "scaled_dot_product_attention", None)
    with pytest.raises(TypeError):
        policy(rows)
    # Prompts without images alone need no SDPA.
    text = replace(rows, prompts=[rows.prompts[1]] * 3)
    calls = loop_on_a_cpu(monkeypatch)
    scores_and_gradients(policy, text)
    layers = len(loaded.adapter.decoder(loaded.model).layers)
    # A prompt and its completions of more than one token each; the trials before have two segments.
    segments = 3 + sum(size > 1 for own in LENGTHS for size in own)
    assert [size for size in calls if size != 2] == [segments] * (2 * layers)


# -- the tower of Qwen2.5-VL ------------------------------------------------------------------------------------------


def test_windows_of_a_tower_are_one_call_per_layer(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of several windows each, the last ones of a row cut off; the last layer sees whole images."""
    loaded = load("qwen2_5_vl", tiny_checkpoints["qwen2_5_vl"])
    loaded.model.double()
    loaded.model.gradient_checkpointing_enable({"use_reentrant": False})
    visual = loaded.model.model.visual.train()
    depth = len(visual.blocks)
    visual.fullatt_block_indexes = [depth - 1]
    grids = torch.tensor([[1, 12, 20], [1, 10, 6]])
    pixels = torch.randn(
        int(grids.prod(-1).sum()), visual.patch_embed.proj.weight[0].numel(), generator=torch.Generator().manual_seed(0)
    )
    vision = {"pixel_values": pixels.double(), "image_grid_thw": grids}

    def features() -> tuple[Tensor, dict[str, Tensor]]:
        visual.zero_grad()
        out = loaded.adapter.image_features(loaded.model, vision)
        (out * torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)).sum().backward()
        return out.detach(), {name: p.grad.clone() for name, p in visual.named_parameters()}

    by_window, expected = features()
    calls = loop_on_a_cpu(monkeypatch)
    whole, found = features()
    assert float((whole - by_window).norm() / by_window.norm()) < 1e-12
    assert gradient_error(found, expected) < 1e-11
    # Windows of 8 x 8 patches: 2 x 3 and 2 x 1. The first call is the trial; checkpointing computes all a second time.
    once = [8] * (depth - 1) + [2]
    assert calls[1:] == once + once[::-1]
    assert visual.config._attn_implementation == "sdpa"


@each_family("glm4v", "qwen3_vl", quick=2)
def test_a_tower_without_windows_attends_in_one_call_per_layer(
    family: str, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of three images are those of transformers' own loop over them."""
    loaded = load(family, tiny_checkpoints[family])
    vision = loaded.adapter.encode(loaded.processor, "?", [noise(56, 84), noise(84, 28, 1), noise(56, 56, 2)]).vision
    plain = transformers.AutoModelForImageTextToText.from_pretrained(tiny_checkpoints[family]).model
    with torch.no_grad():
        theirs = plain.get_image_features(**vision)
        levels = (theirs.pooler_output, *(getattr(theirs, "deepstack_features", None) or ()))
        expected = torch.cat([one if isinstance(one, Tensor) else torch.cat(list(one)) for one in levels], dim=1)
        by_image = loaded.adapter.image_features(loaded.model, vision)
        calls = loop_on_a_cpu(monkeypatch)
        whole = loaded.adapter.image_features(loaded.model, vision)
    for features in (by_image, whole):
        torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)
    assert calls[1:] == [3] * len(loaded.model.model.visual.blocks)  # after the trial of the kernel


# -- where the kernel cannot be used ----------------------------------------------------------------------------------


def from_the_first_key(q: Tensor, k: Tensor, v: Tensor, segments: varlen.Segments, window: Any, scale: Any) -> Tensor:
    """Causal with the first query beside the first key, as SDPA is, instead of the last beside the last."""
    size = (segments.cu_q[1:] - segments.cu_q[:-1]).tolist()
    starts = segments.cu_k[:-1].tolist()
    met = torch.cat([torch.arange(start, start + count) for start, count in zip(starts, size, strict=True)])
    return loop(q, k[met], v[met], replace(segments, cu_k=segments.cu_q), window, scale)


def without_arguments(query: Tensor, key: Tensor, value: Tensor, segments: Any, window: Any, scale: Any) -> Tensor:
    raise TypeError("varlen_attn() got an unexpected keyword argument 'window_size'\nmore")


@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (from_the_first_key, r"its kernel is [\d.]+ off on a small example"),
        (without_arguments, "unexpected keyword argument 'window_size'$"),
    ],
)
def test_a_kernel_that_fails_is_not_used_and_told(
    kernel: varlen.Kernel,
    why: str,
    tiny_checkpoints: Mapping[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent = worker(tiny_checkpoints["qwen3"])
    assert "attention" not in capsys.readouterr().err  # a CPU has no kernel, and nothing to tell
    monkeypatch.setitem(varlen.KERNELS, "cpu", kernel)
    assert decide("ada", agent.shards, agent.dummy, agent.config.training, 1.0)
    told = capsys.readouterr().err
    assert told.startswith("ada: attention to shared prompts takes several calls per layer")
    reason = agent.policy.why_not_one_call()
    assert reason
    assert re.search(why, reason)
    assert f"({reason})" in told


def test_a_tower_that_falls_back_is_told(
    tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = worker(tiny_checkpoints["qwen2_5_vl"])
    assert "tower" not in capsys.readouterr().err
    for kernel, expected in (
        (loop, ""),
        (without_arguments, "ada: attention in the vision tower takes a call per win"),
    ):
        monkeypatch.setitem(varlen.KERNELS, "cpu", kernel)
        log_vision_tower_path("ada", agent.shards, agent.config.training)
        told = capsys.readouterr().err
        assert told.startswith(expected)
        assert bool(told) == bool(expected)


@pytest.mark.parametrize("case", ["ragged", "alike"])
@each_family("gemma3", "qwen3")
def test_older_versions_of_torch_need_no_mask_either(
    family: str, case: str, tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDPA's own bias for queries at the end of their keys: layers with windows keep their masks."""
    loaded = load(family, tiny_checkpoints[family])
    rows = rows_of(loaded, CASES[case])
    masks, expected = scores_and_gradients(policy_of(loaded), rows)
    monkeypatch.setattr(shared_prefix, "_has_flash", lambda query: True)
    used: list[bool] = []
    mask = shared_prefix.Layout.suffix_mask

    def watched(plan: Any, keys: int, longest: int, window: int | None, *more: Any) -> Tensor:
        used.append(window is None)
        return mask(plan, keys, longest, window, *more)

    monkeypatch.setattr(shared_prefix.Layout, "suffix_mask", watched)
    flash, found = scores_and_gradients(policy_of(loaded), rows)
    assert not any(used)
    assert float((masks - flash).abs().max()) < 1e-5
    assert gradient_error(found, expected) < 1e-4
