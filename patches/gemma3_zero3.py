"""transformers 4.57 initialises an embedding that is already loaded, which raises under ZeRO-3.

Under DeepSpeed ZeRO-3 a loaded embedding is an empty shard outside the layers that gather it. 4.57 considers Gemma-3's
uninitialised, because it compares a tensor with names when it looks for the unsaved buffer `embed_scale`. Zeroing the
row of the padding token then raises `IndexError: index 0 is out of bounds for dimension 0 with size 0`. (Without a
padding index, initialising the empty shard does nothing.) The fix skips empty embeddings, so the checkpoint's weights
stay. Embeddings without weights are gathered before initialisation, so they are not empty and not skipped.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from patches.base import Patch


def _is_applied() -> bool:
    """Initialise an empty embedding with a padding index, as ZeRO-3 leaves it."""
    from torch import empty, nn
    from transformers.modeling_utils import PreTrainedModel

    embedding = nn.Embedding(2, 1, padding_idx=0)
    embedding.weight.data = empty(0)
    model: Any = SimpleNamespace(config=SimpleNamespace(initializer_range=0.02))
    try:
        PreTrainedModel._init_weights(model, embedding)
    except IndexError:
        return False
    return True


def _apply() -> None:
    from torch import nn
    from transformers.modeling_utils import PreTrainedModel

    base: Any = PreTrainedModel
    original = base._init_weights

    @functools.wraps(original)
    def skip_empty(self: Any, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding) and module.weight.numel() == 0:
            return
        original(self, module)

    base._init_weights = skip_empty


PATCH = Patch(
    name="gemma3_zero3",
    package="transformers",
    versions=">=4.57,<5",
    symptom="loading Gemma-3 under ZeRO-3 raises `IndexError: index 0 is out of bounds for dimension 0 with size 0`",
    upstream="https://github.com/huggingface/transformers/issues/41762",
    remove_when="transformers 4.57 is no longer supported",
    apply=_apply,
    is_applied=_is_applied,
)
