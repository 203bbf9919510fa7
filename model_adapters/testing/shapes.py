"""Sizes of the random models that the benchmarks run: a megabyte, about 50 million parameters, and those on the hub.

`tiny` is what the tests use. `middle` is large enough for matrices to be most of the work and small enough for a CPU.
`full` has every width, depth and vocabulary of the model that `FULL` names, so that on a GPU a step costs what a step
of that model costs; the weights are random, and the tokenizer stays the small one, whose ids all exist in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from model_adapters.testing.tiny import build_tiny

FAMILIES = ("qwen2_5_vl", "internvl3_5", "gemma3", "llama")
SIZES = ("tiny", "middle", "full")
SIDE = 448  # pixels; 256 image tokens in all three families at middle size


def _text(
    hidden: int, layers: int, heads: tuple[int, int], mlp: int, vocab: int, tied: bool, positions: int = 0, **more: Any
) -> dict[str, Any]:
    """Fields of a language model's config: `heads` of queries and of keys, `more` by their own names."""
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "intermediate_size": mlp, "vocab_size": vocab}
    known = {"num_attention_heads": heads[0], "num_key_value_heads": heads[1], "tie_word_embeddings": tied}
    return {**sizes, **known, **({"max_position_embeddings": positions} if positions else {}), **more}


TEXT = _text(512, 8, heads=(8, 2), mlp=2048, vocab=8192, tied=False)
SMOLLM2 = _text(576, 30, heads=(9, 3), mlp=1536, vocab=49152, head_dim=64, tied=True)
"""The text family in the shape of SmolLM2-135M."""
VISION: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"hidden_size": 256, "intermediate_size": 1024, "depth": 6, "fullatt_block_indexes": [2, 5]},
    "internvl3_5": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
    "gemma3": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
}


def _sliding(layers: int, period: int, window: int) -> dict[str, Any]:
    """Gemma-3's kinds of layers: every `period`-th sees everything, the others a window."""
    kinds = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(layers)]
    return {"layer_types": kinds, "sliding_window": window}


@dataclass(frozen=True)
class Shape:
    """The size of one model."""

    side: int
    """Pixels of a picture's side."""
    text: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the language model's config; what is not named is what tiny models have."""
    vision: Mapping[str, Any] = field(default_factory=dict)
    image_tokens: int | None = None
    """Gemma-3's tokens of a picture; the other families' follow from the pixels."""

    def settings(self) -> dict[str, Any]:
        """Arguments of `build_tiny`."""
        sizes = {"hidden": self.text["hidden_size"], "layers": self.text["num_hidden_layers"]} if self.text else {}
        scale = {"initializer_range": 0.02, "text_config": self.text, "vision_config": self.vision} if self.text else {}
        return {"image_size": self.side, "mm_tokens_per_image": self.image_tokens, **sizes, **scale}

    def cut(self, layers: int, tower: int) -> Shape:
        """The same with fewer layers, of Gemma-3's kinds one that sees everything."""
        text, vision = {**self.text, "num_hidden_layers": layers}, dict(self.vision)
        if "layer_types" in text:
            text["layer_types"] = ["sliding_attention"] * (layers - 1) + ["full_attention"]
        if vision:
            vision["depth" if "depth" in vision else "num_hidden_layers"] = tower
        if "fullatt_block_indexes" in vision:
            vision["fullatt_block_indexes"] = [tower - 1]
        return replace(self, text=text, vision=vision)


MIDDLE: dict[str, Shape] = {
    "qwen2_5_vl": Shape(SIDE, TEXT, VISION["qwen2_5_vl"]),
    "internvl3_5": Shape(SIDE, TEXT, VISION["internvl3_5"]),
    "gemma3": Shape(SIDE, {**TEXT, **_sliding(8, 4, 512)}, VISION["gemma3"]),
    "llama": Shape(SIDE, SMOLLM2),
}
FULL: dict[str, Shape] = {
    # Qwen2.5-VL-3B-Instruct, 1024 tokens of a picture.
    "qwen2_5_vl": Shape(
        896,
        _text(2048, 36, heads=(16, 2), mlp=11008, vocab=151936, positions=128000, tied=True),
        {
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "depth": 32,
            "num_heads": 16,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    ),
    # InternVL3.5-2B, one tile. The makers count 2.0 billion in its language model: with an output head of its own.
    "internvl3_5": Shape(
        448,
        _text(2048, 28, heads=(16, 8), mlp=6144, vocab=151936, head_dim=128, positions=40960, tied=False),
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16},
    ),
    # Gemma-3-4B-it: a picture is 4096 patches, pooled to 256 tokens.
    "gemma3": Shape(
        896,
        _text(
            2560,
            34,
            heads=(8, 4),
            mlp=10240,
            vocab=262208,
            head_dim=256,
            query_pre_attn_scalar=256,
            positions=131072,
            tied=True,
            **_sliding(34, 6, 1024),
        ),
        {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
        image_tokens=256,
    ),
    # Llama-3.2-3B-Instruct.
    "llama": Shape(
        SIDE, _text(3072, 28, heads=(24, 8), mlp=8192, vocab=128256, head_dim=128, positions=131072, tied=True)
    ),
}


def _of_like_kind(family: str, **text: Any) -> Shape:
    """A sister of a model of `FULL`: the same tower and pictures, other fields of its text model."""
    return replace(FULL[family], text={**FULL[family].text, **text})


_QWEN_3B = {key: value for key, value in FULL["qwen2_5_vl"].text.items() if key != "max_position_embeddings"}
_QWEN_7B = _text(3584, 28, heads=(28, 4), mlp=18944, vocab=152064, tied=False)
HUB: dict[str, tuple[str, Shape]] = {
    "Qwen/Qwen2.5-VL-3B-Instruct": ("qwen2_5_vl", FULL["qwen2_5_vl"]),
    "Qwen/Qwen2.5-VL-7B-Instruct": ("qwen2_5_vl", _of_like_kind("qwen2_5_vl", **_QWEN_7B)),
    "OpenGVLab/InternVL3_5-2B-HF": ("internvl3_5", FULL["internvl3_5"]),
    "OpenGVLab/InternVL3_5-8B-HF": (
        "internvl3_5",
        _of_like_kind(
            "internvl3_5", hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, intermediate_size=12288
        ),
    ),
    "google/gemma-3-4b-it": ("gemma3", FULL["gemma3"]),
    "google/gemma-3-12b-it": (
        "gemma3",
        _of_like_kind(
            "gemma3",
            hidden_size=3840,
            num_attention_heads=16,
            num_key_value_heads=8,
            intermediate_size=15360,
            num_hidden_layers=48,
            **_sliding(48, 6, 1024),
        ),
    ),
    "Qwen/Qwen2.5-3B": ("qwen2", Shape(SIDE, {**_QWEN_3B, "max_position_embeddings": 32768})),
    "Qwen/Qwen2.5-3B-Instruct": ("qwen2", Shape(SIDE, {**_QWEN_3B, "max_position_embeddings": 32768})),
    "Qwen/Qwen2.5-7B": ("qwen2", Shape(SIDE, {**_QWEN_7B, "max_position_embeddings": 131072})),
    "Qwen/Qwen3-1.7B-Base": (
        "qwen3",
        Shape(SIDE, _text(2048, 28, heads=(16, 8), mlp=6144, vocab=151936, head_dim=128, positions=32768, tied=True)),
    ),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", FULL["llama"]),
    "meta-llama/Llama-3.1-8B-Instruct": (
        "llama",
        _of_like_kind(
            "llama",
            hidden_size=4096,
            num_hidden_layers=32,
            num_attention_heads=32,
            intermediate_size=14336,
            tie_word_embeddings=False,
        ),
    ),
}
"""Family and shape of models by hub id: what their config.json says there."""


def shape(family: str, size: str) -> Shape:
    """The shape of a family at one of `SIZES`."""
    return {"tiny": dict.fromkeys(FAMILIES, Shape(56)), "middle": MIDDLE, "full": FULL}[size][family]


def build(family: str, size: str, folder: Path, **more: Any) -> Path:
    """Write a checkpoint with random weights; `more` goes to `build_tiny` (`seed`, a smaller `image_size`)."""
    return build_tiny(family, folder, **{**shape(family, size).settings(), **more})
