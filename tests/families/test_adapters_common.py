"""Every family: what the trainer and the engine compute through the adapter is what transformers computes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapter_passes import (
    TEXT_FAMILIES,
    VISION_FAMILIES,
    Loaded,
    completions,
    encode_all,
    generation_logprobs,
    gradients,
    load,
    noise,
    plain_inputs,
    plain_logprobs,
    rows,
    training_logprobs,
)
from model_adapters.base import AdapterError

FAMILIES = VISION_FAMILIES + TEXT_FAMILIES
TOLERANCE = 1e-5  # float32, two orders of addition apart


@pytest.fixture(scope="module")
def loaded_families(tiny_checkpoints: Mapping[str, Path]) -> dict[str, Loaded]:
    return {}


@pytest.fixture(params=FAMILIES)
def loaded(
    request: pytest.FixtureRequest, tiny_checkpoints: Mapping[str, Path], loaded_families: dict[str, Loaded]
) -> Loaded:
    family = request.param
    if family not in loaded_families:
        loaded_families[family] = load(family, tiny_checkpoints[family])
    return loaded_families[family]


vision_only = pytest.mark.parametrize("loaded", VISION_FAMILIES, indirect=True)


def test_ids_equal_those_of_the_plain_pipeline(loaded: Loaded) -> None:
    for row in rows(loaded.family):
        encoded = loaded.adapter.encode(loaded.processor, *row)
        assert encoded.input_ids.tolist() == plain_inputs(loaded, row)["input_ids"][0].tolist()
        bos = getattr(loaded.processor, "tokenizer", loaded.processor).bos_token_id
        assert bos is None or encoded.input_ids.tolist().count(bos) == 1


def test_training_pass_equals_a_plain_forward(loaded: Loaded) -> None:
    # One right-padded batch mixes prompts with 0, 1 and 2 images and completions of different lengths; the
    # yardstick is one unpadded row at a time through the whole model.
    prompts = encode_all(loaded, rows(loaded.family))
    batch = [(number % 3, completion) for number, completion in enumerate(completions(loaded, 6))]
    with torch.no_grad():
        got = training_logprobs(loaded, prompts, batch)
        for (index, completion), logprobs in zip(batch, got, strict=True):
            expected = plain_logprobs(loaded, rows(loaded.family)[index], completion)
            torch.testing.assert_close(logprobs, expected, atol=TOLERANCE, rtol=0)


def test_generation_pass_equals_a_plain_forward(loaded: Loaded) -> None:
    prompts = encode_all(loaded, rows(loaded.family))
    forced = torch.stack([c[:3] for c in completions(loaded, 6, seed=1)]).view(3, 2, 3)
    with torch.no_grad():
        got = generation_logprobs(loaded, prompts, forced)
        for index, row in enumerate(rows(loaded.family)):
            for copy in range(2):
                expected = plain_logprobs(loaded, row, forced[index, copy])
                torch.testing.assert_close(got[index, copy], expected, atol=TOLERANCE, rtol=0)


def test_generation_pass_of_equal_lengths_needs_no_mask(loaded: Loaded) -> None:
    row = rows(loaded.family)[0]
    prompts = encode_all(loaded, [row, row])
    forced = torch.stack([c[:3] for c in completions(loaded, 2, seed=2)]).view(2, 1, 3)
    with torch.no_grad():
        got = generation_logprobs(loaded, prompts, forced)
        for index in range(2):
            expected = plain_logprobs(loaded, row, forced[index, 0])
            torch.testing.assert_close(got[index, 0], expected, atol=TOLERANCE, rtol=0)


def test_gradients_equal_those_of_plain_forwards(loaded: Loaded) -> None:
    # Two completions per prompt share one vision pass: its gradient is the sum of both.
    samples = rows(loaded.family)
    prompts = encode_all(loaded, samples)
    batch = [(number // 2, completion) for number, completion in enumerate(completions(loaded, 6, seed=3))]
    ours = gradients(loaded.model, torch.cat(training_logprobs(loaded, prompts, batch)).sum())
    plain = [plain_logprobs(loaded, samples[index], completion) for index, completion in batch]
    expected = gradients(loaded.model, torch.cat(plain).sum())
    assert ours.keys() == expected.keys()
    assert not [name for name, p in loaded.model.named_parameters() if p.requires_grad and name not in ours]
    # A key bias shifts all scores of a query alike, so its gradient is 0 but for rounding: hence the floor.
    floor = 1e-3 * max(gradient.abs().max().item() for gradient in expected.values())
    for name, gradient in expected.items():
        scale = max(gradient.abs().max().item(), floor)
        torch.testing.assert_close(ours[name], gradient, atol=1e-4 * scale, rtol=0, msg=name)


@vision_only
def test_a_blank_image_changes_the_log_probabilities(loaded: Loaded) -> None:
    image = noise(56, 56)
    pair = [("How many dots?", (image,)), ("How many dots?", (noise(56, 56, 9),))]
    prompts = encode_all(loaded, pair)
    assert prompts[0].input_ids.tolist() == prompts[1].input_ids.tolist()
    completion = completions(loaded, 1)[0]
    with torch.no_grad():
        first, second = training_logprobs(loaded, prompts, [(0, completion), (1, completion)])
    assert (first - second).abs().max() > 1e-3


@vision_only
def test_split_undoes_collate(loaded: Loaded) -> None:
    samples = [*rows(loaded.family), ("Last?", (noise(120, 60, 3), noise(56, 56, 4), noise(30, 90, 5)))]
    parts = [prompt.vision for prompt in encode_all(loaded, samples)]
    assert parts[1] == {}
    back = loaded.adapter.split_vision(loaded.adapter.collate_vision(parts), [1, 0, 2, 3])
    assert len(back) == len(parts)
    for got, part in zip(back, parts, strict=True):
        assert got.keys() == part.keys()
        assert all(torch.equal(got[key], part[key]) for key in part)


@vision_only
def test_collating_nothing_gives_nothing(loaded: Loaded) -> None:
    assert loaded.adapter.collate_vision([{}, {}]) == {}
    assert loaded.adapter.split_vision({}, [0, 0]) == [{}, {}]


@vision_only
def test_placeholders_match_features(loaded: Loaded) -> None:
    adapter, model = loaded.adapter, loaded.model
    encoded = loaded.adapter.encode(loaded.processor, "Which?", [noise(90, 60, 1), noise(60, 100, 2)])
    with torch.no_grad():
        features = adapter.image_features(model, encoded.vision)
    assert len(features) == int((encoded.input_ids == adapter.image_token_id(model.config)).sum())
    with pytest.raises(AdapterError, match=f"{len(features)} image placeholders .* {len(features) - 1} image"):
        adapter.embed(model, encoded.input_ids[None], features[:-1])


@vision_only
def test_image_markup_in_the_text_is_refused(loaded: Loaded) -> None:
    markup = loaded.adapter.media_tokens[0]  # type: ignore[attr-defined]
    with pytest.raises(AdapterError, match="reads as image markup"):
        loaded.adapter.encode(loaded.processor, f"see {markup} here", [noise(56, 56)])
    with pytest.raises(AdapterError, match="reads as image markup"):
        loaded.adapter.encode(loaded.processor, "fine", system=markup)


def test_positions_end_where_the_completion_begins(loaded: Loaded) -> None:
    for encoded in encode_all(loaded, rows(loaded.family)):
        assert encoded.positions.shape[1] == len(encoded.input_ids)
        assert encoded.next_position == int(encoded.positions.max()) + 1
        assert encoded.input_ids.dtype == encoded.positions.dtype == torch.long


def test_stop_and_banned_ids(loaded: Loaded) -> None:
    # Expected tokens by family: the turn's end stops, media and padding are banned, nothing is both.
    expected = {
        "qwen2_5_vl": (
            {"<|im_end|>", "<|endoftext|>"},
            {"<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"},
        ),
        "internvl3_5": ({"<|im_end|>", "<|endoftext|>"}, {"<img>", "</img>", "<IMG_CONTEXT>", "<video>"}),
        "gemma3": (
            {"<eos>", "<end_of_turn>"},
            {"<pad>", "<start_of_image>", "<image_soft_token>", "<end_of_image>"},
        ),
        "qwen2": ({"<|im_end|>", "<|endoftext|>"}, set()),
        "qwen3": ({"<|im_end|>", "<|endoftext|>"}, set()),
        "llama": ({"<|eot_id|>", "<|end_of_text|>"}, set()),
    }[loaded.family]
    tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
    stops = loaded.adapter.stop_ids(loaded.processor, loaded.model)
    banned = loaded.adapter.banned_ids(loaded.processor, loaded.model.config)
    assert set(tokenizer.convert_ids_to_tokens(list(stops))) == expected[0]
    assert set(tokenizer.convert_ids_to_tokens(list(banned))) == expected[1]
    assert tokenizer.pad_token_id is not None


def test_decoding_keeps_the_answer_markup_and_drops_the_stop(loaded: Loaded) -> None:
    tokenizer = getattr(loaded.processor, "tokenizer", loaded.processor)
    text = "<think>3+4 is 12</think><answer>7</answer>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    stop = loaded.adapter.stop_ids(loaded.processor, loaded.model)[-1]
    assert loaded.adapter.decode(loaded.processor, [*ids, stop]) == text
    singles = {tokenizer.convert_tokens_to_ids(t) for t in ("<think>", "</think>", "<answer>", "</answer>")}
    assert singles <= set(ids)
    digits = tokenizer.encode("12345", add_special_tokens=False)
    assert [tokenizer.decode([digit]) for digit in digits] == list("12345")


@vision_only
def test_freezing_the_tower_leaves_the_projector(loaded: Loaded) -> None:
    tower = {p for module in loaded.adapter.vision_modules(loaded.model) for p in module.parameters()}
    names = {name for name, p in loaded.model.named_parameters() if p in tower}
    assert names
    assert all("vision_tower" in name or "visual" in name for name in names)
    rest = {name for name, p in loaded.model.named_parameters() if p not in tower}
    projector = {"qwen2_5_vl": "merger"}.get(loaded.family, "multi_modal_projector")
    assert any(projector in name for name in rest)
    assert not any(projector in name for name in names)


def test_adapters_inside_a_peft_model_compute_the_same(tiny_checkpoints: Mapping[str, Path]) -> None:
    from peft import LoraConfig, get_peft_model

    for family in ("internvl3_5", "qwen2"):
        bare = load(family, tiny_checkpoints[family])
        prompts = encode_all(bare, rows(family))
        batch = [(index, completion) for index, completion in enumerate(completions(bare, 3))]
        with torch.no_grad():
            expected = training_logprobs(bare, prompts, batch)
            # Fresh LoRA matrices multiply to zero, so nothing may change.
            wrapped = get_peft_model(bare.model, LoraConfig(target_modules=["q_proj", "v_proj"]))
            peft = Loaded(family, bare.adapter, bare.processor, wrapped)
            got = training_logprobs(peft, prompts, batch)
        assert wrapped is not bare.model
        torch.testing.assert_close(torch.cat(got), torch.cat(expected), atol=1e-6, rtol=0)


def test_dropout_in_a_config_is_switched_off(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    for family in ("internvl3_5", "llama"):
        path = shutil.copytree(tiny_checkpoints[family], tmp_path / family)
        config = json.loads((path / "config.json").read_text())
        for part in (config, config.get("text_config", {}), config.get("vision_config", {})):
            for name in ("attention_dropout", "hidden_dropout_prob", "projection_dropout"):
                part[name] = 0.5
        (path / "config.json").write_text(json.dumps(config))
        loaded = load(family, path)
        reference = load(family, tiny_checkpoints[family])
        prompts = encode_all(loaded, rows(family))
        batch = [(index, completion) for index, completion in enumerate(completions(loaded, 3))]
        loaded.model.train()
        with torch.no_grad():
            noisy, clean = (training_logprobs(each, prompts, batch) for each in (loaded, reference))
        torch.testing.assert_close(torch.cat(noisy), torch.cat(clean), atol=1e-6, rtol=0)


def test_a_checkpoint_with_missing_weights_is_refused(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    for family, name in (("gemma3", "vision_tower"), ("qwen2", "layers.1.mlp")):
        path = shutil.copytree(tiny_checkpoints[family], tmp_path / family)
        weights = load_file(path / "model.safetensors")
        kept = {key: tensor for key, tensor in weights.items() if name not in key}
        save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(AdapterError, match=r"lacks \d+ weights"):
            load(family, path)


def test_a_checkpoint_without_chat_template_is_refused(tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    for family in ("internvl3_5", "llama"):
        path = shutil.copytree(tiny_checkpoints[family], tmp_path / family)
        (path / "chat_template.jinja").unlink()
        with pytest.raises(AdapterError, match="has no chat template"):
            load(family, path)


def test_dtype_is_honoured(tiny_checkpoints: Mapping[str, Path]) -> None:
    for family in FAMILIES:
        loaded = load(family, tiny_checkpoints[family], dtype=torch.bfloat16)
        assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}
        assert not loaded.model.training
        prompts = encode_all(loaded, rows(family))
        answers = completions(loaded, 3)
        with torch.no_grad():
            got = training_logprobs(loaded, prompts, list(enumerate(answers)))
            plain = [plain_logprobs(loaded, row, a) for row, a in zip(rows(family), answers, strict=True)]
        torch.testing.assert_close(torch.cat(got), torch.cat(plain), atol=0.1, rtol=0)  # bf16 has 8 bits
