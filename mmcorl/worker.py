"""One agent in one process: model, optimizer and engine; rollout, update, evaluate, save, load.

The K completions of a prompt stay together on the worker that sampled them, with the tensors the update
needs. What leaves are groups of strings and floats.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmcorl import grpo
from mmcorl.answers import extract
from mmcorl.config import Config
from mmcorl.engines import build_engine
from mmcorl.engines.base import Sample, Sampling
from mmcorl.errors import Refused
from mmcorl.policy import Policy, Rows
from mmcorl.reader import Reader
from mmcorl.types import Completion, Group, Prompt
from mmcorl.weights import checkpoint_dtype, hub_named, lower_frozen, write
from model_adapters.base import Encoded


@dataclass(frozen=True)
class Rollout:
    """What the worker keeps of one group until its rewards arrive."""

    prompt: Encoded
    samples: list[Sample]


@dataclass(frozen=True)
class UpdateBatch:
    """A rollout batch with everything its optimizer steps need; G groups of K completions."""

    rollouts: Sequence[Rollout]
    advantages: Tensor
    """(G, K)"""
    lengths: Tensor
    """(G, K) tokens of each completion."""
    old: Mapping[tuple[int, int], Tensor] | None
    """Log-probabilities before the first step, by (group, k); None when there is one step, exactly on-policy."""
    reference: Mapping[tuple[int, int], Tensor] | None
    """Log-probabilities under the reference model; None without a KL term."""


@dataclass(frozen=True)
class OptimizerStep:
    """What one optimizer step saw; T tokens, 0 where every group of its minibatch was skipped."""

    loss: float
    grad_norm: float
    learning_rate: float
    drift: Tensor
    """(T,) log pi_train - log pi_engine, on the CPU."""
    clipped: Tensor
    """(T,) bool: the clip took this token's gradient away."""
    kl: Tensor
    """(T,) estimated KL to the reference; empty without a KL term."""


class Worker:
    """One agent. Implements `mmcorl.agent.Agent`.

    Args:
        config: the run.
        reader: this agent's eyes: checkpoint path, adapter, processor and settings.
        total_steps: steps of the whole run, for the learning-rate schedule.
        device: where the model lives.
    """

    def __init__(self, config: Config, reader: Reader, total_steps: int, device: torch.device):
        self.config, self.reader, self.adapter = config, reader, reader.adapter
        self.name, self.path, self.rank, self.device = reader.name, reader.path, 0, device
        model: Any = self.adapter.load_model(reader.path, torch.float32, config.training.attention)
        self.policy = Policy(model, self.adapter, reader.processor)
        self.lora: Any = self._add_lora() if config.training.lora else None
        if config.training.freeze_vision:
            for module in self.adapter.vision_modules(model):
                module.requires_grad_(False)
        if config.training.dtype == "bf16":
            lower_frozen(model, self.adapter)
        self.policy.to(device)
        if config.training.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.trainable = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        """Parameters that receive gradients."""
        self.optimizer = _adamw(self.trainable, config, reader.settings.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate_share(step, total_steps, config)
        )
        self.reference = self._reference_model() if config.objective.kl_coef else None
        self.engine = build_engine(config, self.policy, reader)
        correction = config.objective.importance_correction
        if correction == "auto":
            correction = "token_truncate" if self.adapter.needs_importance_correction else "off"
        self.importance_correction = correction
        self._pending: dict[str, Rollout] = {}

    # -- what cotrain calls ----------------------------------------------------------------------------

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample K completions of each prompt; their tensors wait here for `update`.

        Raises NotFiniteError, with agent, step and prompt, where the model's probabilities are not numbers.
        """
        sampling = self.config.sampling
        seed = noise_seed(self.config.seed, self.name, step, self.rank)
        encoded = [self.reader.encode(prompt) for prompt in prompts]
        self.engine.wake()
        with self._arithmetic(training=False):
            drawn = self.engine.generate(
                encoded,
                self.config.batch.completions,
                Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens),
                seed,
            )
        self.engine.sleep()
        for prompt, samples in zip(prompts, drawn, strict=True):
            self._check(prompt, samples, f"step {step}")
        self._pending = {
            prompt.uid: Rollout(one, samples) for prompt, one, samples in zip(prompts, encoded, drawn, strict=True)
        }
        return [
            Group(prompt.uid, tuple(self._completion(sample) for sample in samples))
            for prompt, samples in zip(prompts, drawn, strict=True)
        ]

    def update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        """One policy step on the pending rollout; `rewards` are joined by prompt uid.

        `trained_tokens` of the result is a sum over the optimizer steps; `loss`, `grad_norm` and `learning_rate` are
        means over them; `kl`, `clip_share` and what begins with `importance_` are taken over all trained tokens of
        all steps, and the latter left out where there are none. `entropy` is the usual estimate of the entropy of the
        sampling distribution: minus the mean log-probability of the sampled tokens, in nats.
        """
        rollouts = self._rollouts_of(rewards, step)
        objective = self.config.objective
        scores = torch.tensor([list(rewards[uid]) for uid in rewards], dtype=torch.float32)
        advantages = grpo.group_advantages(scores, objective.advantage_std, objective.advantage_eps)
        lengths = torch.tensor([[len(sample.ids) for sample in rollout.samples] for rollout in rollouts])
        on_policy = objective.minibatches * objective.passes == 1
        batch = UpdateBatch(
            rollouts,
            advantages,
            lengths,
            old=None if on_policy else self._score(rollouts, self.policy),
            reference=self._score_reference(rollouts) if objective.kl_coef else None,
        )
        parts = [part for number in range(objective.passes) for part in self._minibatches(len(rollouts), step, number)]
        steps = [self._optimizer_step(batch, part) for part in parts]
        self.schedule.step()
        self._pending = {}
        self.engine.sync(hub_named(self.policy.model, self.policy.model.named_parameters()))
        metrics = self._metrics(steps)
        # Sampled tokens estimate the entropy of every completion, those without a gradient included.
        sampled = torch.cat([sample.logprobs for rollout in rollouts for sample in rollout.samples])
        metrics["entropy"] = -float(sampled.mean())
        if metrics["grad_norm"] == 0.0 and bool(advantages.any()):
            raise RuntimeError(
                f"agent {self.name!r}, step {step}: advantages are not zero but no trainable parameter received a "
                "gradient; check training.freeze_vision and training.lora.target_modules"
            )
        return metrics

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One greedy completion per prompt, in order."""
        longest = self.config.validation.max_new_tokens or self.config.sampling.max_new_tokens
        self.engine.wake()
        results: list[Completion] = []
        with self._arithmetic(training=False):
            # In blocks, so that only one block's pixels are in memory.
            for start in range(0, len(prompts), self.config.engine.max_rows):
                block = [self.reader.encode(prompt) for prompt in prompts[start : start + self.config.engine.max_rows]]
                drawn = self.engine.generate(block, 1, Sampling(0.0, max_new_tokens=longest), seed=0)
                for prompt, samples in zip(prompts[start : start + len(block)], drawn, strict=True):
                    self._check(prompt, samples, "evaluation")
                    results.append(self._completion(samples[0]))
        self.engine.sleep()
        return results

    def save(self, directory: Path) -> None:
        """Weights in fp32 (hub layout), processor, optimizer and schedule: everything `load` needs."""
        directory.mkdir(parents=True)
        if self.lora is not None:
            self.lora.save_pretrained(directory)
        else:
            write(self.policy.model, directory, torch.float32)
        self.policy.processor.save_pretrained(directory)
        torch.save(
            {"optimizer": self.optimizer.state_dict(), "schedule": self.schedule.state_dict()},
            directory / "optimizer.pt",
        )

    def load(self, directory: Path) -> None:
        """Take over weights, optimizer and schedule from `save`; sampling noise needs no state."""
        if self.lora is not None:
            from peft import set_peft_model_state_dict
            from peft.utils import load_peft_weights

            set_peft_model_state_dict(self.lora, load_peft_weights(str(directory), device="cpu"))
        else:
            saved = self.adapter.load_model(directory, torch.float32, self.config.training.attention)
            self.policy.model.load_state_dict(saved.state_dict())
        state = torch.load(directory / "optimizer.pt", map_location=self.device, weights_only=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.engine.sync(hub_named(self.policy.model, self.policy.model.named_parameters()))

    def export(self, directory: Path) -> None:
        """Weights and processor in Hugging Face format, in the dtype of the starting checkpoint.

        Low-rank adapters are merged in. Rounded to bf16 like any published checkpoint; `save` keeps the fp32 weights.
        """
        directory.mkdir(parents=True)
        model = self.policy.model if self.lora is None else self._merged(directory)
        write(model, directory, checkpoint_dtype(self.path))
        self.policy.processor.save_pretrained(directory)

    def _completion(self, sample: Sample) -> Completion:
        text = self.adapter.decode(self.policy.processor, sample.ids.tolist())
        answer = extract(text, sample.finish_reason).answer
        return Completion(text, answer, len(sample.ids), sample.finish_reason)

    def _check(self, prompt: Prompt, samples: Sequence[Sample], when: str) -> None:
        """Every log-probability is a number, those of groups that the update will skip included."""
        if not bool(torch.cat([sample.logprobs for sample in samples]).isfinite().all()):
            raise grpo.NotFiniteError(
                f"agent {self.name!r}, {when}: the model gives prompt {prompt.uid} (row {prompt.row_id!r}) log-"
                "probabilities that are not finite, so its weights or its arithmetic are broken: check the checkpoint, "
                "go back to an earlier one, lower optimizer.lr or use training.dtype=fp32"
            )

    # -- the update ----------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str | int]:
        """What the summary says of this agent."""
        return {
            "model": self.reader.settings.model,
            "family": self.adapter.family,
            "parameters": sum(parameter.numel() for parameter in self.policy.parameters()),
            "trainable_parameters": sum(parameter.numel() for parameter in self.trainable),
        }

    def _rollouts_of(self, rewards: Mapping[str, Sequence[float]], step: int) -> list[Rollout]:
        """The pending rollouts in the order of `rewards`; an error where the two do not belong together."""
        where = f"agent {self.name!r}, step {step}"
        if set(rewards) != set(self._pending):
            odd = sorted(set(rewards) ^ set(self._pending))[0]
            raise RuntimeError(f"{where}: rewards and rollouts do not belong together, first at prompt {odd}")
        for uid, values in rewards.items():
            samples = self._pending[uid].samples
            if len(values) != len(samples):
                raise RuntimeError(f"{where}: {len(values)} rewards for {len(samples)} completions of prompt {uid}")
        return [self._pending[uid] for uid in rewards]

    def _minibatches(self, groups: int, step: int, number: int) -> list[list[int]]:
        """Group indices of each optimizer step of one pass; shuffled unless there is a single one."""
        order = list(range(groups))
        count = min(self.config.objective.minibatches, groups)
        if count > 1:
            random.Random(noise_seed(self.config.seed, "minibatches", step, number)).shuffle(order)
        return [sorted(order[i::count]) for i in range(count)]

    def _metrics(self, steps: Sequence[OptimizerStep]) -> dict[str, float]:
        drift, clipped, kl = (torch.cat([getattr(step, key) for step in steps]) for key in ("drift", "clipped", "kl"))
        return {
            "loss": statistics.fmean(step.loss for step in steps),
            "grad_norm": statistics.fmean(step.grad_norm for step in steps),
            "learning_rate": statistics.fmean(step.learning_rate for step in steps),
            "trained_tokens": float(len(drift)),
            "clip_share": float(clipped.float().mean()) if len(clipped) else 0.0,
            **importance_metrics(drift, self.importance_correction, self.config.objective.importance_cap),
            **({"kl": float(kl.mean())} if len(kl) else {}),
        }

    def _optimizer_step(self, batch: UpdateBatch, part: Sequence[int]) -> OptimizerStep:
        """Accumulate gradients over the micro-batches of some groups, clip, step."""
        objective, lengths = self.config.objective, batch.lengths
        chosen = lengths[list(part)]
        weights = torch.zeros_like(lengths, dtype=torch.float32)
        weights[list(part)] = grpo.token_weights(
            chosen.flatten(),
            objective.aggregation,
            total_rows=chosen.numel(),
            total_tokens=int(chosen.sum()),
            max_length=self.config.sampling.max_new_tokens,
        ).view_as(chosen)
        # A group whose advantages are all zero adds nothing to the gradient, so it is left out of the passes;
        # its tokens stay in the denominators above. With a KL term every group counts.
        rows = [
            (group, k)
            for group in part
            if objective.kl_coef or bool(batch.advantages[group].any())
            for k in range(lengths.shape[1])
        ]
        losses: list[Tensor] = []
        clipped: list[Tensor] = []
        divergences: list[Tensor] = []
        drifts: list[Tensor] = []
        for micro in self._microbatches(rows, batch.rollouts):
            with self._arithmetic(training=True):
                logp = self.policy(_rows(batch.rollouts, micro), self.config.sampling.temperature)
            index = tuple(torch.tensor(micro).T)
            counts = lengths[index]
            engine = torch.cat([batch.rollouts[g].samples[k].logprobs for g, k in micro]).to(logp)
            before = logp.detach() if batch.old is None else torch.cat([batch.old[row] for row in micro])
            importance = grpo.importance_weights(before, engine, self.importance_correction, objective.importance_cap)
            terms = grpo.policy_loss(
                logp,
                None if batch.old is None else before,
                batch.advantages[index].repeat_interleave(counts).to(logp),
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                weights=importance,
                ref_logp=None if batch.reference is None else torch.cat([batch.reference[row] for row in micro]),
                beta=objective.kl_coef,
                kl=objective.kl_estimator,
            )
            loss = (weights[index].repeat_interleave(counts).to(logp) * terms.loss).sum()
            if loss.requires_grad:  # Not so where only the vision tower is trained and the prompts have no image.
                loss.backward()
            losses.append(loss.detach())
            clipped.append(terms.clipped)
            divergences += [] if terms.kl is None else [terms.kl]
            drifts.append(before - engine)
        # What got no gradient takes the step with a zero one, so that AdamW's moments decay at every step.
        for parameter in self.trainable:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        norm = float(torch.nn.utils.clip_grad_norm_(self.trainable, self.config.optimizer.max_grad_norm))
        if not math.isfinite(norm):
            raise RuntimeError(
                f"agent {self.name!r}: the gradient norm is {norm}; lower optimizer.lr or use training.dtype=fp32"
            )
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # The next rollout can use the memory.
        none = torch.zeros(0)
        return OptimizerStep(
            loss=float(torch.stack(losses).sum()) if losses else 0.0,
            grad_norm=norm,
            learning_rate=rate,
            drift=torch.cat(drifts).cpu() if drifts else none,
            clipped=torch.cat(clipped).cpu() if clipped else none.bool(),
            kl=torch.cat(divergences).cpu() if divergences else none,
        )

    def _microbatches(
        self, rows: Sequence[tuple[int, int]], rollouts: Sequence[Rollout]
    ) -> Iterator[list[tuple[int, int]]]:
        """Rows (group, k) in micro-batches of at most `tokens_per_microbatch` padded tokens.

        Groups stay together and go by length, so that padding is small and a prompt's images are seen once
        where its rows fit into one micro-batch.
        """
        budget = self.config.training.tokens_per_microbatch

        def width(row: tuple[int, int]) -> int:
            group, k = row
            return len(rollouts[group].prompt.input_ids) + len(rollouts[group].samples[k].ids)

        longest: dict[int, int] = {}
        for row in rows:
            longest[row[0]] = max(longest.get(row[0], 0), width(row))
        batch: list[tuple[int, int]] = []
        widest = 0
        for row in sorted(rows, key=lambda row: (longest[row[0]], row[0], width(row))):
            if batch and max(widest, width(row)) * (len(batch) + 1) > budget:
                yield batch
                batch, widest = [], 0
            batch.append(row)
            widest = max(widest, width(row))
        if batch:
            yield batch

    @torch.no_grad()
    def _score(self, rollouts: Sequence[Rollout], policy: Policy) -> dict[tuple[int, int], Tensor]:
        """Log-probabilities of every completion under a policy, by (group, k)."""
        rows = [(g, k) for g, rollout in enumerate(rollouts) for k in range(len(rollout.samples))]
        scores: dict[tuple[int, int], Tensor] = {}
        for batch in self._microbatches(rows, rollouts):
            with self._arithmetic(training=False):
                logp = policy(_rows(rollouts, batch), self.config.sampling.temperature)
            lengths = [len(rollouts[g].samples[k].ids) for g, k in batch]
            scores.update(zip(batch, logp.split(lengths), strict=True))
        return scores

    def _score_reference(self, rollouts: Sequence[Rollout]) -> dict[tuple[int, int], Tensor]:
        if self.lora is not None:
            try:
                with self.lora.disable_adapter():
                    return self._score(rollouts, self.policy)
            finally:
                # peft switches the gradients of all adapters back on, those of a frozen vision tower included.
                trainable = {id(parameter) for parameter in self.trainable}
                for parameter in self.policy.parameters():
                    parameter.requires_grad_(id(parameter) in trainable)
        assert self.reference is not None
        return self._score(rollouts, self.reference)

    @contextlib.contextmanager
    def _arithmetic(self, training: bool) -> Iterator[None]:
        """Autocast for bf16; train mode only where checkpointing asks for it (dropout is 0 anyway)."""
        self.policy.train(training and self.config.training.gradient_checkpointing)
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.training.dtype == "bf16"):
                yield
        finally:
            self.policy.eval()

    # -- models besides the trained one --------------------------------------------------------------------

    def _reference_model(self) -> Policy | None:
        """The starting weights for the KL term; low-rank training switches its adapters off instead."""
        if self.lora is not None:
            return None
        model = self.adapter.load_model(self.path, torch.float32, self.config.training.attention)
        model.requires_grad_(False)
        if self.config.training.dtype == "bf16":
            lower_frozen(model, self.adapter)
        return Policy(model, self.adapter, self.policy.processor).to(self.device)

    def _add_lora(self) -> Any:
        """Put low-rank adapters into the model, in place; the wrapper is kept for saving and switching off."""
        from peft import LoraConfig, get_peft_model

        settings = self.config.training.lora
        assert settings is not None
        modules = settings.target_modules
        # peft draws the adapters' first matrices from the global generator.
        torch.manual_seed(noise_seed(self.config.seed, self.name, 0, self.rank))
        try:
            return get_peft_model(
                self.policy.model,
                LoraConfig(
                    r=settings.rank,
                    lora_alpha=settings.alpha,
                    lora_dropout=0.0,
                    target_modules=modules if isinstance(modules, str) else list(modules),
                ),
            )
        except ValueError as error:
            reason = str(error).split(". ")[0]
            raise Refused(
                f"training.lora.target_modules={modules!r} does not fit agent {self.name!r} ({reason}): "
                "name layers of the model, or use all-linear"
            ) from error

    def _merged(self, directory: Path) -> Any:
        """The starting model with the adapters added to its weights in fp32; they also go to `directory`/adapter."""
        from peft import PeftModel

        adapters = directory / "adapter"
        self.lora.save_pretrained(adapters)
        base = self.adapter.load_model(self.path, torch.float32, self.config.training.attention)
        return PeftModel.from_pretrained(base, str(adapters)).merge_and_unload()


def noise_seed(run_seed: int, agent: str, step: int, rank: int) -> int:
    """Seed of the sampling noise of one agent, step and rank (63 bits): no state to save, no twins."""
    text = f"{run_seed}/{agent}/{step}/{rank}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1


def importance_metrics(drift: Tensor, mode: str, cap: float) -> dict[str, float]:
    """Importance-weight statistics of trained tokens; `drift` (T,) is log pi_train - log pi_engine. Empty for none."""
    if not len(drift):
        return {}
    weight = drift.exp().clamp(max=cap) if mode != "off" else torch.ones_like(drift)
    return {
        "importance_weight_mean": float(weight.mean()),
        "importance_weight_max": float(weight.max()),
        **{f"importance_{key}": value for key, value in grpo.importance_stats(drift, cap).items()},
    }


def learning_rate_share(step: int, total_steps: int, config: Config) -> float:
    """Learning rate after `step` finished steps as a share of the peak: linear warm-up, then the schedule."""
    settings = config.optimizer
    warmup = math.ceil(settings.warmup_ratio * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if settings.schedule == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    falling = 0.5 * (1 + math.cos(math.pi * progress)) if settings.schedule == "cosine" else 1 - progress
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * falling


def _adamw(parameters: list[torch.nn.Parameter], config: Config, lr: float | None) -> torch.optim.AdamW:
    settings = config.optimizer
    return torch.optim.AdamW(
        parameters,
        lr or settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def _rows(rollouts: Sequence[Rollout], batch: Sequence[tuple[int, int]]) -> Rows:
    groups = list(dict.fromkeys(group for group, _ in batch))
    place = {group: index for index, group in enumerate(groups)}
    return Rows(
        prompts=[rollouts[group].prompt for group in groups],
        prompt_of=[place[group] for group, _ in batch],
        completions=[rollouts[group].samples[k].ids for group, k in batch],
    )
