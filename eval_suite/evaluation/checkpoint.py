"""Responses of a checkpoint to items, through the same adapters, image rules and engine as training.

Items are answered in chunks of a fixed composition, and a chunk is written whole: padding and noise of a chunk do not
depend on the past, so an interrupted job resumes with the samples it would have drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self, get_args

import torch
from PIL import Image

from eval_suite.evaluation.generation import OWN_PROMPT, Generation
from mmcorl.algo.seeds import noise_seed
from mmcorl.apps.demos.zoo import resolve
from mmcorl.engines import EngineRequest, build
from mmcorl.engines.base import Sampling
from mmcorl.engines.settings import ENGINES, EngineSettings
from mmcorl.errors import UserError
from mmcorl.grading.grade_by_relation import form_of
from mmcorl.grading.items import Item, Response
from mmcorl.launch.process_setup import prepare_libraries
from mmcorl.policy.policy import Policy
from mmcorl.policy.prompt_encoder import opens_thought
from mmcorl.prompts.styles import instruction_of, system_of
from model_adapters.base import AdapterError, Encoded, VisionSettings, require_options
from model_adapters.coordinates import Convention, Coordinates, place_request
from model_adapters.errors import in_a_line
from model_adapters.images import hidden, load_image
from model_adapters.registry import adapter_for, is_outside
from model_adapters.templates import arguments
from model_adapters.testing.contract import require_sound

LONGEST_PROMPT = 8192
"""Tokens that vLLM reserves for a prompt, beside the budget of a response."""


class Checkpoint:
    """A checkpoint that answers items. A context manager: loaded at the first call, released at the end.

    Precision, engine and image settings of the first call hold for all.

    Args:
        model: checkpoint folder or hub id.
        adapter: `pkg.module:Class` of a family from outside.
        device: where the model lives.
    """

    def __init__(self, model: str, adapter: str | None = None, device: str = "cpu") -> None:
        self.model, self.adapter_path, self.device = model, adapter, torch.device(device)
        self.engine: Any = None
        self.policy: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Free the weights, for a judge in this process."""
        self.engine = self.policy = None

    def context(self, settings: Generation) -> int | None:
        """Tokens that prompt and response may take together; None without a limit."""
        self._load(settings)
        return self._context

    def check(self, settings: Generation, item: Item) -> str | None:
        """Return why an item cannot be asked, such as a question that would end its own turn; None if it can.

        Raises UserError where the prompt leaves no room for the whole budget.
        """
        self._load(settings)
        try:
            text, images, options = self._prompt(settings, item)
            length = self.adapter.prompt_length(self.policy.processor, text, images, **options)
        except (UserError, MemoryError):
            raise
        except Exception as error:  # a processor may raise anything over one item
            return in_a_line(error)
        room = None if self._context is None else self._context - length
        if room is not None and room < settings.max_new_tokens:
            raise UserError(
                f"item {item.id!r} of {item.benchmark} has {length} tokens, which leaves {room} of the context of "
                f"{self._context}, less than the budget of {settings.max_new_tokens}: "
                + (
                    f"give max_new_tokens={room} or less"
                    if room > 0
                    else "leave it out, or take a model that reads more"
                )
            )
        return None

    def chunk(self, settings: Generation, items: Sequence[Item], number: int) -> Iterator[Response]:
        """Sample all responses to one chunk of items; `number` is its place, which fixes its noise."""
        self._load(settings)
        sampling = Sampling(settings.temperature, settings.top_p, 0, settings.max_new_tokens)
        prompts = [self._encode(settings, item) for item in items]
        with torch.autocast(self.policy.device.type, torch.bfloat16, enabled=settings.dtype == "bf16"), torch.no_grad():
            samples_by_item = self.engine.generate(
                prompts,
                settings.samples,
                sampling,
                noise_seed(settings.seed, "evaluation", number, 0),
            )
        for item, prompt, samples in zip(items, prompts, samples_by_item, strict=True):
            thinking = opens_thought(self.policy.processor, prompt, item.answer_prefix)
            for index, sample in enumerate(samples):
                text = self.adapter.decode(self.policy.processor, sample.ids.tolist())
                yield Response(
                    *(item.benchmark, item.id, index, text, sample.finish_reason, len(sample.ids)),
                    coordinates=self._coordinates(settings, item),
                    thinking=thinking,
                )

    def _convention(self, settings: Generation, item: Item) -> Convention | None:
        """Return how the model writes the places that an item asks for; None where it asks for none."""
        if form_of(item) is None:
            return None
        convention = settings.coordinates or self.adapter.coordinates
        if convention is None:
            raise UserError(
                f"{item.benchmark} asks for places in pictures, but how {self.adapter.family} writes them is not "
                f"known: name it with `coordinates` ({', '.join(get_args(Convention))})"
            )
        if convention == "pixels" and self.adapter.coordinates != "pixels":
            raise UserError(
                f"coordinates=pixels: the size in which {self.adapter.family} sees an image is known to its "
                "processor alone; use fractions, percent or thousandths"
            )
        if not item.images:
            raise AdapterError("it asks for a place in a picture and has no picture")
        return convention

    def _coordinates(self, settings: Generation, item: Item) -> tuple[float, float, str] | None:
        convention = self._convention(settings, item)
        if convention is None:
            return None
        size = (0, 0)
        if convention == "pixels":
            image = load_image(item.images[0], self.vision.max_side)
            size = self.adapter.prepare_images(self.policy.processor, [image], self.vision)[0].size
        written = Coordinates.of(convention, size)
        return written.right, written.bottom, written.order

    def _load(self, settings: Generation) -> None:
        if self.engine is not None:
            return
        prepare_libraries(gpu=self.device.type == "cuda")
        path = resolve(self.model)
        self.adapter = adapter_for(path, self.adapter_path)
        self.vision = VisionSettings(**settings.vision)
        require_options(self.vision, [self.adapter])
        processor = self.adapter.load_processor(path, self.vision)
        arguments(processor, settings.template)  # refuses one that the template does not have
        engine = ENGINES.find(settings.engine)
        engine.require(settings.temperature)
        weights = self.adapter.load_model(path, torch.bfloat16 if settings.dtype == "bf16" else torch.float32)
        if is_outside(self.adapter):
            require_sound(self.adapter, processor, weights, path, self.vision, settings.template)
        # An engine with its own weights needs only config, stop ids and banned tokens of this copy.
        device = torch.device("cpu") if engine.own_weights else self.device
        self.policy = Policy(weights, self.adapter, processor).to(device).eval()
        self._context: int | None = getattr(self.policy.model.config.get_text_config(), "max_position_embeddings", None)
        if engine.own_weights:
            room = settings.max_new_tokens + LONGEST_PROMPT
            self._context = min(self._context, room) if self._context else room
        self.engine = build(
            EngineRequest(
                settings=EngineSettings(kind=settings.engine, gpu_memory_utilization=0.9, sleep=False),
                policy=self.policy,
                name=Path(path).name,
                path=path,
                vision=self.vision,
                dtype=settings.dtype,
                max_model_len=self._context,
                device=self.device,
            )
        )

    def _encode(self, settings: Generation, item: Item) -> Encoded:
        text, images, options = self._prompt(settings, item)
        try:
            return self.adapter.encode(self.policy.processor, text, images, **options)
        except MemoryError:
            raise
        except Exception as error:  # over images that `check` knows by their sizes alone
            why = f"cannot be read: {in_a_line(error)}; leave it out"
            raise UserError(f"item {item.id!r} of {item.benchmark} {why}") from error

    def _prompt(self, settings: Generation, item: Item) -> tuple[str, list[Image.Image], dict[str, Any]]:
        images = [load_image(image, self.vision.max_side) for image in item.images]
        images = [hidden(image.size) for image in images] if settings.blind else images
        system = system_of(settings, item.system)
        options: dict[str, Any] = {"system": system, "vision": self.vision, "template": settings.template}
        options |= {"shots": item.shots, "answer_prefix": item.answer_prefix}
        convention, form = self._convention(settings, item), form_of(item)
        # Benchmarks that ask for the form themselves leave the coordinates to the model, unless they are chosen.
        named = settings.coordinates is not None or settings.style != OWN_PROMPT
        places = place_request(form, convention) if form is not None and convention is not None and named else ""
        return item.question + places + instruction_of(settings), images, options
