"""How much GPU memory one rank of an agent will need, worked out from the config before anything is loaded.

Weights, gradients and optimizer state are exact; what the decoder keeps of the largest micro-batch is counted from its
layers (`mmcorl.activations`). Kernels, fragmentation and the vision tower's activations come on top (`RESERVE`).
Sampling and updating take turns, so the peak is the larger of the two.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig

from mmcorl.activations import Stack, Work, ends, groups_of, head, kept, stack_of, working
from mmcorl.config import Config
from mmcorl.logprobs import CHUNK
from mmcorl.reader import Reader

GIB = 2**30
RESERVE = int(1.5 * GIB)
"""CUDA context, kernels' workspace and fragmentation."""


@dataclass(frozen=True)
class Shape:
    """What counts of a model."""

    parameters: int
    vision: int
    """Parameters of the vision tower, those that `training.freeze_vision` keeps fixed."""
    layers: int
    hidden: int
    intermediate: int
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together."""
    vocabulary: int
    decoder: Stack | None = None
    """Its layers, looked at; by default two RMS norms and a gated MLP of the widths above."""

    @property
    def layers_of_decoder(self) -> Stack:
        """What keeps activations."""
        return self.decoder or Stack(self.layers, self.hidden, self.intermediate, self.queries, self.keys)

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of one token in bf16."""
        return 2 * 2 * self.layers * self.keys


def shape_of(reader: Reader) -> Shape | None:
    """The shape of an agent's model, from its config alone: nothing is loaded. None for a class not of transformers."""
    config: Any = AutoConfig.from_pretrained(reader.path)
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    if kind is None:
        return None
    with torch.device("meta"):
        model = kind(config)
    text = config.get_text_config()
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        vision=sum(p.numel() for module in reader.adapter.vision_modules(model) for p in module.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        queries=text.num_attention_heads * head,
        keys=(getattr(text, "num_key_value_heads", None) or text.num_attention_heads) * head,
        vocabulary=text.vocab_size,
        decoder=_stack(reader.adapter.decoder(model), text),
    )


def _stack(decoder: Any, config: Any) -> Stack | None:
    layers = getattr(decoder, "layers", None)
    return stack_of(list(layers), config) if isinstance(layers, nn.ModuleList) else None


@dataclass(frozen=True)
class Budget:
    """Bytes on one GPU of one agent, by purpose."""

    resident: dict[str, int]
    """There all the time: weights, optimizer state, reference model."""
    updating: dict[str, int]
    sampling: dict[str, int]
    engine: int = 0
    """On the GPU of an engine that has one of its own."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        return sum(self.resident.values()) + max(sum(self.updating.values()), sum(self.sampling.values())) + RESERVE

    def sentence(self, place: str = "GPU") -> str:
        """One line for people; `place` is what one rank computes on."""
        parts = {**self.resident, **self.updating, **{f"{name} (sampling)": n for name, n in self.sampling.items()}}
        told = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size >= 0.05 * GIB)
        apart = f", and {self.engine / GIB:.1f} GiB for each engine of its own" if self.engine else ""
        return f"about {self.peak / GIB:.1f} GiB per {place} at the peak" + (f" ({told})" if told else "") + apart


def budget(config: Config, agent: int, shape: Shape, gpu_bytes: int | None = None) -> Budget:
    """What agent number `agent` needs on each of its GPUs; `gpu_bytes` is the size of one, for vLLM's share of it.

    With `device: cpu` of the machine's memory, for each of its ranks.
    """
    training, ranks = config.training, config.agents[agent].ranks
    trained = shape.parameters - (shape.vision if training.freeze_vision else 0)
    frozen = shape.parameters - trained
    if training.lora:
        frozen, trained = shape.parameters, _adapters(shape, training.lora.rank)
    kind, low = training.sharding, 2 if training.dtype == "bf16" else 4
    parts = ranks if kind in ("zero3", "fsdp2") else 1
    weights = 4 * trained + (4 if kind == "zero3" else low) * frozen
    apart = config.objective.kl_coef and not training.lora  # else there is none, or it is the trained one
    resident = {
        # ZeRO-2 keeps what it updates a second time, divided.
        "weights": weights // parts + (4 * trained // ranks if kind == "zero2" else 0),
        "optimizer": 0 if training.offload != "none" else 8 * trained // (1 if kind == "none" else ranks),
        "reference": (4 if kind == "zero3" else low) * shape.parameters // parts if apart else 0,
        # The transformers engine samples from whole weights.
        "whole copy": low * shape.parameters if parts > 1 and config.engine.kind == "transformers" else 0,
    }
    if training.offload == "all":
        resident["weights"] = resident["reference"] = 0
    # Under autocast trained weights are there a second time in bf16; divided ones a layer or two at a time.
    copy = low * shape.parameters * 2 // max(shape.layers, 1) if parts > 1 or training.offload == "all" else 2 * trained
    stack, work, recomputed = shape.layers_of_decoder, _work(config), training.gradient_checkpointing
    updating = {
        "gradients": 4 * trained // (1 if kind == "none" else ranks),
        "bf16 weights": copy if training.dtype == "bf16" else 0,
        "activations": kept(stack, work, low, recomputed) + ends(stack, work),
        # One after the other: the head, and with checkpointing the layer at work.
        "logits": max(head(stack, CHUNK, shape.vocabulary), working(stack, work, low, recomputed)),
    }
    sampling = _sampling(config, ranks, shape, gpu_bytes)
    if config.engine.separate:
        return Budget(resident, updating, {}, sum(sampling.values()) + RESERVE)
    if config.engine.kind == "vllm" and not config.engine.sleep:
        return Budget(resident | sampling, updating, {})
    return Budget(resident, updating, sampling)


def ram() -> int:
    """Bytes of memory that this machine has, or that its container may use."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(allowed)) if allowed.isdigit() else total


def _adapters(shape: Shape, rank: int) -> int:
    """Parameters of low-rank adapters on every linear layer of the decoder."""
    ends = [(shape.hidden, shape.queries), (shape.queries, shape.hidden), *[(shape.hidden, shape.keys)] * 2]
    ends += [(shape.hidden, shape.intermediate)] * 3
    return shape.layers * rank * sum(a + b for a, b in ends)


def _work(config: Config) -> Work:
    """The largest micro-batch: prompts and completions of the most tokens there may be, whole groups where they fit."""
    most = config.training.tokens_per_microbatch
    prompt, completion = config.data.max_prompt_tokens, config.sampling.max_new_tokens
    if config.training.shared_prefix == "off":
        return Work(most)
    group = prompt + config.batch.completions * completion
    if group <= most:
        return groups_of(prompt, completion, config.batch.completions, most // group)
    return groups_of(prompt, completion, max(1, (most - prompt) // completion), 1)


def _sampling(config: Config, ranks: int, shape: Shape, gpu_bytes: int | None) -> dict[str, int]:
    engine, longest = config.engine, config.data.max_prompt_tokens + config.sampling.max_new_tokens
    rows = min(-(-config.batch.prompts // ranks) * config.batch.completions, engine.max_rows)
    tokens = min(rows * longest, engine.max_tokens)
    cache = tokens * shape.cache_bytes_per_token
    if engine.kind == "transformers":
        return {"KV cache": cache}
    if config.device == "cpu":
        cache = int((engine.kv_cache_gib or 1) * GIB)
        return {"vLLM": (4 if (engine.dtype or config.training.dtype) == "fp32" else 2) * shape.parameters + cache}
    if gpu_bytes is not None and engine.kv_cache_gib is None:
        return {"vLLM": int(engine.gpu_memory_utilization * gpu_bytes)}
    return {"vLLM": 2 * shape.parameters + (cache if engine.kv_cache_gib is None else int(engine.kv_cache_gib * GIB))}
