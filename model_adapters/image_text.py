"""Common base of vision-language families in transformers: loading, chat template, vision tower.

A new family of this kind is a subclass that names its `model_types`, its media tokens and the number of rows of each
vision tensor per image.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

from model_adapters.base import DEFAULT_VISION, AdapterError, Encoded, ModelAdapter, VisionSettings
from model_adapters.loading import load_pretrained, read_pretrained, refusing_damage, stop_ids, unwrap
from model_adapters.templates import NO_ARGUMENTS, PLACE, Shots, Template, conversation, render, require_order


class ImageTextAdapter(ModelAdapter):
    """A family that `AutoModelForImageTextToText` loads and whose processor expands image placeholders."""

    packages: ClassVar[tuple[str, ...]] = ("torchvision",)
    patches: ClassVar[tuple[str, ...]] = ("torchvision_cpu", "torchaudio_cpu")
    tower_inputs: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Processor outputs passed to `get_image_features`."""
    media_tokens: ClassVar[tuple[str, ...]]
    """Image and video markup: refused in a prompt's text and never sampled."""
    string_roles: ClassVar[tuple[str, ...]] = ()
    """Roles whose text the family's chat template takes as a string; it would write a list of parts as Python does."""

    # -- loading ---------------------------------------------------------------------------------------

    def load_processor(self, path: str | Path, vision: VisionSettings) -> Any:
        """Load the processor of a checkpoint; raises AdapterError for one that cannot process an image."""
        self.apply_patches()
        from transformers import AutoProcessor

        processor = read_pretrained(AutoProcessor, path)
        with refusing_damage(path, "processor of images"):
            processor.image_processor(Image.new("RGB", (56, 56)), return_tensors="pt")
        return processor

    def load_model(self, path: str | Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> nn.Module:
        self.apply_patches()
        from transformers import AutoModelForImageTextToText

        return load_pretrained(AutoModelForImageTextToText, path, dtype, attention)

    # -- one prompt ------------------------------------------------------------------------------------

    def encode(
        self,
        processor: Any,
        text: str,
        images: Sequence[Image.Image] = (),
        *,
        system: str | None = None,
        vision: VisionSettings = DEFAULT_VISION,
        template: Template = NO_ARGUMENTS,
        shots: Shots = (),
        answer_prefix: str = "",
    ) -> Encoded:
        """Encode one prompt with the checkpoint's chat template and processor."""
        if self.needs_images and not images:
            raise AdapterError(f"{self.family} takes no prompt without an image: give it one, or leave the prompt out")
        texts = (text, *chain(*shots))
        # The place of an image is markup in some families.
        without_places = [part.replace(PLACE, "\n") for part in texts] if images else texts
        for part in (*without_places, system or "", answer_prefix):
            markup = next((token for token in self.media_tokens if token in part), None)
            if markup is not None:
                raise AdapterError(
                    f"the prompt contains {markup!r}, which {self.family} reads as image markup: "
                    "remove it from the text and pass the image in `images`"
                )
        turns: dict[str, Any] = {"system": system, "shots": shots, "answer_prefix": answer_prefix}
        messages = conversation(processor, text, len(images), **turns)
        for message in messages:
            if message["role"] in self.string_roles:
                message["content"] = self._string(message)
        if images and any(PLACE in part for part in texts):
            # The processor's own mark need not be in the vocabulary: it may stand for other tokens.
            processor_mark = getattr(processor, "image_token", None)
            require_order(processor, messages, template, sorted({*self.media_tokens, *filter(None, [processor_mark])}))
        images = self.prepare_images(processor, images, vision)
        chat = render(processor, messages, template, tokenize=False)
        inputs = processor(
            text=[chat],
            images=[list(images)] if images else None,
            add_special_tokens=_adds_special_tokens(processor, chat),
            return_tensors="pt",
            **(self.processor_options(processor, vision) if images else {}),
        )
        ids = inputs["input_ids"][0]
        if not images:
            return self.finish(processor, ids, {})
        encoded = self.finish(processor, ids, {key: inputs[key] for key in self.tower_inputs})
        return replace(encoded, chat=chat, images=tuple(images))

    def _string(self, message: Mapping[str, Any]) -> str:
        if any(part["type"] == "image" for part in message["content"]):
            raise AdapterError(
                f"an earlier turn of the {message['role']} has an image, and the chat template of {self.family} has "
                "no place for it: leave the row out, or use another family"
            )
        return str(message["content"][0]["text"])

    def processor_options(self, processor: Any, vision: VisionSettings) -> dict[str, Any]:
        """Return the processor arguments that implement `vision`; none by default."""
        return {}

    def finish(self, processor: Any, ids: Tensor, vision: dict[str, Tensor]) -> Encoded:
        """Assemble ids and vision tensors; positions count up from 0 by default."""
        return Encoded(ids, torch.arange(len(ids)).unsqueeze(0), len(ids), vision)

    def decode(self, processor: Any, ids: Sequence[int]) -> str:
        return processor.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def unexpanded(self, processor: Any, encoded: Encoded) -> list[int]:
        """Return the ids of the rendered chat, one placeholder per image."""
        if not encoded.images:
            return super().unexpanded(processor, encoded)
        special = _adds_special_tokens(processor, encoded.chat)
        return list(processor.tokenizer(encoded.chat, add_special_tokens=special)["input_ids"])

    # -- vision ----------------------------------------------------------------------------------------

    @abstractmethod
    def rows_per_image(self, key: str, vision: dict[str, Tensor]) -> list[int]:
        """Return the number of rows of tensor `key` per image, in order."""

    def split_vision(self, vision: dict[str, Tensor], images: Sequence[int]) -> list[dict[str, Tensor]]:
        parts: list[dict[str, Tensor]] = [{} for _ in images]
        for key, tensor in vision.items():
            rows = self.rows_per_image(key, vision)
            if len(rows) != sum(images):
                raise AdapterError(
                    f"rows_per_image gives rows of {len(rows)} images for `{key}`, the prompts have {sum(images)}"
                )
            start = image = 0
            for part, count in zip(parts, images, strict=True):
                if count:
                    size = sum(rows[image : image + count])
                    part[key] = tensor[start : start + size]
                    start, image = start + size, image + count
        return parts

    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        tower = unwrap(model).model
        return self.feature_rows(tower.get_image_features(**{key: vision[key] for key in self.tower_inputs}))

    def feature_rows(self, output: Any) -> Tensor:
        """Return what transformers' `get_image_features` gave as (T, w)."""
        # transformers 5 wraps the features in an output object; 4.x returns them bare.
        features = getattr(output, "pooler_output", output)
        blocks = features if isinstance(features, list | tuple) else [features]
        return torch.cat([block.flatten(0, -2) for block in blocks])

    def image_token_id(self, config: Any) -> int | None:
        return config.image_token_id

    # -- language model ----------------------------------------------------------------------------------

    def decoder(self, model: nn.Module) -> nn.Module:
        return unwrap(model).model.language_model

    def stop_ids(self, processor: Any, model: nn.Module) -> tuple[int, ...]:
        return stop_ids(processor.tokenizer, unwrap(model), self.end_of_turn)

    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        tokenizer = processor.tokenizer
        vocabulary = tokenizer.get_vocab()
        banned = {vocabulary[token] for token in self.media_tokens if token in vocabulary}
        banned.add(self.image_token_id(config))
        banned.add(tokenizer.pad_token_id)
        stops = {tokenizer.eos_token_id, *(vocabulary.get(token) for token in self.end_of_turn)}
        return tuple(sorted(banned - stops - {None}))

    def vision_modules(self, model: nn.Module) -> list[nn.Module]:
        return [unwrap(model).model.vision_tower]


class TiledAdapter(ImageTextAdapter):
    """A family whose image processor cuts images into as many views as its `processor_options` say."""

    def load_processor(self, path: str | Path, vision: VisionSettings) -> Any:
        """Load the processor; its files, where it is saved again, state the options."""
        processor = super().load_processor(path, vision)
        for name, value in self.processor_options(processor, vision).items():
            setattr(processor.image_processor, name, value)
        return processor

    def engine_options(self, processor: Any, vision: VisionSettings) -> dict[str, Any]:
        return {"mm_processor_kwargs": self.processor_options(processor, vision)}


def _adds_special_tokens(processor: Any, chat: str) -> bool:
    """Return whether the tokenizer should add <bos>: not if the template writes it."""
    bos = processor.tokenizer.bos_token
    return not (bos and chat.startswith(bos))
