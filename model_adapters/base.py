"""The seam between a model family and everything else.

A family is one stateless class. It turns one prompt into token ids, positions and vision tensors, computes
image features apart from the language model (so one vision pass serves K completions), and states the few
rules that differ: masks, stop tokens, media tokens. The trainer and the engines are written against this
class and know no family.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

import patches
from model_adapters.errors import AdapterError
from model_adapters.templates import NO_ARGUMENTS, arguments


@dataclass(frozen=True)
class VisionSettings:
    """How images reach a model: one setting, used by training and evaluation alike."""

    max_side: int = 1024
    """Longest side in pixels after `load_image`."""
    tiles: int = 1
    """Most tiles one image may be cut into (InternVL); 1 switches tiling off."""
    min_pixels: int | None = None
    """Lower pixel budget per image (Qwen); None keeps the checkpoint's own."""
    max_pixels: int | None = None
    """Upper pixel budget per image (Qwen); None keeps the checkpoint's own."""


DEFAULT_VISION = VisionSettings()

_SMALL = (56, 56)
"""Width and height of a picture that costs little to work on."""


@dataclass(frozen=True)
class Encoded:
    """One prompt as the model reads it; no padding, no batch axis."""

    input_ids: Tensor
    """(P,) int64. Every image placeholder is already expanded to one id per image feature."""
    positions: Tensor
    """(A, P) int64: A rows of position ids, 1 for most families, 3 for M-RoPE."""
    next_position: int
    """Position of the first completion token, the same on all A rows; later ones count up by one."""
    vision: dict[str, Tensor] = field(default_factory=dict)
    """Processor outputs the vision tower needs; empty for a prompt without images."""
    chat: str = ""
    """The prompt in the chat template, one placeholder per image, for an engine that works on images itself; see
    `ModelAdapter.unexpanded`. Empty without images."""
    images: tuple[Image.Image, ...] = ()
    """The images as the processor got them, for the same engine."""

    @property
    def nbytes(self) -> int:
        """Memory of tensors and images."""
        tensors = sum(tensor.nbytes for tensor in (self.input_ids, self.positions, *self.vision.values()))
        return tensors + sum(image.width * image.height * len(image.getbands()) for image in self.images)


class ModelAdapter(ABC):
    """One model family. Stateless: models and processors are arguments, never attributes."""

    family: ClassVar[str]
    """Name in tables, for example `Qwen2.5-VL`."""
    model_types: ClassVar[tuple[str, ...]]
    """Values of `model_type` in config.json that select this adapter."""
    multimodal: ClassVar[bool] = True
    needs_importance_correction: ClassVar[bool] = False
    """Whether rollouts of a separate engine drift from the trainer: decides importance correction `auto`."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Distributions the family needs besides torch and transformers."""
    patches: ClassVar[tuple[str, ...]] = ()
    """Names of the modules in `patches/` this family relies on."""
    end_of_turn: ClassVar[tuple[str, ...]] = ()
    """Tokens that end the assistant's turn, in addition to those the checkpoint's generation_config.json names."""
    notes: ClassVar[str] = ""
    """One line for `mmcorl families`: what a user should know."""

    def apply_patches(self) -> None:
        """Apply the upstream fixes this family names; loaders call it before they touch transformers."""
        patches.apply(*type(self).patches)

    # -- loading ---------------------------------------------------------------------------------------

    @abstractmethod
    def load_processor(self, path: str | Path, vision: VisionSettings) -> Any:
        """Load the processor (or tokenizer) of a checkpoint folder or hub id, ready for `encode`."""

    @abstractmethod
    def load_model(self, path: str | Path, dtype: torch.dtype = torch.float32, attention: str = "sdpa") -> nn.Module:
        """Load the full model with its language-model head, in eval mode, dropout 0, on the CPU."""

    # -- one prompt ------------------------------------------------------------------------------------

    @abstractmethod
    def encode(
        self,
        processor: Any,
        text: str,
        images: Sequence[Image.Image] = (),
        *,
        system: str | None = None,
        vision: VisionSettings = DEFAULT_VISION,
        template: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> Encoded:
        """Encode one prompt: images first, then the text, as one user turn with the generation prompt.

        Ids equal those of the plain chat template and processor. `images` come from `load_image`. `template` are
        arguments of the chat template, such as Qwen3's `enable_thinking`; its own defaults hold for the others.
        Raises AdapterError where a prompt cannot be encoded, one that holds turn markers among them.
        """

    def prompt_length(
        self,
        processor: Any,
        text: str,
        images: Sequence[Image.Image] = (),
        *,
        system: str | None = None,
        vision: VisionSettings = DEFAULT_VISION,
        template: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> int:
        """Tokens of one prompt, as many as `encode` makes of it, and its refusals.

        For checking whole data sets: where `image_tokens` knows, pictures are not worked on but small ones in
        their place.
        """
        more = 0
        small = self.image_tokens(processor, _SMALL, vision) if images else None
        if small is not None:
            more = sum((self.image_tokens(processor, image.size, vision) or 0) - small for image in images)
            images = [Image.new("RGB", _SMALL)] * len(images)
        encoded = self.encode(processor, text, images, system=system, vision=vision, template=template)
        return len(encoded.input_ids) + more

    def image_tokens(self, processor: Any, size: tuple[int, int], vision: VisionSettings) -> int | None:
        """Placeholders of one image of (width, height); None, for any size, where only `encode` can tell.

        `size` is that of an image as `load_image` gives it. Raises AdapterError for a shape that `encode` refuses.
        """
        return None

    def prepare_images(
        self, processor: Any, images: Sequence[Image.Image], vision: VisionSettings
    ) -> Sequence[Image.Image]:
        """The images as the processor must get them; unchanged unless a family resizes ahead of it.

        `encode` does this itself; an engine that processes images on its own must be given the result.
        """
        return images

    @abstractmethod
    def decode(self, processor: Any, ids: Sequence[int]) -> str:
        """Text of completion ids, special tokens left out."""

    def plain_inputs(
        self,
        processor: Any,
        text: str,
        images: Sequence[Image.Image],
        vision: VisionSettings,
        template: Mapping[str, Any] = NO_ARGUMENTS,
    ) -> dict[str, Any]:
        """What transformers alone makes of the prompt: the yardstick of the contract test.

        The chat template and the processor, called as a model card shows, with the `mm_processor_kwargs` of
        `engine_options`: what makes a serving engine see prompts as this adapter does must do so here.
        """
        content: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
        message = {"role": "user", "content": [*content, {"type": "text", "text": text}]}
        if not self.multimodal:
            message["content"] = text
        apply = processor.apply_chat_template
        options = self.engine_options(vision).get("mm_processor_kwargs", {}) if images else {}
        if options and "processor_kwargs" in inspect.signature(apply).parameters:  # transformers 5
            options = {"processor_kwargs": options}
        return dict(
            apply(
                [message],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                **arguments(processor, template),
                **options,
            )
        )

    # -- vision ----------------------------------------------------------------------------------------

    def collate_vision(self, parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Join the vision tensors of several prompts for one pass of the vision tower.

        The default concatenates each tensor on dim 0, which fits towers that take a flat list of images,
        tiles or patches. Prompts without images contribute nothing.
        """
        parts = [part for part in parts if part]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}

    @abstractmethod
    def split_vision(self, vision: dict[str, Tensor], images: Sequence[int]) -> list[dict[str, Tensor]]:
        """Undo `collate_vision`: `images[i]` is the number of images of prompt i (0 gives an empty dict)."""

    @abstractmethod
    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        """Vision tower and projector: (T, d), one row per image placeholder, in prompt then reading order.

        Differentiable. T is the number of image placeholders of all prompts in `vision`.
        """

    @abstractmethod
    def image_token_id(self, config: Any) -> int | None:
        """Id of the placeholder that stands for one image feature; None for a text family."""

    # -- language model ----------------------------------------------------------------------------------

    @abstractmethod
    def decoder(self, model: nn.Module) -> nn.Module:
        """The language model without its head: called with inputs_embeds, position_ids, attention_mask."""

    def embed(self, model: nn.Module, input_ids: Tensor, features: Tensor | None) -> Tensor:
        """(R, L) ids to (R, L, d) embeddings, image features put in place of their placeholders.

        `features` (T, d) are in row-major order of the placeholders in `input_ids`; a different count
        raises AdapterError. Completions hold no placeholders because these are never sampled.
        """
        hub: Any = model  # what torch knows as a module has the methods of a transformers model
        token = self.image_token_id(hub.config)
        none = torch.zeros_like(input_ids, dtype=torch.bool)
        placeholder = none if token is None else input_ids == token
        count = int(placeholder.sum())
        given = 0 if features is None else features.shape[0]
        if count != given:
            raise AdapterError(f"{count} image placeholders in the prompt but {given} image features")
        embeddings = self.embed_tokens(model, input_ids.masked_fill(placeholder, 0))
        if features is None:
            return embeddings
        return embeddings.masked_scatter(placeholder.unsqueeze(-1), features.to(embeddings.dtype))

    def embed_tokens(self, model: nn.Module, input_ids: Tensor) -> Tensor:
        """(R, L) ids without placeholders to (R, L, d) embeddings: sampled tokens, without looking at their values."""
        hub: Any = model
        return hub.get_input_embeddings()(input_ids)

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Any:
        """What the decoder needs as `attention_mask` in a pass that starts at the first token.

        `input_ids` (R, L); `valid` (R, L) bool, False on padding (left or right). The default is the plain
        padding mask for rows padded on the left, and None otherwise: a causal model never looks at what
        follows, so padding on the right needs no mask and attention keeps its fast path. Families whose mask
        is not causal override this.
        """
        return None if bool(valid[:, 0].all()) else valid.long()

    def bidirectional_spans(self, model: nn.Module, input_ids: Tensor) -> Tensor | None:
        """Runs of tokens that attend to each other both ways, the one exception to causal attention that is known.

        `input_ids` (..., L); returns their numbers (..., L) int64, from 1 on and 0 elsewhere, or None where there are
        none.
        """
        return None

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Hidden states (..., d) to logits (..., V) through the head, soft-cap included if there is one."""
        hub: Any = model
        return hub.get_output_embeddings()(hidden)

    @abstractmethod
    def stop_ids(self, processor: Any, model: nn.Module) -> tuple[int, ...]:
        """Ids that end a completion."""

    @abstractmethod
    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        """Media and padding ids that may never be sampled; masked in sampling and in training alike."""

    def vision_modules(self, model: nn.Module) -> list[nn.Module]:
        """The vision tower (without projector), for `freeze_vision`; empty for a text family."""
        return []

    # -- other engines -----------------------------------------------------------------------------------

    def unexpanded(self, processor: Any, encoded: Encoded) -> list[int]:
        """Ids of a prompt with one placeholder per image, which a serving engine expands to `encoded.input_ids`."""
        return encoded.input_ids.tolist()

    def engine_options(self, vision: VisionSettings) -> dict[str, Any]:
        """Keyword arguments a serving engine (vLLM) needs to see prompts as this adapter does.

        Its prompt ids are compared with ours at every request, so what is missing here is an error there.
        """
        return {}
