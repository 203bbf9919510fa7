"""Responses of a checkpoint to items, through the same adapters, image rules and engine as training.

Work goes in chunks of a fixed composition, and a chunk is written whole. So a run that was killed goes on
where it stood and draws what it would have drawn: padding and noise of a chunk do not depend on the past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers.utils import logging as transformers_logging

import patches
from eval_suite.items import Item, Response
from mmcorl.engines.base import Sampling
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.errors import Refused
from mmcorl.policy import Policy
from mmcorl.prompting import INSTRUCTIONS, PromptStyle
from mmcorl.worker import noise_seed
from model_adapters.base import Encoded, VisionSettings
from model_adapters.images import load_image
from model_adapters.registry import adapter_for


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
    max_side: int = 1024
    tiles: int = 1
    seed: int = 0
    dtype: str = "fp32"
    chunk: int = 32
    """Items generated together."""


def trained_with(model: str) -> dict[str, Any]:
    """Prompt style, system message and image settings of the run a checkpoint comes from; empty for others.

    A checkpoint of a run lies in RUN/final/AGENT or RUN/checkpoints/STEP/AGENT, with RUN/config.yaml.
    """
    path = Path(model)
    for run in list(path.resolve().parents)[:3] if path.is_dir() else []:
        config = run / "config.yaml"
        if config.is_file() and (run / "metrics.jsonl").is_file():
            told = yaml.safe_load(config.read_text())
            vision = told.get("vision", {})
            return {**told.get("prompt", {}), "max_side": vision.get("max_side"), "tiles": vision.get("tiles")}
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
        patches.apply("torchvision_cpu")
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self.settings = settings
        self.adapter = adapter_for(model, adapter)
        self.vision = VisionSettings(max_side=settings.max_side, tiles=settings.tiles)
        processor = self.adapter.load_processor(model, self.vision)
        weights = self.adapter.load_model(model)
        self.policy = Policy(weights, self.adapter, processor).to(device).eval()
        self.engine = TransformersEngine(self.policy)
        text = self.policy.model.config.get_text_config()
        self.context: int | None = getattr(text, "max_position_embeddings", None)

    def encode(self, item: Item) -> Encoded:
        """Token ids and vision tensors of one item; refuses one that leaves no room for the whole budget."""
        images = [load_image(image, self.settings.max_side) for image in item.images]
        text = item.question + INSTRUCTIONS[self.settings.style]
        encoded = self.adapter.encode(
            self.policy.processor, text, images, system=self.settings.system, vision=self.vision
        )
        room = None if self.context is None else self.context - len(encoded.input_ids)
        if room is not None and room < self.settings.max_new_tokens:
            raise Refused(
                f"item {item.id!r} of {item.benchmark} has {len(encoded.input_ids)} tokens, which leaves {room} of "
                f"the context of {self.context}, less than the budget of {self.settings.max_new_tokens}: "
                "lower --max-new-tokens"
            )
        return encoded

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
