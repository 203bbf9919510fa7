"""The public contract test: every family passes, and each fault is caught."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_passes import each_family
from model_adapters.base import AdapterError, Encoded, ModelAdapter
from model_adapters.contract import CHECKS, check_adapter, media_ids
from model_adapters.gemma3 import Gemma3Adapter
from model_adapters.internvl3_5 import InternVL35Adapter
from model_adapters.qwen2_5_vl import Qwen25VLAdapter
from model_adapters.text import TextAdapter

VISION_ONLY = {
    "placeholders equal features",
    "collate then split is identity",
    "blanking an image matters",
    "attention inside an image block",
}


@each_family("qwen2_5_vl", "internvl3_5", "gemma3", "qwen2", "qwen3", "llama")
def test_every_family_passes(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    checks = check_adapter(tiny_checkpoints[family])
    assert [check.name for check in checks] == list(CHECKS)
    assert [f"{check.name}: {check.detail}" for check in checks if not check.passed] == []
    skipped = {check.name for check in checks if check.skipped_reason}
    assert skipped == (VISION_ONLY if family in ("qwen2", "qwen3", "llama") else set())


# -- adapters with one fault each ------------------------------------------------------------------------


class OneIdTooFew(TextAdapter):
    def encode(self, *args: Any, **options: Any) -> Encoded:
        encoded = super().encode(*args, **options)
        return replace(
            encoded,
            input_ids=encoded.input_ids[:-1],
            positions=encoded.positions[:, :-1],
            next_position=encoded.next_position - 1,
        )


class AFeatureTooFew(InternVL35Adapter):
    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        return super().image_features(model, vision)[:-1]


class SplitsBackwards(Gemma3Adapter):
    def split_vision(self, vision: dict[str, Tensor], images: Sequence[int]) -> list[dict[str, Tensor]]:
        return super().split_vision(vision, images[::-1])[::-1]


class JoinsBackwards(InternVL35Adapter):
    """Each prompt gets the picture of another one as soon as there are several."""

    def collate_vision(self, parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return super().collate_vision(parts[::-1])


class PlainPositions(Qwen25VLAdapter):
    """M-RoPE forgotten."""

    def encode(self, *args: Any, **options: Any) -> Encoded:
        encoded = super().encode(*args, **options)
        length = len(encoded.input_ids)
        return replace(encoded, positions=torch.arange(length).expand(3, -1), next_position=length)


class NextPositionIsTheLength(Qwen25VLAdapter):
    """An image of n tokens takes fewer than n positions, so completions do not start at the length."""

    def encode(self, *args: Any, **options: Any) -> Encoded:
        encoded = super().encode(*args, **options)
        return replace(encoded, next_position=len(encoded.input_ids))


class WarmerLogits(TextAdapter):
    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        return super().logits(model, hidden) * 0.99


class PaddingIsSeen(TextAdapter):
    """Harmless on right-padded rows, wrong on left-padded ones."""

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Any:
        return None


class BlindToImages(InternVL35Adapter):
    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        return super().image_features(model, vision) * 0


class CausalInsideImages(Gemma3Adapter):
    """Gemma-3 without its bidirectional image blocks."""

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Any:
        return ModelAdapter.attention_mask(self, model, input_ids, valid)


class MediaMayBeSampled(Qwen25VLAdapter):
    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        return tuple(value for value in super().banned_ids(processor, config) if value != config.video_token_id)


class StopsAreBanned(TextAdapter):
    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        return (processor.eos_token_id,)


class NeverStops(TextAdapter):
    def stop_ids(self, processor: Any, model: nn.Module) -> tuple[int, ...]:
        return ()


class ForgetsAStop(TextAdapter):
    def stop_ids(self, processor: Any, model: nn.Module) -> tuple[int, ...]:
        return (processor.eos_token_id,)


class FrozenInside(TextAdapter):
    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        return super().logits(model, hidden.detach())


class VisionCutOff(InternVL35Adapter):
    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        return super().image_features(model, vision).detach()


def fault(adapter: type[ModelAdapter], family: str, **expected: str) -> Any:
    """One fault with the checks it fails (first words of their names) and part of what they report."""
    return pytest.param(adapter, family, expected, id=adapter.__name__)


@pytest.mark.parametrize(
    ("adapter", "family", "expected"),
    [
        fault(OneIdTooFew, "qwen2", same="18 ids against 19"),
        fault(AFeatureTooFew, "internvl3_5", placeholders="4 placeholders in the prompt but 3"),
        fault(SplitsBackwards, "gemma3", collate="`pixel_values`"),
        fault(JoinsBackwards, "internvl3_5", ragged="largest difference", cached="largest difference"),
        fault(PlainPositions, "qwen2_5_vl", positions="prompt 1"),
        fault(NextPositionIsTheLength, "qwen2_5_vl", positions="prompt 1", forward="largest difference"),
        fault(WarmerLogits, "llama", forward="largest difference"),
        fault(PaddingIsSeen, "qwen3", cached="largest difference"),
        fault(BlindToImages, "internvl3_5", blanking="0.0e+00"),
        fault(CausalInsideImages, "gemma3", attention="0.0e+00", forward="largest difference"),
        fault(MediaMayBeSampled, "qwen2_5_vl", stop="video_token_id"),
        fault(StopsAreBanned, "qwen2", stop="banned"),
        fault(NeverStops, "llama", stop="stop_ids is empty"),
        fault(ForgetsAStop, "llama", stop="generation_config.json"),
        fault(FrozenInside, "qwen2", gradients="language-model parameters"),
        fault(VisionCutOff, "internvl3_5", gradients="image_features"),
    ],
)
def test_each_fault_is_caught(
    adapter: type[ModelAdapter], family: str, expected: dict[str, str], tiny_checkpoints: Mapping[str, Path]
) -> None:
    checks = check_adapter(tiny_checkpoints[family], f"{__name__}:{adapter.__name__}")
    failed = {check.name.split()[0]: check.detail for check in checks if not check.passed}
    assert expected.keys() <= failed.keys()
    assert all(detail in failed[name] for name, detail in expected.items())
    if adapter is PaddingIsSeen:  # a fault fails only its check
        assert failed.keys() == {"cached"}


class Raises(TextAdapter):
    def encode(self, *args: Any, **options: Any) -> Encoded:
        raise AdapterError("this prompt is too odd\nand more")


def test_an_adapter_that_raises_fails_its_checks_and_the_others_still_run(
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    checks = check_adapter(tiny_checkpoints["qwen2"], f"{__name__}:Raises")
    assert [check.name for check in checks] == list(CHECKS)
    assert checks[0].detail == "AdapterError: this prompt is too odd"
    assert [check.name for check in checks if check.passed and not check.skipped_reason] == ["stop and banned tokens"]


def test_the_tolerance_and_the_dtype_are_the_callers(tiny_checkpoints: Mapping[str, Path]) -> None:
    # bfloat16 has 8 bits of mantissa: log-probabilities near 6 nats are good to a few hundredths.
    checks = check_adapter(tiny_checkpoints["qwen2"], dtype=torch.bfloat16, tolerance=0.2)
    assert all(check.passed for check in checks)
    strict = check_adapter(tiny_checkpoints["qwen2"], dtype=torch.bfloat16, tolerance=1e-9)
    assert any("tolerance 1e-09" in check.detail for check in strict if not check.passed)


def test_media_ids_are_read_under_all_their_names() -> None:
    config = SimpleNamespace(image_token_id=5, video_token_index=6, boi_token_index=7, eos_token_id=1)
    assert media_ids(config) == {"image_token_id": 5, "video_token_index": 6, "boi_token_index": 7}
