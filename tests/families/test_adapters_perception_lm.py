"""PerceptionLM: one square view per image, and a system message that its template takes as a string."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapter_passes import SETTINGS, noise
from mmcorl.api import train
from model_adapters.base import AdapterError, VisionSettings
from model_adapters.perception_lm import PerceptionLMAdapter
from runs import changed, small_config

ADAPTER = PerceptionLMAdapter()


@pytest.fixture(scope="module")
def processor(tiny_checkpoints: Mapping[str, Path]) -> Any:
    return ADAPTER.load_processor(tiny_checkpoints["perception_lm"], SETTINGS)


def test_an_image_is_one_view_whatever_its_shape(processor: Any, tmp_path: Path) -> None:
    for size in ((300, 60), (56, 56), (28, 400)):
        encoded = ADAPTER.encode(processor, "?", [noise(*size)])
        assert encoded.vision["pixel_values"].shape == (1, 1, 3, 56, 56)
        assert int((encoded.input_ids == processor.image_token_id).sum()) == 4
        assert ADAPTER.image_tokens(processor, size, SETTINGS) == 4
    with pytest.raises(AdapterError, match="takes one view"):
        ADAPTER.encode(processor, "?", [noise(300, 60)], vision=VisionSettings(tiles=4))
    processor.save_pretrained(tmp_path)
    import transformers

    plain = transformers.AutoProcessor.from_pretrained(tmp_path)
    assert len(plain.image_processor(noise(300, 60), return_tensors="pt")["pixel_values"][0]) == 1


def test_a_system_message_replaces_the_templates_own(processor: Any) -> None:
    header = "<|start_header_id|>{}<|end_header_id|>\n\n{}<|eot_id|>"
    question = header.format("user", "1 + 1?") + "<|start_header_id|>assistant<|end_header_id|>\n\n"
    for given, system in ((None, "You are a helpful language and vision assistant."), ("Be brief.", "Be brief.")):
        ids = ADAPTER.encode(processor, "1 + 1?", system=given).input_ids
        assert processor.tokenizer.decode(ids) == "<|begin_of_text|>" + header.format("system", system) + question


@pytest.mark.slow
def test_what_its_tower_takes_is_not_guessed(
    tiny_checkpoints: Mapping[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tiny_checkpoints["perception_lm"]
    train(changed(small_config({"a": path, "b": path}), steps=1), tmp_path / "run", quiet=False)
    assert "without the activations of the vision tower" in capsys.readouterr().err
