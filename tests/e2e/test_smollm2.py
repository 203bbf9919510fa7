"""The pretrained entry of the zoo: its template with worked examples, and (with the network) the fetched weights."""

from __future__ import annotations

import pytest
import torch

from mmcorl.errors import UserError
from mmcorl.tools import smollm2, zoo
from model_adapters.base import VisionSettings
from model_adapters.errors import AdapterError
from model_adapters.registry import adapter_for
from model_adapters.tiny import build_tiny


@pytest.fixture(scope="module")
def text_model(tmp_path_factory):
    """A tiny text checkpoint whose chat template takes worked examples."""
    folder = build_tiny("llama", tmp_path_factory.mktemp("llama"), seed=0)
    adapter = adapter_for(folder)
    tokenizer = adapter.load_processor(folder, VisionSettings())
    tokenizer.chat_template = smollm2.template(tokenizer.chat_template)
    return adapter, tokenizer


def rendered(tokenizer, messages, **arguments):
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)


def test_worked_examples_stand_as_earlier_turns(text_model):
    _, tokenizer = text_model
    asked = [{"role": "user", "content": "What is 1 + 1?"}]
    by_hand = [
        {"role": "user", "content": "What is 2 + 3?"},
        {"role": "assistant", "content": "2 + 3 = 5. The answer is \\boxed{5}."},
        {"role": "user", "content": "What is 9 - 4?"},
        {"role": "assistant", "content": "9 - 4 = 5. The answer is \\boxed{5}."},
        {"role": "user", "content": "What is 6 * 7?"},
        {"role": "assistant", "content": "6 * 7 = 42. The answer is \\boxed{42}."},
    ]
    system = [{"role": "system", "content": "Be brief."}]
    assert rendered(tokenizer, asked, shots="terse") == rendered(tokenizer, by_hand + asked)
    assert rendered(tokenizer, system + asked, shots="terse") == rendered(tokenizer, system + by_hand + asked)
    assert rendered(tokenizer, asked, shots="worded") != rendered(tokenizer, asked, shots="terse")
    assert "2 + 3" not in rendered(tokenizer, asked)


def test_the_examples_are_an_argument_that_agents_may_name(text_model):
    adapter, tokenizer = text_model
    with_shots = adapter.encode(tokenizer, "What is 1 + 1?", template={"shots": "worded"})
    assert len(with_shots.input_ids) > len(adapter.encode(tokenizer, "What is 1 + 1?").input_ids)
    with pytest.raises(AdapterError, match="no argument 'shot' "):
        adapter.encode(tokenizer, "What is 1 + 1?", template={"shot": "worded"})


def test_every_example_is_right():
    for shots in smollm2.SHOTS.values():
        for question, answer in shots:
            expression = question.removeprefix("What is ").removesuffix("?")
            assert answer.endswith(f"\\boxed{{{eval(expression)}}}.")


def test_a_pretrained_model_has_no_seed():
    with pytest.raises(UserError, match="has no seed: write zoo:smollm2-135m"):
        zoo.parse("zoo:smollm2-135m@1")


@pytest.mark.stack
def test_the_fetched_weights_are_those_of_smollm2(tmp_path, monkeypatch):
    monkeypatch.setenv("MMCORL_CACHE", str(tmp_path))
    folder = zoo.build(smollm2.NAME)
    adapter = adapter_for(folder)
    model, tokenizer = adapter.load_model(folder), adapter.load_processor(folder, VisionSettings())
    # 49152 x 576 tied embeddings, and 30 layers of 3,540,096 weights, and a norm of 576.
    assert sum(parameter.numel() for parameter in model.parameters()) == 49152 * 576 + 30 * 3_540_096 + 576
    # A pretrained model knows what a random one does not: the capital of France.
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        following = tokenizer.decode(model(ids).logits[0, -1].argmax())
    assert following == " Paris"
    assert zoo.build(smollm2.NAME) == folder  # from the cache
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]
