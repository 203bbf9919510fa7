"""The engine that samples from the trained weights themselves: one vision pass and one prefill per prompt.

The K completions of a prompt share its prefill through a repeated KV cache, so images are encoded once and
prompts are read once. Nothing is copied at a weight sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from mmcorl.engines.base import Sample, Sampling
from mmcorl.policy import Policy
from model_adapters.base import Encoded


class TransformersEngine:
    """Samples with the policy's own model.

    Args:
        policy: the policy being trained.
        max_rows: most completions in flight at once; prompts are worked through in chunks of that many rows, or
            of one prompt where its n samples are more. Chunks share one stream of noise, so another value draws
            other samples from the same distribution.
    """

    def __init__(self, policy: Policy, max_rows: int = 256, max_tokens: int = 2**18):
        self.policy = policy
        self.max_rows = max_rows
        self.max_tokens = max_tokens

    def sync(self) -> None:
        """Nothing to do: the weights are shared."""

    def sleep(self) -> None:
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
        cache = DynamicCache()
        states, valid, next_position = self._prefill(prompts, cache)
        if n > 1:
            cache.batch_repeat_interleave(n)
        states, valid = states.repeat_interleave(n, 0), valid.repeat_interleave(n, 0)
        next_position = next_position.repeat_interleave(n, 0)
        rows, axes = len(prompts) * n, prompts[0].positions.shape[0]
        stops = torch.tensor(policy.stop_ids, device=device)
        done = torch.zeros(rows, dtype=torch.bool, device=device)
        tokens: list[Tensor] = []
        logprobs: list[Tensor] = []
        for offset in range(sampling.max_new_tokens):
            logits = policy.adapter.logits(policy.model, states).float()
            token, logprob = draw(logits, sampling, policy.banned, generator)
            tokens.append(token)
            logprobs.append(logprob)
            done = done | torch.isin(token, stops)
            if offset + 1 == sampling.max_new_tokens or bool(done.all()):
                break
            valid = torch.cat([valid, valid.new_ones(rows, 1)], dim=1)
            positions = (next_position + offset).unsqueeze(1)
            output = policy.adapter.decoder(policy.model)(
                inputs_embeds=policy.adapter.embed(policy.model, token.unsqueeze(1), None),
                position_ids=positions if axes == 1 else positions.expand(axes, -1, -1),
                attention_mask=None if bool(valid.all()) else valid.long(),
                past_key_values=cache,
                use_cache=True,
            )
            states = output.last_hidden_state[:, -1]
        samples = _cut(torch.stack(tokens, 1).cpu(), torch.stack(logprobs, 1).cpu(), policy.stop_ids)
        return [samples[i : i + n] for i in range(0, rows, n)]

    def _prefill(self, prompts: Sequence[Encoded], cache: DynamicCache) -> tuple[Tensor, Tensor, Tensor]:
        """Read left-padded prompts into the cache: last states (B, d), valid (B, P), next positions (B,)."""
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
        output = policy.adapter.decoder(policy.model)(
            inputs_embeds=policy.adapter.embed(policy.model, ids, torch.cat(features) if features else None),
            position_ids=(positions[0] if axes == 1 else positions).to(device),
            attention_mask=policy.adapter.attention_mask(policy.model, ids, valid),
            past_key_values=cache,
            use_cache=True,
        )
        next_position = torch.tensor([prompt.next_position for prompt in prompts], device=device)
        return output.last_hidden_state[:, -1], valid, next_position


def draw(logits: Tensor, sampling: Sampling, banned: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token per row and its log-probability under the distribution it was drawn from.

    logits (R, V) in fp32. Banned ids get no mass; temperature comes before top-k, top-k before top-p, and the
    kept mass is renormalised. Temperature 0 is greedy, with the log-probability at temperature 1.
    """
    if len(banned):
        logits[:, banned] = -torch.inf
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
    token = torch.multinomial(logprobs.exp(), 1, generator=generator)[:, 0]
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
