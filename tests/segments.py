"""Attention of many segments as a loop over them, query by query of the definition: what the GPU's kernel computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from model_adapters import varlen


def loop(
    query: Tensor, key: Tensor, value: Tensor, segments: varlen.Segments, window: varlen.Window, scale: float | None
) -> Tensor:
    """Softmax of the scores of each segment's queries with the keys that they see, for any dtype and on any device."""
    out = []
    bounds = [zip(cu.tolist(), cu.tolist()[1:], strict=False) for cu in (segments.cu_q, segments.cu_k)]
    assert len(key) == len(value) == segments.cu_k[-1]
    assert len(query) == segments.cu_q[-1]
    for (start, end), (first, last) in zip(*bounds, strict=True):
        assert end - start <= segments.max_q
        assert last - first <= segments.max_k
        q = query[start:end]
        k, v = (one[first:last].repeat_interleave(query.shape[1] // key.shape[1], dim=1) for one in (key, value))
        # The last query and the last key are the same token.
        places = torch.arange(last - first)
        own = places[-len(q) :, None]
        seen = torch.ones(len(q), last - first, dtype=torch.bool)
        if window[0] >= 0:
            seen &= places >= own - window[0]
        if window[1] >= 0:
            seen &= places <= own + window[1]
        scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
        out.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, float("-inf")).softmax(-1), v))
    return torch.cat(out)


def loop_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the CPU the loop as its kernel; the list gets the number of segments of each call from then on."""
    calls: list[int] = []

    def counted(*args: Any) -> Tensor:
        calls.append(len(args[3].cu_q) - 1)
        return loop(*args)

    monkeypatch.setitem(varlen.KERNELS, "cpu", counted)
    return calls
