"""One rank of one agent: model, optimizer and engine; rollout, update, evaluate, save, load.

The K completions of a prompt stay together on the rank that sampled them, with the tensors the update needs. What
leaves are groups of strings and floats.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmcorl import sharding
from mmcorl.agent import nothing_known
from mmcorl.algo import loss
from mmcorl.algo.advantages import token_advantages
from mmcorl.algo.seeds import noise_seed
from mmcorl.answers import extract
from mmcorl.config import Config
from mmcorl.engines import ENGINES, build_engine
from mmcorl.engines.base import Sample, Sampling
from mmcorl.errors import RunError, UserError
from mmcorl.policy import ema
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import Reader
from mmcorl.policy.weights import checkpoint_dtype, hub_named, lower_frozen, write
from mmcorl.rewards import REWARDS
from mmcorl.sharding.lora import adapted_layers
from mmcorl.sharding.ranks import ALONE, Ranks
from mmcorl.sharding.whole_copy import WholeCopy
from mmcorl.system import rss
from mmcorl.system.timing import named
from mmcorl.trainer import prefix_check
from mmcorl.trainer.cpu_offload import CpuOffload
from mmcorl.trainer.profiler import Profiler
from mmcorl.trainer.throughput import peak_flops, rates
from mmcorl.trainer.update import Filler, OptimizerStep, Outline, Rollout, Row, Update, metrics
from mmcorl.types import Completion, Group, Prompt
from model_adapters.base import Encoded

LORA = "lora_"
"""In the names of peft's own weights, and of no others."""

NO_ROLLOUT = {"rollout_seconds": 0.0, "sampled_completions": 0, "sampled_tokens": 0}
"""What a rank's clock shows before the first rollout of a step."""


class Worker:
    """One rank of an agent; with one rank it is the agent, and implements `mmcorl.agent.Agent`.

    `rollout`, `update` and `evaluate` get this rank's prompts. `update`, `save`, `load`, `export`, and with an averaged
    teacher or a reward that is measured `rollout`, are called on all ranks at once, which then wait for each other;
    between calls a rank waits for nobody.

    Args:
        config: the run.
        reader: this agent's eyes: checkpoint path, adapter, processor and settings.
        total_steps: steps of the whole run, for the learning-rate schedule.
        device: where the model computes.
        ranks: the agent's ranks, already joined.
    """

    def __init__(
        self,
        config: Config,
        reader: Reader,
        total_steps: int,
        device: torch.device,
        ranks: Ranks = ALONE,
    ):
        self.config, self.reader, self.adapter = config, reader, reader.adapter
        self.name, self.path, self.ranks, self.device = reader.name, reader.path, ranks, device
        self.total_steps = total_steps
        rss.before_models()
        with sharding.loading(config, ranks, device):
            model: Any = self.adapter.load_model(reader.path, torch.float32, config.training.attention)
        policy = Policy(model, self.adapter, reader.processor)
        self.lora: Any = self._add_lora(policy) if config.training.lora else None
        if config.training.freeze_vision:
            for module in self.adapter.vision_modules(model):
                module.requires_grad_(False)
        self._lower(model)
        if config.training.gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        self.trains_everything = all(parameter.requires_grad for parameter in policy.parameters())
        self.sizes = [sharding.size_of(one) for one in policy.parameters()]
        """Elements of each parameter, whole."""
        self.shards = sharding.shard(policy, self._adamw, config, ranks, device)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: learning_rate_share(step, total_steps, config)
        )
        anchored = config.objective.kl_coef > 0 and config.objective.kl_reference == "start"
        self.reference = self._reference_model() if anchored and self.lora is None else None
        averages = config.supervision.voter == "ema" or config.objective.kl_reference == "ema"
        self.ema = ema.Ema(self.shards.weights(merge=False)) if averages else None
        self.copy = None
        if not ENGINES.find(config.engine.kind).own_weights and not self.shards.whole:
            self.copy = WholeCopy(config, reader, device)
        sampled = self.copy.policy if self.copy else self.policy
        self.engine = build_engine(config, sampled, reader)
        correction = config.objective.importance_correction
        if correction == "auto":
            correction = "token_truncate" if self.adapter.needs_importance_correction else "off"
        self.importance_correction = correction
        self.filler = self._filler()
        self.shared_prefix = prefix_check.decide(config, self.name, self.shards, self.filler)
        self._pending: dict[str, Rollout] = {}
        """What the next update trains, by prompt uid."""
        self._rolled_out: tuple[int, int] | None = None
        """Step of what is pending, and calls of `rollout` that it came from."""
        self._longest = reader.longest_prompt() if config.episode else None
        self._clock: dict[str, float] = dict(NO_ROLLOUT)
        """What this rank measured since the last update."""
        self.timings: dict[str, float] = {}
        self._rates: dict[int, dict[str, float | None]] = {}
        """By step, until they are taken."""
        self._has_moved = False
        self._profiler: Profiler | None = None
        self.coming: Callable[[int], Sequence[Prompt]] = nothing_known
        self.engine.check(self._all_weights)
        self._offload = CpuOffload(device, self.engine, self._resident) if config.time_sliced else None
        if self._offload:
            self._offload.leave(changed=True)

    @property
    def policy(self) -> Policy:
        """The trained policy; its parameters may be divided among the ranks."""
        return self.shards.policy

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """AdamW over what `shards` lets it see."""
        return self.shards.optimizer

    @property
    def trainable(self) -> list[nn.Parameter]:
        """Parameters that receive gradients."""
        return self.shards.trainable

    # -- what cotrain calls ----------------------------------------------------------------------------

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample K completions of each prompt; their tensors wait here for `update`.

        With an episode one completion each, and what several calls of the same step sample waits together; `prompts`
        may then be empty on some ranks. Raises RunError for a prompt that grew too long.

        Raises NotFiniteError, with agent, step and prompt, where the model's probabilities are not numbers.
        """
        with self._working("rollout", step):
            return self._rollout(prompts, step)

    def _rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        start = time.perf_counter()
        calls = self._calls_before(step)
        sampling = self.config.sampling
        name = f"{self.name}/{calls}" if calls else self.name
        seed = noise_seed(self.config.seed, name, step, self.ranks.rank)
        with named("encode"):
            encoded = [self.reader.encode(prompt) for prompt in prompts]
        self._require_room(prompts, encoded, step)
        how = Sampling(sampling.temperature, sampling.top_p, sampling.top_k, sampling.max_new_tokens)
        asked, conversing = self.config.supervision, self.config.episode is not None
        trained = 1 if conversing else self.config.batch.completions
        by_teacher = asked.voter == "ema"
        count = trained if by_teacher else max(trained, asked.votes or trained)
        until_sync = self.trains_everything and not by_teacher and not conversing
        drawn = self._generate(encoded, count, how, seed, until_sync)
        if self.ema and not calls:
            amount = ema.share(step, self.total_steps, asked.ema.start, asked.ema.end)
            self.ema.follow(self.shards.weights(merge=False), amount)
        voting = self._by_teacher(encoded, asked.votes or trained, how, step) if by_teacher else drawn
        for prompt, samples, others in zip(prompts, drawn, voting, strict=True):
            self._check(prompt, samples, f"step {step}")
            self._check(prompt, others, f"step {step}, averaged teacher")
        self._pending |= {
            prompt.uid: Rollout(one, samples[:trained])
            for prompt, one, samples in zip(prompts, encoded, drawn, strict=True)
        }
        self._rolled_out = step, calls + 1
        everything = [sample for one in ([*drawn, *voting] if by_teacher else drawn) for sample in one]
        self._clock["sampled_completions"] += len(everything)
        self._clock["sampled_tokens"] += sum(len(sample.ids) for sample in everything)
        groups = []
        with named("answers"):
            for prompt, samples, others in zip(prompts, drawn, voting, strict=True):
                completions = tuple(self._completion(sample) for sample in samples)
                voters = tuple(self._completion(sample) for sample in others) if by_teacher else completions
                voters = voters if voters != completions[:trained] else ()
                groups.append(Group(prompt.uid, completions[:trained], voters))
        if REWARDS.find(self.config.reward.kind).measured:
            groups = self._with_confidence(groups)
        self._clock["rollout_seconds"] += time.perf_counter() - start
        return groups

    def _calls_before(self, step: int) -> int:
        """Rollouts of this step whose completions wait already; where there are none, nothing is left to wait."""
        if self.config.episode is None or self._rolled_out is None or self._rolled_out[0] != step:
            self._pending, self._rolled_out = {}, (step, 0)
            self._clock |= NO_ROLLOUT
        assert self._rolled_out is not None
        return self._rolled_out[1]

    def _require_room(self, prompts: Sequence[Prompt], encoded: Sequence[Encoded], step: int) -> None:
        """Raise RunError for the first prompt of an episode that has become longer than prompts may be."""
        for prompt, one in zip(prompts, encoded, strict=True) if self._longest is not None else ():
            if self._longest is not None and (length := len(one.input_ids)) > self._longest:
                raise RunError(
                    f"agent {self.name!r}, step {step}: prompt {prompt.uid} (row {prompt.row_id!r}) has {length} "
                    f"tokens with what agents said before, limit {self._longest}: lower episode.shown_characters or "
                    "episode.references, or raise data.max_prompt_tokens"
                )

    def _by_teacher(self, encoded: Sequence[Encoded], n: int, how: Sampling, step: int) -> list[list[Sample]]:
        """Completions of the averaged teacher; an engine with weights of its own keeps those until the update."""
        seed = noise_seed(self.config.seed, f"{self.name}/teacher", step, self.ranks.rank)
        with self._as_teacher():
            self._sync()
            return self._generate(encoded, n, how, seed, until_sync=self.trains_everything)

    @contextlib.contextmanager
    def _as_teacher(self) -> Iterator[None]:
        """The averaged weights in place of the trained ones; all ranks."""
        assert self.ema is not None
        own = ema.copies(self.shards.weights(merge=False))
        self.shards.load_state_dict(self.ema.weights)
        try:
            yield
        finally:
            self.shards.load_state_dict(own)

    def update(
        self, rewards: Mapping[str, Sequence[float]], step: int, coming: Sequence[Prompt] | None = None
    ) -> dict[str, float]:
        """One policy step on the pending rollout; `rewards` of this rank's prompts are joined by prompt uid.

        Prompts of this rank's next rollout are encoded meanwhile: `coming`, or those that `self.coming` knows. What it
        returns is the same on every rank:
        `update.metrics`, and `entropy`, the usual estimate of the entropy of the sampling distribution: minus
        the mean log-probability of the sampled tokens, in nats.
        """
        coming = self.coming(step + 1) if coming is None else coming
        with self._working("update", step, changes=True), self.reader.preparing(coming):
            metrics = self._update(rewards, step)
        on_gpu = self.device.type == "cuda"
        peak = peak_flops(torch.cuda.get_device_name(self.device) if on_gpu else None)
        moving = {"moving_seconds": self._offload.take_seconds()} if self._offload else {}
        self._rates[step] = rates(self.timings | moving, None if peak is None else peak * self.ranks.size)
        return metrics

    def _update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        start = time.perf_counter()
        update = self._prepare(self._rollouts_of(rewards, step), list(rewards.values()))
        before = {} if self._has_moved else self._some_values()
        steps = update.steps(step)
        self.schedule.step()
        self._pending, self._rolled_out = {}, None
        own = [sample.logprobs for rollout in update.rollouts for sample in rollout.samples]
        sampled = torch.cat([torch.zeros(0), *own])
        self._clock["update_seconds"] = time.perf_counter() - start
        if self.device.type == "cuda":
            self._clock["peak_gpu_gb"] = torch.cuda.max_memory_allocated(self.device) / 1e9
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._clock["peak_process_gb"] = (rss.peak() - rss.before_models()) / 1e9
        self._sync()
        told = self.ranks.gather((steps, float(sampled.sum()), len(sampled), self._clock))
        self.timings = self._throughput(update, [one[0] for one in told], [one[3] for one in told])
        found = metrics([one[0] for one in told], self.config.objective.importance_cap)
        # Sampled tokens estimate the entropy of every completion, those without a gradient included.
        found["entropy"] = -sum(one[1] for one in told) / sum(one[2] for one in told)
        # Where every importance weight is masked, nothing is learned and nothing is wrong.
        if found["grad_norm"] == 0.0 and update.any_signal and found.get("importance_weight_mean", 1.0):
            raise RuntimeError(
                f"agent {self.name!r}, step {step}: advantages are not zero but no trainable parameter received a "
                "gradient; check training.freeze_vision and training.lora.target_modules"
            )
        if found["grad_norm"] and before:
            self._require_movement(before, step)
            self.engine.check(self._all_weights)
        return found

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """One greedy completion per prompt, in order."""
        with self._working():
            return self._evaluate(prompts)

    def _evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        longest = self.config.validation.max_new_tokens or self.config.sampling.max_new_tokens
        results: list[Completion] = []
        # In blocks, so that only one block's pixels are in memory.
        for start in range(0, len(prompts), self.config.engine.max_rows):
            block = prompts[start : start + self.config.engine.max_rows]
            encoded = [self.reader.encode(prompt) for prompt in block]
            drawn = self._generate(encoded, 1, Sampling(0.0, max_new_tokens=longest), seed=0)
            for prompt, samples in zip(block, drawn, strict=True):
                self._check(prompt, samples, "evaluation")
                results.append(self._completion(samples[0]))
        return results

    def log_ratios(self, prompts: Sequence[Prompt], tokens: int) -> list[Tensor]:
        """log pi_train - log pi_engine of each token of one completion per prompt, at most so many tokens each.

        Without an update in between, so that the weights are the same on both sides; see `parity.py`. All ranks.
        """
        with self._working():
            return self._log_ratios(prompts, tokens)

    def _log_ratios(self, prompts: Sequence[Prompt], tokens: int) -> list[Tensor]:
        sampling = self.config.sampling
        encoded = [self.reader.encode(prompt) for prompt in prompts]
        longest = min(tokens, sampling.max_new_tokens)
        seed = noise_seed(self.config.seed, f"{self.name}/parity", 0, self.ranks.rank)
        drawn = self._generate(
            encoded, 1, Sampling(sampling.temperature, sampling.top_p, sampling.top_k, longest), seed
        )
        for prompt, samples in zip(prompts, drawn, strict=True):
            self._check(prompt, samples, "comparison of engine and trainer, sampling")
        rollouts = [Rollout(one, samples) for one, samples in zip(encoded, drawn, strict=True)]
        scores = self._outlined(rollouts).score(self.shards.logprobs)
        # Groups are counted over all ranks, this rank's among them in their order.
        scored = [scores[row].cpu() for row in sorted(scores)]
        for prompt, one in zip(prompts, scored, strict=True):
            self._require_numbers(prompt, one, "comparison of engine and trainer, scoring")
        return [one - rollout.samples[0].logprobs for one, rollout in zip(scored, rollouts, strict=True)]

    def save(self, directory: Path) -> None:
        """Weights in fp32 (hub layout), processor, optimizer and schedule: everything `load` needs.

        Whole tensors, so that any number of ranks can load them, sharded in any way. Rank 0 writes.
        """
        with self._working():
            self._save(directory)

    def _save(self, directory: Path) -> None:
        state, optimizer = self.shards.state_dict(of=LORA if self.lora else ""), self.shards.optimizer_state()
        if self.ranks.rank == 0:
            directory.mkdir(parents=True)
            if self.lora is not None:
                self.lora.save_pretrained(directory, state_dict=self._named_by_peft(state))
            else:
                write(self.policy.model, directory, torch.float32, state)
            self.policy.processor.save_pretrained(directory)
            torch.save({"optimizer": optimizer, "schedule": self.schedule.state_dict()}, directory / "optimizer.pt")
            if self.ema:
                self.ema.save(directory)
        self.ranks.barrier()

    def load(self, directory: Path) -> None:
        """Take over weights, optimizer and schedule from `save`; sampling noise needs no state."""
        with self._working(changes=True):
            self._load(directory)

    def _load(self, directory: Path) -> None:
        if self.lora is not None:
            self.shards.load_state_dict(self._adapters_in(directory))
        else:
            saved = self.adapter.load_model(directory, torch.float32, self.config.training.attention)
            self.shards.load_state_dict(saved.state_dict())
        state = torch.load(directory / "optimizer.pt", map_location="cpu", mmap=True, weights_only=True)
        self.shards.load_optimizer_state(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.ema:
            self.ema.load(directory)
        self._sync()

    def export(self, directory: Path) -> None:
        """Weights and processor in Hugging Face format, in the dtype of the starting checkpoint.

        Low-rank adapters are merged in. Rounded to bf16 like any published checkpoint; `save` keeps the fp32 weights.
        Rank 0 writes.
        """
        with self._working():
            self._export(directory)

    def _export(self, directory: Path) -> None:
        state = self.shards.state_dict(of=LORA if self.lora else "")
        if self.ranks.rank == 0:
            directory.mkdir(parents=True)
            if self.lora is None:
                write(self.policy.model, directory, checkpoint_dtype(self.path), state)
            else:
                write(self._merged(directory, state), directory, checkpoint_dtype(self.path))
            self.policy.processor.save_pretrained(directory)
        self.ranks.barrier()

    # -- facts ---------------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str | int]:
        """What the summary says of this agent."""
        return {
            "model": self.reader.settings.model,
            "family": self.adapter.family,
            "parameters": sum(self.sizes),
            "trainable_parameters": sum(sharding.size_of(parameter) for parameter in self.trainable),
        }

    def take_rates(self, step: int) -> dict[str, float | None]:
        """Seconds, throughput and MFU of a finished step over all ranks, once; see `mmcorl.trainer.throughput`."""
        return self._rates.pop(step)

    def profile(self, folder: Path) -> None:
        """Profile the next steps as `Config.profile` says; this rank's trace goes into `folder`."""
        assert self.config.profile is not None
        self._profiler = Profiler(
            self.config.profile,
            folder,
            agent=self.name,
            ranks=self.ranks,
            device=self.device,
            dtype=self.config.training.dtype,
            timings=lambda: self.timings,
        )

    @contextlib.contextmanager
    def _working(self, call: str | None = None, step: int = 0, changes: bool = False) -> Iterator[None]:
        """Around each call from outside: on the device where agents take turns on it, and profiled where asked."""
        with self._offload.working(changes) if self._offload else contextlib.nullcontext():
            with self._profiler.during(call, step) if self._profiler and call else contextlib.nullcontext():
                yield
            if self._profiler and self._profiler.done:
                self._profiler = None

    def _resident(self) -> Iterator[Tensor]:
        """Everything that stays on the device between calls."""
        for module in (self.policy, self.reference):
            if isinstance(module, nn.Module):
                yield from (*module.parameters(), *module.buffers())
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    def _throughput(
        self, update: Update, steps: Sequence[Sequence[OptimizerStep]], clocks: Sequence[Mapping[str, float]]
    ) -> dict[str, float]:
        """What the slowest rank needed, and the amounts of all ranks together.

        `rollout_seconds`, `update_seconds`, `sync_seconds`; `sync_gb` of weights given to an engine that has its own;
        `peak_gpu_gb` of the fullest GPU, or on CPUs `peak_process_gb`, by which the largest rank's process has grown
        since before its first model; `sampled_completions` and `sampled_tokens`, those that only vote among them, and
        of those that are trained `completions` and `completion_tokens`; `update_tokens` that went forward and
        backward, prompts among them, padding not; `update_flops`, their arithmetic by the usual rule: 6
        operations per parameter and token, frozen ones and embeddings among them.
        """
        passed = sum(step.passed for rank in steps for step in rank)
        return {
            **{
                key: sum(one[key] for one in clocks) if key.startswith("sampled_") else max(one[key] for one in clocks)
                for key in clocks[0]
            },
            "prompts": len(update.groups),
            "completions": sum(len(group.lengths) for group in update.groups),
            "completion_tokens": sum(sum(group.lengths) for group in update.groups),
            "update_tokens": passed,
            "update_flops": 6.0 * sum(self.sizes) * passed,
        }

    # -- sampling ------------------------------------------------------------------------------------------

    def _generate(
        self, encoded: Sequence[Encoded], n: int, sampling: Sampling, seed: int, until_sync: bool = False
    ) -> list[list[Sample]]:
        if not encoded:
            return []
        with named("wake"):
            self.engine.wake()
        sampled = self.copy.policy if self.copy else self.policy
        with named("decode"), sampled.computing(self.config.training):
            drawn = self.engine.generate(encoded, n, sampling, seed)
        with named("sleep"):
            self.engine.sleep(until_sync)
        return drawn

    def _completion(self, sample: Sample) -> Completion:
        text = self.adapter.decode(self.policy.processor, sample.ids.tolist())
        answer = extract(text, sample.finish_reason).answer
        return Completion(text, answer, len(sample.ids), sample.finish_reason)

    def _check(self, prompt: Prompt, samples: Sequence[Sample], when: str) -> None:
        """Every log-probability is a number, those of groups that the update will skip included."""
        self._require_numbers(prompt, torch.cat([sample.logprobs for sample in samples]), when)

    def _require_numbers(self, prompt: Prompt, logprobs: Tensor, when: str) -> None:
        if not bool(logprobs.isfinite().all()):
            raise loss.NotFiniteError(
                f"agent {self.name!r}, {when}: the model gives prompt {prompt.uid} (row {prompt.row_id!r}) log-"
                "probabilities that are not finite, so its weights or its arithmetic are broken: check the checkpoint, "
                "go back to an earlier one, lower optimizer.lr or use training.dtype=fp32"
            )

    def _sync(self) -> None:
        """Let the engine see the weights as they are now; every rank takes part in putting them together."""
        with named("sync"):
            self._give_weights()

    def _give_weights(self) -> None:
        start, given = time.perf_counter(), 0

        def counted(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
            nonlocal given
            for name, tensor in weights:
                given += tensor.nbytes
                yield name, tensor

        if self.copy:
            self.copy.take(counted(self.shards.weights()))
        weights = self.shards.weights(merge=not self.engine.adapters)
        self.engine.sync(counted(hub_named(self.policy.model, weights)))
        self._clock |= {"sync_seconds": time.perf_counter() - start, "sync_gb": given / 1e9}

    def _all_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Everything an engine computes with but for adapters that it keeps beside the weights."""
        weights = self.shards.weights(everything=True, merge=not self.engine.adapters)
        return hub_named(self.policy.model, ((name, tensor) for name, tensor in weights if LORA not in name))

    # -- the update ----------------------------------------------------------------------------------------

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

    def _prepare(self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[float]]) -> Update:
        """What the optimizer steps need: all that was sampled, in outline, scores under other policies, advantages."""
        objective = self.config.objective
        update = self._outlined(rollouts)
        on_policy = objective.minibatches * objective.passes == 1
        in_reward = objective.kl_coef > 0 and objective.kl_in == "reward"
        old = None
        if not on_policy or in_reward:
            with named("old log-probs"):
                old = update.score(self.shards.logprobs)
        reference = None
        if self.reference is not None:
            with named("reference log-probs"):
                reference = update.score(self.reference)
        elif objective.kl_coef:
            held_to = self._as_teacher() if objective.kl_reference == "ema" else self._without_adapters()
            with named("reference log-probs"), held_to:
                reference = update.score(self.shards.logprobs)

        def divergence(row: Row, tokens: int) -> Tensor:
            if not in_reward or old is None or reference is None:
                return torch.zeros(tokens)
            return loss.kl_estimate(old[row], reference[row], objective.kl_estimator).cpu()

        outlines = {group: update.groups[group] for group in update.own}
        advantages = token_advantages(
            rewards,
            [
                [divergence((group, k), tokens) for k, tokens in enumerate(outline.lengths)]
                for group, outline in outlines.items()
            ],
            [outline.counted for outline in outlines.values()],
            objective,
            self.ranks,
        )
        return replace(update, old=None if on_policy else old, reference=reference).with_advantages(advantages)

    def _outlined(self, rollouts: Sequence[Rollout]) -> Update:
        """An update without advantages, for scoring: what all ranks sampled, in outline."""
        cut_off = {"length"} if self.config.objective.mask_truncated else {}
        own = [
            Outline(
                prompt=len(one.prompt.input_ids),
                lengths=tuple(len(sample.ids) for sample in one.samples),
                counted=tuple(sample.finish_reason not in cut_off for sample in one.samples),
            )
            for one in rollouts
        ]
        everyone = self.ranks.gather(own)
        return Update(
            agent=self.name,
            config=self.config,
            shards=self.shards,
            correction=self.importance_correction,
            filler=self.filler,
            rollouts=rollouts,
            groups=[outline for outlines in everyone for outline in outlines],
            owners=[rank for rank, outlines in enumerate(everyone) for _ in outlines],
            shared=self.shared_prefix,
        )

    def _with_confidence(self, groups: Sequence[Group]) -> list[Group]:
        """The groups of the pending rollout with what the reward wants to know of each completion; all ranks."""
        update = self._outlined([self._pending[group.uid] for group in groups])
        with named("confidence"):
            measured = update.score(self.shards.logprobs, confidence=True)

        def told(row: Row) -> dict[str, float]:
            entropy, certainty = measured[row].double().mean(dim=0).tolist()
            return {"entropy": entropy, "self_certainty": certainty}

        return [
            replace(
                group,
                completions=tuple(
                    replace(completion, confidence=told((number, k))) for k, completion in enumerate(group.completions)
                ),
            )
            for number, group in zip(update.own, groups, strict=True)
        ]

    @contextlib.contextmanager
    def _without_adapters(self) -> Iterator[None]:
        """The starting model: adapters count nothing.

        peft's own switch would also take their gradients away and give some back that were frozen.
        """
        layers = adapted_layers(self.policy.model).values()
        scales = [dict(layer.scaling) for layer in layers]
        try:
            for layer in layers:
                layer.scaling.update(dict.fromkeys(layer.scaling, 0.0))
            yield
        finally:
            for layer, own in zip(layers, scales, strict=True):
                layer.scaling.update(own)

    def _filler(self) -> Filler:
        stop = Sample(torch.tensor(self.policy.stop_ids[:1]), torch.zeros(1), "stop")
        picture = self.reader.filler(picture=True) if self.adapter.multimodal else None
        return Filler(Rollout(self.reader.filler(picture=False), [stop]), picture)

    def _some_values(self) -> dict[str, Tensor]:
        """Some elements of every trained weight of the language model, as this rank holds them."""
        decoder = {id(parameter) for parameter in self.adapter.decoder(self.policy.model).parameters()}
        values = {}
        for name, parameter in self.policy.model.named_parameters():
            if parameter.requires_grad and id(parameter) in decoder:
                flat = self.shards.held(parameter).flatten()
                values[name] = flat[:: max(1, len(flat) // 1024)].clone()
        return values

    def _require_movement(self, before: Mapping[str, Tensor], step: int) -> None:
        """An update that leaves most weights of the language model as they were has lost their gradients somewhere.

        Not all have to move: of two low-rank matrices the first step moves one, and norms may be too large for it.
        """
        after = self._some_values()
        told = self.ranks.gather([not torch.equal(after[name], value) for name, value in before.items()])
        moved = [any(ranks) for ranks in zip(*told, strict=True)]
        if 3 * sum(moved) < len(moved):
            still = next(name for name, has in zip(before, moved, strict=True) if not has)
            raise RuntimeError(
                f"agent {self.name!r}, step {step}: the first update changed only {sum(moved)} of {len(moved)} trained "
                f"tensors of the language model (not {still}, for one), so gradients are lost on their way: use "
                "another training.sharding"
            )
        self._has_moved = True

    # -- models and what is theirs -------------------------------------------------------------------------

    def _adamw(self, parameters: list[nn.Parameter]) -> torch.optim.AdamW:
        settings = self.config.optimizer
        return torch.optim.AdamW(
            parameters,
            self.reader.settings.lr or settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            # One pass over each weight and no temporaries; of divided ones other packages bring their own step.
            fused=True if self.config.training.sharding == "none" else None,
        )

    def _lower(self, model: nn.Module) -> None:
        # ZeRO-3 has divided the weights already, and sends matrices as bf16 anyway.
        if self.config.training.dtype == "bf16" and self.config.training.sharding != "zero3":
            lower_frozen(model, self.adapter)

    def _reference_model(self) -> Any:
        """The forward pass of the starting weights, for the KL term; low-rank training takes its adapters away."""
        with sharding.loading(self.config, self.ranks, self.device):
            model = self.adapter.load_model(self.path, torch.float32, self.config.training.attention)
        model.requires_grad_(False)
        self._lower(model)
        return self.shards.freeze(Policy(model, self.adapter, self.policy.processor))

    def _add_lora(self, policy: Policy) -> Any:
        """Put low-rank adapters into the model, in place; the wrapper is kept for saving."""
        from peft import LoraConfig, get_peft_model

        settings = self.config.training.lora
        assert settings is not None
        modules = settings.target_modules
        # peft draws the adapters' first matrices from the global generator: the same on every rank.
        torch.manual_seed(noise_seed(self.config.seed, self.name, 0, 0))
        try:
            return get_peft_model(
                policy.model,
                LoraConfig(
                    r=settings.rank,
                    lora_alpha=settings.alpha,
                    lora_dropout=0.0,
                    target_modules=modules if isinstance(modules, str) else list(modules),
                ),
            )
        except ValueError as error:
            reason = str(error).split(". ")[0]
            raise UserError(
                f"training.lora.target_modules={modules!r} does not fit agent {self.name!r} ({reason}): "
                "name layers of the model, or use all-linear"
            ) from error

    def _named_by_peft(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The model's tensors by the names that its peft wrapper has for them."""
        inside = next(name for name, module in self.lora.named_modules() if module is self.policy.model)
        return {f"{inside}.{name}": tensor for name, tensor in state.items()}

    def _adapters_in(self, directory: Path) -> dict[str, Tensor]:
        """The adapters that `save` wrote, by their names in the model."""
        from peft.utils import get_peft_model_state_dict, load_peft_weights

        saved = load_peft_weights(str(directory), device="cpu")
        # What peft makes of a name is learned with empty tensors.
        empty = {name: torch.empty(0) for name, _ in self.policy.model.named_parameters() if LORA in name}
        written = get_peft_model_state_dict(self.lora, state_dict=self._named_by_peft(empty))
        names = {id(tensor): name for name, tensor in empty.items()}
        return {names[id(tensor)]: saved[name] for name, tensor in written.items()}

    def _merged(self, directory: Path, state: Mapping[str, Tensor]) -> Any:
        """The starting model with the adapters added to its weights in fp32; they also go to `directory`/adapter."""
        from peft import PeftModel

        adapters = directory / "adapter"
        self.lora.save_pretrained(adapters, state_dict=self._named_by_peft(state))
        base = self.adapter.load_model(self.path, torch.float32, self.config.training.attention)
        return PeftModel.from_pretrained(base, str(adapters)).merge_and_unload()


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
