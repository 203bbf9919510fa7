"""The interface between model families and the rest: the trainer and the engines know only `ModelAdapter`.

A family is one stateless class. It encodes a prompt as token ids, positions and vision tensors, computes image features
separately from the language model (so that one vision pass serves K completions), and states the rules that differ
between families: masks, stop tokens, media tokens.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn

import patches
from model_adapters.coordinates import Convention
from model_adapters.errors import AdapterError
from model_adapters.templates import NO_ARGUMENTS, Shots, Template, arguments, interleaved


@dataclass(frozen=True)
class VisionSettings:
    """Image preprocessing, shared by training and evaluation."""

    max_side: int = 1024
    """Longest side in pixels after `load_image`."""
    tiles: int = 1
    """Maximum number of tiles per image: InternVL, where 1 disables tiling; LLaVA-OneVision, beside the base view."""
    min_pixels: int | None = None
    """Lower pixel budget per image (Qwen, GLM); None keeps the checkpoint's."""
    max_pixels: int | None = None
    """Upper pixel budget per image (Qwen, GLM); None keeps the checkpoint's."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings of single families by name; each adapter reads those that its `vision_options` name."""


DEFAULT_VISION = VisionSettings()

_SMALL = (56, 56)
"""Width and height of a stand-in image that is cheap to process."""


@dataclass(frozen=True)
class Encoded:
    """One encoded prompt, without padding or batch axis."""

    input_ids: Tensor
    """(P,) int64. Image placeholders are expanded to one id per image feature."""
    positions: Tensor
    """(A, P) int64: A rows of position ids, 1 for most families, 3 for M-RoPE."""
    next_position: int
    """Position of the first completion token on all A rows; later ones count up by one."""
    vision: dict[str, Tensor] = field(default_factory=dict)
    """Processor outputs for the vision tower; empty without images."""
    chat: str = ""
    """The rendered chat with one placeholder per image, for engines that process images themselves; see
    `ModelAdapter.unexpanded`. Empty without images."""
    images: tuple[Image.Image, ...] = ()
    """The images as passed to the processor, for the same engines."""

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors and images."""
        tensors = sum(tensor.nbytes for tensor in (self.input_ids, self.positions, *self.vision.values()))
        return tensors + sum(image.width * image.height * len(image.getbands()) for image in self.images)


def padded_rows(
    prompts: Sequence[Encoded], completions: Sequence[Tensor], left: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids (R, L), valid (R, L) and positions (A, R, L) of rows prompt + completion, padded right or left."""
    lengths = [len(p.input_ids) + len(c) for p, c in zip(prompts, completions, strict=True)]
    width = max(lengths)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    valid = torch.zeros(len(prompts), width, dtype=torch.bool)
    positions = torch.zeros(len(prompts[0].positions), len(prompts), width, dtype=torch.long)
    for row, (prompt, completion, length) in enumerate(zip(prompts, completions, lengths, strict=True)):
        start = width - length if left else 0
        ids[row, start : start + length] = torch.cat([prompt.input_ids, completion])
        valid[row, start : start + length] = True
        # Positions count on over padding: a reset would look like a second packed sequence.
        end = start + len(prompt.input_ids)
        positions[:, row, start:end] = prompt.positions
        positions[:, row, end:] = prompt.next_position + torch.arange(width - end)
    return ids, valid, positions


def require_options(vision: VisionSettings, adapters: Iterable[ModelAdapter]) -> None:
    """Raise AdapterError for a name in `vision.options` that no family of these knows."""
    known = [(adapter.family, adapter.vision_options) for adapter in adapters]
    for name in vision.options:
        if not any(name in names for _, names in known):
            theirs = "; ".join(f"{family} has {', '.join(names) or 'none'}" for family, names in known)
            raise AdapterError(f"vision.options.{name} is a setting of no family here ({theirs}): correct or remove it")


class ModelAdapter(ABC):
    """One model family. Stateless: models and processors are arguments, never attributes."""

    family: ClassVar[str]
    """Display name, for example `Qwen2.5-VL`."""
    model_types: ClassVar[tuple[str, ...]]
    """Values of `model_type` in config.json that select this adapter."""
    sizes: ClassVar[str] = ""
    """Sizes on the hub, for example `3B, 7B, 32B, 72B`."""
    transformers: ClassVar[str] = ""
    """Versions of transformers that have this family, for example `>=5.23`; empty: all supported ones."""
    multimodal: ClassVar[bool] = True
    needs_images: ClassVar[bool] = False
    """Whether it takes no prompt without an image."""
    needs_importance_correction: ClassVar[bool] = False
    """Whether engine and trainer log-probabilities differ enough that `importance_correction: auto` truncates."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Required distributions besides torch and transformers."""
    patches: ClassVar[tuple[str, ...]] = ()
    """Required modules of `patches/`, by name."""
    vision_options: ClassVar[Mapping[str, str]] = {}
    """The family's own settings of images, name to meaning. A run sets them under `vision.options`, and `encode`,
    `processor_options` and `engine_options` read them there; `load_processor` refuses a value that cannot be."""
    spans_need_a_window: ClassVar[bool] = False
    """Whether `bidirectional_spans` hold in layers of sliding-window attention alone."""
    end_of_turn: ClassVar[tuple[str, ...]] = ()
    """Tokens that end the assistant's turn, in addition to those of the checkpoint's generation_config.json."""
    coordinates: ClassVar[Convention | None] = None
    """Layout of points and boxes; None where nobody says it, so that a run has to (`agents[].coordinates`)."""
    notes: ClassVar[str] = ""
    """One line for `mmcorl families`."""

    def apply_patches(self) -> None:
        """Apply this family's patches; loaders call it before they import transformers."""
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
        template: Template = NO_ARGUMENTS,
        shots: Shots = (),
        answer_prefix: str = "",
    ) -> Encoded:
        """Encode one prompt: the text as a user's turn, with the generation prompt.

        The ids equal those of the chat template and processor alone. `images`, in reading order, come from
        `load_image`; they stand at the `<image>` of `shots` and `text`, or where there is none, in front of the text.
        `template` sets arguments of the chat template, such as Qwen3's `enable_thinking`; with `off` the text alone is
        encoded. `shots` are turns before it, and `answer_prefix` begins the assistant's turn, which the model
        continues. Raises AdapterError for a prompt that cannot be encoded or contains turn markers, and where the
        template does not leave images at their places.
        """

    def prompt_length(
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
    ) -> int:
        """Return the number of tokens `encode` would produce; raises what it raises.

        For checking whole data sets: where `image_tokens` knows the count, small stand-ins replace the images.
        """
        more = 0
        if images and (small := self.image_tokens(processor, _SMALL, vision)) is not None:
            more = sum((self.image_tokens(processor, image.size, vision) or 0) - small for image in images)
            images = [Image.new("RGB", _SMALL)] * len(images)
        turns: dict[str, Any] = {"system": system, "shots": shots, "answer_prefix": answer_prefix}
        return more + len(self.encode(processor, text, images, vision=vision, template=template, **turns).input_ids)

    def image_tokens(self, processor: Any, size: tuple[int, int], vision: VisionSettings) -> int | None:
        """Return the number of placeholders of an image of (width, height); None if only `encode` can tell.

        `size` is that of an image from `load_image`. Raises AdapterError for a shape that `encode` refuses.
        """
        return None

    def prepare_images(
        self, processor: Any, images: Sequence[Image.Image], vision: VisionSettings
    ) -> Sequence[Image.Image]:
        """Return the images as the processor needs them; unchanged unless the family resizes them first.

        `encode` calls this; engines that process images themselves must be given the result.
        """
        return images

    @abstractmethod
    def decode(self, processor: Any, ids: Sequence[int]) -> str:
        """Decode completion ids, without special tokens."""

    def plain_inputs(
        self,
        processor: Any,
        text: str,
        images: Sequence[Image.Image],
        vision: VisionSettings,
        template: Template = NO_ARGUMENTS,
    ) -> dict[str, Any]:
        """Return the inputs that transformers alone makes of the prompt, the reference of the contract test.

        Calls the chat template and processor as on a model card, with the `mm_processor_kwargs` of `engine_options`,
        because these must make a serving engine see the same prompt.
        """
        message = {"role": "user", "content": interleaved(text, images) if self.multimodal else text}
        options = self.engine_options(processor, vision).get("mm_processor_kwargs", {}) if images else {}
        if options and "processor_kwargs" in inspect.signature(processor.apply_chat_template).parameters:
            options = {"processor_kwargs": options}  # transformers 5
        options = {**arguments(processor, template), **options, "return_dict": True, "return_tensors": "pt"}
        return dict(processor.apply_chat_template([message], add_generation_prompt=True, tokenize=True, **options))

    # -- vision ----------------------------------------------------------------------------------------

    def collate_vision(self, parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Join the vision tensors of several prompts for one pass of the vision tower.

        The default concatenates on dim 0, for towers that take a flat list of images, tiles or patches. Prompts without
        images contribute nothing.
        """
        parts = [part for part in parts if part]
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]} if parts else {}

    @abstractmethod
    def split_vision(self, vision: dict[str, Tensor], images: Sequence[int]) -> list[dict[str, Tensor]]:
        """Undo `collate_vision`: `images[i]` is the number of images of prompt i (0 gives an empty dict)."""

    @abstractmethod
    def image_features(self, model: nn.Module, vision: dict[str, Tensor]) -> Tensor:
        """Run vision tower and projector: (T, w), one row per image placeholder, in prompt then reading order.

        Differentiable. T counts the image placeholders of all prompts in `vision`. A row holds all that the decoder
        gets of its placeholder: w is d, or more where features for later layers lie beside those of the first; only
        `decoder_inputs` reads it.
        """

    def why_tower_not_one_call(self, model: nn.Module) -> str | None:
        """Return why a layer of the vision tower is not one call of its kernel; None where it is, or has none."""
        return None

    @abstractmethod
    def image_token_id(self, config: Any) -> int | None:
        """Return the id of the placeholder of one image feature; None for a text family."""

    # -- language model ----------------------------------------------------------------------------------

    @abstractmethod
    def decoder(self, model: nn.Module) -> nn.Module:
        """Return the language model without its head.

        Called with `decoder_inputs`, position_ids and attention_mask, and with a cache where tokens are sampled.
        """

    def decoder_inputs(self, model: nn.Module, input_ids: Tensor, features: Tensor | None) -> dict[str, Any]:
        """Return the decoder's arguments that are made of (R, L) ids and image features; callers pass all of them on.

        `inputs_embeds` (R, L, d) is one of them, and the only one by default: the ids embedded, with image features in
        place of their placeholders. A family whose decoder takes more, such as features for later layers or other
        embeddings of the ids, adds it here.

        `features` (T, w) are in row-major order of the placeholders in `input_ids`; another count raises AdapterError.
        None says that there are no placeholders, as among sampled tokens: no value is inspected then, for which a GPU
        would wait.
        """
        hub: Any = model  # a transformers model, typed as a torch module
        embed = hub.get_input_embeddings()
        if features is None:
            return {"inputs_embeds": embed(input_ids)}
        placeholder = torch.eq(input_ids, self.image_token_id(hub.config))  # type: ignore[arg-type]
        if (count := int(placeholder.sum())) != len(features):
            raise AdapterError(f"{count} image placeholders in the prompt but {len(features)} image features")
        embeddings = embed(input_ids.masked_fill(placeholder, 0))
        return {"inputs_embeds": embeddings.masked_scatter(placeholder.unsqueeze(-1), features.to(embeddings.dtype))}

    def attention_mask(self, model: nn.Module, input_ids: Tensor, valid: Tensor) -> Any:
        """Return the decoder's `attention_mask` for a pass that starts at the first token.

        `input_ids` (R, L); `valid` (R, L) bool, False on padding (left or right). The default is the padding mask for
        left-padded rows and None otherwise: a causal model needs no mask for padding on the right, and attention keeps
        its fast path. Families with non-causal masks override this.
        """
        return None if bool(valid[:, 0].all()) else valid.long()

    def bidirectional_spans(self, model: nn.Module, input_ids: Tensor) -> Tensor | None:
        """Number the spans of tokens with bidirectional attention, the only supported exception to causal attention.

        `input_ids` (..., L); returns (..., L) int64, from 1 within spans and 0 elsewhere, or None without spans. Layers
        without a window stay causal where `spans_need_a_window`.
        """
        return None

    def logits(self, model: nn.Module, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to logits (..., V), soft-capping (Gemma-2, Gemma-4) included."""
        hub: Any = model
        logits = hub.get_output_embeddings()(hidden)
        if (cap := getattr(hub.config.get_text_config(), "final_logit_softcapping", None)) is not None:
            logits = torch.tanh(logits / cap) * cap
        return logits

    @abstractmethod
    def stop_ids(self, processor: Any, model: nn.Module) -> tuple[int, ...]:
        """Return the ids that end a completion."""

    @abstractmethod
    def banned_ids(self, processor: Any, config: Any) -> tuple[int, ...]:
        """Return media and padding ids that must never be sampled; masked in sampling and in training."""

    def vision_modules(self, model: nn.Module) -> list[nn.Module]:
        """Return the vision tower (without projector), for `freeze_vision`; empty for a text family."""
        return []

    # -- other engines -----------------------------------------------------------------------------------

    def unexpanded(self, processor: Any, encoded: Encoded) -> list[int]:
        """Return the ids with one placeholder per image, which a serving engine expands to `encoded.input_ids`."""
        return encoded.input_ids.tolist()

    def engine_options(self, processor: Any, vision: VisionSettings) -> dict[str, Any]:
        """Return the arguments that make a serving engine (vLLM) process prompts as this adapter does.

        Its prompt ids are compared with ours at every request, so an omission is an error.
        """
        return {}

    def engine_limits(self, processor: Any, vision: VisionSettings) -> dict[str, Any]:
        """Return arguments of a serving engine's processor that say how large images from `load_image` can get.

        They change no image; the engine reserves memory for none that is larger.
        """
        return {}
