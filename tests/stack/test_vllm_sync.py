"""vLLM's weights follow the trainer's, in place; a tensor that is missing, stale or in another's place is found."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmcorl.engines.base import Sampling
from mmcorl.engines.weight_check import check_weights, fingerprints
from mmcorl.errors import RunError
from mmcorl.policy.weights import hub_named
from model_adapters.testing.tiny import build_tiny
from vllm_parts import EXACT, FAMILIES, Bench, long_prompts, without
from worker_parts import mixed_prompts, prompt

pytestmark = pytest.mark.stack


@pytest.mark.parametrize("family", FAMILIES)
def test_after_a_sync_the_engine_is_the_trainer(family: str, benches: Mapping[str, Bench]) -> None:
    """At the start by vLLM's own reading of the checkpoint, stale after an update, equal again after the sync."""
    bench = benches[family]
    prompts = long_prompts(family) if family in EXACT else [prompt("How many dots are there?")]
    check_weights(bench.engine, bench.weights)
    with bench.changed():
        assert torch.cat(bench.drift(prompts)).abs().max() > 0.1
        with pytest.raises(RunError, match=rf"agent '{family}': \d+ of \d+ parameters .* were not the trainer's"):
            check_weights(bench.engine, bench.weights)
        bench.engine.sync(bench.weights())
        assert torch.cat(bench.drift(prompts)).abs().max() < 1e-3  # Cached states and image features are dropped.
        check_weights(bench.engine, bench.weights)
    assert torch.cat(bench.drift(prompts)).abs().max() < 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_one_number_off_is_another_fingerprint(seed: int, benches: Mapping[str, Bench]) -> None:
    """The last bit of one element of one tensor, whichever."""
    bench = benches["internvl3_5"]
    before = fingerprints(bench.engine.model)
    generator = torch.Generator().manual_seed(seed)
    names = [name for name, _ in bench.weights()]
    chosen = names[int(torch.randint(len(names), (1,), generator=generator))]

    def nudged() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in bench.weights():
            if name == chosen:
                tensor = tensor.detach().clone()
                place = int(torch.randint(tensor.numel(), (1,), generator=generator))
                tensor.view(-1)[place] = torch.nextafter(tensor.view(-1)[place], torch.tensor(torch.inf))
            yield name, tensor

    bench.engine.sync(nudged())
    after = fingerprints(bench.engine.model)
    bench.engine.sync(bench.weights())
    off = {name: int((rows != after[name]).sum()) for name, rows in before.items() if (rows != after[name]).any()}
    # The table of a tied head is in two places.
    assert set(off.values()) == {1}
    assert len(off) == (2 if "embed_tokens" in chosen else 1)


@pytest.mark.parametrize("part", ["layers.1.mlp.down_proj", "visual.patch_embed", "qkv.bias"])
def test_a_tensor_that_is_stale_or_never_synced_is_found(part: str, benches: Mapping[str, Bench]) -> None:
    bench = benches["qwen2_5_vl"]
    assert any(part in name for name, _ in bench.weights())
    with bench.changed():
        bench.engine.sync(without(bench.weights(), part))
        with pytest.raises(RunError, match=rf"were not the trainer's, .*{part}"):
            check_weights(bench.engine, bench.weights)
    # Equal by chance, as at the start: nothing is stale, and nothing would ever follow.
    with pytest.raises(RunError, match=rf"are reached by no sync, .*{part}"):
        check_weights(bench.engine, lambda: without(bench.weights(), part))
    bench.engine.sync(bench.weights())


def test_tensors_in_each_others_places_are_found(benches: Mapping[str, Bench]) -> None:
    """As by a wrong rename: the same wrong place at every sync, so only vLLM's own reading can tell."""
    bench = benches["internvl3_5"]
    pair = ("layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj")

    def swapped() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in bench.weights():
            for one, other in (pair, pair[::-1]):
                if "language_model" in name and one in name:
                    name = name.replace(one, other)
                    break
            yield name, tensor

    assert sum(name not in dict(bench.weights()) for name, _ in swapped()) == 0
    with pytest.raises(RunError, match=r"were not the trainer's, .*layers\.0\.self_attn\.qkv_proj"):
        check_weights(bench.engine, swapped)
    bench.engine.sync(bench.weights())


def test_a_part_of_a_joined_matrix_is_refused(benches: Mapping[str, Bench]) -> None:
    """vLLM would fill the rest with whatever memory holds; what is not given at all stays to the bit."""
    bench = benches["qwen2"]
    for part, missing in (("self_attn", "k_proj"), ("mlp", "gate_proj")):
        weights = [item for item in bench.weights() if f"layers.1.{part}" in item[0] and missing not in item[0]]
        with pytest.raises(RunError, match=rf"without model\.layers\.1\..*{missing}\.weight, which vLLM keeps in one"):
            bench.engine.sync(iter(weights))
        bench.engine.sync(bench.weights())
    # InternVL's tower keeps its projections apart in vLLM.
    other = benches["internvl3_5"]
    other.engine.sync(item for item in other.weights() if "vision_tower" in item[0] and "attention.q_proj" in item[0])
    check_weights(other.engine, other.weights)
    before = fingerprints(other.engine.model)
    with other.changed():
        other.engine.sync(without(other.weights(), "vision_tower"))
        after = fingerprints(other.engine.model)
        same = {name for name, rows in before.items() if torch.equal(rows, after[name])}
    assert same == {name for name in before if "vision_tower" in name}


def test_a_name_that_vllm_does_not_know_is_told(benches: Mapping[str, Bench]) -> None:
    bench = benches["gemma3"]
    named = dict(bench.weights())
    odd = [(name.replace("vision_tower.vision_model", "vision_tower"), tensor) for name, tensor in named.items()]
    with pytest.raises(RunError, match=r"vLLM cannot place the weight '.*vision_tower\.embeddings"):
        bench.engine.sync(odd)
    bench.engine.sync(bench.weights())
    check_weights(bench.engine, bench.weights)


def test_weights_are_taken_as_they_come(benches: Mapping[str, Bench]) -> None:
    """A trainer that gathers tensors one after the other never has more than a few of them whole."""
    bench = benches["qwen2_5_vl"]
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def gathered() -> Iterator[tuple[str, Tensor]]:
        nonlocal most
        for name, tensor in bench.weights():
            whole = tensor.detach().clone()
            alive.add(whole)
            most = max(most, len(alive))
            yield name, whole
            del whole

    gc.collect()
    bench.engine.sync(gathered())
    # Of the 56, those of one layer wait for each other until its matrices can be joined.
    assert most <= 12
    check_weights(bench.engine, bench.weights)


def test_bf16_engine_of_fp32_masters(tiny_checkpoints: Mapping[str, Path]) -> None:
    """The engine has the masters rounded; under the trainer's autocast it still computes in its own dtype."""
    bench = Bench("qwen2_5_vl", tiny_checkpoints["qwen2_5_vl"], dtype="bf16")
    check_weights(bench.engine, bench.weights)
    encoded = bench.encode(mixed_prompts("qwen2_5_vl"))
    plain = bench.engine.generate(encoded, 2, Sampling(max_new_tokens=8), 1)
    with torch.autocast("cpu", torch.bfloat16):
        inside = bench.engine.generate(encoded, 2, Sampling(max_new_tokens=8), 1)
    for one, other in zip(chain(*plain), chain(*inside), strict=True):
        assert torch.equal(one.ids, other.ids)
        assert torch.equal(one.logprobs, other.logprobs)
    assert 1e-4 < torch.cat(bench.drift(mixed_prompts("qwen2_5_vl"))).abs().mean() < 0.2


def test_a_head_of_its_own(tmp_path: Path) -> None:
    """Larger models do not tie their head to the table of embeddings."""
    path = build_tiny("qwen3", tmp_path / "untied", text_config={"tie_word_embeddings": False})
    bench = Bench("qwen3", path)
    assert "lm_head.weight" in dict(bench.weights())
    check_weights(bench.engine, bench.weights)
    with bench.changed():
        bench.engine.sync(bench.weights())
        assert torch.cat(bench.drift(mixed_prompts("qwen3"))).abs().max() < 1e-3
        check_weights(bench.engine, bench.weights)


# -- low-rank adapters -------------------------------------------------------------------------------------------

LANGUAGE = r".*language_model.*(q_proj|v_proj|down_proj)"


def adapted(targets: str, rank: int = 4) -> Any:
    """Puts adapters that already do something into a model, in place."""

    def change(model: Any) -> None:
        from peft import LoraConfig, get_peft_model  # imports torchvision, which a bench has made importable

        torch.manual_seed(0)
        get_peft_model(model, LoraConfig(r=rank, lora_alpha=16, target_modules=targets))
        redraw(model)

    return change


@torch.no_grad()
def redraw(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.normal_(std=0.2)


def trained(bench: Bench) -> Iterator[tuple[str, Tensor]]:
    named = bench.policy.model.named_parameters()
    return hub_named(bench.policy.model, (item for item in named if item[1].requires_grad))


@pytest.mark.parametrize(
    ("family", "targets"), [("qwen2", "all-linear"), ("qwen2_5_vl", LANGUAGE), ("internvl3_5", LANGUAGE)]
)
def test_adapters_of_the_language_model_stay_adapters(
    family: str, targets: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    bench = Bench(family, tiny_checkpoints[family], change=adapted(targets))
    assert bench.engine.adapters
    base = fingerprints(bench.engine.model)
    for _ in range(2):
        redraw(bench.policy.model)
        assert torch.cat(bench.drift(mixed_prompts(family))).abs().max() > 0.1
        bench.engine.sync(trained(bench))
        assert torch.cat(bench.drift(mixed_prompts(family))).abs().max() < 1e-3
    after = fingerprints(bench.engine.model)
    assert all(torch.equal(rows, after[name]) for name, rows in base.items())
    check_weights(bench.engine, bench.weights)
    assert torch.cat(bench.drift(mixed_prompts(family))).abs().max() < 1e-3


def test_adapters_of_the_tower_come_merged(tiny_checkpoints: Mapping[str, Path]) -> None:
    bench = Bench("internvl3_5", tiny_checkpoints["internvl3_5"], change=adapted("all-linear"))
    assert not bench.engine.adapters
    model = bench.policy.model
    layers = {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}
    named = {}
    for name, tensor in model.named_parameters():
        layer = layers.get(name.removesuffix(".base_layer.weight"))
        if ".lora_" not in name:
            whole = tensor if layer is None else tensor + layer.get_delta_weight("default")
            named[name.replace(".base_layer.", ".")] = whole
    bench.engine.sync(hub_named(model, named.items()))
    assert torch.cat(bench.drift(mixed_prompts("internvl3_5"))).abs().max() < 1e-3


# -- memory ------------------------------------------------------------------------------------------------------


def test_weights_wake_before_a_sync_and_the_cache_after(
    benches: Mapping[str, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which calls reach vLLM, in order: a CPU cannot sleep, and vLLM would wait for ever if told to."""
    bench, calls = benches["qwen2"], []
    engine, llm, reload = bench.engine, bench.engine.llm, bench.engine.llm.collective_rpc
    engine.sleep(until_sync=True)
    engine.sleep()
    engine.wake()
    assert bench.draw(mixed_prompts("qwen2"), 2, max_new_tokens=2)  # Nothing has slept.
    monkeypatch.setattr(engine, "_sleeps", True)
    monkeypatch.setattr(llm, "sleep", lambda level: calls.append(f"sleep {level}"))
    monkeypatch.setattr(llm, "wake_up", lambda tags: calls.append(f"wake {' '.join(tags)}"))
    monkeypatch.setattr(
        llm, "collective_rpc", lambda *args, **kwargs: calls.append("reload") or reload(*args, **kwargs)
    )
    engine.sleep(until_sync=True)
    with pytest.raises(RuntimeError, match="generate before wake"):
        bench.draw(mixed_prompts("qwen2"), 1)
    with pytest.raises(RuntimeError, match=r"wake before the sync that sleep\(until_sync=True\) announced"):
        engine.wake()
    with pytest.raises(RuntimeError, match="weights are asleep"):
        engine.check(bench.weights)
    engine.sync(bench.weights())
    engine.wake()
    assert calls == ["sleep 2", "wake weights", "reload", "wake kv_cache"]
    calls.clear()
    for step in (engine.sleep, engine.sleep, engine.wake, engine.wake):
        step()
    assert calls == ["sleep 1", "wake weights kv_cache"]
    check_weights(engine, bench.weights)
