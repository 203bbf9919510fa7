"""What the contract's checks see of a checkpoint: prompts, an adapter's passes over them, and those of transformers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from model_adapters.base import AdapterError, Encoded, ModelAdapter, VisionSettings, padded_rows
from model_adapters.errors import in_a_line
from model_adapters.images import load_image
from model_adapters.templates import Template

P = ParamSpec("P")
T = TypeVar("T")


class Failed(Exception):
    """The check does not hold; the text is the measurement."""


class Skipped(Exception):
    """The check does not apply to this family; the text is the reason."""


@dataclass(frozen=True)
class Prompt:
    text: str
    images: tuple[Image.Image, ...] = ()

    @property
    def sizes(self) -> str:
        """Return the sizes of the images, for sentences."""
        return " and ".join(f"{image.width}x{image.height}" for image in self.images) or "no image"


@dataclass
class Subject:
    """One loaded checkpoint with the prompts and completions it is checked on."""

    adapter: ModelAdapter
    path: str | Path
    processor: Any
    model: Any
    vision: VisionSettings
    tolerance: float
    template: Template = field(default_factory=dict)
    most_prompts: int | None = None
    """Fewer of the prompts: the first has no image, the second one, unless the family needs images."""
    raised: set[str] = field(default_factory=set)
    """Parts of the adapter that have raised in a check."""

    @cached_property
    def prompts(self) -> list[Prompt]:
        """No (where the family takes that), one and two images of several shapes; texts of different lengths."""
        prompts = [Prompt("What is 17 + 25?"), Prompt("Name three primes.\n\nAnswer in one line: 2, 3, ...")]
        if self.adapter.multimodal:
            prompts[1:1] = [
                Prompt("How many dots are there?", (self._picture(224, 224, 1),)),
                Prompt("Which picture is wider, and why?", (self._picture(448, 224, 2), self._picture(224, 448, 3))),
                Prompt("Describe it.", (self._picture(224, 672, 4),)),
            ]
        return [prompt for prompt in prompts if prompt.images or not self.adapter.needs_images][: self.most_prompts]

    def _picture(self, width: int, height: int, dots: int) -> Image.Image:
        """Draw a picture in the size that the family would give one of these sides.

        So it need not resample: the filter is its to choose. 224 pixels are a multiple of units of 28 and of 32.
        """
        picture = load_image(drawn(width, height, dots), self.vision.max_side)
        prepare = self.adapter.prepare_images
        prepared = self._once("prepare_images", prepare, self.processor, [picture], self.vision)[0]
        return picture if prepared.size == picture.size else drawn(*prepared.size, dots)

    def _once(self, part: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a part of the adapter; where it has raised in a check, skip those that come after."""
        if part in self.raised:
            raise Skipped(f"needs `{part}`, which raised above")
        try:
            return call(*args, **kwargs)
        except Exception:  # whatever it is, it goes on to the check that called
            self.raised.add(part)
            raise

    @cached_property
    def odd_prompts(self) -> list[Prompt]:
        """Images of sizes that most families must resize."""
        if not self.adapter.multimodal:
            return []
        small, tall, wide = drawn(31, 33, 1), drawn(47, 131, 4), drawn(333, 90, 2)
        single = [Prompt("What is this?", (image,)) for image in (small, tall, wide)]
        return [*single, Prompt("Compare them.", (wide, small))]

    @cached_property
    def odd_rows(self) -> tuple[list[tuple[Encoded, Tensor, Tensor]], list[str]]:
        """Odd prompts, one of a single pixel and one of 1:190, with a completion and what transformers gives it.

        Second, in sentences, those that the family or transformers refuses.
        """
        extremes = [Prompt("What is this?", (drawn(*size, 1),)) for size in ((1, 1), (570, 3))]
        rows, refused = [], []
        for prompt in (*self.odd_prompts, *extremes):
            try:
                rows.append(self._odd_row(prompt, self.completions[0]))
            except AdapterError as refusal:
                refused.append(f"{prompt.sizes}: {refusal}")
        if not rows:
            raise Failed(f"no image could be compared: {'; '.join(refused)}")
        return rows, refused

    def _odd_row(self, prompt: Prompt, completion: Tensor) -> tuple[Encoded, Tensor, Tensor]:
        prompt = Prompt(prompt.text, tuple(load_image(image, self.vision.max_side) for image in prompt.images))
        theirs = self._transformers(self.plain, prompt)["input_ids"][0]
        encoded = self.adapter.encode(
            self.processor, prompt.text, prompt.images, vision=self.vision, template=self.template
        )
        if encoded.input_ids.tolist() != theirs.tolist():
            raise Failed(f"{len(encoded.input_ids)} ids against {len(theirs)} of the processor with {prompt.sizes}")
        # The filter of `prepare_images` is the family's own.
        seen = Prompt(prompt.text, encoded.images or prompt.images)
        return encoded, completion, self._transformers(self.plain_row, seen, completion)[0]

    def _transformers(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call transformers alone; AdapterError for whatever it raises."""
        try:
            return call(*args, **kwargs)
        except Exception as error:  # what it cannot compute is no fault of an adapter
            raise AdapterError(f"transformers raises {in_a_line(error)}") from error

    @cached_property
    def with_images(self) -> list[int]:
        """Indices of prompts with images; skips the check for a text family."""
        if not self.adapter.multimodal:
            raise Skipped("a text family has no images")
        return [index for index, prompt in enumerate(self.prompts) if prompt.images]

    @cached_property
    def image_token(self) -> int:
        """Id of the image placeholder, required of a family with images."""
        token = self.adapter.image_token_id(self.model.config)
        if token is None:
            raise Failed("image_token_id is None for a family with images")
        return token

    @property
    def tokenizer(self) -> Any:
        return getattr(self.processor, "tokenizer", self.processor)

    @cached_property
    def encoded(self) -> list[Encoded]:
        return [self.encode(prompt) for prompt in self.prompts]

    def encode(self, prompt: Prompt) -> Encoded:
        how: dict[str, Any] = {"vision": self.vision, "template": self.template}
        return self._once("encode", self.adapter.encode, self.processor, prompt.text, prompt.images, **how)

    def plain(self, prompt: Prompt) -> dict[str, Any]:
        if self.template == "off":  # the text alone, of which no template makes anything
            ids = self.encode(prompt).input_ids[None]
            return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return self.adapter.plain_inputs(self.processor, prompt.text, prompt.images, self.vision, self.template)

    def named(self, ids: Iterable[int]) -> str:
        """Return tokens with their ids, for sentences."""
        return ", ".join(f"{self.tokenizer.convert_ids_to_tokens(value)!r} ({value})" for value in sorted(ids))

    @cached_property
    def stops(self) -> tuple[int, ...]:
        return self.adapter.stop_ids(self.processor, self.model)

    @cached_property
    def banned(self) -> tuple[int, ...]:
        return self.adapter.banned_ids(self.processor, self.model.config)

    @cached_property
    def vocabulary(self) -> int:
        return self.model.get_input_embeddings().weight.shape[0]

    @cached_property
    def completions(self) -> list[Tensor]:
        """(C_i,) ids of 5 to 9 samplable tokens, the same on every run."""
        excluded = torch.tensor([*self.banned, *self.stops, *media_ids(self.model.config).values()])
        usable = torch.arange(len(self.model.get_output_embeddings().weight))  # Molmo2's table has more rows
        usable = usable[~torch.isin(usable, excluded)]
        generator = torch.Generator().manual_seed(0)
        lengths = (5 + index % 5 for index in range(len(self.prompts)))
        return [usable[torch.randint(len(usable), (length,), generator=generator)] for length in lengths]

    # -- passes through the adapter: what the trainer and the engine do ----------------------------------

    def features(self, prompts: Sequence[Encoded]) -> Tensor | None:
        vision = self.adapter.collate_vision([prompt.vision for prompt in prompts])
        return self._once("image_features", self.adapter.image_features, self.model, vision) if vision else None

    def states(
        self, prompts: Sequence[Encoded], completions: Sequence[Tensor], inputs: dict[str, Any] | None = None
    ) -> Tensor:
        """Return hidden states (R, L, d) of right-padded rows prompt + completion, as in a training pass."""
        ids, valid, positions = padded_rows(prompts, completions)
        if inputs is None:
            inputs = self.adapter.decoder_inputs(self.model, ids, self.features(prompts))
        output = self.adapter.decoder(self.model)(
            **inputs,
            position_ids=positions[0] if len(positions) == 1 else positions,
            attention_mask=self.adapter.attention_mask(self.model, ids, valid),
            use_cache=False,
        )
        return output.last_hidden_state

    def logprobs(self, prompts: Sequence[Encoded], completions: Sequence[Tensor]) -> list[Tensor]:
        """Return (C_r,) log-probabilities of each row's completion, as training computes them."""
        states = self.states(prompts, completions)
        rows = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            start = len(prompt.input_ids) - 1
            logits = self.adapter.logits(self.model, states[row, start : start + len(completion)])
            rows.append(logprobs_of(logits, completion))
        return rows

    @cached_property
    def row_logprobs(self) -> list[Tensor]:
        """`logprobs` of each row alone, without padding."""
        with torch.no_grad():
            pairs = zip(self.encoded, self.completions, strict=True)
            return [self.logprobs([prompt], [completion])[0] for prompt, completion in pairs]

    def unpassed(self) -> list[str]:
        """Return the tensors that transformers gave the decoder in plain passes and the adapter does not."""
        names: set[str] = set()
        for (_, theirs), prompt, completion in zip(self.plain_rows, self.encoded, self.completions, strict=True):
            with torch.no_grad(), recorded_call(self.adapter.decoder(self.model)) as ours:
                self.states([prompt], [completion])
            names |= {name for name, value in theirs.items() if _holds_tensor(value) and ours.get(name) is None}
        return sorted(names - {"attention_mask", "cache_position", "input_ids", "position_ids"})

    # -- the reference -----------------------------------------------------------------------------------

    @cached_property
    def plain_rows(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """`plain_row` of each prompt."""
        return [self.plain_row(*row) for row in zip(self.prompts, self.completions, strict=True)]

    def plain_row(self, prompt: Prompt, completion: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Return (C,) log-probabilities of one plain forward pass, and the arguments of the decoder."""
        inputs = _extended(self.model, self.plain(prompt), completion)
        with torch.no_grad(), recorded_call(self.adapter.decoder(self.model)) as call:
            logits = self.model(**inputs, use_cache=False).logits[0]
        start = inputs["input_ids"].shape[1] - len(completion) - 1
        return logprobs_of(logits[start:-1], completion), dict(call)

    def compare(self, ours: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> str:
        """Report the largest difference; fail above the tolerance."""
        largest = max(float((a.float() - b.float()).abs().max()) for a, b in zip(ours, expected, strict=True))
        sentence = f"{what}: largest difference {largest:.1e} (tolerance {self.tolerance:.0e})"
        if not largest <= self.tolerance:  # also true for NaN
            raise Failed(sentence)
        return sentence


def media_ids(config: Any) -> dict[str, int]:
    """Return the ids that a config reserves for images, videos and sound, by field name."""
    kinds = ("image", "video", "audio", "vision_start", "vision_end", "boi", "eoi", "boa", "eoa")
    names = (f"{kind}_token_{suffix}" for kind, suffix in itertools.product(kinds, ("id", "index")))
    return {name: value for name in names if isinstance(value := getattr(config, name, None), int)}


def drawn(width: int, height: int, dots: int) -> Image.Image:
    """Draw stripes and dots: an asymmetric image, different for every argument."""
    image = Image.new("RGB", (width, height), (240, 240, 220))
    draw = ImageDraw.Draw(image)
    for x in range(0, width, 9):
        draw.line((x, 0, x // 2, height), fill=(20 * dots, 90, 10 + x))
    for index in range(dots):
        x, y = width * (index + 1) // (dots + 2), height * (index + 1) // (dots + 1)
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill=(200, 30 * index, 60))
    return load_image(image)


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the (C,) log-probabilities of `ids` under logits (C, V), in fp32."""
    return logits.float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def _extended(model: Any, inputs: dict[str, Any], completion: Tensor) -> dict[str, Any]:
    """Append a completion to processor outputs as generation by transformers does, token by token.

    Only it knows what a sampled token is in a model's masks and token types: a prefix of PaliGemma's ends before it.
    What it does not know of and the processor gives per token is appended as of text tokens.
    """
    from transformers.utils import ModelOutput

    shape = inputs["input_ids"].shape
    kept = {**inputs, "cache_position": torch.arange(shape[1])}  # which transformers 4 counts on
    del kept["input_ids"]
    for _ in completion:
        kept = model._update_model_kwargs_for_generation(ModelOutput(), kept, is_encoder_decoder=False)
    result = {**inputs, **{name: kept[name] for name in inputs if name in kept}}
    for name, value in result.items():
        if isinstance(value, Tensor) and value.shape == shape:
            tail = completion if name == "input_ids" else torch.zeros_like(completion)
            result[name] = torch.cat([value, tail[None].to(value.dtype)], dim=1)
    return result


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(map(_holds_tensor, value.values() if isinstance(value, dict) else value))
    return isinstance(value, Tensor)


@contextmanager
def recorded_call(module: nn.Module) -> Iterator[dict[str, Any]]:
    """Record the keyword arguments of a module's last call in the block."""
    call: dict[str, Any] = {}
    handle = module.register_forward_pre_hook(lambda _, __, kwargs: call.update(kwargs), with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()
