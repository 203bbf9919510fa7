"""The engine that samples from the trained weights themselves: one vision pass and one prefill per prompt.

The K completions of a prompt share its prefill through a repeated KV cache, so images are encoded once and
prompts are read once. Completions that have ended leave the batch. Nothing is copied at a weight sync. On a GPU the
loop over tokens does not wait for results but for a look, once in so many, at which rows have ended (transformers
itself does, once a token, where prompts of several lengths need a padding mask).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mmcorl.engines.base import Sample, Sampling, Weights
from mmcorl.policy.policy import Policy
from mmcorl.system.timing import named
from model_adapters.base import Encoded

PREFILL_TOKENS = 2**14

LEAVE_AT = 0.9
"""Completions leave a batch when at most this share of it has not ended."""

ROOM = 64
"""Tokens that a cache has room for when it grows: it is copied once in so many tokens instead of at each."""

BLOCK = 256
"""Tokens whose probabilities are summed before one of them is looked for."""


class TransformersEngine:
    """Samples with the policy's own model.

    Args:
        policy: the policy being trained.
        max_rows: most completions in flight at once; prompts are worked through in chunks of that many rows, or
            of one prompt where its n samples are more. Changes results by rounding only.
        max_tokens: most tokens (prompt, completion and padding) in the cache at once; chunks keep to it likewise.
        prefill_tokens: most prompt tokens, padding included, in one vision pass and prefill, or one prompt; bounds
            memory and changes results by rounding only.
    """

    def __init__(
        self, policy: Policy, max_rows: int = 256, max_tokens: int = 2**18, prefill_tokens: int = PREFILL_TOKENS
    ):
        self.policy = policy
        self.adapters = False
        self.max_rows = max_rows
        self.max_tokens = max_tokens
        self.prefill_tokens = prefill_tokens
        # Whether all rows have stopped is asked every so many tokens: on a GPU the question makes the host wait.
        self.tokens_between_looks = 1 if policy.device.type == "cpu" else 16
        # At most this share of the rows still going, the others leave: what is left is copied, once per such share.
        self.leave_at = LEAVE_AT

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Nothing to do: the weights are shared."""

    def check(self, weights: Weights) -> None:
        """Nothing to compare: there is one set of weights."""

    def sleep(self, until_sync: bool = False) -> None:
        """Nothing to give back: the cache is freed after each call."""

    def wake(self) -> None:
        """Always ready."""

    def generate(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, seed: int) -> list[list[Sample]]:
        """n samples of each prompt, in order; prompts of similar length are worked on together.

        Noise belongs to a prompt's place in `prompts`: what else is drawn, and when it ends, changes a completion by
        rounding only, and so does another device. A higher `max_new_tokens` lengthens completions that it cut off.
        """
        results: list[list[Sample]] = [[] for _ in prompts]
        for chunk in self._chunks(prompts, n, sampling.max_new_tokens):
            noise = torch.cat([_noise(seed, i, n, sampling.max_new_tokens) for i in chunk])
            samples = _cut(*self._chunk([prompts[i] for i in chunk], n, sampling, noise), self.policy.stop_ids)
            for place, index in enumerate(chunk):
                results[index] = samples[place * n : (place + 1) * n]
        return results

    def _chunks(self, prompts: Sequence[Encoded], n: int, longest: int) -> Iterator[list[int]]:
        """Indices of prompts to work on at once, shortest prompts first, within rows and cache tokens."""
        chunk: list[int] = []
        for index in sorted(range(len(prompts)), key=lambda i: len(prompts[i].input_ids)):
            rows = (len(chunk) + 1) * n
            if chunk and (rows > self.max_rows or rows * (len(prompts[index].input_ids) + longest) > self.max_tokens):
                yield chunk
                chunk = []
            chunk.append(index)
        if chunk:
            yield chunk

    @torch.inference_mode()
    def _chunk(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, noise: Tensor) -> tuple[Tensor, Tensor]:
        """n samples of each prompt, all at once, shortest prompts first; `noise` is (B * n, most tokens).

        Tokens and their log-probabilities (B * n, most tokens) on the CPU, of no meaning behind a row's stop token.
        """
        policy, device, most = self.policy, self.policy.device, sampling.max_new_tokens
        lengths = torch.tensor([len(prompt.input_ids) for prompt in prompts])
        width, rows, axes = int(lengths.max()), len(prompts) * n, len(prompts[0].positions)
        padded = bool((lengths < width).any())
        # Wide enough for the whole completion, so that no token has to make a longer one.
        mask = (torch.arange(width + most) >= (width - lengths)[:, None]).long()
        mask = mask.repeat_interleave(n, 0).to(device)
        next_position = torch.tensor([prompt.next_position for prompt in prompts]).repeat_interleave(n).to(device)
        noise = noise.to(device)
        with named("prefill"):
            states, cache = self._prefill(prompts)
        if n > 1:
            cache.batch_repeat_interleave(n)
            states = states.repeat_interleave(n, 0)
        stops = torch.tensor(policy.stop_ids, device=device)
        tokens = torch.zeros(rows, most, dtype=torch.long, device=device)
        logprobs = torch.zeros(rows, most, device=device)
        # What follows has one row for each completion that is still in the batch.
        number = torch.arange(rows, device=device)
        going = torch.ones(rows, dtype=torch.bool, device=device)
        for count in range(1, most + 1):
            logits = policy.adapter.logits(policy.model, states).float()
            token, logprob = draw(logits, sampling, policy.banned, noise[:, count - 1])
            tokens[number, count - 1] = token
            logprobs[number, count - 1] = logprob
            going = going & ~torch.isin(token, stops)
            if count == most:
                break
            if count % self.tokens_between_looks == 0:
                left = int(going.sum())
                if not left:
                    break
                if left <= self.leave_at * len(going) and left < len(going):
                    stay = going.nonzero()[:, 0]
                    cache.batch_select_indices(stay)
                    token, mask, next_position, noise = token[stay], mask[stay], next_position[stay], noise[stay]
                    number, going = number[stay], going[stay]
            positions = (next_position + count - 1).unsqueeze(1)
            output = policy.adapter.decoder(policy.model)(
                inputs_embeds=policy.adapter.embed_tokens(policy.model, token.unsqueeze(1)),
                position_ids=positions if axes == 1 else positions.expand(axes, -1, -1),
                attention_mask=mask[:, : width + count] if padded else None,
                past_key_values=cache,
                use_cache=True,
            )
            states = output.last_hidden_state[:, -1]
        return tokens.cpu(), logprobs.cpu()

    def _prefill(self, prompts: Sequence[Encoded]) -> tuple[Tensor, KeyValueCache]:
        """Read prompts, shortest first, a part at a time: their last states (B, d), and one left-padded cache."""
        parts: list[list[Encoded]] = [[]]
        for prompt in prompts:
            if parts[-1] and (len(parts[-1]) + 1) * len(prompt.input_ids) > self.prefill_tokens:
                parts.append([])
            parts[-1].append(prompt)
        read = [self._read(part) for part in parts]
        return torch.cat([states for states, _ in read]), joined([cache for _, cache in read])

    def _read(self, prompts: Sequence[Encoded]) -> tuple[Tensor, KeyValueCache]:
        """One vision pass and one prefill of left-padded prompts: their last states (B, d) and their cache."""
        policy, device = self.policy, self.policy.device
        axes, width = prompts[0].positions.shape[0], max(len(prompt.input_ids) for prompt in prompts)
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        valid = torch.zeros(len(prompts), width, dtype=torch.bool)
        positions = torch.zeros(axes, len(prompts), width, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            start = width - len(prompt.input_ids)
            ids[row, start:], valid[row, start:] = prompt.input_ids, True
            positions[:, row, start:] = prompt.positions
        features = [part for part in policy.features(prompts) if part is not None]
        ids, valid = ids.to(device), valid.to(device)
        autocast = torch.is_autocast_enabled(device.type)
        cache = KeyValueCache(torch.get_autocast_dtype(device.type) if autocast else None)
        output = policy.adapter.decoder(policy.model)(
            inputs_embeds=policy.adapter.embed(policy.model, ids, torch.cat(features) if features else None),
            position_ids=(positions[0] if axes == 1 else positions).to(device),
            attention_mask=policy.adapter.attention_mask(policy.model, ids, valid),
            past_key_values=cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1], cache


class RoomyLayer(DynamicLayer):
    """A cache layer that copies what it holds once in `ROOM` tokens, and not at every one."""

    def __init__(self) -> None:
        super().__init__()
        self._held: tuple[Tensor, Tensor] | None = None
        """Of which `keys` and `values` are the beginning."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add the states of new tokens (R, H, T, D); returns all, valid until the next update."""
        if self.keys is None or self.values is None:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self.keys, self.values = key_states, value_states
            return key_states, value_states
        old, end = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if self._held is None or end > self._held[0].shape[-2]:
            self._held = _with_room(self.keys, end + ROOM), _with_room(self.values, end + ROOM)
        for held, new in zip(self._held, (key_states, value_states), strict=True):
            held[..., old:end, :] = new
        self.keys, self.values = self._held[0][..., :end, :], self._held[1][..., :end, :]
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        super().batch_repeat_interleave(repeats)
        self._held = None

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        super().batch_select_indices(indices)
        self._held = None


def _with_room(states: Tensor, tokens: int) -> Tensor:
    roomy = states.new_empty(*states.shape[:-2], tokens, states.shape[-1])
    roomy[..., : states.shape[-2], :] = states
    return roomy


class KeyValueCache(DynamicCache):
    """A cache that holds keys and values in the dtype in which autocast multiplies them; None keeps theirs.

    Rotary embeddings leave keys in fp32, which would double the cache without changing what attention sees.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
        self.layer_class_to_replicate = RoomyLayer
        self.dtype = dtype

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Add the states of new tokens to a layer; returns all of its keys and values."""
        if self.dtype is not None:
            key_states, value_states = key_states.to(self.dtype), value_states.to(self.dtype)
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)


def joined(caches: list[KeyValueCache]) -> KeyValueCache:
    """One cache over the rows of several, padded on the left to the longest; takes the given ones apart."""
    if len(caches) == 1:
        return caches[0]
    width = max(cache.get_seq_length() for cache in caches)
    whole = KeyValueCache(caches[0].dtype)
    for index in range(len(caches[0].layers)):
        own: list[Any] = [cache.layers[index] for cache in caches]
        keys, values = (
            torch.cat([pad(states, (0, 0, width - states.shape[-2], 0)) for states in part])
            for part in ([layer.keys for layer in own], [layer.values for layer in own])
        )
        for layer in own:  # so that never more than one layer is there twice
            layer.keys = layer.values = None
        whole.update(keys, values, index)
    return whole


def _noise(seed: int, prompt: int, n: int, tokens: int) -> Tensor:
    """(n, tokens) of [0, 1) in fp64, for the samples of the prompt at this place; more tokens go on from fewer."""
    return torch.from_numpy(np.random.default_rng([seed, prompt]).random((tokens, n))).T


def draw(logits: Tensor, sampling: Sampling, banned: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability under the distribution it was drawn from.

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
    token = _pick(logprobs.exp(), noise)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def _pick(weights: Tensor, noise: Tensor) -> Tensor:
    """Where the running sum of each row (R, V) first exceeds its share `noise` of the whole.

    First among blocks, then inside one: running sums over a vocabulary are slow, and in fp32 would lose rare tokens.
    Nothing of weight 0 is picked; a row that is not finite gets any token, and the host is never waited for.
    """
    size = weights.shape[-1]
    blocks = pad(weights, (0, -size % BLOCK)).unflatten(-1, (-1, BLOCK))
    block, share = _invert(blocks.sum(-1), noise)
    inside, _ = _invert(blocks.take_along_dim(block[:, None, None], 1)[:, 0], share)
    return (block * BLOCK + inside).clamp(max=size - 1)


def _invert(weights: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """The entry of each row that its noise falls on, and where in it, in [0, 1)."""
    ends = weights.double().cumsum(-1)
    aim = (noise * ends[:, -1])[:, None]
    entry = torch.searchsorted(ends, aim, right=True).clamp(max=weights.shape[-1] - 1)
    width = weights.gather(-1, entry).double()
    share = (aim - ends.gather(-1, entry) + width) / width
    return entry[:, 0], share[:, 0].clamp(0.0, 1 - 2**-53)


def _cut(tokens: Tensor, logprobs: Tensor, stop_ids: Sequence[int]) -> list[Sample]:
    """Rows (R, C) cut behind their first stop token."""
    stop = torch.isin(tokens, torch.tensor(stop_ids))
    ended = stop.any(1)
    lengths = torch.where(ended, stop.int().argmax(1) + 1, tokens.shape[1])
    # Copies, which also leave inference mode behind: the update saves them for its backward pass.
    return [
        Sample(ids[:length].clone(), own[:length].clone(), "stop" if stops else "length")
        for ids, own, length, stops in zip(tokens, logprobs, lengths.tolist(), ended.tolist(), strict=True)
    ]
