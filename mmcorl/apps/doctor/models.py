"""Models by name, from their public configs alone: checkpoints in hub layout without weights.

The tokenizer is a small one whose ids all exist in the model; lengths of prompts are set by the config of the run, so
that nothing depends on it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from model_adapters.testing.shapes import HUB
from model_adapters.testing.tiny import build_tiny

PIXELS = {"shortest_edge": 56**2, "longest_edge": 3584**2}
"""The budget of a picture in the processor of Qwen2.5-VL on the hub."""


def build(model: str, folder: Path, cut: tuple[int, int] | None = None) -> Path:
    """Write config, tokenizer and processor of a model of `HUB`; `cut`: layers of its decoder and tower instead."""
    family, shape = HUB[model]
    given: Any = family
    build_tiny(given, folder, weights=False, **(shape.cut(*cut) if cut else shape).settings())
    for file in folder.glob("*processor_config.json") if family == "qwen2_5_vl" else ():
        written = json.loads(file.read_text(encoding="utf-8"))
        tool = written.get("image_processor", written)
        tool["size"] = PIXELS
        if "max_pixels" in tool:  # transformers 4
            tool |= {"min_pixels": PIXELS["shortest_edge"], "max_pixels": PIXELS["longest_edge"]}
        file.write_text(json.dumps(written), encoding="utf-8")
    return folder
