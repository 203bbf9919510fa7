"""The engine draws from the model's own distribution and says with what probability: checked against transformers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, load, noise, plain_inputs
from mmcorl.engines.base import Sample, Sampling
from mmcorl.engines.kv_cache import KeyValueCache
from mmcorl.engines.token_sampling import draw, inverse_transform
from mmcorl.engines.transformers import TransformersEngine
from mmcorl.policy.policy import Policy
from mmcorl.types import Prompt
from model_adapters.base import Encoded
from model_adapters.images import load_image
from worker_parts import Reference, mixed_prompts, prompt

FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)
NONE = torch.tensor([], dtype=torch.long)


class Bench:
    """An engine on a tiny checkpoint beside the plain model it must agree with."""

    def __init__(self, family: str, path: Path, max_rows: int = 256):
        self.family, self.loaded = family, load(family, path)
        self.policy = Policy(self.loaded.model, self.loaded.adapter, self.loaded.processor)
        self.engine = TransformersEngine(self.policy, max_rows)

    def encode(self, prompts: list[Prompt]) -> list[Encoded]:
        return [
            self.loaded.adapter.encode(self.loaded.processor, one.text, [load_image(data) for data in one.images])
            for one in prompts
        ]

    def draw(self, prompts: list[Prompt], n: int, seed: int = 0, **sampling: Any) -> list[list[Sample]]:
        return self.engine.generate(self.encode(prompts), n, Sampling(**sampling), seed)

    @property
    def vocabulary(self) -> int:
        return self.loaded.model.config.get_text_config().vocab_size

    def distribution(self, one: Prompt) -> Tensor:
        """Probabilities of the first token, (V,), by one plain forward."""
        reference = Reference(self.loaded, [one], [[Sample(torch.tensor([0]), torch.zeros(1), "length")]])
        with torch.no_grad():
            return reference.logits(0, 0, 1.0)[0].softmax(-1).double()

    def generate(self, one: Prompt, stops: tuple[int, ...], limit: int) -> list[int]:
        """What transformers generates greedily, the stop token included."""
        images = tuple(load_image(data) for data in one.images)
        inputs = plain_inputs(self.loaded, (one.text, images))
        if self.family in TEXT_FAMILIES:
            inputs.pop("token_type_ids", None)  # Some tokenizers give them and no text model here takes them.
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


def long_prompts(family: str) -> list[Prompt]:
    """Beside the short ones, one beyond Gemma-3's tiny sliding window of 64 tokens, with an image where possible."""
    images = () if family in TEXT_FAMILIES else (noise(56, 56, 3),)
    return [*mixed_prompts(family), prompt("How many dots, dice and bars are there? " * 8, *images)]


# -- log-probabilities -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_a_plain_forward_of_each_row(
    family: str, temperature: float, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """Ragged prompts with 0, 1 and 2 images in one call, against one unpadded forward per completion."""
    bench, prompts = Bench(family, tiny_checkpoints[family]), long_prompts(family)
    samples = bench.draw(prompts, 3, temperature=temperature, max_new_tokens=12)
    lengths = [len(one.input_ids) for one in bench.encode(prompts)]
    assert max(lengths) > 64 > min(lengths)
    reference = Reference(bench.loaded, prompts, samples)
    with torch.no_grad():
        for group, own in enumerate(samples):
            assert len(own) == 3
            for k, sample in enumerate(own):
                assert torch.allclose(sample.logprobs, reference.logp(group, k, temperature), atol=1e-5)


def test_generation_goes_beyond_the_sliding_window(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Prompts start inside Gemma-3's window of 64 tokens and completions leave it."""
    bench, prompts = Bench("gemma3", tiny_checkpoints["gemma3"]), mixed_prompts("gemma3")
    assert bench.loaded.model.config.get_text_config().sliding_window == 64
    samples = bench.draw(prompts, 2, max_new_tokens=90)
    reference = Reference(bench.loaded, prompts, samples)
    longest = max(len(sample.ids) for own in samples for sample in own)
    assert longest > 64
    with torch.no_grad():
        for group, own in enumerate(samples):
            for k, sample in enumerate(own):
                assert torch.allclose(sample.logprobs, reference.logp(group, k, 1.0), atol=1e-5)


def test_tokens_come_as_often_as_the_model_says(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Chi-square of 20,000 first tokens; bins of expected count below 10 are joined. Both tails: 4 sigma."""
    bench = Bench("qwen2_5_vl", tiny_checkpoints["qwen2_5_vl"], max_rows=20_000)
    one = mixed_prompts("qwen2_5_vl")[0]
    (samples,) = bench.draw([one], 20_000, seed=3, max_new_tokens=1)
    counts = torch.bincount(torch.stack([sample.ids[0] for sample in samples]), minlength=bench.vocabulary).double()
    expected = 20_000 * bench.distribution(one)
    rare = expected < 10
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    freedom = len(expected) - 1
    assert freedom > 100
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert abs(statistic - freedom) / math.sqrt(2 * freedom) < 4


# -- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_transformers_generates(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Token for token, and with a token made a stop token that the model does produce."""
    bench, prompts = Bench(family, tiny_checkpoints[family]), long_prompts(family)
    free = bench.draw(prompts, 1, temperature=0.0, max_new_tokens=10)
    stop = int(free[0][0].ids[4])
    for stops in (bench.policy.stop_ids, (*bench.policy.stop_ids, stop)):
        bench.policy.stop_ids = stops
        samples = bench.draw(prompts, 1, temperature=0.0, max_new_tokens=10)
        for one, (sample,) in zip(prompts, samples, strict=True):
            expected = bench.generate(one, stops, 10)
            assert sample.ids.tolist() == expected
            assert sample.finish_reason == ("stop" if expected[-1] in stops else "length")
    assert samples[0][0].finish_reason == "stop"
    assert len(samples[0][0].ids) <= 5


def test_greedy_ignores_the_seed_and_n_gives_copies(tiny_checkpoints: Mapping[str, Path]) -> None:
    bench, prompts = Bench("qwen2", tiny_checkpoints["qwen2"]), mixed_prompts("qwen2")
    first, second = (bench.draw(prompts, 2, seed=seed, temperature=0.0, max_new_tokens=6) for seed in (1, 2))
    for a, b in zip(first, second, strict=True):
        assert len({tuple(sample.ids.tolist()) for sample in (*a, *b)}) == 1


# -- one draw by hand --------------------------------------------------------------------------------------------

WEIGHTS = torch.tensor([1.0, 4.0, 16.0, 64.0])  # at temperature 2: 1, 2, 4, 8 of 15


def uniform(n: int) -> Tensor:
    return torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("sampling", "banned", "expected"),
    [
        (Sampling(1.0), (), (1 / 85, 4 / 85, 16 / 85, 64 / 85)),
        (Sampling(2.0), (), (1 / 15, 2 / 15, 4 / 15, 8 / 15)),
        (Sampling(2.0, top_k=2), (), (0, 0, 1 / 3, 2 / 3)),
        (Sampling(2.0, top_k=9), (), (1 / 15, 2 / 15, 4 / 15, 8 / 15)),
        # The best has 8/15 = 0.53: alone enough for 0.5, not for 0.7; with the second 12/15 = 0.8.
        (Sampling(2.0, top_p=0.5), (), (0, 0, 0, 1)),
        (Sampling(2.0, top_p=0.7), (), (0, 0, 1 / 3, 2 / 3)),
        (Sampling(2.0, top_p=0.81), (), (0, 2 / 14, 4 / 14, 8 / 14)),
        # Top-k first: 8/14 = 0.57 does not reach 0.6, two reach 12/14.
        (Sampling(2.0, top_k=3, top_p=0.6), (), (0, 0, 1 / 3, 2 / 3)),
        # Banned before everything else: the two that are left at top_k 2 are the next ones.
        (Sampling(2.0), (3,), (1 / 7, 2 / 7, 4 / 7, 0)),
        (Sampling(2.0, top_k=2), (3,), (0, 1 / 3, 2 / 3, 0)),
    ],
)
def test_temperature_top_k_and_top_p_by_hand(
    sampling: Sampling, banned: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    n = 30_000
    logits = WEIGHTS.log().expand(n, -1).clone()
    tokens, logprobs = draw(logits, sampling, torch.tensor(banned, dtype=torch.long), uniform(n))
    probabilities = torch.tensor(expected, dtype=torch.float32)
    assert torch.allclose(logprobs, probabilities.log()[tokens], atol=1e-5)  # also: nothing of probability 0 drawn
    frequencies = torch.bincount(tokens, minlength=4) / n
    # 4 standard errors of a share: 4 sqrt(0.25 / 30000) = 0.0115
    assert torch.allclose(frequencies, probabilities, atol=0.0115)


def test_greedy_by_hand() -> None:
    """The likeliest token that is not banned; its log-probability at temperature 1: ln(16 / 21)."""
    tokens, logprobs = draw(WEIGHTS.log()[None].clone(), Sampling(0.0), torch.tensor([3]), uniform(1))
    assert tokens.tolist() == [2]
    assert float(logprobs) == pytest.approx(math.log(16 / 21))


def test_tokens_tied_at_the_border_of_top_k_are_all_kept() -> None:
    logits = torch.tensor([0.0, 1.0, 1.0, 2.0]).expand(500, -1).clone()
    tokens, _ = draw(logits, Sampling(top_k=2), NONE, uniform(500))
    assert set(tokens.tolist()) == {1, 2, 3}


def test_noise_picks_by_running_sums() -> None:
    """Shares 1/4 and 3/4, in one block of 256 and in two; nothing without weight, whatever the noise."""
    noise = torch.tensor([0.0, 0.2499, 0.25, 1 - 2**-53], dtype=torch.float64)
    for size, light, heavy in ((4, 1, 3), (1000, 300, 999), (1000, 300, 301)):
        weights = torch.zeros(4, size)
        weights[:, light], weights[:, heavy] = 0.25, 0.75
        assert inverse_transform(weights, noise).tolist() == [light, light, heavy, heavy]
    # Not finite: some token, and `draw` gives it a log-probability that is NaN.
    token, logprob = draw(torch.full((1, 300), torch.nan), Sampling(), NONE, noise[:1])
    assert 0 <= int(token) < 300
    assert bool(logprob.isnan())


def test_a_rare_token_is_drawn_as_often_as_it_should() -> None:
    """10,000 tokens of e^-12 beside one of 1: all of them together have 0.0614 / 1.0614 of the mass."""
    logits = torch.full((1, 10_001), -12.0)
    logits[0, 0] = 0.0
    rare = 1e4 * math.exp(-12)
    mass = rare / (1 + rare)
    for share, expected in ((1 - mass * 1.001, 0), (1 - mass * 0.5, 5_000), (1 - mass * 1e-9, 10_000)):
        token, logprob = draw(logits.clone(), Sampling(), NONE, torch.tensor([share], dtype=torch.float64))
        assert abs(int(token) - expected) <= 1
        # torch sums the softmax in fp32: 3e-5 off.
        assert float(logprob) == pytest.approx((-12.0 if expected else 0.0) - math.log1p(rare), abs=1e-4)


# -- media tokens, stops, lengths --------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_media_tokens_are_never_drawn_and_stops_are(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """10,000 tokens at temperature 1000, which is uniform over about 450 ids: each id is expected 22 times."""
    bench = Bench(family, tiny_checkpoints[family])
    (samples,) = bench.draw(mixed_prompts(family)[:1], 2500, temperature=1000.0, max_new_tokens=4)
    drawn = torch.cat([sample.ids for sample in samples])
    counts = torch.bincount(drawn, minlength=bench.vocabulary)
    banned, stops = bench.policy.banned.tolist(), list(bench.policy.stop_ids)
    if family in VISION_FAMILIES:
        assert bench.loaded.adapter.image_token_id(bench.loaded.model.config) in banned
    assert not set(banned) & set(stops)
    assert counts[banned].sum() == 0
    assert (counts[stops] > 0).all()
    assert int((counts > 0).sum()) > 0.98 * (bench.vocabulary - len(banned))


def test_a_completion_ends_with_its_stop_token_or_at_the_limit(tiny_checkpoints: Mapping[str, Path]) -> None:
    bench = Bench("qwen2", tiny_checkpoints["qwen2"])
    (samples,) = bench.draw(mixed_prompts("qwen2")[:1], 300, temperature=1000.0, max_new_tokens=40)
    stops = set(bench.policy.stop_ids)
    for sample in samples:
        ids = sample.ids.tolist()
        assert len(sample.logprobs) == len(ids) <= 40
        assert not stops & set(ids[:-1])
        assert (sample.finish_reason == "stop") == (ids[-1] in stops)
        assert sample.finish_reason == "stop" or len(ids) == 40
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama"])
def test_one_new_token_is_enough(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    bench = Bench(family, tiny_checkpoints[family])
    samples = bench.draw(mixed_prompts(family), 5, max_new_tokens=1)
    assert [[len(sample.ids) for sample in own] for own in samples] == [[1] * 5] * 3


def test_no_prompts_no_samples(tiny_checkpoints: Mapping[str, Path]) -> None:
    assert Bench("qwen2", tiny_checkpoints["qwen2"]).draw([], 4) == []


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_cache_holds_what_autocast_multiplies(
    family: str, attention: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    """bf16 under autocast, half the memory; attention sees the same numbers, so states are equal bit for bit."""
    loaded = load(family, tiny_checkpoints[family], attention=attention)
    engine = TransformersEngine(Policy(loaded.model, loaded.adapter, loaded.processor))
    encoded = Bench(family, tiny_checkpoints[family]).encode(mixed_prompts(family))
    results = []
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        _, inside = engine._prefill_part(encoded)
        for cache in (KeyValueCache(torch.bfloat16), DynamicCache()):
            states = []
            for start, end in ((0, 2), (2, 3), (3, 4)):
                positions = torch.arange(start, end).expand(len(encoded[0].positions), 1, -1)
                output = loaded.adapter.decoder(loaded.model)(
                    inputs_embeds=loaded.adapter.embed_tokens(loaded.model, torch.arange(301 + start, 301 + end)[None]),
                    position_ids=positions[0] if len(positions) == 1 else positions,
                    past_key_values=cache,
                    use_cache=True,
                )
                states.append(output.last_hidden_state[:, -1])
            results.append(torch.cat(states))
    with torch.no_grad():
        _, outside = engine._prefill_part(encoded)
    assert torch.equal(*results)
    for cache, dtype in ((inside, torch.bfloat16), (outside, torch.float32)):
        assert {states.dtype for layer in cache.layers for states in (layer.keys, layer.values)} == {dtype}


# -- work done ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_rows", "chunks"), [(100, 1), (4, 2), (5, 2), (2, 4), (1, 4)])
def test_prompts_go_in_chunks_of_max_rows(max_rows: int, chunks: int, tiny_checkpoints: Mapping[str, Path]) -> None:
    """4 prompts of 2 samples: 4 rows are 2 prompts, 1 row still is one prompt. The order stays."""
    bench, prompts = Bench("internvl3_5", tiny_checkpoints["internvl3_5"], max_rows), long_prompts("internvl3_5")
    whole = Bench("internvl3_5", tiny_checkpoints["internvl3_5"]).draw(prompts, 2, temperature=0.0, max_new_tokens=5)
    calls: list[int] = []
    decoder = bench.loaded.adapter.decoder(bench.loaded.model)
    decoder.register_forward_hook(lambda *_: calls.append(1))
    bench.draw(prompts, 2, max_new_tokens=1)
    assert len(calls) == chunks
    samples = bench.draw(prompts, 2, temperature=0.0, max_new_tokens=5)
    for own, expected in zip(samples, whole, strict=True):
        assert [sample.ids.tolist() for sample in own] == [sample.ids.tolist() for sample in expected]


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_each_image_is_seen_once_however_many_samples(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    bench, prompts = Bench(family, tiny_checkpoints[family]), mixed_prompts(family)
    seen: list[int] = []

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(len(next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))))

    bench.loaded.adapter.vision_modules(bench.loaded.model)[0].register_forward_pre_hook(count, with_kwargs=True)
    encoded = bench.encode(prompts)
    bench.engine.generate(encoded, 8, Sampling(max_new_tokens=5), 0)
    assert sum(seen) == sum(len(one.vision["pixel_values"]) for one in encoded if one.vision)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_are_read_within_a_budget(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Four prompts of different lengths, read one or two at a time into one cache: the same completions."""
    bench, prompts = Bench(family, tiny_checkpoints[family]), long_prompts(family)
    whole = [bench.draw(prompts, 2, temperature=t, max_new_tokens=8) for t in (0.0, 1.0)]
    lengths = sorted(len(one.input_ids) for one in bench.encode(prompts))
    read: list[int] = []

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows, width, _ = kwargs["inputs_embeds"].shape
        if width > 1:
            read.append(rows * width)

    bench.loaded.adapter.decoder(bench.loaded.model).register_forward_pre_hook(count, with_kwargs=True)
    for budget, parts in ((1, lengths), (2 * lengths[1], None), (4 * lengths[3], [4 * lengths[3]])):
        bench.engine.prefill_tokens = budget
        for expected, temperature in zip(whole, (0.0, 1.0), strict=True):
            read.clear()
            samples = bench.draw(prompts, 2, temperature=temperature, max_new_tokens=8)
            assert read == parts if parts else read[0] == 2 * lengths[1] and len(read) in (2, 3)
            for own, other in zip(samples, expected, strict=True):
                for a, b in zip(own, other, strict=True):
                    assert torch.equal(a.ids, b.ids)
                    assert torch.allclose(a.logprobs, b.logprobs, atol=1e-5)


def test_generation_ends_with_the_last_row_to_stop(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Rows that stopped early stay stopped; however seldom the engine looks, the completions are the same.

    Uniform over about 450 ids of which 60 stop: a row lives for 7.5 tokens, and no two stop together for long.
    """
    bench, prompts = Bench("qwen2", tiny_checkpoints["qwen2"]), mixed_prompts("qwen2")
    bench.policy.stop_ids = tuple(range(100, 160))
    calls: list[int] = []
    bench.loaded.adapter.decoder(bench.loaded.model).register_forward_hook(lambda *_: calls.append(1))
    drawn = {}
    for looks in (1, 5, 1000):
        calls.clear()
        bench.engine.stop_check_interval = looks
        drawn[looks] = [one for own in bench.draw(prompts, 2, temperature=1e4, max_new_tokens=60) for one in own]
        longest = max(len(sample.ids) for sample in drawn[looks])
        # The prefill gives the first token: as many passes as tokens, up to the next look.
        assert len(calls) == min(60, -(-longest // looks) * looks)
    assert len({len(sample.ids) for sample in drawn[1]}) > 1
    assert {sample.finish_reason for sample in drawn[1]} == {"stop"}
    for first, *others in zip(*drawn.values(), strict=True):
        for other in others:
            assert torch.equal(first.ids, other.ids)
            assert torch.allclose(first.logprobs, other.logprobs, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_that_have_ended_leave_and_the_others_go_on(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Against one unpadded forward per completion; a token in 30 ends a row, the last ones leave Gemma-3's window."""
    bench, prompts = Bench(family, tiny_checkpoints[family]), long_prompts(family)
    bench.policy.stop_ids = tuple(range(300, 315))
    rows: list[int] = []

    def count(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rows.append(len(kwargs["inputs_embeds"]))

    hook = bench.loaded.adapter.decoder(bench.loaded.model).register_forward_pre_hook(count, with_kwargs=True)
    samples = bench.draw(prompts, 3, max_new_tokens=70)
    assert len({len(sample.ids) for own in samples for sample in own}) > 5
    assert rows[1] == 12
    assert rows[1:] == sorted(rows[1:], reverse=True)
    assert len(set(rows[1:])) > 3
    kept = list(rows)
    bench.engine.compact_at = 0.0
    rows.clear()
    whole = bench.draw(prompts, 3, max_new_tokens=70)
    assert set(rows[1:]) == {12}
    assert len(rows) == len(kept)
    hook.remove()
    reference = Reference(bench.loaded, prompts, samples)
    with torch.no_grad():
        for group, own in enumerate(samples):
            for k, sample in enumerate(own):
                assert torch.equal(sample.ids, whole[group][k].ids)
                assert torch.allclose(sample.logprobs, reference.logp(group, k, 1.0), atol=1e-5)


def test_the_cache_grows_in_place() -> None:
    """150 tokens: what a plain cache holds, in four places; rows repeated and left out on the way."""
    states = torch.randn(2, 2, 3, 150, 4, generator=torch.Generator().manual_seed(0))  # (k or v, R, H, T, D)
    ours, plain = KeyValueCache(), DynamicCache()
    places = []
    for start, end in ((0, 5), *((token, token + 1) for token in range(5, 150))):
        if start == 80:
            for cache in (ours, plain):
                cache.batch_repeat_interleave(2)
                cache.batch_select_indices(torch.tensor([1, 3]))
        keys, values = states[..., start:end, :]
        held = [cache.update(keys, values, 0) for cache in (ours, plain)]
        for own, other in zip(*held, strict=True):
            assert torch.equal(own, other)
        places.append(held[0][0].data_ptr())
        assert ours.get_seq_length() == end
    # From the 6th token on with room for 70, then 135; from the change of rows at the 81st for 145, then 210.
    assert sum(a != b for a, b in itertools.pairwise(places[1:])) == 3


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_waits_for_the_host(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    """Prompts of one length and looks apart: 8 tokens read no more numbers from the device than 4."""
    bench = Bench(family, tiny_checkpoints[family])
    bench.engine.stop_check_interval, bench.policy.stop_ids = 100, (10**6,)
    prompts = mixed_prompts(family)[:1]
    reads = {}
    for tokens in (4, 8):
        with Reads() as counter:
            bench.draw(prompts, 3, max_new_tokens=tokens)
        reads[tokens] = counter.count
    # Cutting the rows, at the end, reads one stop per row at most.
    assert reads[4] == reads[8]


class Reads(TorchDispatchMode):
    """Counts the operations that give numbers or sizes to the host."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += str(func).split(".")[1] in ("_local_scalar_dense", "nonzero", "masked_select", "equal")
        return func(*args, **(kwargs or {}))


# -- noise -------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_samples(tiny_checkpoints: Mapping[str, Path]) -> None:
    bench, prompts = Bench("gemma3", tiny_checkpoints["gemma3"], max_rows=8), mixed_prompts("gemma3")

    def ids(seed: int) -> list[list[int]]:
        torch.manual_seed(seed * 7 + 1)  # the global generator has no say
        return [sample.ids.tolist() for own in bench.draw(prompts, 4, seed=seed, max_new_tokens=8) for sample in own]

    assert ids(5) == ids(5)
    assert ids(5) != ids(6)
    assert len({tuple(one) for one in ids(5)}) == 12  # no two samples share their noise


def test_what_else_is_drawn_does_not_change_a_sample(tiny_checkpoints: Mapping[str, Path]) -> None:
    """Chunks of other sizes and limits, more prompts behind: the same tokens."""
    path, prompts = tiny_checkpoints["qwen2_5_vl"], long_prompts("qwen2_5_vl")
    whole = Bench("qwen2_5_vl", path).draw(prompts, 3, seed=2, max_new_tokens=8)
    for max_rows, shown, limit in ((1, 4, 8), (6, 4, 8), (256, 2, 8), (256, 4, 5)):
        part = Bench("qwen2_5_vl", path, max_rows).draw(prompts[:shown], 3, seed=2, max_new_tokens=limit)
        for own, expected in zip(part, whole, strict=False):
            for a, b in zip(own, expected, strict=True):
                assert torch.equal(a.ids, b.ids[:limit])
                assert torch.allclose(a.logprobs, b.logprobs[:limit], atol=1e-5)
