"""vLLM reads our prompts, samples from the trainer's distribution, says with what probability, and stops when told."""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapter_passes import SETTINGS
from mmcorl.engines import EngineRequest
from mmcorl.engines.base import Sampling
from mmcorl.engines.settings import MAX_VLLM_TEMPERATURE, EngineSettings
from mmcorl.engines.vllm import VllmEngine
from mmcorl.errors import RunError, UserError
from mmcorl.policy.policy import Policy
from vllm_parts import EXACT, FAMILIES, LONGEST, Bench, long_prompts, mixed_prompts, prompt
from worker_parts import with_images

pytestmark = pytest.mark.stack


# -- the same distribution ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", EXACT)
def test_log_probabilities_are_the_trainers(family: str, benches: Mapping[str, Bench]) -> None:
    """Prompts with 0, 1 and 2 images, in front and between words; that ids are equal is asserted inside, each time."""
    between = [
        replace(one, text="Is <image> larger than <image>?") for one in with_images(family) if len(one.images) == 2
    ]
    for temperature in (1.0, 0.7):
        drift = torch.cat(benches[family].drift([*long_prompts(family), *between], temperature=temperature))
        assert len(drift) > 100
        assert drift.abs().mean() < 1e-5
        assert drift.abs().max() < 1e-3


def test_gemma3_with_images_is_another_model_on_the_cpu(benches: Mapping[str, Bench]) -> None:
    """vLLM's CPU attention is causal over image tokens: a gate must see it, and text shows nothing of it."""
    bench = benches["gemma3"]
    text = torch.cat(bench.drift([prompt("How many dots are there?"), long_prompts("gemma3")[-1]]))
    images = torch.cat(bench.drift(with_images("gemma3")))
    assert text.abs().max() < 1e-3
    assert images.abs().mean() > 1e-2
    assert images.abs().mean() > 100 * text.abs().mean()


@pytest.mark.parametrize("family", EXACT)
def test_greedy_is_what_the_transformers_engine_takes(family: str, benches: Mapping[str, Bench]) -> None:
    """Token for token, with the checkpoint's stops and with a token among them that the model does produce."""
    bench, prompts = benches[family], long_prompts(family)
    encoded, given = bench.encode(prompts), bench.policy.stop_ids
    free = bench.draw(prompts, 1, temperature=0.0, max_new_tokens=12)
    try:
        for stops in (given, (*given, int(free[0][0].ids[4]))):
            bench.policy.stop_ids = stops
            drawn = bench.draw(prompts, 2, temperature=0.0, max_new_tokens=12)
            for (one, copy), (expected,) in zip(
                drawn, bench.plain.generate(encoded, 1, Sampling(0.0, max_new_tokens=12), 0), strict=True
            ):
                assert torch.equal(one.ids, expected.ids)
                assert torch.equal(one.ids, copy.ids)
                assert torch.allclose(one.logprobs, expected.logprobs, atol=1e-4)
                assert one.finish_reason == expected.finish_reason
    finally:
        bench.policy.stop_ids = given
    assert drawn[0][0].finish_reason == "stop"
    assert len(drawn[0][0].ids) <= 5


def test_filters_renormalise(benches: Mapping[str, Bench]) -> None:
    """First tokens against the transformers engine: the same ids can be drawn, with the same log-probabilities."""
    bench, prompts = benches["qwen2"], mixed_prompts("qwen2")[:1]
    for filters in ({"top_k": 5}, {"top_p": 0.6}, {"top_k": 20, "top_p": 0.8, "temperature": 0.7}):
        sampling, drawn = Sampling(max_new_tokens=1, **filters), []
        for engine in (bench.engine, bench.plain):
            (samples,) = engine.generate(bench.encode(prompts), 400, sampling, 0)
            drawn.append({int(sample.ids[0]): float(sample.logprobs[0]) for sample in samples})
        theirs, ours = drawn
        both = set(theirs) & set(ours)
        assert len(both) >= 3
        assert [theirs[token] for token in both] == pytest.approx([ours[token] for token in both], abs=1e-4)
        assert len(theirs) <= filters.get("top_k", len(theirs))


def test_a_prompt_is_read_once_for_all_of_its_samples(benches: Mapping[str, Bench]) -> None:
    """97 tokens, three whole blocks of 32 and one token more: the other seven samples read that one token only."""
    bench, long = benches["qwen2"], long_prompts("qwen2")[-1]
    assert len(bench.encode([long])[0].input_ids) == 97
    core: Any = bench.engine.llm.llm_engine.model_executor
    runner, steps = core.driver_worker.model_runner, []
    execute = runner.execute_model

    def counted(scheduled: Any, *args: Any, **kwargs: Any) -> Any:
        steps.append(scheduled.total_num_scheduled_tokens)
        return execute(scheduled, *args, **kwargs)

    bench.engine.sync(bench.weights())  # whose states of old weights are forgotten
    runner.execute_model = counted
    try:
        bench.draw([long], 8, max_new_tokens=3)
    finally:
        runner.execute_model = execute
    assert steps == [97 + 7, 8, 8]


# -- tokens ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_media_tokens_are_never_drawn_and_stops_are(family: str, benches: Mapping[str, Bench]) -> None:
    """4,000 tokens at the hottest: a random model gives each of its about 450 ids some 9 of them."""
    bench = benches[family]
    (samples,) = bench.draw(mixed_prompts(family)[:1], 100, temperature=MAX_VLLM_TEMPERATURE, max_new_tokens=40)
    assert len(bench.policy.banned) or family in ("qwen2", "llama")
    assert not torch.isin(torch.cat([sample.ids for sample in samples]), bench.policy.banned).any()
    stops = torch.tensor(bench.policy.stop_ids)
    for sample in samples:
        ended = torch.isin(sample.ids, stops)
        assert not ended[:-1].any()
        assert len(sample.logprobs) == len(sample.ids)
        assert sample.finish_reason == "stop" if ended[-1] else (sample.finish_reason, len(ended)) == ("length", 40)
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


# -- noise -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["internvl3_5", "qwen2"])
def test_noise_depends_on_seed_prompt_and_sample_alone(family: str, benches: Mapping[str, Bench]) -> None:
    bench, prompts = benches[family], mixed_prompts(family)

    def ids(which: Any, seed: int) -> list[list[tuple[int, ...]]]:
        torch.manual_seed(random.getrandbits(32))  # the global generators have no say
        np.random.seed(random.getrandbits(32))
        drawn = bench.draw(which, 4, seed=seed, max_new_tokens=12)
        return [[tuple(sample.ids.tolist()) for sample in samples] for samples in drawn]

    first = ids(prompts, 2**62 + 1)
    # Later prompts do not change earlier ones' samples, whatever vLLM has cached by now.
    assert ids(prompts[:1], 2**62 + 1) == first[:1]
    other = ids(prompts, 2**62 + 2)
    twins = ids([prompts[0], prompts[0]], 2**62 + 1)
    different = [*first[0], *other[0], *twins[1]]
    assert len(set(different)) == len(different)


# -- what must not pass ------------------------------------------------------------------------------------------


def test_a_prompt_read_in_two_ways_stops_the_run(benches: Mapping[str, Bench]) -> None:
    """As when tiles, pixels or template differ between the two: here the trainer's ids have one token more."""
    bench = benches["qwen2_5_vl"]
    good = bench.encode(mixed_prompts("qwen2_5_vl")[:1])[0]
    ids = good.input_ids
    longer = replace(good, input_ids=torch.cat([ids[:-3], ids[-3:-2] + 1, ids[-3:]]))
    lengths = f"as {len(ids)} tokens and the trainer as {len(ids) + 1}, first different at position {len(ids) - 3}:"
    with pytest.raises(RunError, match=rf"^agent 'qwen2_5_vl': vLLM reads prompt 1 \('.*{lengths}"):
        bench.engine.generate([good, longer], 2, Sampling(max_new_tokens=2), 0)


def test_what_vllm_cannot_do_is_refused_in_a_sentence(
    benches: Mapping[str, Bench], tiny_checkpoints: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = benches["qwen2"]
    assert bench.draw([], 4) == []
    item = prompt("?")
    fits = LONGEST - len(bench.encode([item])[0].input_ids)
    assert bench.draw([item], 1, temperature=0.0, max_new_tokens=fits)
    with pytest.raises(RunError, match=rf"may have {LONGEST + 1} tokens, above engine.max_model_len {LONGEST}"):
        bench.draw([item], 1, temperature=0.0, max_new_tokens=fits + 1)
    with pytest.raises(UserError, match=r"the temperature is 2\.1, but vLLM takes 2 at most: lower it"):
        bench.draw([item], 2, temperature=2.1, max_new_tokens=2)
    with pytest.raises(UserError, match=r"vLLM cannot serve agent 'qwen2' \(.*max_model_len \(9999\).*\): change"):
        Bench("qwen2", tiny_checkpoints["qwen2"], max_model_len=9999)

    policy = Policy(bench.loaded.model, bench.loaded.adapter, bench.loaded.processor)
    monkeypatch.setattr(Policy, "device", torch.device("cuda"))
    with pytest.raises(UserError, match=r"the installed vLLM is built for cpu but this run is on cuda: pip install"):
        VllmEngine(EngineRequest(EngineSettings(kind="vllm"), policy, "a", str(bench.path), SETTINGS, "fp32", LONGEST))


def test_a_probability_that_is_no_number_stops_with_the_request_written_down(
    benches: Mapping[str, Bench], tmp_path: Path
) -> None:
    bench = benches["internvl3_5"]
    nan = {True: torch.nan, False: 1.0}
    bench.engine.sync(
        (name, tensor.detach() * nan[name.endswith("model.norm.weight")]) for name, tensor in bench.weights()
    )
    given, bench.engine.requests.dumps = bench.engine.requests.dumps, tmp_path
    one = with_images("internvl3_5")[0]
    try:
        with pytest.raises(RunError, match=r"token 0 of a completion of prompt 0 .* log-probability nan") as caught:
            bench.draw([one], 2, seed=9, max_new_tokens=3)
    finally:
        bench.engine.requests.dumps = given
        bench.engine.sync(bench.weights())
    (file,) = tmp_path.glob("request-internvl3_5-*/request.json")
    assert str(file) in str(caught.value)
    record = json.loads(file.read_text())
    assert record["prompt_ids"] == bench.encode([one])[0].input_ids.tolist()
    assert (record["sampling"]["max_new_tokens"], record["seed"], record["logprobs"][0]) == (3, 9, "nan")
    assert (file.parent / "image_0.png").is_file()
    bench.draw([one], 2, max_new_tokens=3)


# -- the process around it ---------------------------------------------------------------------------------------


def test_an_engine_leaves_the_process_as_it_was(
    tiny_checkpoints: Mapping[str, Path], benches: Mapping[str, Bench]
) -> None:
    """Generators and threads at its start, process groups of others at its end."""
    import torch.distributed as dist

    kept = benches["qwen2"]
    torch.manual_seed(1), random.seed(2), np.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[union-attr]
    threads, setter = torch.get_num_threads(), torch.set_num_threads
    bench = Bench("llama", tiny_checkpoints["llama"])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()  # type: ignore[index]
    assert torch.set_num_threads is setter
    torch.set_num_threads(threads + 1)
    assert torch.get_num_threads() == threads + 1
    torch.set_num_threads(threads)
    del bench
    gc.collect()
    assert dist.is_initialized()
    assert kept.draw(mixed_prompts("qwen2"), 2, max_new_tokens=2)
