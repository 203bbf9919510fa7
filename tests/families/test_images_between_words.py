"""Every family reads rows as people write them: as plain transformers does, given their parts in that order."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from adapter_passes import completions, each_family, load, logprobs_of, needs, noise, training_logprobs
from chat_rows import CASES, PICTURES, Said, write_rows
from mmcorl.data import DataSettings, check, load_prompts
from mmcorl.policy.prompt_encoder import PromptEncoder, collapsed
from mmcorl.types import Prompt
from model_adapters.base import DEFAULT_VISION, AdapterError, ModelAdapter
from model_adapters.images import load_image
from model_adapters.loading import read_pretrained
from model_adapters.registry import adapter_for
from model_adapters.templates import without_control_tokens
from model_adapters.testing.tiny import VISION_FAMILIES
from worker_parts import prompt as prompt_of
from worker_parts import settings as settings_of

HOISTING_FAMILIES = ("llava_onevision", "molmo2", "perception_lm")
CORE = ("qwen2_5_vl", "internvl3_5", "gemma3")


FAMILIES = (*CORE, *(name for name in VISION_FAMILIES if name not in CORE))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> list[Prompt]:
    settings = write_rows(tmp_path_factory.mktemp("rows")).values()
    sources = [load_prompts(DataSettings(**given, on_bad_row="skip")) for given in settings]
    return [prompt for source in sources for prompt in source.select(check(source, max_side=1024).kept)]


def ids(adapter: ModelAdapter, processor: Any, prompt: Prompt, **more: Any) -> list[int]:
    images = [load_image(image) for image in prompt.images]
    options: dict[str, Any] = {"system": prompt.system, "shots": prompt.turns, **more}
    encoded = adapter.encode(processor, prompt.text, images, **options)
    assert adapter.prompt_length(processor, prompt.text, images, **options) == len(encoded.input_ids)
    assert adapter.unexpanded(processor, encoded)
    return encoded.input_ids.tolist()


def in_front(said: Said) -> bool:
    """Whether the images of every turn stand in front of its words."""
    kinds = [[isinstance(part, int) for part in parts] for _, parts in said]
    return kinds == [sorted(one, reverse=True) for one in kinds]


def refusal(family: str, said: Said) -> str | None:
    """What a family says of a row that its template, as published, cannot render."""
    pair = any(len(parts) == 2 and isinstance(parts[1], int) for _, parts in said)
    drawn = any(role == "assistant" and any(isinstance(part, int) for part in parts) for role, parts in said)
    if family == "glm4v" and drawn:
        return "no place for it"
    if family == "molmo2" and said[0][0] == "system":
        return "refuses a system turn"
    # Three put images first, Molmo2 those of all turns; Ministral-3 where there are two parts, and none into answers.
    later = any(isinstance(part, int) for _, parts in said[1:] for part in parts)
    moved = dict.fromkeys(HOISTING_FAMILIES, not in_front(said))
    moved |= {"mistral3": pair or drawn, "molmo2": later or not in_front(said)}
    return "does not leave images between the words" if moved.get(family) else None


def plain(adapter: ModelAdapter, processor: Any, said: Said) -> dict[str, Any]:
    """What the chat template and the processor alone make of the parts."""

    images = [load_image(PICTURES[part]) for _, parts in said for part in parts if isinstance(part, int)]
    pictures = iter(adapter.prepare_images(processor, images, DEFAULT_VISION))
    messages: list[dict[str, Any]] = [
        {
            "role": role,
            "content": [
                {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": next(pictures)}
                for part in parts
            ],
        }
        for role, parts in said
    ]
    for message in messages:
        if message["role"] in getattr(adapter, "string_roles", ()):
            message["content"] = message["content"][0]["text"]
    options = adapter.engine_options(processor, DEFAULT_VISION).get("mm_processor_kwargs", {})
    if options and "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters:
        options = {"processor_kwargs": options}
    form = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "add_generation_prompt": True}
    return dict(processor.apply_chat_template(messages, **form, **options))


def plain_ids(adapter: ModelAdapter, processor: Any, said: Said) -> list[int]:
    return plain(adapter, processor, said)["input_ids"][0].tolist()


@each_family(*FAMILIES, quick=len(CORE))
def test_each_row_is_read_as_the_processor_reads_its_parts(
    family: str, prompts: list[Prompt], tiny_checkpoints: Mapping[str, Path]
) -> None:
    path = tiny_checkpoints[family]
    adapter = adapter_for(path)
    processor = adapter.load_processor(path, DEFAULT_VISION)
    told = {}
    for prompt in prompts:
        said = CASES[prompt.row_id].read
        if sentence := refusal(family, said):
            with pytest.raises(AdapterError, match=sentence):
                ids(adapter, processor, prompt)
            continue
        told[prompt.row_id] = ids(adapter, processor, prompt)
        assert told[prompt.row_id] == plain_ids(adapter, processor, said), prompt.row_id
    assert len(told) >= (6 if family in HOISTING_FAMILIES else 25)
    if family == "qwen2_5_vl":
        from transformers import AutoConfig

        token = adapter.image_token_id(read_pretrained(AutoConfig, path))
        shown = collapsed(processor.tokenizer, told["between words"], token)
        start, end = "<|vision_start|>", "<|vision_end|>"
        asked = f"Compare {start}[image: 9 tokens]{end} with {start}[image: 8 tokens]{end}: why?"
        assert shown.endswith(f"<|im_start|>user\n{asked}<|im_end|>\n<|im_start|>assistant\n")


@each_family(*FAMILIES)
def test_training_scores_a_conversation_with_images_in_two_turns_as_transformers_does(
    family: str, prompts: list[Prompt], tiny_checkpoints: Mapping[str, Path]
) -> None:
    loaded = load(family, tiny_checkpoints[family])
    names = ("two turns", "two turns without places")
    prompt = next(
        one for name in names for one in prompts if one.row_id == name and not refusal(family, CASES[name].read)
    )
    (completion,) = completions(loaded, 1)
    images = [load_image(image) for image in prompt.images]
    encoded = loaded.adapter.encode(loaded.processor, prompt.text, images, shots=prompt.turns)
    inputs = plain(loaded.adapter, loaded.processor, CASES[prompt.row_id].read)
    for key in ("token_type_ids", "mm_token_type_ids"):
        if key in inputs:
            inputs[key] = torch.cat([inputs[key], torch.zeros_like(completion)[None]], dim=1)
    inputs["input_ids"] = torch.cat([inputs["input_ids"], completion[None]], dim=1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    with torch.no_grad():
        expected = logprobs_of(loaded.model(**inputs).logits[0, -len(completion) - 1 : -1], completion)
        scored = training_logprobs(loaded, [encoded], [(0, completion)])
    assert torch.allclose(scored.flatten(), expected, atol=2e-5)


HOISTING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for p in m['content'] if p['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% endfor %}{% for p in m['content'] if p['type'] == 'text' %}"
    "{{ p['text'] }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Puts images in front, as the template of LLaVA-OneVision."""
DROPPING = HOISTING.replace("m['content'] if p['type'] == 'image'", "m['content'] if p['type'] == 'picture'")


def test_a_template_that_moves_images_refuses_what_it_would_move(
    prompts: list[Prompt], tiny_checkpoints: Mapping[str, Path]
) -> None:
    path = tiny_checkpoints["qwen2_5_vl"]
    adapter = adapter_for(path)
    processor = adapter.load_processor(path, DEFAULT_VISION)
    processor.chat_template = HOISTING
    moved = 0
    for prompt in prompts:
        read = CASES[prompt.row_id].read
        if in_front(read):
            assert ids(adapter, processor, prompt) == plain_ids(adapter, processor, read)
            continue
        moved += 1
        with pytest.raises(AdapterError, match="does not leave images between the words"):
            ids(adapter, processor, prompt)
    assert moved >= 15
    processor.chat_template = DROPPING
    with pytest.raises(AdapterError, match="does not leave images"):
        adapter.encode(processor, "Like <image>?", [load_image(PICTURES[0])])


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen2"])
def test_places_are_text_without_images_and_must_be_as_many_with_them(
    family: str, tiny_checkpoints: Mapping[str, Path]
) -> None:
    adapter = adapter_for(tiny_checkpoints[family])
    processor = adapter.load_processor(tiny_checkpoints[family], DEFAULT_VISION)
    encoded = adapter.encode(processor, "What does <image> mean in SVG?").input_ids.tolist()
    assert "does <image> mean" in getattr(processor, "tokenizer", processor).decode(encoded)
    if family == "qwen2_5_vl":
        with pytest.raises(AdapterError, match=r"places for 1 images .* and 2 images"):
            adapter.encode(processor, "Like <image>?", [load_image(picture) for picture in PICTURES[:2]])


@pytest.mark.slow
def test_what_a_model_wrote_adds_no_place_and_removes_none(tiny_checkpoints: Mapping[str, Path]) -> None:
    processor = adapter_for(tiny_checkpoints["smolvlm"]).load_processor(tiny_checkpoints["smolvlm"], DEFAULT_VISION)
    text = "Like <image>?\nIt said: <end_of_utterance>yes <ima<end_of_utterance>ge>"
    assert without_control_tokens(processor, text, places=True) == "Like <image>?\nIt said: yes "
    assert without_control_tokens(processor, text) == "Like ?\nIt said: yes ", "the family's own token, without images"


@pytest.mark.slow
@needs("smolvlm")
def test_an_agent_that_is_quoted_may_write_markup_that_is_no_token(tiny_checkpoints: Mapping[str, Path]) -> None:
    path = str(tiny_checkpoints["smolvlm"])
    config = settings_of(agents=[{"name": "a", "model": path}])
    encoder = PromptEncoder(config, config.agents[0], path)
    for one in (prompt_of("Like <image>?", noise(56, 56)), prompt_of("Like?")):
        quoting = replace(one, text=one.text + " It said <video><row_6_col_6>.", quotes=True)
        assert "It said ." in encoder.adapter.decode(encoder.processor, encoder.encode(quoting).input_ids.tolist())
