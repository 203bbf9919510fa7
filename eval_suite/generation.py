"""How responses are sampled: the settings, and what the training run of a checkpoint says about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from eval_suite.options import CheckpointOptions
from mmcorl.engines import ENGINES
from mmcorl.errors import UserError
from mmcorl.types import PromptStyle

TRAINED = ("style", "system", "vision", "template")
"""Fields of `Generation` that a trained checkpoint brings along."""


@dataclass(frozen=True)
class Generation:
    """How responses are sampled; part of an evaluation's manifest."""

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
    engine: str = "transformers"
    """A row of `mmcorl.engines.ENGINES`; engines round differently and draw other samples from one seed."""
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
    """Return how the run that a checkpoint comes from prompts it; empty for other checkpoints.

    Fields of `Generation` (style, system, vision, template) and `adapter`. A checkpoint of a run lies in
    RUN/final/AGENT or RUN/checkpoints/STEP/AGENT, with RUN/config.yaml.
    """
    path = Path(model)
    for run in list(path.resolve().parents)[:3] if path.is_dir() else []:
        config = run / "config.yaml"
        if config.is_file() and (run / "metrics.jsonl").is_file():
            settings = yaml.safe_load(config.read_text(encoding="utf-8"))
            prompting = {**settings.get("prompt", {}), "vision": settings.get("vision", {})}
            for agent in settings.get("agents", ()):
                if agent.get("name") == path.resolve().name:
                    prompting |= agent
            return {name: prompting[name] for name in (*TRAINED, "adapter") if prompting.get(name) is not None}
    return {}


def generation_for(model: str, options: CheckpointOptions, default_style: PromptStyle, **settings: Any) -> Generation:
    """Return how a checkpoint is asked: the options' value, else the training run's, else the default."""
    trained = trained_with(model)
    return Generation(
        style=options.style or trained.get("style") or default_style,
        system=trained.get("system"),
        vision=trained.get("vision", {}),
        template=trained.get("template", {}),
        dtype=options.dtype,
        engine=options.engine,
        chunk=256 if ENGINES.find(options.engine).own_weights else 32,
        **settings,
    )
