"""Settings of the update: arithmetic, memory, sharding, the optimizer; and of its profile."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from mmcorl.policy.settings import LoraSettings
from mmcorl.section import Resumable, Section

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Section):
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate of AdamW."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Moment decay rates, two numbers from 0 to below 1."""
    eps: float = Field(default=1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """Learning rate after the warm-up."""
    min_lr_ratio: float = Field(default=0.1, ge=0, le=1)
    """Final learning rate as a share of the peak (linear and cosine)."""
    warmup_ratio: float = Field(default=0.03, ge=0, le=1)
    """Share of the steps spent on a linear warm-up."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""


class TrainingSettings(Section):
    dtype: Literal["fp32", "bf16"] = "bf16"
    """Arithmetic of forward and backward; master weights and log-probabilities stay in fp32."""
    attention: Literal["sdpa", "eager", "flash_attention_2"] = "sdpa"
    """Attention implementation of transformers; where scores are capped (Gemma-2), `sdpa` means `eager`."""
    tokens_per_microbatch: Resumable[int] = Field(default=16384, ge=1)
    """Most tokens of one forward and backward, a shared prompt counted once and padding too; changes memory, not the
    update."""
    shared_prefix: Literal["auto", "on", "off"] = "auto"
    """Compute a prompt once for all its completions instead of once for each: the same update, several times faster
    where prompts are long. `auto` does so for models whose log-probabilities it compared at the start, and otherwise
    says why not; `on` refuses other models."""
    gradient_checkpointing: Resumable[bool] = False
    """Recompute activations in backward: less memory, about a third more arithmetic."""
    freeze_vision: bool = False
    """Keep the vision tower fixed. Nothing is ever frozen without this setting."""
    lora: LoraSettings | None = None
    """Train low-rank adapters instead of all weights."""
    sharding: Resumable[Literal["none", "zero2", "zero3", "fsdp2"]] = "none"
    """What is sharded over the ranks of an agent: nothing; gradients and optimizer state (`zero2`); or weights too
    (`zero3`, DeepSpeed, and `fsdp2`, torch). The update is the same. With weights divided, `engine.kind: transformers`
    samples from a whole copy on every rank, which small models alone leave room for."""
    offload: Resumable[Literal["none", "optimizer", "all"]] = "none"
    """What lies in CPU memory between uses: the optimizer state (ZeRO), or the weights too (`zero3`, `fsdp2`)."""

    @model_validator(mode="after")
    def _offload_fits(self) -> Self:
        can = {"none": (), "zero2": ("optimizer",), "zero3": ("optimizer", "all"), "fsdp2": ("all",)}[self.sharding]
        if self.offload != "none" and self.offload not in can:
            way = f"use {can[-1]} or none" if can else "choose a sharding that moves things, such as zero3, or none"
            raise ValueError(f"offload is {self.offload!r} but sharding {self.sharding!r} cannot do that: {way}")
        return self


class ProfileSettings(Section):
    steps: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (3, 5)
    """First and last step, counted from where this start of the run begins. The parts of an agent's work are timed in
    all of them but the last, whose operators are traced: that slows it down."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.steps[0] > self.steps[1]:
            raise ValueError(f"steps is {list(self.steps)}, but the first may not come after the last: swap them")
        return self
