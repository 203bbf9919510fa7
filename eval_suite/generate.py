"""Responses of a checkpoint to items, through the same adapters, image rules and engine as training.

Work goes in chunks of a fixed composition, and a chunk is written whole. So a run that was killed goes on
where it stood and draws what it would have drawn: padding and noise of a chunk do not depend on the past.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from PIL import Image
from transformers.utils import logging as transformers_logging

import patches
from eval_suite.items import Item, Response
from mmcorl.config import EngineSettings
from mmcorl.engines import engine_for
from mmcorl.engines.base import Sampling
from mmcorl.engines.vllm import require_installed
from mmcorl.errors import UserError
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_styles import INSTRUCTIONS, PromptStyle
from mmcorl.tools.zoo import resolve
from mmcorl.trainer.worker import noise_seed
from model_adapters.base import AdapterError, Encoded, VisionSettings
from model_adapters.images import load_image
from model_adapters.registry import adapter_for
from model_adapters.templates import arguments

LONGEST_PROMPT = 8192
"""Tokens that vLLM makes room for beside the budget of a response."""
TRAINED = ("style", "system", "vision", "template")
"""Fields of `Generation` that a trained checkpoint brings along."""


@dataclass(frozen=True)
class Generation:
    """How responses are made; part of an evaluation's manifest."""

    style: PromptStyle = "answer_tags"
    """Instruction after the question."""
    system: str | None = None
    samples: int = 1
    """Responses per item: 1 for pass@1, more for avg@k, maj@k and pass@k."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    max_new_tokens: int = 16384
    """Budget of a response; the context must hold it beside the prompt."""
    vision: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `VisionSettings` that differ from its defaults: how images reach the model."""
    template: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template."""
    seed: int = 0
    dtype: Literal["fp32", "bf16"] = "fp32"
    engine: Literal["transformers", "vllm"] = "transformers"
    """What samples; engines round differently and draw other samples from one seed."""
    chunk: int = 32
    """Items generated together."""

    def __post_init__(self) -> None:
        for option, value, fits, rule in (
            ("--samples", self.samples, self.samples >= 1, "at least 1"),
            ("--temperature", self.temperature, 0 <= self.temperature < math.inf, "0 or above"),
            ("--top-p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("--max-new-tokens", self.max_new_tokens, self.max_new_tokens >= 1, "at least 1"),
        ):
            if not fits:
                raise UserError(f"{option} {value} cannot be: it must be {rule}")


def trained_with(model: str) -> dict[str, Any]:
    """What the run a checkpoint comes from says about asking it; empty for others.

    Fields of `Generation` (style, system, vision, template) and `adapter`. A checkpoint of a run lies in
    RUN/final/AGENT or RUN/checkpoints/STEP/AGENT, with RUN/config.yaml.
    """
    path = Path(model)
    for run in list(path.resolve().parents)[:3] if path.is_dir() else []:
        config = run / "config.yaml"
        if config.is_file() and (run / "metrics.jsonl").is_file():
            told = yaml.safe_load(config.read_text(encoding="utf-8"))
            found = {**told.get("prompt", {}), "vision": told.get("vision", {})}
            for agent in told.get("agents", ()):
                if agent.get("name") == path.resolve().name:
                    found |= agent
            return {name: found[name] for name in (*TRAINED, "adapter") if found.get(name) is not None}
    return {}


class Generator:
    """A checkpoint that answers items.

    Args:
        model: checkpoint folder or hub id.
        settings: how responses are made.
        adapter: `pkg.module:Class` of a family from outside.
        device: where the model lives.
    """

    def __init__(self, model: str, settings: Generation, adapter: str | None = None, device: str = "cpu"):
        patches.apply(*patches.BEFORE_TRANSFORMERS)
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        model = resolve(model)
        self.settings = settings
        self.adapter = adapter_for(model, adapter)
        self.vision = VisionSettings(**settings.vision)
        processor = self.adapter.load_processor(model, self.vision)
        arguments(processor, settings.template)  # refuses one that the template does not have
        kind = EngineSettings(kind=settings.engine, gpu_memory_utilization=0.9, sleep=False)
        if kind.kind == "vllm":
            require_installed()
        weights = self.adapter.load_model(model, torch.bfloat16 if settings.dtype == "bf16" else torch.float32)
        # vLLM holds weights of its own; of ours only the config, the stop and the banned tokens are needed then.
        own = torch.device("cpu" if kind.kind == "vllm" else device)
        self.policy = Policy(weights, self.adapter, processor).to(own).eval()
        context = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        self.context: int | None = context
        if kind.kind == "vllm":
            room = settings.max_new_tokens + LONGEST_PROMPT
            self.context = min(context, room) if context else room
        self.engine = engine_for(
            kind,
            self.policy,
            name=Path(model).name,
            path=model,
            vision=self.vision,
            dtype=settings.dtype,
            longest=self.context,
            device=torch.device(device),
        )

    def check(self, item: Item) -> str | None:
        """Why an item cannot be put to this model, such as a question that would end its own turn; None if it can.

        Raises UserError where the prompt leaves no room for the whole budget.
        """
        try:
            text, images, how = self._prompt(item)
            length = self.adapter.prompt_length(self.policy.processor, text, images, **how)
        except AdapterError as error:
            return str(error)
        room = None if self.context is None else self.context - length
        if room is not None and room < self.settings.max_new_tokens:
            raise UserError(
                f"item {item.id!r} of {item.benchmark} has {length} tokens, which leaves {room} of the context of "
                f"{self.context}, less than the budget of {self.settings.max_new_tokens}: lower --max-new-tokens"
            )
        return None

    def encode(self, item: Item) -> Encoded:
        """Token ids and vision tensors of one item; raises AdapterError for one that `check` finds fault with."""
        text, images, how = self._prompt(item)
        return self.adapter.encode(self.policy.processor, text, images, **how)

    def _prompt(self, item: Item) -> tuple[str, list[Image.Image], dict[str, Any]]:
        images = [load_image(image, self.vision.max_side) for image in item.images]
        how = {"system": self.settings.system, "vision": self.vision, "template": self.settings.template}
        return item.question + INSTRUCTIONS[self.settings.style], images, how

    def chunk(self, items: Sequence[Item], number: int) -> Iterator[Response]:
        """All samples of one chunk of items; `number` is its place, which fixes its noise."""
        settings = self.settings
        sampling = Sampling(settings.temperature, settings.top_p, 0, settings.max_new_tokens)
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=settings.dtype == "bf16"), torch.no_grad():
            drawn = self.engine.generate(
                [self.encode(item) for item in items],
                settings.samples,
                sampling,
                noise_seed(settings.seed, "evaluation", number, 0),
            )
        for item, samples in zip(items, drawn, strict=True):
            for index, sample in enumerate(samples):
                text = self.adapter.decode(self.policy.processor, sample.ids.tolist())
                yield Response(item.benchmark, item.id, index, text, sample.finish_reason, len(sample.ids))
