"""The public contract test: every family keeps it, and each way of breaking it is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl3_5", "gemma3", "qwen2", "qwen3", "llama"])
def test_every_family_keeps_the_contract(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
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


@pytest.mark.parametrize(
    ("adapter", "family", "failing", "detail"),
    [
        (OneIdTooFew, "qwen2", "same ids as the chat template", "18 ids against 19"),
        (AFeatureTooFew, "internvl3_5", "placeholders equal features", "4 placeholders in the prompt but 3"),
        (
            SplitsBackwards,
            "gemma3",
            "collate then split is identity",
            "came back with another `pixel_values`",
        ),
        (JoinsBackwards, "internvl3_5", "ragged batch scores as its rows", "largest difference"),
        (JoinsBackwards, "internvl3_5", "cached generation scores as the forward", "largest difference"),
        (PlainPositions, "qwen2_5_vl", "positions equal transformers'", "prompt 1 has other positions"),
        (
            NextPositionIsTheLength,
            "qwen2_5_vl",
            "positions equal transformers'",
            "prompt 1 has other positions",
        ),
        (NextPositionIsTheLength, "qwen2_5_vl", "forward equals transformers'", "largest difference"),
        (WarmerLogits, "llama", "forward equals transformers'", "largest difference"),
        (PaddingIsSeen, "qwen3", "cached generation scores as the forward", "largest difference"),
        (BlindToImages, "internvl3_5", "blanking an image matters", "0.0e+00 or more, which is within"),
        (CausalInsideImages, "gemma3", "attention inside an image block", "moves the first by 0.0e+00"),
        (CausalInsideImages, "gemma3", "forward equals transformers'", "largest difference"),
        (MediaMayBeSampled, "qwen2_5_vl", "stop and banned tokens", "video_token_id"),
        (StopsAreBanned, "qwen2", "stop and banned tokens", "end a completion and are banned"),
        (NeverStops, "llama", "stop and banned tokens", "no completion would ever end"),
        (ForgetsAStop, "llama", "stop and banned tokens", "generation_config.json ends on"),
        (FrozenInside, "qwen2", "gradients reach everything", "language-model parameters get no gradient"),
        (VisionCutOff, "internvl3_5", "gradients reach everything", "image_features is cut off"),
    ],
)
def test_each_fault_is_found(
    adapter: type[ModelAdapter],
    family: str,
    failing: str,
    detail: str,
    tiny_checkpoints: Mapping[str, Path],
) -> None:
    checks = check_adapter(tiny_checkpoints[family], f"{__name__}:{adapter.__name__}")
    (check,) = (check for check in checks if check.name == failing)
    assert not check.passed
    assert detail in check.detail


def test_a_fault_fails_its_own_check_alone(tiny_checkpoints: Mapping[str, Path]) -> None:
    checks = check_adapter(tiny_checkpoints["qwen3"], f"{__name__}:PaddingIsSeen")
    assert [check.name for check in checks if not check.passed] == ["cached generation scores as the forward"]


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
