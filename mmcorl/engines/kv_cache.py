"""The KV cache of the transformers engine: grows in blocks, drops rows, has the dtype that attention multiplies in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

GROWTH = 64
"""Tokens of room that a layer adds when it is full: it is copied once in so many tokens instead of at each."""


class GrowingLayer(DynamicLayer):
    """A cache layer that is copied once in `GROWTH` tokens, not at every one."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None
        """Larger tensors; `keys` and `values` are views of their beginning."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the states of new tokens (R, H, T, D); returns all, valid until the next update."""
        if self.keys is None or self.values is None:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        old, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self._buffers is None or end > self._buffers[0].shape[-2]:
            self._buffers = _enlarged(self.keys, end + GROWTH), _enlarged(self.values, end + GROWTH)
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[..., old:end, :] = new
        self.keys, self.values = self._buffers[0][..., :end, :], self._buffers[1][..., :end, :]
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        super().batch_repeat_interleave(repeats)
        self._buffers = None

    def batch_select_indices(self, indices: Tensor) -> None:
        super().batch_select_indices(indices)
        self._buffers = None


def _enlarged(states: Tensor, tokens: int) -> Tensor:
    larger = states.new_empty(*states.shape[:-2], tokens, states.shape[-1])
    larger[..., : states.shape[-2], :] = states
    return larger


class KeyValueCache(DynamicCache):
    """A cache that stores keys and values in the dtype of autocast's matrix products; None keeps theirs.

    Rotary embeddings leave keys in fp32, which would double the cache without changing what attention sees.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.layer_class_to_replicate = GrowingLayer
        self.dtype = dtype

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add the states of new tokens to a layer; returns all of its keys and values."""
        if self.dtype is not None:
            key_states, value_states = key_states.to(self.dtype), value_states.to(self.dtype)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def concatenate(caches: list[KeyValueCache]) -> KeyValueCache:
    """Return one cache with the rows of several, padded on the left to the longest; empties the given ones."""
    if len(caches) == 1:
        return caches[0]
    width = max(cache.get_seq_length() for cache in caches)
    result = KeyValueCache(caches[0].dtype)
    for index in range(len(caches[0].layers)):
        layers: list[Any] = [cache.layers[index] for cache in caches]
        keys, values = (
            torch.cat([pad(states, (0, 0, width - states.shape[-2], 0)) for states in part])
            for part in ([layer.keys for layer in layers], [layer.values for layer in layers])
        )
        for layer in layers:  # Never more than one layer exists twice.
            layer.keys = layer.values = None
        result.update(keys, values, index)
    return result
