"""The policy step of one agent: from rewards to new weights, over the micro-batches of all its ranks.

Groups stay whole on the rank that sampled them. Every rank knows the outline of all groups, so that each works out by
itself what all of them will do: weights of the loss belong to the whole optimizer batch, however many ranks there are,
and ranks that wait for each other inside of passes make the same number of them.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmcorl.algo import loss as grpo
from mmcorl.algo.seeds import noise_seed
from mmcorl.config import Config
from mmcorl.engines.base import Sample
from mmcorl.policy.policy import Rows
from mmcorl.sharding.base import LogProbs, Shards
from mmcorl.system.timing import named
from model_adapters.base import Encoded

Row = tuple[int, int]
"""(group, k): a completion; groups are counted over all ranks."""


@dataclass(frozen=True)
class Rollout:
    """What a rank keeps of one group until its rewards arrive."""

    prompt: Encoded
    samples: list[Sample]


@dataclass(frozen=True)
class Outline:
    """What every rank knows of one group."""

    prompt: int
    """Tokens of the prompt."""
    lengths: tuple[int, ...]
    """Tokens of each completion."""
    counted: tuple[bool, ...]
    """Of each completion, whether it counts in the loss: not so where `mask_truncated` leaves it out."""


@dataclass(frozen=True)
class Filler:
    """Rows without weight, for ranks that must make a pass and have none of their own."""

    rollout: Rollout
    """One completion of one token."""
    picture: Encoded | None
    """A prompt with a small picture; None for a text family."""


@dataclass(frozen=True)
class Pass:
    """One forward pass of this rank."""

    rows: Sequence[Row]
    """None: the filler's."""
    pieces: int
    """Calls of the head that all ranks make."""


@dataclass(frozen=True)
class OptimizerStep:
    """What one optimizer step saw of this rank's T tokens, 0 where every group of its part was skipped."""

    loss: float
    grad_norm: float
    """Of all ranks together."""
    learning_rate: float
    drift: Tensor
    """(T,) log pi_train - log pi_engine, on the CPU."""
    clipped: Tensor
    """(T,) bool: the clip took this token's gradient away."""
    importance: Tensor
    """(T,) weight that corrects for the engine."""
    kl: Tensor
    """(T,) estimated KL to the reference; empty without a KL term."""
    passed: int
    """Tokens, prompts among them, that went forward and backward."""


@dataclass(frozen=True)
class Update:
    """One update of an agent: what its optimizer steps share. G groups of K completions on all ranks."""

    agent: str
    config: Config
    shards: Shards
    correction: grpo.Correction
    """Importance correction, resolved for the family."""
    filler: Filler
    rollouts: Sequence[Rollout]
    """This rank's."""
    groups: Sequence[Outline]
    """Of all ranks, rank after rank."""
    owners: Sequence[int]
    """The rank of each group."""
    advantages: Mapping[Row, Tensor] = field(default_factory=dict)
    """Of each token (C,) of this rank's completions, on the CPU."""
    signal: Sequence[bool] = ()
    """Of each group of all ranks, whether any token that counts has an advantage other than 0."""
    old: Mapping[Row, Tensor] | None = None
    """Log-probabilities before the first step; None when there is one step, exactly on-policy."""
    shared: bool = False
    """Whether passes compute each prompt once for its rows, or once for each of them."""
    reference: Mapping[Row, Tensor] | None = None
    """Log-probabilities under the reference model; None without a KL term."""

    @property
    def any_signal(self) -> bool:
        """Whether there is anything to learn from rewards."""
        return any(self.signal)

    @property
    def own(self) -> list[int]:
        """The groups of this rank, in the order of `rollouts`."""
        return [group for group, owner in enumerate(self.owners) if owner == self.shards.ranks.rank]

    def with_advantages(self, advantages: Sequence[Sequence[Tensor]]) -> Update:
        """The same with the advantages of this rank's completions; all ranks tell each other which groups have any."""
        has = [
            any(bool(one.any()) for one, counts in zip(row, self.groups[group].counted, strict=True) if counts)
            for group, row in zip(self.own, advantages, strict=True)
        ]
        return replace(
            self,
            advantages={(g, k): one for g, row in zip(self.own, advantages, strict=True) for k, one in enumerate(row)},
            signal=[one for rank in self.shards.ranks.gather(has) for one in rank],
        )

    def steps(self, number: int) -> list[OptimizerStep]:
        """All optimizer steps of step `number` of the run."""
        objective = self.config.objective
        parts = [
            part
            for turn in range(objective.passes)
            for part in minibatches(len(self.groups), objective.minibatches, self.config.seed, number, turn)
        ]
        return [self.optimizer_step(part) for part in parts]

    def optimizer_step(self, part: Sequence[int]) -> OptimizerStep:
        """Accumulate gradients over the micro-batches of some groups, clip, step."""
        objective, shards, policy = self.config.objective, self.shards, self.shards.policy
        weights = self._token_weights(part)
        # A group whose advantages are all zero adds nothing to the gradient, so it is left out of the passes;
        # its tokens stay in the denominators above. With a KL term every group counts.
        beta = objective.kl_coef if objective.kl_in == "loss" else 0.0
        rows = [
            (group, k)
            for group in part
            if beta or self.signal[group]
            for k, counts in enumerate(self.groups[group].counted)
            if counts
        ]
        losses: list[Tensor] = []
        clipped: list[Tensor] = []
        divergences: list[Tensor] = []
        drifts: list[Tensor] = []
        importances: list[Tensor] = []
        passed = 0
        for micro in self._passes(rows):
            batch = self._rows(micro)
            with named("forward"), policy.computing(self.config.training, training=True):
                logp = shards.logprobs(batch, self.config.sampling.temperature)
            if not micro.rows:
                with named("backward"):
                    shards.backward(logp.sum() * 0.0)
                continue
            counts = torch.tensor([len(ids) for ids in batch.completions])
            engine = torch.cat([self._sample(row).logprobs for row in micro.rows]).to(logp)
            before = logp.detach() if self.old is None else torch.cat([self.old[row] for row in micro.rows])
            importance = grpo.importance_weights(
                before, engine, self.correction, objective.importance_cap, lengths=counts
            )
            terms = grpo.policy_loss(
                logp,
                None if self.old is None else before,
                torch.cat([self.advantages[row] for row in micro.rows]).to(logp),
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                clip_dual=objective.clip_dual,
                clip=objective.surrogate or objective.clip,
                level=objective.ratio,
                lengths=counts,
                weights=importance,
                ref_logp=None if self.reference is None else torch.cat([self.reference[row] for row in micro.rows]),
                beta=beta,
                kl=objective.kl_estimator,
            )
            share = torch.stack([weights[row] for row in micro.rows])
            loss = (share.repeat_interleave(counts).to(logp) * terms.loss).sum()
            with named("backward"):
                shards.backward(loss)
            losses.append(loss.detach())
            clipped.append(terms.clipped)
            divergences += [] if terms.kl is None else [terms.kl]
            drifts.append(before - engine)
            importances.append(importance)
            passed += self._tokens(micro.rows)
        rate = shards.optimizer.param_groups[0]["lr"]
        with named("optimizer"):
            norm = shards.step()
        if not math.isfinite(norm):
            raise RuntimeError(
                f"agent {self.agent!r}: the norm of the gradient is not finite; lower optimizer.lr or use "
                "training.dtype=fp32"
            )
        none = torch.zeros(0)
        return OptimizerStep(
            loss=float(torch.stack(losses).sum()) if losses else 0.0,
            grad_norm=norm,
            learning_rate=rate,
            drift=torch.cat(drifts).cpu() if drifts else none,
            clipped=torch.cat(clipped).cpu() if clipped else none.bool(),
            importance=torch.cat(importances).cpu() if importances else none,
            kl=torch.cat(divergences).cpu() if divergences else none,
            passed=passed,
        )

    @torch.no_grad()
    def score(self, logprobs: LogProbs, confidence: bool = False) -> dict[Row, Tensor]:
        """Log-probabilities (C,) of every completion of this rank under some policy.

        With `confidence` instead (C, 2) how sure the policy was of each token: see `Policy.forward`.
        """
        scores: dict[Row, Tensor] = {}
        every = [(group, k) for group, outline in enumerate(self.groups) for k in range(len(outline.lengths))]
        for micro in self._passes(every):
            batch = replace(self._rows(micro), confidence=confidence)
            with self.shards.policy.computing(self.config.training):
                logp = logprobs(batch, self.config.sampling.temperature)
            if micro.rows:
                lengths = [len(ids) for ids in batch.completions]
                scores.update(zip(micro.rows, logp.split(lengths), strict=True))
        return scores

    # -- who passes what ------------------------------------------------------------------------------------

    def _passes(self, rows: Sequence[Row]) -> list[Pass]:
        """This rank's forward passes over its part of some rows; as many as any rank has, where they wait."""
        budget, ranks = self.config.training.tokens_per_microbatch, self.shards.ranks
        cut = [
            list(self._cut([row for row in rows if self.owners[row[0]] == rank], budget)) for rank in range(ranks.size)
        ]
        own = cut[ranks.rank]
        if not self.shards.lockstep:
            return [Pass(micro, 0) for micro in own]
        # One at least: every weight takes part in a backward pass before each step.
        count = max(1, *(len(micros) for micros in cut))
        pieces = [max(self._pieces(micros[i]) if i < len(micros) else 1 for micros in cut) for i in range(count)]
        return [Pass(own[i] if i < len(own) else (), pieces[i]) for i in range(count)]

    def _cut(self, rows: Sequence[Row], budget: int) -> Iterator[list[Row]]:
        if self.shared:
            return shared_microbatches(rows, lambda group: self.groups[group].prompt, self._passing, budget)
        return microbatches(rows, self._width, budget)

    def _rows(self, one: Pass) -> Rows:
        """What a pass gives the model."""
        groups = list(dict.fromkeys(group for group, _ in one.rows))
        place = {group: index for index, group in enumerate(groups)}
        rollouts = [self._rollout(group) for group in groups] or [self.filler.rollout]
        samples = [self._sample(row) for row in one.rows] or self.filler.rollout.samples
        prompts = [rollout.prompt for rollout in rollouts]
        blind = self.shards.lockstep and not any(prompt.vision for prompt in prompts)
        return Rows(
            prompts=prompts,
            prompt_of=[place[group] for group, _ in one.rows] or [0],
            completions=[sample.ids for sample in samples],
            picture=self.filler.picture if blind else None,
            shared=self.shared,
            pieces=one.pieces,
        )

    def _rollout(self, group: int) -> Rollout:
        return self.rollouts[group - bisect_left(self.owners, self.shards.ranks.rank)]

    def _sample(self, row: Row) -> Sample:
        return self._rollout(row[0]).samples[row[1]]

    def _pieces(self, rows: Sequence[Row]) -> int:
        return math.ceil(sum(self._length(row) for row in rows) / self.shards.policy.chunk)

    def _length(self, row: Row) -> int:
        group, k = row
        return self.groups[group].lengths[k]

    def _passing(self, row: Row) -> int:
        """Tokens of a completion that pass through the model: its last one predicts none."""
        return self._length(row) - 1

    def _width(self, row: Row) -> int:
        return self.groups[row[0]].prompt + self._passing(row)

    def _tokens(self, rows: Sequence[Row]) -> int:
        """What passes through the model without padding, and prompts as often as they are computed."""
        if not self.shared:
            return sum(self._width(row) for row in rows)
        prompts = sum(self.groups[group].prompt for group in {group for group, _ in rows})
        return prompts + sum(self._passing(row) for row in rows)

    def _token_weights(self, part: Sequence[int]) -> dict[Row, Tensor]:
        """Weight in the loss of each token of a row, the whole part with the groups that are skipped counted."""
        rows = [(group, k) for group in part for k in range(len(self.groups[group].lengths))]
        lengths = torch.tensor([self._length(row) for row in rows])
        counted = torch.tensor([self.groups[group].counted[k] for group, k in rows], dtype=torch.bool)
        weights = grpo.token_weights(
            lengths,
            self.config.objective.aggregation,
            total_rows=len(rows),
            total_tokens=int(lengths[counted].sum()),
            max_length=self.config.sampling.max_new_tokens,
        )
        return dict(zip(rows, weights, strict=True))


def minibatches(groups: int, count: int, seed: int, step: int, turn: int) -> list[list[int]]:
    """Group indices of each optimizer step of one pass over a batch; shuffled unless there is a single one."""
    order = list(range(groups))
    count = min(count, groups)
    if count > 1:
        random.Random(noise_seed(seed, "minibatches", step, turn)).shuffle(order)
    return [sorted(order[i::count]) for i in range(count)]


def microbatches(rows: Sequence[Row], width: Any, budget: int) -> Iterator[list[Row]]:
    """Rows in micro-batches of at most `budget` padded tokens; `width` of a row are its tokens, its prompt's included.

    Groups stay together and go by length, so that padding is small and a prompt's images are seen once where its
    rows fit into one micro-batch.
    """
    longest: dict[int, int] = {}
    for row in rows:
        longest[row[0]] = max(longest.get(row[0], 0), width(row))
    batch: list[Row] = []
    widest = 0
    for row in sorted(rows, key=lambda row: (longest[row[0]], row[0], width(row))):
        if batch and max(widest, width(row)) * (len(batch) + 1) > budget:
            yield batch
            batch, widest = [], 0
        batch.append(row)
        widest = max(widest, width(row))
    if batch:
        yield batch


def shared_microbatches(
    rows: Sequence[Row], prompt: Callable[[int], int], length: Callable[[Row], int], budget: int
) -> Iterator[list[Row]]:
    """Rows in micro-batches of at most `budget` tokens, the prompt of a group counted once in each.

    A group stays whole unless it is larger than the budget by itself. `prompt` gives the tokens of a group's prompt,
    `length` those of a completion; rows of a group follow each other.
    """
    batch: list[Row] = []
    size = 0
    for group, members in itertools.groupby(rows, key=lambda row: row[0]):
        own = list(members)
        if batch and size + prompt(group) + sum(map(length, own)) > budget:
            yield batch
            batch, size = [], 0
        size += prompt(group)
        for row in own:
            if batch and size + length(row) > budget:
                yield batch
                batch, size = [], prompt(group)
            batch.append(row)
            size += length(row)
    if batch:
        yield batch


def metrics(steps: Sequence[Sequence[OptimizerStep]], cap: float) -> dict[str, float]:
    """What an update reports, the same on every rank; `steps` are those of each rank.

    `trained_tokens` is a sum over the optimizer steps; `loss`, `grad_norm` and `learning_rate` are means over them;
    `kl`, `clip_share` and what begins with `importance_` are taken over all trained tokens of all steps, and the
    latter left out where there are none.
    """
    own = steps[0]
    drift, clipped, importance, kl = (
        torch.cat([getattr(step, key) for rank in steps for step in rank])
        for key in ("drift", "clipped", "importance", "kl")
    )
    found = {
        "loss": statistics.fmean(sum(step.loss for step in ranks) for ranks in zip(*steps, strict=True)),
        "grad_norm": statistics.fmean(step.grad_norm for step in own),
        "learning_rate": statistics.fmean(step.learning_rate for step in own),
        "trained_tokens": float(len(drift)),
        "clip_share": float(clipped.float().mean()) if len(clipped) else 0.0,
    }
    if len(drift):
        found["importance_weight_mean"] = float(importance.mean())
        found["importance_weight_max"] = float(importance.max())
        found |= {f"importance_{key}": value for key, value in grpo.importance_stats(drift, cap).items()}
    if len(kl):
        found["kl"] = float(kl.mean())
    return found
