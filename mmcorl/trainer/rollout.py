"""Sampling: completions from the agent's current weights, kept with their tensors until the update."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mmcorl.algo.distillation import TeacherSpans
from mmcorl.algo.seeds import noise_seed
from mmcorl.answers.settings import AnswerSettings
from mmcorl.engines import build_engine
from mmcorl.engines.base import Sample, Sampling, SharedEngine
from mmcorl.engines.settings import ENGINES, EngineSettings, SamplingSettings
from mmcorl.errors import RunError
from mmcorl.labels.settings import SupervisionSettings
from mmcorl.policy.ema import Ema, share
from mmcorl.policy.lora import LORA
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import PromptEncoder, opens_thought
from mmcorl.policy.weights import hub_named, lower_frozen
from mmcorl.sharding.base import Shards
from mmcorl.system.timing import span
from mmcorl.trainer.checks import require_finite_logprobs
from mmcorl.trainer.completions import CompletionReader
from mmcorl.trainer.gpu_peak import GpuPeak
from mmcorl.trainer.microbatches import Rollout, RolloutBatch, Row
from mmcorl.trainer.settings import TrainingSettings
from mmcorl.types import Completion, Group, Prompt, Score
from model_adapters.base import Encoded

NO_ROLLOUT = {"rollout_seconds": 0.0, "sampled_completions": 0, "sampled_tokens": 0}
"""A rank's clock before the first rollout of a step."""


@dataclass(frozen=True)
class SamplerSettings:
    """Sections of the config that a sampler reads, and what follows from others."""

    engine: EngineSettings
    training: TrainingSettings
    sampling: SamplingSettings
    answers: AnswerSettings
    max_rows: int
    """Completions generated at once."""
    greedy_tokens: int
    """Longest completion of an evaluation."""
    probed: int
    """Completions of a probe prompt."""
    seed: int


class Sampler:
    """The engine of one rank, and how it follows the trained weights; agents on one base share one."""

    def __init__(
        self,
        settings: SamplerSettings,
        encoder: PromptEncoder,
        shards: Shards,
        device: torch.device,
        shared: SharedEngine | None = None,
    ):
        self.settings, self.encoder, self.shards = settings, encoder, shards
        engine, training = settings.engine, settings.training
        # An engine that samples from the model itself needs it whole: sharded modules gather their weights at every
        # call, so all ranks must call them equally often, which sampling cannot, as completions differ in length.
        self.copied = not ENGINES.find(engine.kind).own_weights and not shards.whole
        self.policy = shards.policy
        if self.copied:
            model = encoder.adapter.load_model(encoder.path, torch.float32, training.attention)
            model.requires_grad_(False)
            if training.dtype == "bf16":
                lower_frozen(model, encoder.adapter)
            self.policy = Policy(model, encoder.adapter, encoder.processor).to(device)
        self.engine = build_engine(
            engine,
            self.policy,
            encoder,
            shards.ranks,
            dtype=training.dtype,
            max_rows=settings.max_rows,
            shared=shared,
        )
        self.together = engine.tensor_parallel
        """Neighbouring ranks whose engines sample as one: they generate at the same times, some perhaps nothing."""
        self.gpu_peak = GpuPeak(device, self.engine)
        self.trains_everything = all(parameter.requires_grad for parameter in shards.policy.parameters())
        """Whether a sync replaces all weights, so that the engine may drop its own."""
        self.reader = CompletionReader(settings.answers, encoder.form, encoder.coordinates)

    def generate(
        self,
        prompts: Sequence[Prompt],
        encoded: Sequence[Encoded],
        n: int,
        sampling: Sampling,
        seed: int,
        *,
        during: str,
        until_sync: bool = False,
    ) -> list[list[Sample]]:
        """n samples of each prompt.

        Raises NotFiniteError, with agent, prompt and what was going on, where a log-probability is not a number; those
        of groups that the update will skip included. `until_sync`: see `Engine.sleep`.
        """
        if not encoded and self.together == 1:
            return []
        self.gpu_peak.note()
        with span("wake"):
            self.engine.wake()
        with span("decode"), self.policy.computing(self.settings.training):
            drawn = self.engine.generate(encoded, n, sampling, seed)
        self.gpu_peak.note()
        with span("sleep"):
            self.engine.sleep(until_sync)
        for prompt, samples in zip(prompts, drawn, strict=True):
            require_finite_logprobs(
                self.encoder.name, prompt, torch.cat([sample.logprobs for sample in samples]), during
            )
        return drawn

    def completions(self, prompt: Prompt, samples: Sequence[Sample]) -> tuple[Completion, ...]:
        """Decode the samples of a prompt and read their answers."""
        decode = partial(self.encoder.adapter.decode, self.shards.policy.processor)
        thinking = opens_thought(self.shards.policy.processor, self.encoder.encode(prompt))
        written = [
            Completion(
                decode(sample.ids.tolist()),
                None,
                len(sample.ids),
                sample.finish_reason,
                thinking=thinking,
                logprob=float(sample.logprobs.double().mean()),
            )
            for sample in samples
        ]
        return self.reader.read(prompt, written)

    def evaluate(self, prompts: Sequence[Prompt]) -> list[Completion]:
        """Return one greedy completion per prompt, in order."""
        greedy = Sampling(0.0, max_new_tokens=self.settings.greedy_tokens)
        completions: list[Completion] = []
        # In blocks, so that only one block's pixels are in memory.
        rows = max(1, self.settings.max_rows // self.together)
        most = len(prompts) if self.together == 1 else max(self.shards.ranks.gather(len(prompts)))
        for start in range(0, most, rows):
            block = prompts[start : start + rows]
            encoded = [self.encoder.encode(prompt) for prompt in block]
            drawn = self.generate(block, encoded, 1, greedy, seed=0, during="evaluation")
            completions += [self.completions(*each)[0] for each in zip(block, drawn, strict=True)]
        return completions

    def probe(self, prompts: Sequence[Prompt]) -> list[Group]:
        """K completions of each prompt as in training, in order.

        The seed is of this purpose alone and the same at each call: what differs between two calls is the weights.
        """
        seed = noise_seed(self.settings.seed, f"{self.encoder.name}/probe", 0, self.shards.ranks.rank)
        encoded = [self.encoder.encode(prompt) for prompt in prompts]
        sampling = in_training(self.settings.sampling)
        drawn = self.generate(prompts, encoded, self.settings.probed, sampling, seed, during="probe prompts")
        return [
            Group(prompt.uid, self.completions(prompt, samples)) for prompt, samples in zip(prompts, drawn, strict=True)
        ]

    def sync(self) -> dict[str, float]:
        """Let the engine see the weights as they are now; all ranks. Seconds it took, and GB given to the engine."""
        start, given = time.perf_counter(), 0

        def counted(weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
            nonlocal given
            for name, tensor in weights:
                given += tensor.nbytes
                yield name, tensor

        self.gpu_peak.note()
        with span("sync"):
            if self.copied:
                named = dict(self.policy.model.named_parameters(remove_duplicate=False))
                with torch.no_grad():
                    for name, tensor in counted(self.shards.weights()):
                        named[name].copy_(tensor)
            weights = self.shards.weights(merge=not self.engine.adapters)
            self.engine.sync(counted(hub_named(self.shards.policy.model, weights)))
        self.gpu_peak.note()
        return {"sync_seconds": time.perf_counter() - start, "sync_gb": given / 1e9}

    def renew(self) -> None:
        """Have the engine drop what it drops before an update and get it back by a sync; all ranks."""
        self.engine.wake()
        self.engine.sleep(self.trains_everything)
        self.sync()

    def check(self) -> None:
        """Raise RunError unless the engine computes with exactly the trainer's weights; all ranks."""

        def weights() -> Iterator[tuple[str, Tensor]]:
            # Everything an engine computes with but for adapters that it keeps beside the weights.
            named = self.shards.weights(everything=True, merge=not self.engine.adapters)
            return hub_named(self.shards.policy.model, (item for item in named if LORA not in item[0]))

        self.engine.check(weights)


def in_training(settings: SamplingSettings) -> Sampling:
    """Return how completions are drawn that are trained."""
    return Sampling(settings.temperature, settings.top_p, settings.top_k, settings.max_new_tokens)


class Rollouts:
    """The completions of the present step on this rank, from sampling until their update.

    `collect` makes an update's batch of some rollouts, on all ranks at once. Those of prompts that train other agents
    (`Prompt.trains`) do not wait. `completions` of a prompt are trained, with `episodes` one; `measured`: whether the
    reward needs entropy and self-certainty; `selected`: whether an update may be of some of them alone.
    """

    def __init__(
        self,
        sampler: Sampler,
        total_steps: int,
        ema: Ema | None,
        collect: Callable[[Sequence[Rollout]], RolloutBatch],
        *,
        supervision: SupervisionSettings,
        completions: int,
        episodes: bool,
        measured: bool,
        selected: bool = False,
    ):
        self.sampler, self.total_steps, self.ema, self.collect = sampler, total_steps, ema, collect
        self.seed, self.episodes, self.measured = sampler.settings.seed, episodes, measured
        self.selected = selected
        self.encoder, self.ranks = sampler.encoder, sampler.shards.ranks
        self.agent = self.encoder.name
        self.pending: dict[str, Rollout] = {}
        """What the next update trains, by prompt uid."""
        self.clock: dict[str, float] = dict(NO_ROLLOUT)
        """Seconds and amounts of the step's rollouts on this rank."""
        self._last: tuple[int, int] | None = None
        """Step of what is pending, and calls of `sample` that it came from."""
        self._longest = self.encoder.longest_prompt() if episodes else None
        self._sampling = in_training(sampler.settings.sampling)
        self._trained = 1 if episodes else completions
        self._votes = supervision.votes or self._trained
        self._ema_schedule = supervision.ema
        self._by_teacher = ema is not None and supervision.voter == "ema"

    def sample(self, prompts: Sequence[Prompt], step: int) -> list[Group]:
        """Sample the completions of a step; see `Worker.rollout`."""
        start = time.perf_counter()
        # Of an episode completions of earlier calls of this step wait here; anything else that waits is dropped.
        if not self.episodes or self._last is None or self._last[0] != step:
            self.pending, self._last = {}, (step, 0)
            self.clock = dict(NO_ROLLOUT)
        calls = self._last[1]
        seed = noise_seed(self.seed, f"{self.agent}/{calls}" if calls else self.agent, step, self.ranks.rank)
        with span("encode"):
            encoded = [self.encoder.encode(prompt) for prompt in prompts]
        self._require_room(prompts, encoded, step)
        drawn = self.sampler.generate(
            prompts,
            encoded,
            self._trained if self._by_teacher else max(self._trained, self._votes),
            self._sampling,
            seed,
            during=f"step {step}",
            until_sync=self.sampler.trains_everything and not self._by_teacher and not self.episodes,
        )
        if self.ema and not calls:
            self.ema.follow(share(step, self.total_steps, self._ema_schedule.start, self._ema_schedule.end))
        voting = self._from_teacher(prompts, encoded, step) if self._by_teacher else drawn
        trained = [samples[: self._trained] for samples in drawn]
        self.pending |= {
            prompt.uid: Rollout(inputs, samples)
            for prompt, inputs, samples in zip(prompts, encoded, trained, strict=True)
            if prompt.trains(self.agent)
        }
        self._last = step, calls + 1
        every = [sample for samples in (*drawn, *(voting if self._by_teacher else ())) for sample in samples]
        self.clock["sampled_completions"] += len(every)
        self.clock["sampled_tokens"] += sum(len(sample.ids) for sample in every)
        with span("answers"):
            groups = [self._group(*each) for each in zip(prompts, drawn, voting, strict=True)]
        if self.measured:
            groups = self._with_confidence(groups)
        self.clock["rollout_seconds"] += time.perf_counter() - start
        return groups

    def of(self, rewards: Mapping[str, Sequence[float]], step: int) -> list[Rollout]:
        """The pending rollouts in the order of `rewards`. Raises RuntimeError where the two do not belong together."""
        where = f"agent {self.agent!r}, step {step}"
        if odds := set(rewards) - set(self.pending) if self.selected else set(rewards) ^ set(self.pending):
            odd = sorted(odds)[0]
            raise RuntimeError(f"{where}: rewards and rollouts do not belong together, first at prompt {odd}")
        for uid, values in rewards.items():
            samples = self.pending[uid].samples
            # In an episode, the rewards of an agent's other conversations about the problem follow.
            if len(values) < len(samples) or (len(values) > len(samples) and not self.episodes):
                raise RuntimeError(f"{where}: {len(values)} rewards for {len(samples)} completions of prompt {uid}")
        return [self.pending[uid] for uid in rewards]

    def distil(self, scores: Mapping[str, Sequence[Score]]) -> None:
        """Align what a teacher gives the pending completions, by uid, with the tokens that were sampled."""
        decode = partial(self.encoder.adapter.decode, self.encoder.processor)
        for uid, row in scores.items():
            rollout = self.pending[uid]
            spans = [
                TeacherSpans.align(decode, sample.ids.tolist(), sample.finish_reason == "stop", score)
                for sample, score in zip(rollout.samples, row, strict=True)
            ]
            self.pending[uid] = replace(rollout, teacher=spans)

    def clear(self) -> None:
        self.pending, self._last = {}, None

    def _require_room(self, prompts: Sequence[Prompt], encoded: Sequence[Encoded], step: int) -> None:
        """Raise RunError for the first prompt of an episode that has become longer than prompts may be."""
        if self._longest is None:
            return
        for prompt, ids in zip(prompts, (prompt.input_ids for prompt in encoded), strict=True):
            if (length := len(ids)) > self._longest:
                raise RunError(
                    f"agent {self.agent!r}, step {step}: prompt {prompt.uid} (row {prompt.row_id!r}) has {length} "
                    f"tokens with what agents said before, limit {self._longest}: lower episode.shown_characters or "
                    "episode.references, let a workflow of your own show less, or raise data.max_prompt_tokens"
                )

    def _from_teacher(self, prompts: Sequence[Prompt], encoded: Sequence[Encoded], step: int) -> list[list[Sample]]:
        """Completions of the averaged teacher; an engine with weights of its own keeps those until the update."""
        assert self.ema is not None
        seed = noise_seed(self.seed, f"{self.agent}/teacher", step, self.ranks.rank)
        with self.ema.applied():
            self.sampler.sync()
            return self.sampler.generate(
                prompts,
                encoded,
                self._votes,
                self._sampling,
                seed,
                during=f"step {step}, averaged teacher",
                until_sync=self.sampler.trains_everything,
            )

    def _group(self, prompt: Prompt, samples: Sequence[Sample], voting: Sequence[Sample]) -> Group:
        completions = self.sampler.completions(prompt, samples)
        trained = completions[: self._trained]
        voters = self.sampler.completions(prompt, voting) if self._by_teacher else completions[: self._votes]
        return Group(prompt.uid, trained, voters if voters != trained else ())

    def _with_confidence(self, groups: Sequence[Group]) -> list[Group]:
        """The groups, those of the pending rollout with entropy and self-certainty of each completion; all ranks."""
        pending = [group for group in groups if group.uid in self.pending]
        batch = self.collect([self.pending[group.uid] for group in pending])
        with span("confidence"):
            measured = batch.score(self.sampler.shards.logprobs, confidence=True)

        def confidence(row: Row) -> dict[str, float]:
            entropy, certainty = measured[row].double().mean(dim=0).tolist()
            return {"entropy": entropy, "self_certainty": certainty}

        measured_groups = {
            group.uid: replace(
                group,
                completions=tuple(
                    replace(completion, confidence=confidence((number, k)))
                    for k, completion in enumerate(group.completions)
                ),
            )
            for number, group in zip(batch.local_groups, pending, strict=True)
        }
        return [measured_groups.get(group.uid, group) for group in groups]
