"""Models by name, from their public configs alone: checkpoints in hub layout without weights.

Sizes are those of each model's config.json on the hub. The tokenizer is a small one whose ids all exist in the model;
lengths of prompts are set by the config of the run, so that nothing depends on it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import patches
from mmcorl.fake_gpu.device import FakeGpu
from model_adapters.testing.tiny import build_tiny

TABLE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("models.json").read_text(encoding="utf-8"))
"""By hub id: arguments of `build_tiny`, `layers` of Gemma-3's kinds spelled out by `_settings`."""


def build(model: str, folder: Path, layers: int | None = None, tower: int | None = None) -> Path:
    """Write config, tokenizer and processor of a model of the table, cut to some layers where asked."""
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    from transformers import PreTrainedModel

    settings = _settings(TABLE[model], layers, tower)
    saved = PreTrainedModel.save_pretrained

    def save(self: Any, path: Path, **_: Any) -> None:
        self.config.architectures = [type(self).__name__]
        self.config.save_pretrained(path)
        self.generation_config.save_pretrained(path)
        save_file({}, Path(path) / "model.safetensors")

    PreTrainedModel.save_pretrained = save  # type: ignore[method-assign, assignment]
    try:
        with torch.device("meta"):
            build_tiny(path=folder, **settings)
    finally:
        PreTrainedModel.save_pretrained = saved  # type: ignore[method-assign]
    for file in folder.glob("*processor_config.json") if (most := TABLE[model].get("most_pixels")) else ():
        written = json.loads(file.read_text(encoding="utf-8"))
        tool = written.get("image_processor", written)
        tool["size"]["longest_edge"] = most
        tool |= {"max_pixels": most} if "max_pixels" in tool else {}  # transformers 4
        file.write_text(json.dumps(written), encoding="utf-8")
    return folder


def _settings(facts: Mapping[str, Any], layers: int | None, tower: int | None) -> dict[str, Any]:
    """Arguments of `build_tiny` for a row of the table."""
    text, vision = dict(facts["text"]), dict(facts.get("vision", {}))
    text["num_hidden_layers"] = count = layers or text["num_hidden_layers"]
    if (period := text.pop("full_attention_every", None)) is not None:
        kinds = ["sliding_attention" if (layer + 1) % period else "full_attention" for layer in range(count)]
        text["layer_types"] = kinds
    if tower and vision:
        key = "depth" if "depth" in vision else "num_hidden_layers"
        vision[key] = tower
        if "fullatt_block_indexes" in vision:
            vision["fullatt_block_indexes"] = [tower - 1]
    settings = {"family": facts["family"], "hidden": text["hidden_size"], "layers": count, "initializer_range": 0.02}
    pictures = {key: facts[key] for key in ("image_size", "mm_tokens_per_image") if key in facts}
    return {**settings, **pictures, "text_config": text, "vision_config": vision}


@contextmanager
def on(gpu: FakeGpu) -> Iterator[None]:
    """While this is open transformers loads models onto the device, from their config alone."""
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    from transformers import GenerationConfig, PreTrainedModel

    loads = PreTrainedModel.__dict__["from_pretrained"]

    def load(cls: Any, path: Any, *_: Any, config: Any, dtype: Any, attn_implementation: str, **__: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes(), torch.device("meta"):
            model = cls._from_config(config, dtype=dtype, attn_implementation=attn_implementation)
        gpu.hold(model)
        if model.can_generate():
            model.generation_config = GenerationConfig.from_pretrained(path)
        return model, {"missing_keys": []}

    PreTrainedModel.from_pretrained = classmethod(load)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        PreTrainedModel.from_pretrained = loads  # type: ignore[method-assign]
