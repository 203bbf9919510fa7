"""The engine that samples from the trained weights themselves: one vision pass and one prefill per prompt.

The K completions of a prompt share its prefill through a repeated KV cache, so images are encoded once and
prompts are read once. Nothing is copied at a weight sync. On a GPU the loop over tokens does not wait for results
(transformers itself does, once a token, where prompts of several lengths need a padding mask).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache

from mmcorl.engines.base import Sample, Sampling, Weights
from mmcorl.parts import named
from mmcorl.policy import Policy
from model_adapters.base import Encoded

PREFILL_TOKENS = 2**14


class TransformersEngine:
    """Samples with the policy's own model.

    Args:
        policy: the policy being trained.
        max_rows: most completions in flight at once; prompts are worked through in chunks of that many rows, or
            of one prompt where its n samples are more. Chunks share one stream of noise, so another value draws
            other samples from the same distribution.
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

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Nothing to do: the weights are shared."""

    def check(self, weights: Weights) -> None:
        """Nothing to compare: there is one set of weights."""

    def sleep(self, until_sync: bool = False) -> None:
        """Nothing to give back: the cache is freed after each call."""

    def wake(self) -> None:
        """Always ready."""

    @torch.no_grad()
    def generate(self, prompts: Sequence[Encoded], n: int, sampling: Sampling, seed: int) -> list[list[Sample]]:
        """n samples of each prompt, in order; prompts of similar length are worked on together."""
        generator = torch.Generator(self.policy.device).manual_seed(seed)
        results: list[list[Sample]] = [[] for _ in prompts]
        for chunk in self._chunks(prompts, n, sampling.max_new_tokens):
            drawn = self._chunk([prompts[i] for i in chunk], n, sampling, generator)
            for index, samples in zip(chunk, drawn, strict=True):
                results[index] = samples
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

    def _chunk(
        self, prompts: Sequence[Encoded], n: int, sampling: Sampling, generator: torch.Generator
    ) -> list[list[Sample]]:
        policy, device = self.policy, self.policy.device
        lengths = torch.tensor([len(prompt.input_ids) for prompt in prompts])
        width, rows, axes = int(lengths.max()), len(prompts) * n, len(prompts[0].positions)
        padded = bool((lengths < width).any())
        # Wide enough for the whole completion, so that no token has to make a longer one.
        mask = (torch.arange(width + sampling.max_new_tokens) >= (width - lengths)[:, None]).long()
        mask = mask.repeat_interleave(n, 0).to(device)
        next_position = torch.tensor([prompt.next_position for prompt in prompts]).repeat_interleave(n).to(device)
        with named("prefill"):
            states, cache = self._prefill(prompts)
        if n > 1:
            cache.batch_repeat_interleave(n)
            states = states.repeat_interleave(n, 0)
        stops = torch.tensor(policy.stop_ids, device=device)
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        for count in range(1, sampling.max_new_tokens + 1):
            logits = policy.adapter.logits(policy.model, states).float()
            token, logprob = draw(logits, sampling, policy.banned, generator)
            tokens.append(token)
            logprobs.append(logprob)
            done = done | torch.isin(token, stops)
            if count == sampling.max_new_tokens or (count % self.tokens_between_looks == 0 and bool(done.all())):
                break
            positions = (next_position + count - 1).unsqueeze(1)
            output = policy.adapter.decoder(policy.model)(
                inputs_embeds=policy.adapter.embed_tokens(policy.model, token.unsqueeze(1)),
                position_ids=positions if axes == 1 else positions.expand(axes, -1, -1),
                attention_mask=mask[:, : width + count] if padded else None,
                past_key_values=cache,
                use_cache=True,
            )
            states = output.last_hidden_state[:, -1]
        samples = _cut(torch.stack(tokens, 1).cpu(), torch.stack(logprobs, 1).cpu(), policy.stop_ids)
        return [samples[i : i + n] for i in range(0, rows, n)]

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


class KeyValueCache(DynamicCache):
    """A cache that holds keys and values in the dtype in which autocast multiplies them; None keeps theirs.

    Rotary embeddings leave keys in fp32, which would double the cache without changing what attention sees.
    """

    def __init__(self, dtype: torch.dtype | None = None):
        super().__init__()
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


def draw(logits: Tensor, sampling: Sampling, banned: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability under the distribution it was drawn from.

    logits (R, V) in fp32, changed in place. Banned ids get no mass; temperature comes before top-k, top-k before
    top-p, and the kept mass is renormalised. Temperature 0 is greedy, with the log-probability at temperature 1.
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
    # What torch.multinomial does for one draw, without its checks, which make the host wait at every token: a row
    # that is not finite gets a log-probability of NaN.
    probabilities = logprobs.exp()
    noise = torch.empty_like(probabilities).exponential_(generator=generator)
    token = (probabilities / noise).argmax(-1)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def _cut(tokens: Tensor, logprobs: Tensor, stop_ids: Sequence[int]) -> list[Sample]:
    """Rows (R, C) cut behind their first stop token."""
    samples = []
    stop = torch.isin(tokens, torch.tensor(stop_ids))
    for row in range(len(tokens)):
        ends = stop[row].nonzero()
        length = int(ends[0, 0]) + 1 if len(ends) else tokens.shape[1]
        samples.append(
            Sample(
                tokens[row, :length].clone(),
                logprobs[row, :length].clone(),
                "stop" if len(ends) else "length",
            )
        )
    return samples
