"""Settings of sampling, and the table of engines: what they are, without what builds them (`mmcorl.engines`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from mmcorl.errors import UserError
from mmcorl.registry import Row, Table, check_call
from mmcorl.section import Section, row_of
from mmcorl.system.needed import require_vllm

MAX_VLLM_TEMPERATURE = 2.0
"""The highest temperature vLLM takes."""


@dataclass(frozen=True)
class EngineRow(Row):
    """An engine. `function`, of a user's own, builds it from an `EngineRequest`; `mmcorl.engines` builds those here."""

    function: Callable[..., Any] | None  # type: ignore[assignment]
    own_weights: bool = False
    """Whether it holds a copy of the weights, which is synced after updates and compared with the trainer's."""
    one_sleeper_per_process: bool = False
    """Whether only one of a process can free its GPU memory."""
    require: Callable[[float], None] = lambda temperature: None
    """Raises UserError, without importing the engine, where it is not installed or cannot sample at a temperature."""


def require_vllm_temperature(temperature: float) -> None:
    """Raise UserError for a temperature that vLLM does not take."""
    if temperature > MAX_VLLM_TEMPERATURE:
        raise UserError(
            f"the temperature is {temperature:g}, but vLLM takes {MAX_VLLM_TEMPERATURE:g} at most: lower it, or use "
            "engine.kind=transformers"
        )


def _require_vllm(temperature: float) -> None:
    require_vllm_temperature(temperature)
    require_vllm()


def _check(row: EngineRow) -> None:
    if row.function is not None:
        check_call(row, "engine", "engine(request)", None)


ENGINES: Table[EngineRow] = Table("engine", EngineRow, _check)
ENGINES.add_row(EngineRow("transformers", "Samples from the trained weights themselves.", None))
ENGINES.add_row(
    EngineRow(
        "vllm",
        "Holds its own weights in each rank's process, as large models need, and receives new ones after every update.",
        None,
        own_weights=True,
        one_sleeper_per_process=True,
        require=_require_vllm,
    )
)

EngineName = Annotated[str, row_of(ENGINES)]


class SamplingSettings(Section):
    temperature: float = Field(default=1.0, gt=0)
    """Temperature of training rollouts; log-probabilities use it too."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus mass; below 1 the importance ratio loses its meaning, so correction must be off."""
    top_k: int = Field(default=0, ge=0)
    """Keep the k likeliest tokens; 0 keeps all. Above 0 the importance correction must be off."""
    max_new_tokens: int = Field(default=1024, ge=1)
    """Longest completion in tokens; one that is cut off before it commits to an answer casts no vote."""


class EngineSettings(Section):
    kind: EngineName = "transformers"
    """What samples: `transformers` uses the trained weights themselves; `vllm` holds its own in each rank's process, as
    large models need, and receives the new ones after every update."""
    max_rows: int | None = Field(default=None, ge=1)
    """Most completions generated at once; changes memory and speed, and results by rounding only. By default 256, and
    for vllm up to 1,024 where a rank samples so many in a step."""
    max_tokens: int = Field(default=2**18, ge=1)
    """Most tokens (prompt, completion and padding) in the KV cache at once, likewise. For vllm see
    `gpu_memory_utilization`."""
    dtype: Literal["fp32", "bf16", "fp16"] | None = None
    """Weights and arithmetic of vllm; by default `training.dtype`."""
    gpu_memory_utilization: float = Field(default=0.4, gt=0, lt=1)
    """Share of the GPU that vllm may fill with weights and KV cache while it samples."""
    kv_cache_gib: float | None = Field(default=None, gt=0)
    """GiB of KV cache of vllm; by default what `gpu_memory_utilization` leaves, and 1 on the CPU."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Longest prompt and completion together in vllm; by default the longest of each that this run allows."""
    enforce_eager: bool = False
    """Start vllm without compiling and capturing graphs: sooner ready, slower. Always so on the CPU."""
    sleep: bool = True
    """Free vllm's GPU memory during updates."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks of an agent that hold one copy of vllm's weights together, a part each, and sample as one; for models whose
    weights and KV cache do not fit on one GPU. Divides `ranks`."""
    parity: Literal["stop", "warn"] = "stop"
    """What to do where engine and trainer, compared before the first step, differ by more than rounding, or in a later
    step by five times as much as then: stop, or say so and leave it to the importance correction."""
