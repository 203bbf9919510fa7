"""Engines on tiny checkpoints beside the policies they must agree with; one of each family for all tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from adapter_passes import SETTINGS, load
from mmcorl.engines import EngineRequest
from mmcorl.engines.base import Sample, Sampling
from mmcorl.engines.settings import EngineSettings
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.engines.vllm import VllmEngine
from mmcorl.policy.policy import Policy
from mmcorl.policy.weights import hub_named
from mmcorl.types import Prompt
from model_adapters.base import Encoded
from worker_parts import drift, encoded, mixed_prompts, prompt

FAMILIES = ("qwen2_5_vl", "internvl3_5", "gemma3", "qwen2", "llama")
EXACT = tuple(family for family in FAMILIES if family != "gemma3")
"""Families that vLLM's CPU engine computes as transformers does, images included."""
LONGEST = 512


class Bench:
    """A policy, vLLM and the transformers engine on one tiny checkpoint."""

    def __init__(self, family: str, path: Path, dtype: str = "fp32", change: Any = None, **settings: Any):
        self.family, self.path, self.loaded = family, path, load(family, path)
        if change is not None:
            change(self.loaded.model)
        self.policy = Policy(self.loaded.model, self.loaded.adapter, self.loaded.processor)
        options = EngineSettings(**{"kind": "vllm", "kv_cache_gib": 0.1, **settings})
        length = options.max_model_len or LONGEST
        self.engine = VllmEngine(EngineRequest(options, self.policy, family, str(path), SETTINGS, dtype, length))
        self.plain = TransformersEngine(self.policy)

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        return encoded(self.loaded, prompts)

    def draw(self, prompts: Sequence[Prompt], n: int, seed: int = 0, **sampling: Any) -> list[list[Sample]]:
        return self.engine.generate(self.encode(prompts), n, Sampling(**sampling), seed)

    def drift(self, prompts: Sequence[Prompt], n: int = 4, temperature: float = 1.0, tokens: int = 16) -> list[Tensor]:
        """log pi_train - log pi_engine of every sampled token, by prompt: (T,) each."""
        return drift(self.policy, self.engine, self.encode(prompts), n, temperature, tokens)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Everything the trainer has, adapters aside, as it would give it to an engine."""
        named = self.policy.model.named_parameters()
        return hub_named(self.policy.model, ((name.replace(".base_layer.", "."), tensor) for name, tensor in named))

    @contextmanager
    def changed(self, scale: float = 0.02, seed: int = 0) -> Iterator[None]:
        """Another policy for a while; afterwards the engine has the first again."""
        before = {name: value.clone() for name, value in self.policy.model.state_dict().items()}
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
        try:
            yield
        finally:
            self.policy.model.load_state_dict(before)
            self.engine.sync(self.weights())


class Benches(dict[str, Bench]):
    """A bench for each family, made when it is first asked for and kept."""

    def __init__(self, checkpoints: Mapping[str, Path]):
        self._checkpoints = checkpoints

    def __missing__(self, family: str) -> Bench:
        self[family] = Bench(family, self._checkpoints[family])
        return self[family]


def long_prompts(family: str) -> list[Prompt]:
    """Beside the short ones, one beyond Gemma-3's tiny sliding window of 64 tokens."""
    return [*mixed_prompts(family), prompt("How many dots, dice and bars are there? " * 8)]


def without(weights: Iterable[tuple[str, Tensor]], part: str) -> Iterator[tuple[str, Tensor]]:
    """Those whose names do not contain `part`."""
    return (item for item in weights if part not in item[0])
