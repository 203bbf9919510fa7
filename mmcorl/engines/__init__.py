"""Engines sample completions; each lives in a module of its own and is imported only when used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmcorl.engines.base import Engine, Sample, Sampling, Voice
from mmcorl.sharding.ranks import ALONE, Ranks

if TYPE_CHECKING:
    import torch

    from mmcorl.config import Config, EngineSettings
    from mmcorl.policy.policy import Policy
    from mmcorl.policy.prompt_encoder import Reader
    from model_adapters.base import VisionSettings

__all__ = ["Engine", "Sample", "Sampling", "Voice", "build_engine", "engine_for", "require_engine"]


def require_engine(config: Config) -> None:
    """Raise UserError, before anything is loaded, where a run's engine is not installed or cannot sample as asked."""
    if config.engine.kind == "vllm":
        from mmcorl.engines.vllm import require_installed, require_temperature

        require_temperature(config.sampling.temperature)
        require_installed()


def build_engine(
    config: Config,
    policy: Policy | Voice,
    reader: Reader,
    ranks: Ranks = ALONE,
    dumps: Path | None = None,
    separate: Sequence[Any] = (),
) -> Engine:
    """The engine that a run's `engine` section asks for, with the weights training starts from.

    On several `ranks`, joined before, each makes its own, all at the same time; in this process, unless there are
    actors for `separate` ones (`mmcorl.launch.engine_actor`). Requests that went wrong are written into `dumps`.
    Raises UserError where the machine cannot have it.
    """
    require_engine(config)
    if separate and not isinstance(policy, Voice):
        from mmcorl.engines.remote import RemoteEngine

        return RemoteEngine(
            policy, separate, ranks, name=reader.name, dtype=config.engine.dtype or config.training.dtype
        )
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
    policy: Policy | Voice,
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
        policy: model, adapter and processor; for vllm a voice will do.
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

        if isinstance(policy, Voice):
            raise TypeError("the transformers engine samples from a model, and a voice has none")
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
