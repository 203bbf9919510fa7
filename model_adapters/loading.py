"""Load checkpoints exactly: no dropout, no weight missing from the file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from model_adapters.base import AdapterError


def load_pretrained(auto_class: Any, path: str | Path, dtype: torch.dtype, attention: str) -> nn.Module:
    """Load a model in eval mode on the CPU with every dropout rate at 0.

    Raises AdapterError when the file lacks weights, which transformers would initialise at random with only a log line.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path)
    _no_dropout(config)
    model, info = auto_class.from_pretrained(
        path, config=config, dtype=dtype, attn_implementation=attention, output_loading_info=True
    )
    missing = sorted(info["missing_keys"])
    if missing:
        raise AdapterError(
            f"{path} lacks {len(missing)} weights of {type(model).__name__}, first {missing[0]}: "
            "they would be random, so load a complete checkpoint in the layout of the hub"
        )
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model.eval()


def _no_dropout(config: Any) -> None:
    """Set every dropout and layer-drop rate of a config and its sub-configs to 0.

    Sampling and training must use the same network: noise in log-probabilities biases the ratio.
    """
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            _no_dropout(value)
        elif (
            ("drop" in name.lower() or name.endswith("pdrop"))
            and isinstance(value, int | float)
            and not isinstance(value, bool)
        ):
            setattr(config, name, type(value)(0))


def unwrap(model: nn.Module) -> Any:
    """Return the transformers model inside a PEFT wrapper, or the model itself."""
    inner = getattr(model, "get_base_model", None)
    return inner() if inner is not None else model


def stop_ids(tokenizer: Any, model: Any, tokens: Sequence[str]) -> tuple[int, ...]:
    """Return the ids that end a completion: eos of tokenizer and generation config, and `tokens` if known."""
    vocabulary = tokenizer.get_vocab()
    ids = {tokenizer.eos_token_id, *(vocabulary.get(token) for token in tokens)}
    eos = model.generation_config.eos_token_id
    ids.update(eos if isinstance(eos, list | tuple) else [eos])
    return tuple(sorted(ids - {None}))
