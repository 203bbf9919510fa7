"""Draw tokens from logits: ban, temperature, top-k, top-p, then inverse transform sampling with given noise."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from mmcorl.engines.base import Sampling

BLOCK = 256
"""Tokens whose probabilities are summed before one of them is looked for."""


def noise_for(seed: int, prompt: int, n: int, tokens: int) -> Tensor:
    """Return (n, tokens) of [0, 1) in fp64 for the samples of prompt number `prompt`; more tokens extend fewer."""
    return torch.from_numpy(np.random.default_rng([seed, prompt]).random((tokens, n))).T


def draw(logits: Tensor, sampling: Sampling, banned: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return one token per row, (R,), and its log-probability under the distribution it was drawn from, (R,).

    logits (R, V) in fp32, changed in place; noise (R,) in [0, 1), fp64. Banned ids get no mass; temperature comes
    before top-k, top-k before top-p, and the kept mass is renormalised. Temperature 0 is greedy, with the
    log-probability at temperature 1.
    """
    logits.index_fill_(-1, banned, -torch.inf)
    if sampling.temperature == 0:
        token = logits.argmax(-1)
        return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]
    logits = logits / sampling.temperature
    if sampling.top_k:
        kth = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        ranked, order = logits.sort(descending=True)
        mass_before = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1)
        dropped = torch.zeros_like(mass_before, dtype=torch.bool).scatter(-1, order, mass_before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    logprobs = logits.log_softmax(-1)
    token = inverse_transform(logprobs.exp(), noise)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def inverse_transform(weights: Tensor, noise: Tensor) -> Tensor:
    """Return where the running sum of each row (R, V) first exceeds its share `noise` of the total.

    First among blocks, then inside one: running sums over a vocabulary are slow, and in fp32 would lose rare tokens.
    Never picks a weight of 0; a row that is not finite gets any token, without waiting for the device.
    """
    size = weights.shape[-1]
    blocks = pad(weights, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    block, share = _invert(blocks.sum(-1), noise)
    inside, _ = _invert(blocks.take_along_dim(block[:, None, None], 1)[:, 0], share)
    return (block * BLOCK + inside).clamp(max=size - 1)


def _invert(weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entry of each row that its noise falls on, and the position inside that entry, in [0, 1)."""
    ends = weights.double().cumsum(-1)
    aim = (noise * ends[:, -1])[:, None]
    entry = torch.searchsorted(ends, aim, right=True).clamp(max=weights.shape[-1] - 1)
    width = weights.gather(-1, entry).double()
    share = (aim - ends.gather(-1, entry) + width) / width
    return entry[:, 0], share[:, 0].clamp(0.0, 1 - 2**-53)
