"""Engines sample completions; each lives in a module of its own and is imported only when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmcorl.engines.base import Engine, Sample, Sampling

if TYPE_CHECKING:
    from mmcorl.config import Config
    from mmcorl.policy import Policy
    from mmcorl.reader import Reader

__all__ = ["Engine", "Sample", "Sampling", "build_engine"]


def build_engine(config: Config, policy: Policy, reader: Reader) -> Engine:
    """The engine that `config.engine.kind` names, with the weights of `policy`."""
    from mmcorl.engines.transformers import TransformersEngine

    return TransformersEngine(policy, config.engine.max_rows, config.engine.max_tokens)
