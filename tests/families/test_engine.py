"""The transformers engine draws from the model's own distribution and reports its probabilities, checked against
transformers."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, each_family, load, noise, plain_inputs
from mmcorl.engines.base import Sample, Sampling
from mmcorl.engines.kv_cache import KeyValueCache
from mmcorl.engines.token_sampling import draw, inverse_transform
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.policy.policy import Policy
from mmcorl.trainer.settings import TrainingSettings
from mmcorl.types import Prompt
from model_adapters.base import Encoded
from model_adapters.images import load_image
from worker_parts import Reference, encoded, mixed_prompts, prompt

ALL = (*VISION_FAMILIES, *TEXT_FAMILIES)


class Bench:
    """An engine on a tiny checkpoint, with the plain model it must agree with."""

    def __init__(self, family: str, checkpoints: Mapping[str, Path], max_rows: int = 256):
        self.family, self.loaded = family, load(family, checkpoints[family])
        self.policy = Policy(self.loaded.model, self.loaded.adapter, self.loaded.processor)
        self.engine = TransformersEngine(self.policy, max_rows)
        self.decoder = self.loaded.adapter.decoder(self.loaded.model)
        # Beside short prompts, one beyond Gemma-3's tiny sliding window of 64 tokens, with an image where possible.
        images = () if family in TEXT_FAMILIES else (noise(56, 56, 3),)
        self.prompts = [*mixed_prompts(family), prompt("How many dots, dice and bars are there? " * 8, *images)]

    def encode(self, prompts: Sequence[Prompt]) -> list[Encoded]:
        return encoded(self.loaded, prompts)

    def draw(self, prompts: Sequence[Prompt], n: int, seed: int = 0, **sampling: Any) -> list[list[Sample]]:
        return self.engine.generate(self.encode(prompts), n, Sampling(**sampling), seed)

    @property
    def vocabulary(self) -> int:
        return self.loaded.model.config.get_text_config().vocab_size

    @torch.no_grad()
    def assert_logprobs(self, prompts: list[Prompt], samples: list[list[Sample]], temperature: float = 1.0) -> None:
        """Against one unpadded plain forward per completion."""
        reference = Reference(self.loaded, prompts, samples)
        for group, members in enumerate(samples):
            for k, sample in enumerate(members):
                assert torch.allclose(sample.logprobs, reference.logp(group, k, temperature), atol=1e-5)

    def count_rows(self) -> list[int]:
        """Rows of each of the engine's decoder passes from now on, prefills included; transformers' own pass ids."""
        rows: list[int] = []

        def count(_: Any, args: Any, kwargs: Any) -> None:
            if kwargs.get("inputs_embeds") is not None:
                rows.append(len(kwargs["inputs_embeds"]))

        self.decoder.register_forward_pre_hook(count, with_kwargs=True)
        return rows

    def generate(self, item: Prompt, stops: tuple[int, ...], limit: int) -> list[int]:
        """What transformers generates greedily, the stop token included."""
        inputs = plain_inputs(self.loaded, (item.text, tuple(load_image(data) for data in item.images)))
        if self.family in TEXT_FAMILIES:
            inputs.pop("token_type_ids", None)  # Some tokenizers return them and no text model here takes them.
        new = self.loaded.model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=limit,
            eos_token_id=list(stops),
            pad_token_id=stops[0],
            suppress_tokens=self.policy.banned.tolist() or None,
        )[0, inputs["input_ids"].shape[1] :].tolist()
        ends = [i for i, token in enumerate(new) if token in stops]
        return new[: ends[0] + 1] if ends else new


def assert_same(samples: Sequence[Sample], expected: Sequence[Sample], limit: int | None = None) -> None:
    for a, b in zip(samples, expected, strict=True):
        assert torch.equal(a.ids, b.ids[:limit])
        assert torch.allclose(a.logprobs, b.logprobs[:limit], atol=1e-5)


# -- the model's distribution ------------------------------------------------------------------------------------


@each_family(*ALL)
def test_logprobs_are_those_of_a_plain_forward(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Ragged prompts with 0, 1 and 2 images in one call."""
    bench = Bench(family, tiny_checkpoints)
    lengths = [len(item.input_ids) for item in bench.encode(bench.prompts)]
    assert max(lengths) > 64 > min(lengths)
    for temperature in (1.0, 0.6):
        samples = bench.draw(bench.prompts, 3, temperature=temperature, max_new_tokens=12)
        assert [len(members) for members in samples] == [3] * 4
        bench.assert_logprobs(bench.prompts, samples, temperature)


def test_generation_goes_beyond_the_sliding_window(tiny_checkpoints: Mapping[str, Path]) -> None:
    bench, prompts = Bench("gemma3", tiny_checkpoints), mixed_prompts("gemma3")
    assert bench.loaded.model.config.get_text_config().sliding_window == 64
    samples = bench.draw(prompts, 2, max_new_tokens=90)
    assert max(len(sample.ids) for members in samples for sample in members) > 64
    bench.assert_logprobs(prompts, samples)


def test_tokens_are_drawn_as_often_as_the_model_says(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Chi-square of 20,000 first tokens; bins of expected count below 10 are joined. Both tails: 4 sigma."""
    bench = Bench("qwen2_5_vl", tiny_checkpoints, max_rows=20_000)
    item = bench.prompts[0]
    reference = Reference(bench.loaded, [item], [[Sample(torch.tensor([0]), torch.zeros(1), "length")]])
    with torch.no_grad():
        expected = 20_000 * reference.logits(0, 0, 1.0)[0].softmax(-1).double()
    (samples,) = bench.draw([item], 20_000, seed=3, max_new_tokens=1)
    counts = torch.bincount(torch.stack([sample.ids[0] for sample in samples]), minlength=bench.vocabulary).double()
    rare = expected < 10
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    freedom = len(expected) - 1
    assert freedom > 100
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4


@each_family(*ALL)
def test_greedy_is_what_transformers_generates(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Token for token, also with a stop token that the model does produce; the seed is ignored, n gives copies."""
    bench = Bench(family, tiny_checkpoints)
    free = bench.draw(bench.prompts, 1, temperature=0.0, max_new_tokens=10)
    stop = int(free[0][0].ids[4])
    for stops in (bench.policy.stop_ids, (*bench.policy.stop_ids, stop)):
        bench.policy.stop_ids = stops
        samples = bench.draw(bench.prompts, 2, seed=len(stops), temperature=0.0, max_new_tokens=10)
        for item, (sample, copy) in zip(bench.prompts, samples, strict=True):
            expected = bench.generate(item, stops, 10)
            assert sample.ids.tolist() == copy.ids.tolist() == expected
            assert sample.finish_reason == ("stop" if expected[-1] in stops else "length")
    assert samples[0][0].finish_reason == "stop"
    assert len(samples[0][0].ids) <= 5


# -- one draw, by hand -------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([1.0, 4.0, 16.0, 64.0])  # at temperature 2: 1, 2, 4, 8 of 15


def uniform(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


# (sampling, banned tokens, probabilities)
FILTERS: list[tuple[Sampling, tuple[int, ...], tuple[float, ...]]] = [
    (Sampling(1.0), (), (1 / 85, 4 / 85, 16 / 85, 64 / 85)),
    (Sampling(2.0, top_k=2), (), (0, 0, 1 / 3, 2 / 3)),
    (Sampling(2.0, top_k=9), (), (1 / 15, 2 / 15, 4 / 15, 8 / 15)),
    # The best has 8/15 = 0.53: alone enough for 0.5, not for 0.7; with the second 12/15 = 0.8.
    (Sampling(2.0, top_p=0.5), (), (0, 0, 0, 1)),
    (Sampling(2.0, top_p=0.7), (), (0, 0, 1 / 3, 2 / 3)),
    (Sampling(2.0, top_p=0.81), (), (0, 2 / 14, 4 / 14, 8 / 14)),
    # Top-k first: 8/14 = 0.57 does not reach 0.6, two reach 12/14.
    (Sampling(2.0, top_k=3, top_p=0.6), (), (0, 0, 1 / 3, 2 / 3)),
    # Banned before everything else: the two that are left at top_k 2 are the next ones.
    (Sampling(2.0, top_k=2), (3,), (0, 1 / 3, 2 / 3, 0)),
]


def test_temperature_top_k_and_top_p() -> None:
    n = 30_000
    for sampling, banned, expected in FILTERS:
        logits = WEIGHTS.log().expand(n, -1).clone()
        tokens, logprobs = draw(logits, sampling, torch.tensor(banned, dtype=torch.long), uniform(n))
        probabilities = torch.tensor(expected, dtype=torch.float32)
        assert torch.allclose(logprobs, probabilities.log()[tokens], atol=1e-5)  # Also: nothing of probability 0.
        # 4 standard errors of a share: 4 sqrt(0.25 / 30000) = 0.0115
        assert torch.allclose(torch.bincount(tokens, minlength=4) / n, probabilities, atol=0.0115)


def test_greedy_and_ties() -> None:
    """The likeliest token not banned, its log-probability at temperature 1: ln(16 / 21). Ties at top-k all stay."""
    tokens, logprobs = draw(WEIGHTS.log()[None].clone(), Sampling(0.0), torch.tensor([3]), uniform(1))
    assert tokens.tolist() == [2]
    assert float(logprobs) == pytest.approx(math.log(16 / 21))
    logits = torch.tensor([0.0, 1.0, 1.0, 2.0]).expand(500, -1).clone()
    tokens, _ = draw(logits, Sampling(top_k=2), torch.tensor([], dtype=torch.long), uniform(500))
    assert set(tokens.tolist()) == {1, 2, 3}


def test_noise_picks_by_running_sums() -> None:
    """Shares 1/4 and 3/4, in one block of 256 and in two; nothing without weight, whatever the noise."""
    uniform_noise = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53], dtype=torch.float64)
    for size, light, heavy in ((4, 1, 3), (1000, 300, 999), (1000, 300, 301)):
        weights = torch.zeros(4, size)
        weights[:, light], weights[:, heavy] = 0.25, 0.75
        assert inverse_transform(weights, uniform_noise).tolist() == [light, light, heavy, heavy]
    # Not finite: some token, and `draw` gives it a log-probability that is NaN.
    nothing = torch.tensor([], dtype=torch.long)
    token, logprob = draw(torch.full((1, 300), torch.nan), Sampling(), nothing, uniform_noise[:1])
    assert 0 <= int(token) < 300
    assert bool(logprob.isnan())
    # 10,000 tokens of e^-12 beside one of 1: all of them together have 0.0614 / 1.0614 of the mass.
    logits = torch.full((1, 10_001), -12.0)
    logits[0, 0] = 0.0
    rare = 1e4 * math.exp(-12)
    mass = rare / (1 + rare)
    for share, expected in ((1 - mass * 1.001, 0), (1 - mass * 0.5, 5_000), (1 - mass * 1e-9, 10_000)):
        token, logprob = draw(logits.clone(), Sampling(), nothing, torch.tensor([share], dtype=torch.float64))
        assert abs(int(token) - expected) <= 1
        # torch sums the softmax in fp32: 3e-5 off.
        assert float(logprob) == pytest.approx((-12.0 if expected else 0.0) - math.log1p(rare), abs=1e-4)


# -- media tokens, stops, lengths --------------------------------------------------------------------------------


@each_family(*ALL)
def test_media_tokens_are_never_drawn_and_stops_end_rows(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """10,000 tokens at temperature 1000, which is uniform over about 450 ids: each id is expected 22 times."""
    bench = Bench(family, tiny_checkpoints)
    (samples,) = bench.draw(bench.prompts[:1], 2500, temperature=1000.0, max_new_tokens=4)
    stops = set(bench.policy.stop_ids)
    for sample in samples:
        ids = sample.ids.tolist()
        assert len(sample.logprobs) == len(ids)
        assert not stops & set(ids[:-1])
        assert sample.finish_reason == ("stop" if ids[-1] in stops else "length")
        assert sample.finish_reason == "stop" or len(ids) == 4
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}
    assert bench.draw([], 4) == []
    counts = torch.bincount(torch.cat([sample.ids for sample in samples]), minlength=bench.vocabulary)
    banned = bench.policy.banned.tolist()
    if family in VISION_FAMILIES:
        assert bench.loaded.adapter.image_token_id(bench.loaded.model.config) in banned
    assert not stops & set(banned)
    assert counts[banned].sum() == 0
    assert (counts[list(stops)] > 0).all()
    assert int((counts > 0).sum()) > 0.98 * (bench.vocabulary - len(banned))


# -- work done ---------------------------------------------------------------------------------------------------


@each_family(*ALL)
def test_the_cache_has_the_dtype_of_autocast(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """bf16 under autocast, half the memory; attention sees the same numbers, so states are equal bit for bit."""
    bench = Bench(family, tiny_checkpoints)
    adapter, model, encoded = bench.loaded.adapter, bench.loaded.model, bench.encode(mixed_prompts(family))
    results = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, inside = bench.engine._prefill_part(encoded)
        for cache in (KeyValueCache(bench.decoder.config, torch.bfloat16), DynamicCache()):
            for start, end in ((0, 2), (2, 3), (3, 4)):
                positions = torch.arange(start, end).expand(len(encoded[0].positions), 1, -1)
                output = bench.decoder(
                    **adapter.decoder_inputs(model, torch.arange(301 + start, 301 + end)[None], None),
                    position_ids=positions[0] if len(positions) == 1 else positions,
                    past_key_values=cache,
                    use_cache=True,
                )
                results.append(output.last_hidden_state[:, -1])
    with torch.no_grad():
        _, outside = bench.engine._prefill_part(encoded)
    assert torch.equal(torch.cat(results[:3]), torch.cat(results[3:]))
    for cache, dtype in ((inside, torch.bfloat16), (outside, torch.float32)):
        assert {states.dtype for layer in cache.layers for states in (layer.keys, layer.values)} == {dtype}


class Casts(TorchDispatchMode):
    """Counts how often each weight is cast."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.weights = {one.data_ptr() for one in policy.parameters()}
        self.count: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self.weights:
            self.count[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_weights_are_cast_once_per_generation(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    bench = Bench(family, tiny_checkpoints)
    settings = TrainingSettings(dtype="bf16")
    with bench.policy.computing(settings), Casts(bench.policy) as casts:
        samples = bench.draw(bench.prompts, 2, max_new_tokens=6)
    assert len(casts.count) >= 2 * 7  # projections of two layers; of the head as well where it is not the embedding
    assert set(casts.count.values()) == {1}
    # In inference mode, where each is cast at every token, the samples are the same.
    with bench.policy.computing(settings), torch.inference_mode():
        others = bench.draw(bench.prompts, 2, max_new_tokens=6)
    for group, other in zip(samples, others, strict=True):
        for one, two in zip(group, other, strict=True):
            assert torch.equal(one.ids, two.ids)
            assert torch.equal(one.logprobs, two.logprobs)


def test_prompts_go_in_batches_of_max_rows_and_images_are_encoded_once(tiny_checkpoints: Mapping[str, Path]) -> None:
    """4 prompts of 2 samples: 5 rows are 2 prompts, 1 row still is one prompt. The order stays."""
    for max_rows, batches in ((100, 1), (5, 2), (1, 4)):
        bench = Bench("internvl3_5", tiny_checkpoints, max_rows)
        passes, patches = bench.count_rows(), []

        def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], patches: list[int] = patches) -> None:
            patches.append(len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))))

        bench.loaded.adapter.vision_modules(bench.loaded.model)[0].register_forward_pre_hook(count, with_kwargs=True)
        bench.draw(bench.prompts, 2, max_new_tokens=1)
        assert len(passes) == batches
        encoded = bench.encode(bench.prompts)
        assert sum(patches) == sum(len(item.vision["pixel_values"]) for item in encoded if item.vision)
        samples = bench.draw(bench.prompts, 2, temperature=0.0, max_new_tokens=5)
        if batches == 1:
            whole = samples
        for members, expected in zip(samples, whole, strict=True):
            assert_same(members, expected)


@each_family(*ALL)
def test_prefills_keep_to_their_budget(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Four prompts of different lengths, prefilled one or two at a time into one cache: the same completions."""
    bench = Bench(family, tiny_checkpoints)
    whole = [bench.draw(bench.prompts, 2, temperature=t, max_new_tokens=8) for t in (0.0, 1.0)]
    lengths = sorted(len(item.input_ids) for item in bench.encode(bench.prompts))
    prefilled: list[int] = []

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows, width, _ = kwargs["inputs_embeds"].shape
        if width > 1:
            prefilled.append(rows * width)

    bench.decoder.register_forward_pre_hook(count, with_kwargs=True)
    for budget, parts in ((1, lengths), (2 * lengths[1], None), (4 * lengths[3], [4 * lengths[3]])):
        bench.engine.prefill_tokens = budget
        for expected, temperature in zip(whole, (0.0, 1.0), strict=True):
            prefilled.clear()
            samples = bench.draw(bench.prompts, 2, temperature=temperature, max_new_tokens=8)
            assert prefilled == parts if parts else prefilled[0] == 2 * lengths[1] and len(prefilled) in (2, 3)
            for members, reference in zip(samples, expected, strict=True):
                assert_same(members, reference)


def test_generation_ends_with_the_last_row_to_stop(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Rows that stopped early stay stopped; however seldom the engine checks, the completions are the same.

    Uniform over about 450 ids of which 60 stop: a row lives for 7.5 tokens, and no two stop together for long.
    """
    bench = Bench("qwen2", tiny_checkpoints)
    bench.policy.stop_ids = tuple(range(100, 160))
    passes = bench.count_rows()
    drawn = {}
    for interval in (1, 5, 1000):
        passes.clear()
        bench.engine.stop_check_interval = interval
        drawn[interval] = list(itertools.chain(*bench.draw(bench.prompts[:3], 2, temperature=1e4, max_new_tokens=60)))
        longest = max(len(sample.ids) for sample in drawn[interval])
        # The prefill gives the first token: as many passes as tokens, up to the next check.
        assert len(passes) == min(60, -(-longest // interval) * interval)
        assert_same(drawn[interval], drawn[1])
    assert len({len(sample.ids) for sample in drawn[1]}) > 1
    assert {sample.finish_reason for sample in drawn[1]} == {"stop"}


@each_family(*ALL)
def test_rows_that_have_ended_leave_the_batch(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """A token in 30 ends a row, the last ones leave Gemma-3's window; without leaving, the same completions."""
    bench = Bench(family, tiny_checkpoints)
    bench.policy.stop_ids = tuple(range(300, 315))
    rows = bench.count_rows()
    samples = bench.draw(bench.prompts, 3, max_new_tokens=70)
    assert len({len(sample.ids) for members in samples for sample in members}) > 5
    assert rows[1] == 12
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert len(set(rows[1:])) > 3
    passes = len(rows)
    bench.engine.compact_at = 0.0
    rows.clear()
    for members, expected in zip(bench.draw(bench.prompts, 3, max_new_tokens=70), samples, strict=True):
        assert_same(members, expected)
    assert set(rows[1:]) == {12}
    assert len(rows) == passes
    bench.assert_logprobs(bench.prompts, samples)


# -- noise -------------------------------------------------------------------------------------------------------


def test_noise_depends_on_seed_prompt_and_sample_alone(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Equal seeds give equal samples, with other batches, limits and prompts after them too."""
    bench = Bench("qwen2_5_vl", tiny_checkpoints, max_rows=8)

    def ids(seed: int) -> list[tuple[int, ...]]:
        torch.manual_seed(seed * 7 + 1)  # The global generator has no say.
        drawn = bench.draw(bench.prompts, 3, seed=seed, max_new_tokens=8)
        return [tuple(sample.ids.tolist()) for members in drawn for sample in members]

    assert ids(5) == ids(5)
    assert ids(5) != ids(6)
    assert len(set(ids(5))) == 12  # No two samples share their noise.
    whole = Bench("qwen2_5_vl", tiny_checkpoints).draw(bench.prompts, 3, seed=2, max_new_tokens=8)
    for max_rows, shown, limit in ((1, 4, 8), (6, 4, 8), (256, 2, 8), (256, 4, 5)):
        part = Bench("qwen2_5_vl", tiny_checkpoints, max_rows)
        drawn = part.draw(bench.prompts[:shown], 3, seed=2, max_new_tokens=limit)
        for members, expected in zip(drawn, whole, strict=False):
            assert_same(members, expected, limit)
