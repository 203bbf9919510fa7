"""Engines sample completions; each lives in a module of its own and is imported only when used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mmcorl.engines.base import Engine, Sample, Sampling

if TYPE_CHECKING:
    import torch

    from mmcorl.config import Config, EngineSettings
    from mmcorl.policy.policy import Policy
    from mmcorl.policy.prompt_encoder import Reader
    from model_adapters.base import VisionSettings

__all__ = ["Engine", "Sample", "Sampling", "build_engine", "engine_for", "require_engine"]


def require_engine(config: Config) -> None:
    """Raise UserError, before anything is loaded, where a run's engine is not installed or cannot sample as asked."""
    if config.engine.kind == "vllm":
        from mmcorl.engines.vllm import require_installed, require_temperature

        require_temperature(config.sampling.temperature)
        require_installed()


def build_engine(config: Config, policy: Policy, reader: Reader, dumps: Path | None = None) -> Engine:
    """Build the engine of a run's `engine` section, holding the weights that training starts from.

    Every rank builds its own, in its own process. RunError requests are written into `dumps`.
    Raises UserError where the machine cannot run it.
    """
    require_engine(config)
    longest = max(config.sampling.max_new_tokens, config.validation.max_new_tokens or 0)
    return engine_for(
        config.engine,
        policy,
        name=reader.name,
        path=reader.path,
        vision=reader.vision,
        dtype=config.engine.dtype or config.training.dtype,
        longest=reader.longest_prompt() + longest if config.engine.kind == "vllm" else None,
        dumps=dumps,
    )


def engine_for(
    settings: EngineSettings,
    policy: Policy,
    *,
    name: str,
    path: str,
    vision: VisionSettings,
    dtype: str,
    longest: int | None,
    dumps: Path | None = None,
    device: torch.device | None = None,
) -> Engine:
    """An engine for a policy outside of a run, too.

    Args:
        settings: which engine, and how.
        policy: model, adapter and processor.
        name: for messages.
        path: checkpoint of the policy.
        vision: how images reach the model.
        dtype: `fp32`, `bf16` or `fp16`, for engines with weights of their own.
        longest: most tokens of a prompt and its completion, unless the settings say; only vllm needs to know.
        dumps: folder for requests that went wrong.
        device: where an engine with weights of its own computes; by default where the policy does.
    """
    if settings.kind == "transformers":
        from mmcorl.engines.transformers import TransformersEngine

        return TransformersEngine(policy, settings.max_rows, settings.max_tokens)
    from mmcorl.engines.vllm import VllmEngine

    length = settings.max_model_len or longest
    if length is None:
        raise ValueError("engine.kind is 'vllm' and neither settings.max_model_len nor longest says how long a row is")
    return VllmEngine(
        policy,
        name=name,
        path=path,
        vision=vision,
        settings=settings,
        dtype=dtype,
        max_model_len=length,
        dumps=dumps,
        device=device,
    )
