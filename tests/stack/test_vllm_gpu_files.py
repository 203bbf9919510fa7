"""What a GPU runs of vLLM and no test here can: its files are read, and must say what the engine relies on.

On a GPU the second model runner and Triton's sampler work; the installed package has them whatever it was built for.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from adapter_passes import SETTINGS
from mmcorl.engines.vllm_setup import fp32_head
from vllm_parts import FAMILIES, Bench

pytestmark = pytest.mark.stack

RUNNER, WORKER, SAMPLE = "v1/worker/gpu/model_runner.py", "v1/worker/gpu_worker.py", "v1/worker/gpu/sample"

FUNCTIONS = {
    # What `mmcorl.engines.vllm` calls, down to where a GPU does it: file, function, arguments by name.
    ("entrypoints/llm.py", "LLM.sleep"): ["level"],
    ("entrypoints/llm.py", "LLM.wake_up"): ["tags"],
    ("entrypoints/llm.py", "LLM.reset_prefix_cache"): [],
    ("entrypoints/llm.py", "LLM.collective_rpc"): ["method", "kwargs"],
    (WORKER, "Worker.sleep"): ["level"],
    (WORKER, "Worker.wake_up"): ["tags"],
    (WORKER, "Worker.reload_weights"): [],
    (WORKER, "Worker.get_model"): [],
    (RUNNER, "GPUModelRunner.get_model"): [],
    (RUNNER, "GPUModelRunner.reload_weights"): ["weights_iterator"],
    (RUNNER, "GPUModelRunner.reset_mm_cache"): [],
    (RUNNER, "GPUModelRunner.reset_encoder_cache"): [],
    ("v1/engine/llm_engine.py", "LLMEngine.reset_mm_cache"): [],
    ("v1/engine/llm_engine.py", "LLMEngine.reset_encoder_cache"): [],
    ("v1/engine/llm_engine.py", "LLMEngine.add_lora"): ["lora_request"],
    ("device_allocator/cumem.py", "CuMemAllocator.get_instance"): [],
}

SAYS = [
    # Buffers survive the deepest sleep, and come back with the weights.
    (WORKER, "Worker.sleep", "if level == 2:"),
    (WORKER, "Worker.sleep", "model.named_buffers()"),
    (WORKER, "Worker.wake_up", "tags is None or 'weights' in tags"),
    (WORKER, "Worker.wake_up", "buffer.data.copy_(self._sleep_saved_buffers[name].data)"),
    # What `given_back` counts: allocations that sleep, the second number of a handle being bytes.
    ("device_allocator/cumem.py", "CuMemAllocator.sleep", "size_in_bytes = handle[1]"),
    ("device_allocator/cumem.py", "CuMemAllocator.sleep", "data.is_asleep = True"),
    # Segments that grow are switched off around the pool that sleeps.
    ("device_allocator/cumem.py", "CuMemAllocator.use_memory_pool", "EXPANDABLE_SEGMENTS, False"),
    # Log-probabilities are those of the distribution sampled from, biases included.
    (f"{SAMPLE}/sampler.py", "Sampler", "self.logprobs_mode in PROCESSED_LOGPROBS_MODES"),
    # The seed of a request's n-th sample, and noise by seed and position alone.
    ("v1/engine/parallel_sampling.py", "ParentRequest", "child_sampling_params.seed = seed + index"),
    (f"{SAMPLE}/gumbel.py", "_gumbel_sample_kernel", "seeds_ptr"),
    # The head in fp32, as the trainer's.
    ("model_executor/layers/logits_processor.py", "LogitsProcessor", "torch.mm(flat, lm_head.weight.t(), out_dtype="),
]

VALUES = {
    ("device_allocator/__init__.py", "DEFERRABLE_TAGS"): ("weights", "kv_cache"),
    (f"{SAMPLE}/logit_bias.py", "MAX_NUM_LOGIT_BIAS_TOKENS"): 1024,
}


@cache
def tree(file: str) -> ast.Module:
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return ast.parse((Path(spec.origin).parent / file).read_text(encoding="utf-8"))


def find(file: str, path: str) -> ast.AST:
    """A class, a function or a method of a file; at any depth, such as in an `if`."""
    here: ast.AST = tree(file)
    for name in path.split("."):
        kinds = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        here = next(node for node in ast.walk(here) if isinstance(node, kinds) and node.name == name)
    return here


@pytest.mark.parametrize(("place", "arguments"), FUNCTIONS.items(), ids=lambda value: str(value))
def test_what_the_engine_calls_is_there(place: tuple[str, str], arguments: list[str]) -> None:
    function = find(*place)
    assert isinstance(function, ast.FunctionDef)
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    assert set(arguments) <= set(names)


@pytest.mark.parametrize(("file", "path", "words"), SAYS)
def test_what_the_engine_relies_on_is_written_there(file: str, path: str, words: str) -> None:
    assert words in ast.unparse(find(file, path))


def test_limits_and_names_are_those_that_the_engine_expects() -> None:
    for (file, name), value in VALUES.items():
        (assigned,) = [
            node.value
            for node in tree(file).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and name in {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        ]
        assert assigned is not None
        assert ast.literal_eval(assigned) == value
    data = find("device_allocator/__init__.py", "AllocationData")
    assert {"handle", "is_asleep"} <= {node.id for node in ast.walk(data) if isinstance(node, ast.Name)}


def test_pictures_that_qwen_is_prepared_for_are_no_larger_than_max_side(benches: Mapping[str, Bench]) -> None:
    """The arithmetic of its own processor, which sizes the encoder's cache and the profiled picture."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    bench = benches["qwen2_5_vl"]
    config = bench.engine.llm.llm_engine.vllm_config.model_config
    told = bench.loaded.adapter.engine_limits(bench.loaded.processor, SETTINGS)["max_pixels"]
    assert MULTIMODAL_REGISTRY.get_processing_info(config).get_max_image_tokens() == told // 28**2


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_is_in_fp32_from_whichever_config_the_language_model_is_built(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """InternVL's and Gemma's language models get the text model's config alone, Qwen's the whole one."""
    import torch
    from transformers import AutoConfig
    from vllm.config import ModelConfig, VllmConfig

    path = str(tiny_checkpoints[family])
    overrides = fp32_head(AutoConfig.from_pretrained(path))
    config = ModelConfig(model=path, dtype="bfloat16", hf_overrides=overrides, max_model_len=64)
    inner = VllmConfig(model_config=config).with_hf_config(config.hf_text_config)
    assert (config.head_dtype, inner.model_config.head_dtype) == (torch.float32, torch.float32)
