"""An agent's prompt encoder: adapter and processor without weights, so data can be checked before models load."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, get_args

from PIL import Image
from transformers import AutoConfig

from mmcorl.answers.regions import Form
from mmcorl.answers.relation_table import RELATIONS
from mmcorl.answers.thinking import opens_thinking
from mmcorl.config import Config
from mmcorl.engines.settings import ENGINES
from mmcorl.errors import UserError
from mmcorl.policy.settings import AgentSettings
from mmcorl.prompts.settings import PromptSettings
from mmcorl.prompts.styles import prompt_text, system_of
from mmcorl.types import Prompt
from model_adapters.base import Encoded, VisionSettings
from model_adapters.coordinates import Convention, Coordinates, place_request
from model_adapters.errors import AdapterError, in_a_line
from model_adapters.images import load_image
from model_adapters.loading import read_pretrained
from model_adapters.registry import adapter_for
from model_adapters.templates import PLACE, arguments, without, without_control_tokens

CACHE_BYTES = 256 * 2**20
"""Bytes of encoded prompts cached per agent, least recently used out first: small validation sets are encoded once."""

PREPARED_BYTES = 2**30
"""Bytes of prompts encoded ahead of a rollout, per agent and rank."""

DUMMY_SIDES = (56, 56)
_TAIL = 64
"""Tokens in which a chat template begins the assistant's turn."""
Words = tuple[str, ...]
"""A question with its instruction; in a conversation that goes on, then a reply and a message in turn."""


class PromptEncoder:
    """Encodes prompts for one agent; `path` is a checkpoint folder or hub id (a `zoo:` name already resolved)."""

    def __init__(self, config: Config, settings: AgentSettings, path: str):
        self.settings, self.name, self.path = settings, settings.name, path
        self._prompt, self._engine, self.max_prompt_tokens = config.prompt, config.engine, config.data.max_prompt_tokens
        self._completions = {
            "sampling.max_new_tokens": config.sampling.max_new_tokens,
            "validation.max_new_tokens": config.validation.max_new_tokens or 0,
        }
        self.adapter = adapter_for(path, settings.adapter)
        self.vision = VisionSettings(**config.vision.model_dump())
        self.processor: Any = self.adapter.load_processor(path, self.vision)
        # Refuse a misspelt argument of the chat template before any row is read.
        arguments(self.processor, settings.template)
        self.form = RELATIONS.find(config.answers.relation).form
        """What answers are, where they are places in a picture."""
        self._convention = settings.coordinates or self.adapter.coordinates
        if self.form and self._convention is None:
            raise UserError(
                f"answers.relation is {config.answers.relation!r}, but how {self.adapter.family} writes places in "
                f"pictures is not known: set coordinates of agent {self.name!r} to one of "
                f"{', '.join(get_args(Convention))}"
            )
        if self.form and self._convention == "pixels" and self.adapter.coordinates != "pixels":
            raise UserError(
                f"coordinates of agent {self.name!r} is 'pixels', but the size in which {self.adapter.family} sees an "
                "image is known to its processor alone: use fractions, percent or thousandths"
            )
        self._coordinates: dict[str, Coordinates] = {}
        self._cache: OrderedDict[tuple[str, Words], Encoded] = OrderedDict()
        self._cached_bytes = 0
        self._prepared: dict[tuple[str, Words], Encoded] = {}

    def encode(self, prompt: Prompt) -> Encoded:
        """Encode one prompt in this agent's view: token ids, positions and vision tensors.

        Prompts of data without views (a validation set, say) keep their original wording. Raises UserError where the
        data have views, but not this agent's.
        """
        words = self._words(prompt)
        key = prompt.uid, words  # The same row can be in two data sets, of which one has views.
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        encoded = self._prepared.pop(key, None) or self._encode(prompt, words)
        self._cache[key] = encoded
        self._cached_bytes += encoded.nbytes
        while self._cached_bytes > CACHE_BYTES:
            self._cached_bytes -= self._cache.popitem(last=False)[1].nbytes
        return encoded

    def _encode(self, prompt: Prompt, words: Words) -> Encoded:
        try:
            return self.adapter.encode(self.processor, words[-1], self._images(prompt), **self._how(prompt, words))
        except (UserError, AdapterError, MemoryError):  # of the config, of the row and its rule, of the machine
            raise
        except Exception as error:  # over images that the data check knows by their sizes alone
            raise UserError(
                f"agent {self.name!r} cannot read row {prompt.row_id}: {in_a_line(error)}; leave the row out"
            ) from error

    @contextlib.contextmanager
    def preparing(self, prompts: Sequence[Prompt]) -> Iterator[None]:
        """Encode the next prompts in a thread while the block runs; `encode` may not be called inside the block.

        The end of the block waits for the current prompt only. What is missing then, exceeds PREPARED_BYTES or could
        not be encoded is encoded, or raises, at its `encode`: only time changes.
        """
        self._prepared = {}
        if not prompts:
            yield
            return
        enough = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix=f"{self.name}-prepares") as thread:
            thread.submit(self._prepare, prompts, enough)
            try:
                yield
            finally:
                enough.set()

    def _prepare(self, prompts: Sequence[Prompt], enough: threading.Event) -> None:
        room = PREPARED_BYTES
        for prompt in prompts:
            if enough.is_set() or room <= 0:
                return
            words = self._words(prompt)
            if (prompt.uid, words) not in self._cache:
                encoded = self._encode(prompt, words)
                self._prepared[prompt.uid, words] = encoded
                room -= encoded.nbytes

    def dummy(self, image: bool) -> Encoded:
        """Return a short meaningless prompt, with a small image or without: for ranks that have no work left.

        With one in any case for a family that needs images.
        """
        image = image or self.adapter.needs_images
        # Without a chat template no batch has images.
        images = [Image.new("RGB", DUMMY_SIDES)] if image and self.settings.template != "off" else []
        return self.adapter.encode(self.processor, "?", images, **self._how())

    def length(self, prompt: Prompt) -> int:
        """Count the tokens of one prompt, image tokens included, without processing its images."""
        words = self._words(prompt)
        return self.adapter.prompt_length(self.processor, words[-1], self._images(prompt), **self._how(prompt, words))

    def shown(self, prompt: Prompt) -> str:
        """Return what this agent reads, token by token as text; the tokens of an image as their number."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        config: Any = read_pretrained(AutoConfig, self.path)
        return collapsed(tokenizer, self.encode(prompt).input_ids.tolist(), self.adapter.image_token_id(config))

    def coordinates(self, prompt: Prompt) -> Coordinates:
        """Return how this agent writes places in the picture of a prompt, or in the first of several."""
        assert self._convention is not None
        if self._convention != "pixels":
            return Coordinates.of(self._convention)
        if prompt.uid not in self._coordinates:
            seen = self.adapter.prepare_images(self.processor, self._images(prompt)[:1], self.vision)
            self._coordinates[prompt.uid] = Coordinates.of("pixels", seen[0].size)
        return self._coordinates[prompt.uid]

    def _words(self, prompt: Prompt) -> Words:
        text = question_of(self.settings, prompt, self._prompt, self.form, self._convention)
        if not prompt.quotes:
            return (text,)
        # Not all markup of images is special: SmolVLM's `<video>` is none of its tokenizer's tokens.
        markup = getattr(self.adapter, "media_tokens", ())
        clean = partial(without_control_tokens, self.processor, places=bool(prompt.images), markup=markup)
        # Replies make no places for images; messages have their own.
        replies = (
            (without(reply, (PLACE,)) if prompt.images else reply, message) for reply, message in prompt.exchanges
        )
        return clean(text), *map(clean, chain(*replies))

    def _images(self, prompt: Prompt) -> list[Image.Image]:
        return [load_image(image, self.vision.max_side) for image in prompt.images]

    def _how(self, prompt: Prompt | None = None, words: Words = ()) -> dict[str, Any]:
        system, turns = (prompt.system, prompt.turns) if prompt else (None, ())
        shots = (*turns, *zip(words[:-1:2], words[1::2], strict=True))
        system = system_of(self._prompt, system)
        return {"system": system, "vision": self.vision, "template": self.settings.template, "shots": shots}

    def longest_prompt(self) -> int:
        """Return the most prompt tokens of this agent: the setting, or what context or engine leave for a prompt."""
        limits = [self.max_prompt_tokens]
        if (context := self._context()) is not None:
            limits.append(self._beside(context, f"agent {self.name!r} has a context of {context} tokens"))
        if (engine := self._engine_length()) is not None:
            limits.append(self._beside(engine, f"engine.max_model_len is {engine}"))
        return min(limits)

    def longest_completion(self) -> int:
        """Return the most tokens of a completion, in training or evaluation."""
        return max(self._completions.values())

    def limiting_engine_length(self) -> int | None:
        """Return `engine.max_model_len` where it is what limits prompts, else None."""
        engine, context = self._engine_length(), self._context()
        if engine is None or (context is not None and context <= engine):
            return None
        return engine if self.longest_prompt() < self.max_prompt_tokens else None

    def _context(self) -> int | None:
        config: Any = read_pretrained(AutoConfig, self.path).get_text_config()
        return getattr(config, "max_position_embeddings", None)

    def _engine_length(self) -> int | None:
        return self._engine.max_model_len if ENGINES.find(self._engine.kind).own_weights else None

    def _beside(self, room: int, whose: str) -> int:
        """Return the tokens that the longest completion leaves of `room`; raises UserError where there are none."""
        setting, longest = max(self._completions.items(), key=lambda item: item[1])
        if longest >= room:
            raise UserError(f"{setting} is {longest} but {whose}: lower it so that a prompt fits too")
        return room - longest


def question_of(
    agent: AgentSettings, prompt: Prompt, protocol: PromptSettings, form: Form | None, convention: Convention | None
) -> str:
    """Return what an agent reads of a prompt as text: the question in its view and the run's instruction.

    Args:
        agent: the agent.
        prompt: the prompt.
        protocol: how the run asks.
        form: what answers are, where they are places in a picture.
        convention: how the agent writes those.
    """
    view = agent.view if prompt.views else "original"
    if view != "original" and view not in prompt.views:
        raise UserError(
            f"agent {agent.name!r} reads view {view!r} but the data of row {prompt.row_id!r} have only "
            f"{', '.join(sorted(prompt.views))}: add that view under `views` of these data"
        )
    places = place_request(form, convention) if form and convention and not prompt.in_text else ""
    return prompt_text(prompt, protocol, view, places)


def opens_thought(processor: Any, encoded: Encoded, begun: str = "") -> bool:
    """Return whether an encoded prompt ends within a thought, which the completion then continues.

    `begun`: the words with which the prompt begins the answer.
    """
    tokenizer = getattr(processor, "tokenizer", processor)
    ids = encoded.input_ids[-(_TAIL + len(begun.encode("utf-8", "replace"))) :]
    return opens_thinking(tokenizer.decode(ids.tolist()), begun)


def collapsed(tokenizer: Any, ids: Sequence[int], image_token: int | None) -> str:
    """Decode ids, special tokens too, with every run of an image's placeholders as `[image: N tokens]`."""
    parts = []
    for image, run in groupby(ids, lambda token: token == image_token):
        tokens = list(run)
        parts.append(f"[image: {len(tokens)} tokens]" if image else tokenizer.decode(tokens))
    return "".join(parts)
