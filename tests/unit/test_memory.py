"""The memory budget: exact where it can be, by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from adapter_passes import each_family
from mmcorl.apps.doctor import agents_memory as forecast
from mmcorl.apps.doctor import doctor, sampling_memory
from mmcorl.apps.doctor import memory_forecast as memory
from mmcorl.apps.doctor.activations import Stack, Work, kept, per_layer
from mmcorl.apps.doctor.largest_micro_batch import Prompts
from mmcorl.apps.doctor.memory_forecast import GIB, Shape
from mmcorl.apps.doctor.models import build
from mmcorl.config import load as load_config
from mmcorl.data.sources import load_prompts
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.trainer.gpu_peak import GpuPeak
from model_adapters.errors import AdapterError
from model_adapters.testing.tiny import build_tiny
from paths import ROOT
from worker_parts import settings, worker

BILLION = 10**9
SHAPE = Shape(
    parameters=3 * BILLION, vision=BILLION, vocabulary=100_000, decoder=Stack(10, 2000, 8000, queries=2000, keys=500)
)


def cached_rows(config, ranks, shape, card):
    return sampling_memory.cached_rows(
        config.engine,
        shape,
        card,
        dtype=config.training.dtype,
        longest=config.data.max_prompt_tokens + config.sampling.max_new_tokens,
        sampled=sampling_memory.rows_at_once(config.engine, config.batch, config.supervision, ranks),
        on_cpu=config.device == "cpu",
    )


def budget(gpu_bytes=None, ranks=1, **sections):
    agents = [{"name": "a", "model": "x", "ranks": ranks}]
    launcher = {"launcher": "ray"} if ranks > 1 else {}
    # Many passes of many tokens, so that an update is at its fullest when a backward pass begins.
    sections = {"batch": {"prompts": 64}, "sampling": {"max_new_tokens": 300}, **sections, **launcher}
    return memory.budget(settings(agents=agents, **sections), 0, SHAPE, gpu_bytes)


def test_fp32_masters_with_adam_and_bf16_copies_take_18_bytes_a_parameter():
    mixed, single = budget(training={"dtype": "bf16"}), budget(training={"dtype": "fp32"})
    assert (mixed.resident["weights"], mixed.resident["optimizer"]) == (12 * BILLION, 24 * BILLION)
    assert (mixed.updating["gradients"], mixed.updating["bf16 weights"]) == (12 * BILLION, 6 * BILLION)
    # The gradient of a chunk's logits, 1342 x 100,000 in fp32 and in bf16, and the head's, 100,000 x 2,000 in fp32; or
    # 4 bytes each.
    assert mixed.updating["logits"] == 100_000 * (6 * 1342 + 4 * 2000)
    assert (single.updating["logits"], single.updating["bf16 weights"]) == (4 * 100_000 * (1342 + 2000), 0)
    on_a_cpu = budget(training={"dtype": "bf16"}, device="cpu")
    assert on_a_cpu.updating["logits"] == 100_000 * (2 * 256 + 4 * 2000)


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer", "copy"),
    [
        ("none", 12, 12, 24, 6),
        # A second copy of the weights for the update, divided by four.
        ("zero2", 12 + 3, 3, 6, 6),
        # A layer or two in bf16: 2 x 3e9 / 10 layers x 2 bytes.
        ("zero3", 3, 3, 6, 1.2),
        ("fsdp2", 3, 3, 6, 1.2),
    ],
)
def test_what_each_sharding_divides_by_four_ranks(sharding, weights, gradients, optimizer, copy):
    one = budget(ranks=4, training={"dtype": "bf16", "sharding": sharding})
    assert one.resident["weights"] == weights * BILLION
    assert one.updating["gradients"] == gradients * BILLION
    assert one.resident["optimizer"] == optimizer * BILLION
    assert one.updating["bf16 weights"] == copy * BILLION
    # What the transformers engine samples from; vLLM's own weights are in its share.
    assert one.resident["whole copy"] == (6 * BILLION if sharding in ("zero3", "fsdp2") else 0)


def test_one_call_keeps_what_it_gathers_and_no_mask():
    stack = Stack(3, 8, 16, queries=8, keys=4)
    masked, one_call = (Work(10, 3, groups=1, rows=2, shared=True, one_call=one) for one in (False, True))
    # 16 tokens pass. Gone: their keys and values (2 x 4 numbers) and the output put together (8), in bf16; new: those
    # of the prompt's own segment, gathered.
    assert per_layer(stack, masked, 2) - per_layer(stack, one_call, 2) == 2 * (16 * (8 + 8) - 10 * 8)
    # The mask: 2 heads of a key x 3 tokens by 10 + 3.
    assert kept(stack, masked, 2, True) - kept(stack, one_call, 2, True) == 2 * (2 * 3 * 13)
    # Blocks that attend both ways keep the mask of their prompt, and what it computes with.
    blocks = replace(stack, blocks=True)
    assert kept(blocks, one_call, 2, True) == kept(stack, one_call, 2, True) + 2 * (2 * 10**2)


def test_a_single_pass_reaches_the_embeddings_before_the_tower():
    shape = replace(SHAPE, vocabulary=400_000, tied=True)
    agents = [{"name": "a", "model": "x"}]
    training = {"dtype": "bf16", "gradient_checkpointing": True, "tokens_per_microbatch": 64}
    sections = {"agents": agents, "sampling": {"max_new_tokens": 2}, "training": training}
    prompts = Prompts(8, 0)
    for count, early in ((1, 2 * BILLION), (64, 3 * BILLION)):
        config = settings(**sections, batch={"prompts": count, "completions": 2})
        updating = memory.budget(config, 0, shape, prompts=prompts, cpu=False).updating
        assert updating["gradients"] == 4 * early


def test_a_frozen_tower_and_offloaded_states():
    frozen = budget(training={"dtype": "bf16", "freeze_vision": True})
    # 2e9 trained in fp32, the tower's 1e9 in bf16.
    assert (frozen.resident["weights"], frozen.resident["optimizer"]) == ((8 + 2) * BILLION, 16 * BILLION)
    away = budget(ranks=2, training={"dtype": "bf16", "sharding": "zero3", "offload": "all"})
    assert (away.resident["weights"], away.resident["optimizer"]) == (0, 0)


def test_low_rank_adapters_by_hand():
    shape = replace(SHAPE, linear={"layers.0.q_proj": 4000, "layers.0.up_proj": 10_000, "tower.fc1": 600})
    shape = replace(shape, linear_vision=["tower.fc1"])
    # 8 x (in + out) of each.
    for training, parameters in (
        ({"lora": {"rank": 8}}, 8 * (4000 + 10_000 + 600)),
        ({"lora": {"rank": 8}, "freeze_vision": True}, 8 * (4000 + 10_000)),
        ({"lora": {"rank": 8, "target_modules": ["q_proj"]}}, 8 * 4000),
        ({"lora": {"rank": 8, "target_modules": r".*(q|up)_proj"}}, 8 * (4000 + 10_000)),
    ):
        resident = memory.budget(settings(training={"dtype": "bf16", **training}), 0, shape).resident
        assert resident["optimizer"] == 8 * parameters
        assert resident["weights"] == 4 * parameters + 2 * 3 * BILLION


def test_the_cache_and_the_share_of_vllm():
    # Keys and values, bf16, 10 layers of 500: 20,000 bytes a token; 8 x 4 rows of 94 + 6 tokens.
    rows = {
        "data": {"train": {"source": "synthetic:text", "size": 8}, "max_prompt_tokens": 94},
        "sampling": {"max_new_tokens": 6},
        "batch": {"prompts": 8},
        "training": {"dtype": "bf16"},
    }
    # One of ten layers is there twice while it grows.
    assert budget(**rows).sampling["KV cache"] == 20_000 * 32 * 100 * 11 // 10
    assert budget(engine={"max_tokens": 1000}, **rows).sampling["KV cache"] == 20_000 * 1000 * 11 // 10
    vllm = {"engine": {"kind": "vllm", "gpu_memory_utilization": 0.5}}
    assert budget(gpu_bytes=80 * GIB, **vllm).sampling == {"vLLM": 40 * GIB}
    assert budget(engine={"kind": "vllm", "kv_cache_gib": 2}).sampling == {"vLLM": 6 * BILLION + 2 * GIB}
    # Agents that take turns on a GPU leave a CUDA context there.
    agents = [{"name": name, "model": "x"} for name in "abc"]
    config = settings(agents=agents, supervision={"kind": "ring"}, time_sliced=True)
    assert memory.budget(config, 0, SHAPE).reserve == memory.RESERVE + 2 * memory.CONTEXT


def test_engines_that_span_ranks_hold_a_part_each():
    """3 billion parameters, 10 layers with 4 key heads of 125: 20,000 bytes a token; 8 prompts x 4 of 94 + 6 tokens."""
    sizes = {
        "agents": [{"name": "a", "model": "x", "ranks": 8}],
        "launcher": "ray",
        "data": {"train": {"source": "synthetic:text", "size": 8}, "max_prompt_tokens": 94},
        "sampling": {"max_new_tokens": 6},
        "batch": {"prompts": 8},
        "training": {"dtype": "bf16"},
    }
    shape = replace(SHAPE, decoder=replace(SHAPE.decoder, key_heads=4))
    # Engines, rows of each, parts of the weights and of the cache, whose four heads cannot be cut.
    for together, rows, parts, heads in ((1, 4, 1, 1), (2, 8, 2, 2), (4, 16, 4, 4), (8, 32, 8, 4)):
        config = settings(engine={"kind": "vllm", "tensor_parallel": together}, **sizes)
        sampling = memory.budget(config, 0, shape).sampling
        assert sampling == {"vLLM": 6 * BILLION // parts + 20_000 * 100 * rows // heads}
        card = int(10 * GIB / 0.4)
        found = cached_rows(config, 8, shape, card)
        room = int(0.4 * card) - 6 * BILLION // parts - sampling_memory.VLLM_WORKING
        assert found == sampling_memory.CachedRows(room // (20_000 * 100 // heads), rows, 100)


def test_rows_that_the_cache_of_vllm_holds_on_a_card_of_80_gb():
    """Of a prompt of 3,072 and a completion of 1,024 tokens; 0.4 of 79.1 GiB less weights and 3 GiB."""
    card, vllm = int(79.1 * GIB), {"engine": {"kind": "vllm"}, "training": {"dtype": "bf16"}}
    sizes = {"batch": {"prompts": 8, "completions": 8}, "sampling": {"max_new_tokens": 1024}}
    # Parameters, layers, width of keys: 36,864 bytes a token for the first, (31.64 - 6.99 - 3) GiB / 144 MiB.
    for parameters, layers, keys, rows in (
        (3.755e9, 36, 256, 153),
        (2.348e9, 28, 1024, 55),
        (4.300e9, 34, 1024, 38),
        (12.19e9, 48, 2048, 3),
    ):
        shape = Shape(int(parameters), 0, 1, Stack(layers, 1, 1, queries=1, keys=keys))
        found = cached_rows(settings(**vllm, **sizes), 4, shape, card)
        assert found == sampling_memory.CachedRows(rows, 16, 4096)
    more = settings(**(vllm | {"engine": {"kind": "vllm", "gpu_memory_utilization": 0.7}}), **sizes)
    assert cached_rows(more, 4, shape, card).held == 19
    # 2 bytes x 10 layers x 500 x 2: 20,000 bytes a token, 40,000 in fp32; 8 x 4 rows of 3,072 + 6.
    for engine, held in (({}, 2**30 // 40_000 // 3078), ({"kv_cache_gib": 0.1, "max_model_len": 100}, 26)):
        config = settings(engine={"kind": "vllm", **engine}, batch={"prompts": 8}, device="cpu")
        assert cached_rows(config, 1, SHAPE, card).held == held
    assert cached_rows(settings(), 1, SHAPE, card) is None
    assert cached_rows(settings(engine={"kind": "vllm", "gpu_memory_utilization": 0.01}), 1, SHAPE, card).held == 0


@each_family("qwen2_5_vl", "internvl3_5", "gemma3", "llama")
def test_parameters_are_those_of_the_loaded_model(tmp_path, family):
    folder = build_tiny(family, tmp_path / family, seed=0)
    agent = worker(folder)
    shape = memory.shape_of(PromptEncoder(agent.config, agent.config.agents[0], str(folder)))
    assert shape.parameters == sum(parameter.numel() for parameter in agent.policy.model.parameters())
    vision = {id(p): p.numel() for part in agent.adapter.vision_modules(agent.policy.model) for p in part.parameters()}
    assert shape.vision == sum(vision.values())


@pytest.mark.parametrize(
    ("shape", "kernel", "patches"),
    [
        ((96, 588), (14, 14), (96, 0)),  # patches in a row
        ((96, 1176), (2, 14, 14), (96, 0)),
        ((2, 3, 56, 28), (14, 14), (16, 2)),  # 4 x 2 of two images
        ((1, 4, 3, 56, 56), (14, 14), (64, 4)),  # tiles of an image
        ((1, 3, 14, 140), (14, 14), (10, 1)),  # patches side by side, as one flat image
        ((10, 3, 7, 7), (14, 14), (2, 0)),  # 1,470 elements, 588 a patch
        ((5880,), (14, 14), (10, 0)),
        ((3, 28, 28), (14, 14), (4, 0)),
        ((0, 588), (14, 14), (1, 0)),
        ((), (14, 14), (1, 0)),
        ((1, 3, 14, 14), (7,), (28, 0)),  # a convolution of one axis: 21 elements
    ],
)
def test_patches_of_pixels_of_any_shape(shape, kernel, patches):
    assert memory.patches_in(shape, 3, kernel) == patches


def test_a_prediction_that_cannot_be_made_is_said_and_no_more(tmp_path, capsys, monkeypatch):
    """The other agent's is made."""
    folder = build_tiny("internvl3_5", tmp_path / "internvl3_5", seed=0)
    agents = [{"name": name, "model": str(folder)} for name in "ab"]
    config = settings(agents=agents, supervision={"kind": "ring"})
    readers = [PromptEncoder(config, agent, str(folder)) for agent in config.agents]
    monkeypatch.setattr(readers[0], "dummy", lambda image: SimpleNamespace(vision={"pixel_values": 1}))
    budgets = forecast.predict(config, readers, {"a": 50, "b": 50}, [], gpu=False, quiet=True)
    assert list(budgets) == ["b"]
    said = "a: its memory cannot be predicted (AttributeError: 'int' object has no attribute 'shape')"
    assert capsys.readouterr().err.splitlines()[-1] == said
    found = list(doctor.memory(config, readers, [], 2**40))
    assert (found[0].level, found[0].sentence) == ("note", said)

    def refuses(image):
        raise AdapterError("no image is small enough")

    monkeypatch.setattr(readers[0], "dummy", refuses)
    assert list(forecast.predict(config, readers, {"a": 50, "b": 50}, [], gpu=False, quiet=True)) == ["b"]
    assert "a: its memory cannot be predicted (no image is small enough)" in capsys.readouterr().err


def test_images_of_the_longest_prompt_are_what_the_shortest_text_leaves(tmp_path):
    folder = build_tiny("gemma3", tmp_path / "gemma3", seed=0)
    config = settings(agents=[{"name": "a", "model": str(folder)}], data={"train": {"source": "synthetic:visual"}})
    encoder = PromptEncoder(config, config.agents[0], str(folder))
    source = load_prompts(config.data.train)
    rows = [source[row] for row in range(4)]
    # Every picture is 4 tokens, 56 pixels in pieces of 28.
    texts = [len(encoder.encode(row).input_ids) - 4 for row in rows]
    assert memory.prompts_of(encoder, 50, rows) == Prompts(50, 50 - min(texts))
    assert memory.prompts_of(encoder, 50, [replace(rows[0], images=(), uid="no picture")]) == Prompts(50, 0)


def test_agents_on_one_device_take_turns():
    one, two = memory.Budget({"weights": 5}, {"a": 7}, {}), memory.Budget({"weights": 3}, {"a": 1}, {"b": 10})
    assert memory.together([one, two], one_at_a_time=False) == 5 + 3 + 10
    assert memory.together([one, two], one_at_a_time=True) == 13


def test_agents_on_one_base_hold_it_once():
    shape = replace(SHAPE, linear={"layers.0.q_proj": 4000})
    lora = {"rank": 8, "share_base": True}
    agents = [{"name": name, "model": model} for name, model in zip("abcd", "xyxx", strict=True)]
    config = settings(agents=agents, supervision={"kind": "ring"}, training={"dtype": "bf16", "lora": lora})
    found = [memory.budget(config, number, shape, cpu=True) for number in range(4)]
    assert len({one.peak for one in found}) == 1  # each alone needs as much as with a base of its own
    # x and y in bf16, four times 8 x 4,000 weights and two moments in fp32, and what one needs while it works.
    resident = 2 * 2 * 3 * BILLION + 4 * 12 * 32_000
    assert memory.together(found, one_at_a_time=False) == resident + found[0].tensors - sum(found[0].resident.values())
    # One vLLM with room of its own samples for all agents on a base; one that sleeps is woken by a peer's sync.
    for sleep in (True, False):
        vllm = {"kind": "vllm", "kv_cache_gib": 2, "sleep": sleep}
        awake = settings(
            agents=[{"name": name, "model": "x"} for name in "ab"],
            supervision={"kind": "ring"},
            training={"dtype": "bf16", "lora": lora},
            engine=vllm,
        )
        pair = [memory.budget(awake, number, shape, cpu=False) for number in range(2)]
        engine = 0 if sleep else 6 * BILLION + 2 * GIB
        assert memory.resident_together(pair) == 6 * BILLION + 2 * 12 * 32_000 + engine
        assert pair[0].updating.get("weights of vLLM", 0) == (6 * BILLION if sleep else 0)


@pytest.mark.slow
def test_the_cohort_on_one_base_fits_a_card_of_24_gb(tmp_path):
    config = load_config(ROOT / "configs" / "one_base_24gb.yaml")
    folder = build("Qwen/Qwen2.5-VL-3B-Instruct", tmp_path / "model")
    found = {}
    for share in (True, False):
        lora = config.training.lora.model_copy(update={"share_base": share})
        changed = config.model_copy(update={"training": config.training.model_copy(update={"lora": lora})})
        readers = [PromptEncoder(changed, agent, str(folder)) for agent in config.agents]
        *_, together = doctor.memory(changed, readers, [int(23.5 * GIB)], ram=64 * GIB)
        found[share] = together
    assert found[True].level == "ok"
    assert "about 20.8 GiB" in found[True].sentence
    # Three more of 3.75 billion parameters in bf16, which no engine's sleep changes.
    assert found[False].level == "problem"


def test_a_sleeping_engine_is_not_in_the_peak_of_a_gpu(monkeypatch):
    """GB: vLLM has 30, which torch counts all the time."""
    peaks = iter([12, 42, 70, 55, 50])
    engine = SimpleNamespace(given_back=0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(peaks) * BILLION)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    peak = GpuPeak(torch.device("cuda"), engine)
    peak.note()  # before it wakes for the first time
    peak.note()  # after the rollout: 42 are really there
    engine.given_back = 30 * BILLION
    peak.note()  # after the update: 40 are
    engine.given_back = 20 * BILLION
    peak.note()  # after the sync, its weights awake: 35
    assert peak.take() == 42 * BILLION
    engine.given_back = 0
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1)
    assert peak.take() == 1
    GpuPeak(torch.device("cpu"), engine).note()  # nothing to ask
