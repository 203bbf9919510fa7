"""What the tests run on the fake GPU, each in a process of its own: torch must come after the library.

`python -m tests.fake_gpu.child NAME [ARGUMENT ...]` prints one JSON object, or runs an update of an agent.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from gpu_check.fake_gpu import library

library.load()

import torch  # noqa: E402

from gpu_check.fake_gpu.device import FakeGpu  # noqa: E402

CUDA = torch.device("cuda")


def product() -> dict[str, Any]:
    """A product of bf16 matrices, a sum, a value that is not known, indices that are."""
    with FakeGpu() as gpu:
        left = torch.empty(1024, 2048, dtype=torch.bfloat16, device=CUDA)
        right = torch.empty(2048, 512, dtype=torch.bfloat16, device=CUDA)
        gpu.start()
        made = left @ right
        large = made.float().exp()
        kernels = gpu.total()
        del made, large
        value = (left @ right).sum().item()
        index = torch.tensor([3, 1, 2, 1]).to(CUDA)
        listed = [index.cumsum(0).tolist(), (index == 1).nonzero()[:, 0].tolist(), int(index.max())]
        try:
            left + torch.ones(1024, 2048)
            mixed = ""
        except RuntimeError as error:
            mixed = str(error)
    return {
        "names": dict(kernels.names),
        "flop": kernels.flop,
        "moved": kernels.moved,
        "peak": gpu.memory.peak,
        "now": gpu.memory.now,
        "value": value,
        "listed": listed,
        "waits": dict(gpu.waits),
        "mixed": mixed,
    }


def attention() -> dict[str, Any]:
    """Kernels that torch chooses, and their arithmetic."""
    from torch.nn.attention.bias import causal_lower_right
    from torch.nn.functional import scaled_dot_product_attention as attend

    torch.backends.cuda.enable_cudnn_sdp(False)
    found: dict[str, Any] = {}

    def case(name: str, queries: int = 512, **how: Any) -> None:
        gpu.start()
        attend(query[:, :, :queries], key, key, **how)
        found[name] = [dict(gpu.total().attention), gpu.total().flop]

    with FakeGpu() as gpu, torch.no_grad():
        query = torch.empty(1, 16, 512, 128, dtype=torch.bfloat16, device=CUDA)
        key = query[:, :2]
        case("causal", is_causal=True, enable_gqa=True)
        case("all", enable_gqa=True)
        case("lower right", attn_mask=causal_lower_right(128, 512), enable_gqa=True, queries=128)
        key = query
        case("mask", attn_mask=torch.zeros(512, 512, dtype=torch.bfloat16, device=CUDA))
        torch.backends.cuda.enable_cudnn_sdp(True)
        case("cudnn", is_causal=True)
    return found


def varlen() -> dict[str, Any]:
    """Arithmetic of one call: two prompts of 10 tokens, and 3 completion tokens behind one of them."""
    from model_adapters.varlen import CAUSAL, Segments, attend

    with FakeGpu() as gpu:
        cu_q = torch.tensor([0, 10, 20, 23], dtype=torch.int32).to(CUDA)
        cu_k = torch.tensor([0, 10, 20, 33], dtype=torch.int32).to(CUDA)
        query = torch.empty(23, 8, 64, dtype=torch.bfloat16, device=CUDA, requires_grad=True)
        key = torch.empty(33, 2, 64, dtype=torch.bfloat16, device=CUDA, requires_grad=True)
        gpu.start()
        out = attend(query, key, key, Segments(cu_q, cu_k, 10, 13), CAUSAL, None)
        forward = gpu.total().flop
        out.sum().backward()
        whole = gpu.total()
        gpu.start()
        attend(query, key, key, Segments(cu_q, cu_k, 10, 13), (3, 0), None)
        window = gpu.total().flop
    return {"forward": forward, "backward": whole.flop - forward, "window": window, "calls": dict(whole.attention)}


def fused() -> dict[str, int]:
    """Operators that are one kernel on a GPU, forward and backward, and composed of several in a CPU build."""
    from torch.nn import functional

    with FakeGpu() as gpu:
        states = torch.empty(64, 8, dtype=torch.bfloat16, device=CUDA, requires_grad=True)
        gpu.start()
        (functional.silu(states) * functional.rms_norm(states, (8,))).sum().backward()
    return dict(gpu.total().names)


def inside() -> dict[str, Any]:
    """The memory of logsumexp, before and after its kernel."""
    with FakeGpu() as gpu:
        states = torch.empty(1024, 1024, device=CUDA)
        gpu.start()
        sums = states.logsumexp(-1)
        return {"peak": gpu.memory.peak, "now": gpu.memory.now, "rows": len(sums)}


def by_hand() -> dict[str, Any]:
    """All of the above."""
    found = {"product": product(), "attention": attention(), "varlen": varlen(), "fused": fused()}
    return found | {"inside": inside()}


def generation() -> dict[str, Any]:
    """The transformers engine at full width: casts of a weight and waits in 20 tokens of 2 prompts."""
    from mmcorl.apps.doctor import models
    from mmcorl.engines.base import Sampling
    from mmcorl.engines.transformers import TransformersEngine
    from mmcorl.policy.policy import Policy
    from mmcorl.trainer.settings import TrainingSettings
    from model_adapters.base import DEFAULT_VISION
    from model_adapters.loading import random_weights
    from model_adapters.registry import adapter_for

    with tempfile.TemporaryDirectory() as folder:
        path = models.build("meta-llama/Llama-3.2-3B-Instruct", Path(folder), (2, 0))
        adapter = adapter_for(str(path))
        processor = adapter.load_processor(path, DEFAULT_VISION)
        with random_weights(torch.device("meta")):
            policy = Policy(adapter.load_model(path), adapter, processor)
    gpu = FakeGpu()
    gpu.hold(policy)
    with gpu:
        gpu.know(list(policy.parameters()))
        gpu.start()
        prompts = [adapter.encode(processor, "How many dots?")] * 2
        with policy.computing(TrainingSettings(dtype="bf16")):
            drawn = TransformersEngine(policy).generate(prompts, 2, Sampling(1.0, max_new_tokens=20), 0)
    return {
        "tokens": [len(sample.ids) for samples in drawn for sample in samples],
        "casts": sorted(set(gpu.casts.values())),
        "cast": len(gpu.casts),
        "waits": dict(gpu.waits),
    }


def update(config: str, agent: str, layers: str, tower: str, *overrides: str) -> dict[str, Any]:
    """The record of an agent's update, with fewer layers unless that is 0."""
    from gpu_check.fake_gpu import report
    from gpu_check.fake_gpu.update import on_one_rank, run
    from mmcorl import config as settings
    from mmcorl.apps.doctor import models
    from mmcorl.launch.process_setup import prepare_process

    loaded = settings.load(config, overrides)
    number = [one.name for one in loaded.agents].index(agent)
    prepare_process(on_one_rank(loaded.training), device="cuda", threads=loaded.threads)
    model = loaded.agents[number].model
    with tempfile.TemporaryDirectory() as folder:
        path = models.build(model, Path(folder), (int(layers), int(tower)) if int(layers) else None)
        return report.record(agent, model, run(loaded, number, path))


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])), flush=True)
    # torch's backward thread of the device may still run when a process ends in order, which then aborts.
    os._exit(0)
