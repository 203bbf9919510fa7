"""The worker of one rank of an agent: the agent itself where there is one rank.

`Voter` samples and never learns, which is all that a frozen agent does; `Worker` trains as well. The K completions of a
prompt stay together on the rank that sampled them, with the tensors the update needs. What leaves are groups of strings
and floats. The parts: `models` loads, `rollout` samples, `microbatches` and `update` train, `weights_io` saves,
`checks` guards.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from mmcorl import sharding
from mmcorl.agent import WithoutCheckpoints, no_lookahead
from mmcorl.config import Config
from mmcorl.engines import max_rows
from mmcorl.engines.base import Sample
from mmcorl.interactions.base import EPISODE_PROBES
from mmcorl.policy.ema import Ema
from mmcorl.policy.lora import without_adapters
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.policy.settings import AgentSettings
from mmcorl.rewards import REWARDS
from mmcorl.sharding.base import Frozen, LogProbs, Shards
from mmcorl.sharding.ranks import ALONE, Ranks
from mmcorl.system import rss
from mmcorl.trainer import prefix_check, scoring, weights_io
from mmcorl.trainer.checks import MovementCheck, require_gradient
from mmcorl.trainer.cpu_offload import CpuOffload
from mmcorl.trainer.microbatches import DummyBatch, Rollout, RolloutBatch, UpdateSettings
from mmcorl.trainer.models import OneBase, load_policy, load_reference, training_of
from mmcorl.trainer.optimizer import adamw, learning_rate_factor
from mmcorl.trainer.profiler import Profiler
from mmcorl.trainer.rollout import Rollouts, Sampler, SamplerSettings
from mmcorl.trainer.throughput import peak_flops, rates, step_timings
from mmcorl.trainer.update import OptimizerStep, prepare, update_metrics
from mmcorl.types import Completion, Group, Prompt, Score


class Voter(WithoutCheckpoints):
    """Worker of one rank of a frozen agent; with one rank it is the agent, and implements `mmcorl.agent.Agent`.

    `rollout`, `update` and `evaluate` get this rank's prompts. `update`, `score`, `save`, `load`, `export`, and with an
    averaged teacher or a reward that is measured `rollout`, are called on all ranks at once, which then wait for each
    other; between calls a rank waits for nobody. The ranks have joined already; `total_steps` of the whole run are for
    the learning-rate schedule. `base`: where its policy shares weights with other agents'. Each rank holds all weights
    of a frozen agent.
    """

    def __init__(
        self,
        config: Config,
        encoder: PromptEncoder,
        total_steps: int,
        device: torch.device,
        ranks: Ranks = ALONE,
        base: OneBase | None = None,
    ):
        self.config, self.encoder, self.adapter = config, encoder, encoder.adapter
        self.name, self.ranks, self.device = encoder.name, ranks, device
        self.upcoming_prompts: Callable[[int], Sequence[Prompt]] = no_lookahead
        rss.before_models()
        self.training = training_of(config.training, encoder.settings)
        policy, self.lora = (
            base.policies[encoder.name]
            if base
            else load_policy(self.training, encoder, ranks, device, seed=config.seed)
        )
        if policy.beyond_head and not ranks.rank:
            print(
                f"{self.name}: banned ids {policy.beyond_head} are beyond the head, where nothing is sampled",
                file=sys.stderr,
            )
        self.sizes = [sharding.size_of(parameter) for parameter in policy.parameters()]
        """Elements of each parameter, whole."""
        self.ema: Ema | None = None
        self.shards = self._shards(policy, total_steps)
        self.sampler = Sampler(self._sampler_settings(), encoder, self.shards, device, base.engine if base else None)
        stop = Sample(torch.tensor(self.policy.stop_ids[:1]), torch.zeros(1), "stop")
        image = encoder.dummy(image=True) if self.adapter.multimodal else None
        self.dummy = DummyBatch(Rollout(encoder.dummy(image=False), [stop]), image)
        self.shared_prefix = prefix_check.decide(
            self.name, self.shards, self.dummy, self.training, config.sampling.temperature
        )
        prefix_check.log_vision_tower_path(self.name, self.shards, self.training)
        update_settings = UpdateSettings(config.objective, self.training, config.sampling, config.seed)
        self.collect = partial(RolloutBatch.collect, update_settings, self.shards, self.dummy, self.shared_prefix)
        self.rollouts = Rollouts(
            self.sampler,
            total_steps,
            self.ema,
            self.collect,
            supervision=config.supervision,
            completions=config.batch.completions,
            episodes=config.episode is not None,
            measured=bool(REWARDS.find(config.reward.kind).measured),
            selected=config.batch.refill > 0 or config.episode is not None,
        )
        self.timings: dict[str, float] = {}
        """Clocks and amounts of the last update, over all ranks; see `step_timings`."""
        self._rates: dict[int, dict[str, float | None]] = {}
        """Rates by step, until they are taken."""
        self._profiler: Profiler | None = None
        self.sampler.check()
        self._offload = CpuOffload(device, self.sampler.engine, self._resident) if config.time_sliced else None
        if self._offload:
            self._offload.leave(changed=True)

    def _shards(self, policy: Policy, total_steps: int) -> Shards:
        """Put the policy on its device, with whatever trains it."""
        return Frozen(policy, self.training, self.ranks, self.device)

    def _sampler_settings(self) -> SamplerSettings:
        config, batch = self.config, self.config.batch
        ranks = self.encoder.settings.ranks
        return SamplerSettings(
            config.engine,
            self.training,
            config.sampling,
            config.answers,
            max_rows=max_rows(config.engine, batch, config.supervision, ranks, config.training_sets),
            greedy_tokens=config.validation.max_new_tokens or config.sampling.max_new_tokens,
            # With episodes `completions` counts conversations, of which there may be one.
            probed=max(batch.completions, EPISODE_PROBES if config.episode else 1),
            seed=config.seed,
        )

    @property
    def policy(self) -> Policy:
        """The trained policy; its parameters may be divided among the ranks."""
        return self.shards.policy

    # -- called by the training loop -----------------------------------------------------------------------------

    def rollout(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample K completions of each prompt; their tensors wait here for `update`.

        With an episode one completion each, and what several calls of the same step sample waits together; `prompts`
        may then be empty on some ranks. Raises RunError for a prompt that grew too long, and NotFiniteError, with
        agent, step and prompt, where the model's probabilities are not numbers.
        """
        with self._working("rollout", step):
            return self.rollouts.sample(prompts, step)

    def update(
        self, rewards: Mapping[str, Sequence[float]], step: int, coming: Sequence[Prompt] | None = None
    ) -> dict[str, float]:
        """End a step: with a policy step on the pending rollout where the agent learns.

        `rewards` of this rank's prompts are joined by prompt uid. Prompts of this rank's next rollout are encoded
        meanwhile: `coming`, or those that `self.upcoming_prompts` knows. Returns the same on every rank: what the step
        measured, and `entropy`, the usual estimate of the entropy of the sampling distribution: minus the mean
        log-probability of the sampled tokens, in nats.
        """
        coming = self.upcoming_prompts(step + 1) if coming is None else coming
        with self._working("update", step, changes=bool(self.shards.trainable)), self.encoder.preparing(coming):
            metrics = self._update(rewards, step)
        peak = peak_flops(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
        moving = {"moving_seconds": self._offload.take_seconds()} if self._offload else {}
        self._rates[step] = rates(self.timings | moving, None if peak is None else peak * self.ranks.size)
        return metrics

    def _update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        start = time.perf_counter()
        batch = self.collect(self.rollouts.of(rewards, step))
        return {"frozen": True} | self._measured(batch, [], start, {"sync_seconds": 0.0, "sync_gb": 0.0})[1]

    def _measured(
        self, batch: RolloutBatch, steps: Sequence[OptimizerStep], start: float, sync: Mapping[str, float] | None = None
    ) -> tuple[list[Sequence[OptimizerStep]], dict[str, float]]:
        """Note the timings of a step that began at `start`; return the optimizer steps of each rank, and metrics."""
        rollouts = self.rollouts.pending.values()
        sampled = torch.cat([torch.zeros(0), *(sample.logprobs for rollout in rollouts for sample in rollout.samples)])
        self.rollouts.clear()
        clock = self.rollouts.clock | {"update_seconds": time.perf_counter() - start}
        if self.device.type != "cuda":
            clock["peak_process_gb"] = (rss.peak() - rss.before_models()) / 1e9
        clock |= self.sampler.sync() if sync is None else sync
        if self.device.type == "cuda":
            clock["peak_gpu_gb"] = self.sampler.gpu_peak.take() / 1e9
        by_rank = self.ranks.gather((steps, float(sampled.sum()), len(sampled), clock))
        all_steps, logprob_sums, tokens, clocks = zip(*by_rank, strict=True)
        self.timings = step_timings(batch.groups, all_steps, clocks, sum(self.sizes))
        # Sampled tokens estimate the entropy of every completion, those without a gradient included.
        # A frozen agent may have no trained reply in an episode.
        return list(all_steps), {"entropy": -sum(logprob_sums) / sum(tokens)} if sum(tokens) else {}

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        with self._working():
            return self.sampler.evaluate(prompts)

    def probe(self, prompts: Sequence[Prompt]) -> list[Group]:
        with self._working():
            return self.sampler.probe(prompts)

    def score(self, prompts: Sequence[Prompt], texts: Sequence[Sequence[str]]) -> list[tuple[Score, ...]]:
        with self._working():
            return scoring.score(self, prompts, texts)

    def distil(self, scores: Mapping[str, Sequence[Score]]) -> None:
        self.rollouts.distil(scores)

    # -- around the loop -----------------------------------------------------------------------------------------

    def facts(self) -> dict[str, str | int]:
        """Model, family and numbers of parameters, for the summary of the run."""
        return {
            "model": self.encoder.settings.model,
            "family": self.adapter.family,
            "parameters": sum(self.sizes),
            "trainable_parameters": sum(sharding.size_of(parameter) for parameter in self.shards.trainable),
        }

    def take_rates(self, step: int) -> dict[str, float | None]:
        """Seconds, throughput and MFU of a finished step over all ranks, once; see `mmcorl.trainer.throughput`."""
        return self._rates.pop(step)

    def profile(self, folder: Path) -> None:
        """Profile the next steps as `Config.profile` says; this rank's trace goes into `folder`."""
        assert self.config.profile is not None
        self._profiler = Profiler(self.config.profile, folder, self)

    def log_ratios(self, prompts: Sequence[Prompt], tokens: int) -> list[Tensor]:
        with self._working():
            return scoring.log_ratios(self, prompts, tokens)

    @contextlib.contextmanager
    def _working(self, call: str | None = None, step: int = 0, changes: bool = False) -> Iterator[None]:
        """Surround each call from outside: on the device where agents take turns on it, and profiled where asked."""
        with self._offload.working(changes) if self._offload else contextlib.nullcontext():
            with self._profiler.during(call, step) if self._profiler and call else contextlib.nullcontext():
                yield
            if self._profiler and self._profiler.done:
                self._profiler = None

    def _resident(self) -> Iterator[Tensor]:
        """Yield everything that stays on the device between calls."""
        yield from (*self.policy.parameters(), *self.policy.buffers())


class Worker(Voter):
    """Worker of one rank of an agent that learns: a `Voter` with optimizer, checkpoints and final weights."""

    def _shards(self, policy: Policy, total_steps: int) -> Shards:
        config, training, device = self.config, self.training, self.device
        objective, optimizer = config.objective, config.optimizer
        lr = self.encoder.settings.lr or optimizer.lr
        stepping = partial(adamw, settings=optimizer, training=training, lr=lr)
        shards = sharding.shard(policy, stepping, training, self.ranks, device, max_grad_norm=optimizer.max_grad_norm)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            shards.optimizer, lambda step: learning_rate_factor(step, total_steps, optimizer)
        )
        anchored = objective.has_reference and objective.kl_reference == "start"
        self.reference = load_reference(training, self.encoder, shards, device) if anchored and not self.lora else None
        if config.supervision.voter == "ema" or objective.kl_reference == "ema":
            self.ema = Ema(partial(shards.weights, merge=False), shards.load_state_dict)
        correction = objective.importance_correction
        if correction == "auto":
            correction = "token_truncate" if self.adapter.needs_importance_correction else "off"
        self.importance_correction = correction
        self._movement = MovementCheck(self.name, shards)
        return shards

    @property
    def optimizer(self) -> torch.optim.AdamW:
        """AdamW over what `shards` lets it see."""
        return self.shards.optimizer

    def _update(self, rewards: Mapping[str, Sequence[float]], step: int) -> dict[str, float]:
        start = time.perf_counter()
        batch = self.collect(self.rollouts.of(rewards, step))
        update = prepare(self.name, batch, list(rewards.values()), self.importance_correction, self._reference_policy())
        before = {} if self._movement.done else self._movement.values()
        steps = update.steps(step)
        self.schedule.step()
        all_steps, measured = self._measured(batch, steps, start)
        metrics = update_metrics(all_steps, self.config.objective, self.importance_correction) | measured
        pushed = any(bool(taken.tokens.pushed.any()) for rank in all_steps for taken in rank)
        require_gradient(self.name, step, metrics, pushed)
        if metrics["grad_norm"] and before:
            self._movement.require(before, step)
            self.sampler.check()
        return metrics

    @contextlib.contextmanager
    def _reference_policy(self) -> Iterator[LogProbs]:
        """The policy that the KL penalty holds to; low-rank training takes its adapters away for the starting one."""
        if self.reference is not None:
            yield self.reference
            return
        ema = self.ema if self.config.objective.kl_reference == "ema" else None
        with ema.applied() if ema else without_adapters(self.policy.model):
            yield self.shards.logprobs

    def save(self, directory: Path) -> float | None:
        with self._working():
            weights_io.save(self, directory)
            return self._movement.distance()

    def load(self, directory: Path) -> None:
        with self._working(changes=True):
            weights_io.load(self, directory)
            self.sampler.sync()

    def export(self, directory: Path) -> float | None:
        with self._working():
            weights_io.export(self, directory)
            return self._movement.distance()

    def _resident(self) -> Iterator[Tensor]:
        yield from super()._resident()
        if isinstance(self.reference, nn.Module):
            yield from (*self.reference.parameters(), *self.reference.buffers())
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def worker_of(settings: AgentSettings) -> type[Voter]:
    """Return the class of an agent's workers."""
    return Worker if settings.learns else Voter
