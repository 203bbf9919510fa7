"""Writes down every prompt as a model of a command reads it. Imported in the command's process, before it starts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from transformers import AutoConfig

import eval_suite.evaluation.checkpoint as evaluating
from mmcorl.policy.prompt_encoder import PromptEncoder
from model_adapters.loading import read_pretrained


def write_down(record: str) -> None:
    """Add a line to a file for each prompt that is encoded from now on."""
    encode, ask = PromptEncoder.encode, evaluating.Checkpoint._encode

    def told(adapter: Any, path: str, encoded: Any, images: Sequence[bytes], **facts: Any) -> None:
        ids = encoded.input_ids.tolist()
        token = adapter.image_token_id(read_pretrained(AutoConfig, path))
        pixels = b"".join(value.numpy().tobytes() for name, value in encoded.vision.items() if "pixel" in name)
        facts |= {
            "ids": hashlib.sha256(str(ids).encode()).hexdigest(),
            "places": sum(place for place, _ in groupby(item == token for item in ids)),
            "pixels": hashlib.sha256(pixels).hexdigest() if pixels else None,
            "images": [hashlib.sha256(image).hexdigest() for image in images],
        }
        with Path(record).open("a") as file:
            file.write(json.dumps(facts) + "\n")

    def training(self: PromptEncoder, prompt: Any) -> Any:
        encoded = encode(self, prompt)
        facts = {"text": prompt.text, "gold": prompt.gold, "choices": prompt.choices, "code": bool(prompt.calls)}
        facts |= {"row": prompt.row_id, "tag": prompt.tag, "accepted": prompt.accepted}
        told(self.adapter, self.path, encoded, prompt.images, agent=self.name, uid=prompt.uid, **facts)
        return encoded

    def evaluation(self: Any, settings: Any, item: Any) -> Any:
        encoded = ask(self, settings, item)
        told(self.adapter, evaluating.resolve(self.model), encoded, item.images, uid=item.id, text=item.question)
        return encoded

    PromptEncoder.encode = training  # type: ignore[method-assign]
    evaluating.Checkpoint._encode = evaluation  # type: ignore[method-assign]
