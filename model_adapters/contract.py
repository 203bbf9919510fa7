"""What the trainer and the engines rely on in an adapter, checked on a real checkpoint and in numbers.

Run by `mmcorl check-adapter MODEL_DIR`, and by the tests over every family. The yardstick is transformers
itself: its chat template, its processor, and one plain forward pass of the whole model.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from model_adapters.base import Encoded, ModelAdapter, VisionSettings
from model_adapters.images import load_image
from model_adapters.registry import adapter_for


@dataclass(frozen=True)
class Check:
    """The outcome of one check."""

    name: str
    passed: bool
    """True also for a skipped check."""
    detail: str
    """What was measured, or what went wrong."""
    skipped_reason: str | None = None


class _Failed(Exception):
    """A check that did not hold; its text says what was measured."""


class _Skipped(Exception):
    """A check that does not concern this family; its text says why."""


def check_adapter(
    path: str | Path,
    spec: str | None = None,
    *,
    tolerance: float = 1e-5,
    dtype: torch.dtype = torch.float32,
) -> list[Check]:
    """Load a checkpoint through its adapter and hold it against plain transformers, check by check.

    `spec` (`pkg.module:Class`) names an outside adapter. `tolerance` bounds differences of log-probabilities
    (nats) and of features; 1e-5 suits fp32. Images are drawn here, in several sizes. A check that raises has
    failed, and the others still run. Raises AdapterError when the checkpoint has no adapter or does not load.
    """
    adapter = adapter_for(path, spec)
    vision = VisionSettings()
    bench = _Bench(
        adapter=adapter,
        processor=adapter.load_processor(path, vision),
        model=adapter.load_model(path, dtype).eval(),
        vision=vision,
        tolerance=tolerance,
    )
    return [_run(name, check, bench) for name, check in _CHECKS]


def _run(name: str, check: Callable[[_Bench], str], bench: _Bench) -> Check:
    try:
        return Check(name, True, check(bench))
    except _Skipped as reason:
        return Check(name, True, "skipped", skipped_reason=str(reason))
    except _Failed as failure:
        return Check(name, False, str(failure))
    except Exception as error:  # the adapter may be anybody's code: what it raises is the finding
        message = str(error).splitlines()[0] if str(error) else ""
        return Check(name, False, f"{type(error).__name__}: {message}")


# -- the bench -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prompt:
    text: str
    images: tuple[Image.Image, ...] = ()


@dataclass
class _Bench:
    """One loaded checkpoint with prompts and completions to measure it on."""

    adapter: ModelAdapter
    processor: Any
    model: nn.Module
    vision: VisionSettings
    tolerance: float

    @property
    def config(self) -> Any:
        model: Any = self.model
        return model.config

    @cached_property
    def prompts(self) -> list[_Prompt]:
        """No, one and two images, of several shapes, with texts of different lengths.

        Sides are multiples of 28 pixels, so that a family which keeps them resamples nothing: with which
        filter it does that is its own choice, and not part of the yardstick.
        """
        prompts = [
            _Prompt("What is 17 + 25?"),
            _Prompt("Name three primes.\n\nAnswer in one line: 2, 3, ..."),
        ]
        if self.adapter.multimodal:
            prompts[1:1] = [
                _Prompt("How many dots are there?", (_drawn(84, 84, 1),)),
                _Prompt("Which picture is wider, and why?", (_drawn(112, 56, 2), _drawn(56, 84, 3))),
                _Prompt("Describe it.", (_drawn(56, 140, 4),)),
            ]
        return prompts

    @cached_property
    def odd_prompts(self) -> list[_Prompt]:
        """Images of sizes that most families have to change, one and two to a prompt."""
        if not self.adapter.multimodal:
            return []
        small, tall, wide = _drawn(31, 33, 1), _drawn(47, 131, 4), _drawn(333, 90, 2)
        return [_Prompt("What is this?", (image,)) for image in (small, tall, wide)] + [
            _Prompt("Compare them.", (wide, small))
        ]

    @cached_property
    def with_images(self) -> list[int]:
        """Indices of prompts with images; asking for them skips the check of a text family."""
        if not self.adapter.multimodal:
            raise _Skipped("a text family has no images")
        return [index for index, prompt in enumerate(self.prompts) if prompt.images]

    @cached_property
    def image_token(self) -> int:
        """Id of the placeholder; a family with images has to have one."""
        token = self.adapter.image_token_id(self.config)
        if token is None:
            raise _Failed("image_token_id is None for a family with images")
        return token

    @cached_property
    def encoded(self) -> list[Encoded]:
        return [self.encode(prompt) for prompt in self.prompts]

    def encode(self, prompt: _Prompt) -> Encoded:
        return self.adapter.encode(self.processor, prompt.text, prompt.images, vision=self.vision)

    def plain(self, prompt: _Prompt) -> dict[str, Any]:
        return self.adapter.plain_inputs(self.processor, prompt.text, prompt.images, self.vision)

    @cached_property
    def stops(self) -> tuple[int, ...]:
        return self.adapter.stop_ids(self.processor, self.model)

    @cached_property
    def banned(self) -> tuple[int, ...]:
        return self.adapter.banned_ids(self.processor, self.config)

    @cached_property
    def vocabulary(self) -> int:
        model: Any = self.model
        return model.get_input_embeddings().weight.shape[0]

    @cached_property
    def completions(self) -> list[Tensor]:
        """(C_i,) ids of 5 to 9 tokens, drawn from what may be sampled, the same on every run."""
        excluded = torch.tensor([*self.banned, *self.stops, *media_ids(self.config).values()])
        usable = torch.arange(self.vocabulary)
        usable = usable[~torch.isin(usable, excluded)]
        generator = torch.Generator().manual_seed(0)
        return [
            usable[torch.randint(len(usable), (5 + index % 5,), generator=generator)]
            for index in range(len(self.prompts))
        ]

    # -- passes through the seam: what the trainer and the engine do ------------------------------------

    def features(self, prompts: Sequence[Encoded]) -> Tensor | None:
        vision = self.adapter.collate_vision([prompt.vision for prompt in prompts])
        return self.adapter.image_features(self.model, vision) if vision else None

    def states(
        self, prompts: Sequence[Encoded], completions: Sequence[Tensor], embeddings: Tensor | None = None
    ) -> Tensor:
        """Hidden states (R, L, d) of right-padded rows prompt + completion, as in a training pass."""
        ids, valid, positions = _rows(prompts, completions)
        if embeddings is None:
            embeddings = self.adapter.embed(self.model, ids, self.features(prompts))
        output = self.adapter.decoder(self.model)(
            inputs_embeds=embeddings,
            position_ids=positions[0] if len(positions) == 1 else positions,
            attention_mask=self.adapter.attention_mask(self.model, ids, valid),
            use_cache=False,
        )
        return output.last_hidden_state

    def logprobs(self, prompts: Sequence[Encoded], completions: Sequence[Tensor]) -> list[Tensor]:
        """(C_r,) log-probabilities of each row's completion, as training computes them."""
        states = self.states(prompts, completions)
        rows = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            start = len(prompt.input_ids) - 1
            logits = self.adapter.logits(self.model, states[row, start : start + len(completion)])
            rows.append(_picked(logits, completion))
        return rows

    @cached_property
    def row_logprobs(self) -> list[Tensor]:
        """`logprobs` of each row on its own: no padding and no neighbour."""
        with torch.no_grad():
            pairs = zip(self.encoded, self.completions, strict=True)
            return [self.logprobs([prompt], [completion])[0] for prompt, completion in pairs]

    # -- the yardstick -----------------------------------------------------------------------------------

    @cached_property
    def plain_rows(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Per row, one plain forward pass: (C,) log-probabilities and what the decoder was called with."""
        rows = []
        for prompt, completion in zip(self.prompts, self.completions, strict=True):
            inputs = _extended(self.plain(prompt), completion)
            with torch.no_grad(), _watched(self.adapter.decoder(self.model)) as call:
                logits = self.model(**inputs, use_cache=False).logits[0]
            start = inputs["input_ids"].shape[1] - len(completion) - 1
            rows.append((_picked(logits[start:-1], completion), dict(call)))
        return rows

    def gap(self, found: Sequence[Tensor], expected: Sequence[Tensor], what: str) -> str:
        """The largest difference, as a sentence; fails above the tolerance."""
        pairs = zip(found, expected, strict=True)
        largest = max(float((a.float() - b.float()).abs().max()) for a, b in pairs)
        sentence = f"{what}: largest difference {largest:.1e} (tolerance {self.tolerance:.0e})"
        if not largest <= self.tolerance:  # also true for NaN
            raise _Failed(sentence)
        return sentence


def media_ids(config: Any) -> dict[str, int]:
    """Ids that a config sets aside for images, videos and sound, by the name of their field."""
    kinds = ("image", "video", "audio", "vision_start", "vision_end", "boi", "eoi", "boa", "eoa")
    names = (f"{kind}_token_{suffix}" for kind, suffix in itertools.product(kinds, ("id", "index")))
    return {name: value for name in names if isinstance(value := getattr(config, name, None), int)}


def _drawn(width: int, height: int, dots: int) -> Image.Image:
    """A striped picture with some dots: no two pictures alike, nothing symmetric."""
    image = Image.new("RGB", (width, height), (240, 240, 220))
    draw = ImageDraw.Draw(image)
    for x in range(0, width, 9):
        draw.line((x, 0, x // 2, height), fill=(20 * dots, 90, 10 + x))
    for index in range(dots):
        x, y = width * (index + 1) // (dots + 2), height * (index + 1) // (dots + 1)
        draw.ellipse((x - 6, y - 6, x + 6, y + 6), fill=(200, 30 * index, 60))
    return load_image(image)


def _rows(prompts: Sequence[Encoded], completions: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Right-padded ids (R, L), valid (R, L) and positions (A, R, L) of rows prompt + completion."""
    width = max(len(p.input_ids) + len(c) for p, c in zip(prompts, completions, strict=True))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    valid = torch.zeros(len(prompts), width, dtype=torch.bool)
    positions = torch.zeros(len(prompts[0].positions), len(prompts), width, dtype=torch.long)
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        start, end = len(prompt.input_ids), len(prompt.input_ids) + len(completion)
        ids[row, :start], ids[row, start:end], valid[row, :end] = prompt.input_ids, completion, True
        positions[:, row, :start] = prompt.positions
        # Padding goes on counting: a reset would read as a second packed sequence.
        positions[:, row, start:] = prompt.next_position + torch.arange(width - start)
    return ids, valid, positions


def _picked(logits: Tensor, ids: Tensor) -> Tensor:
    """(C, V) logits to the (C,) log-probabilities of `ids`, in fp32."""
    return logits.float().log_softmax(-1).gather(-1, ids[:, None])[:, 0]


def _extended(inputs: dict[str, Any], completion: Tensor) -> dict[str, Any]:
    """Processor outputs with a completion behind the prompt: attended to, and neither image nor video."""
    shape, result = inputs["input_ids"].shape, dict(inputs)
    for name, value in inputs.items():
        if isinstance(value, Tensor) and value.shape == shape:
            tail = completion if name == "input_ids" else torch.full_like(completion, name == "attention_mask")
            result[name] = torch.cat([value, tail[None].to(value.dtype)], dim=1)
    return result


@contextmanager
def _watched(module: nn.Module) -> Iterator[dict[str, Any]]:
    """The keyword arguments of the last call of a module made inside the block."""
    call: dict[str, Any] = {}
    handle = module.register_forward_pre_hook(lambda _, __, given: call.update(given), with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()


# -- the checks ------------------------------------------------------------------------------------------


def _same_ids(bench: _Bench) -> str:
    lengths = []
    for prompt in (*bench.prompts, *bench.odd_prompts):
        expected = bench.plain(prompt)["input_ids"][0].tolist()
        found = bench.encode(prompt).input_ids.tolist()
        lengths.append(len(found))
        if found != expected:
            at = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
            where = f"first differ at {at}" if at is not None else "one continues the other"
            raise _Failed(
                f"{len(found)} ids against {len(expected)} of the processor ({where}) for {prompt.text!r} "
                f"with {len(prompt.images)} images"
            )
    return f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} ids, all equal"


def _placeholders(bench: _Bench) -> str:
    counts = []
    for index in bench.with_images:
        encoded = bench.encoded[index]
        with torch.no_grad():
            features = bench.features([encoded])
        found, expected = (
            0 if features is None else len(features),
            int(encoded.input_ids.eq(bench.image_token).sum()),
        )
        if found != expected or not found:
            raise _Failed(f"{expected} placeholders in the prompt but {found} features from the model")
        counts.append(found)
    return f"placeholders equal features: {counts}"


def _collate_and_split(bench: _Bench) -> str:
    if not bench.with_images:
        raise _Failed("no prompt with images was encoded")
    counts = [len(prompt.images) for prompt in bench.prompts]
    collated = bench.adapter.collate_vision([encoded.vision for encoded in bench.encoded])
    for index, part in enumerate(bench.adapter.split_vision(collated, counts)):
        given = bench.encoded[index].vision
        if part.keys() != given.keys():
            raise _Failed(f"prompt {index} gave {sorted(given)} and came back as {sorted(part)}")
        for name, tensor in part.items():
            if not torch.equal(tensor, given[name]):
                raise _Failed(f"prompt {index} came back with another `{name}`")
    with torch.no_grad():
        joint = bench.features(bench.encoded)
        single = [bench.features([bench.encoded[index]]) for index in bench.with_images]
    features = torch.cat([part for part in single if part is not None])
    if joint is None or joint.shape != features.shape:
        raise _Failed(f"features of all prompts at once have another shape than {tuple(features.shape)}")
    return bench.gap([joint], [features], f"images {counts} come back as they were; features in one pass")


def _positions(bench: _Bench) -> str:
    for index, (encoded, completion) in enumerate(zip(bench.encoded, bench.completions, strict=True)):
        _, _, found = _rows([encoded], [completion])
        expected = bench.plain_rows[index][1].get("position_ids")
        if expected is None:  # the decoder counts from 0 by itself
            expected = torch.arange(found.shape[-1])
        # M-RoPE models may put a row of plain text positions in front of the rotary ones.
        expected = expected.reshape(-1, found.shape[-1])[-len(found) :]
        if not torch.equal(found[:, 0], expected.expand(len(found), -1)):
            raise _Failed(f"prompt {index} has other positions than transformers gives it")
    return f"{len(bench.encoded)} rows of {len(bench.encoded[0].positions)} axes, prompt and completion equal"


def _forward(bench: _Bench) -> str:
    plain = [logprobs for logprobs, _ in bench.plain_rows]
    return bench.gap(bench.row_logprobs, plain, "log-probabilities against a plain forward pass")


def _ragged(bench: _Bench) -> str:
    again = [bench.encode(prompt) for prompt in reversed(bench.prompts)][::-1]
    for first, second in zip(bench.encoded, again, strict=True):
        if not torch.equal(first.input_ids, second.input_ids):
            raise _Failed("encoding a prompt twice gives different ids")
    with torch.no_grad():
        batch = bench.logprobs(again, bench.completions)
    lengths = [len(e.input_ids) + len(c) for e, c in zip(again, bench.completions, strict=True)]
    return bench.gap(batch, bench.row_logprobs, f"rows of {lengths} tokens in one batch against one by one")


def _cached(bench: _Bench) -> str:
    """The engine's way: left-padded prompts into a cache, then one token at a time."""
    from transformers import DynamicCache

    prompts, steps = bench.encoded, min(map(len, bench.completions))
    axes, width = len(prompts[0].positions), max(len(prompt.input_ids) for prompt in prompts)
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    valid = torch.zeros(len(prompts), width, dtype=torch.bool)
    positions = torch.zeros(axes, len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        start = width - len(prompt.input_ids)
        ids[row, start:], valid[row, start:], positions[:, row, start:] = (
            prompt.input_ids,
            True,
            prompt.positions,
        )
    following = torch.tensor([prompt.next_position for prompt in prompts])
    tokens = torch.stack([completion[:steps] for completion in bench.completions])
    decoder, cache, picked = bench.adapter.decoder(bench.model), DynamicCache(), []
    with torch.no_grad():
        embeddings = bench.adapter.embed(bench.model, ids, bench.features(prompts))
        mask = bench.adapter.attention_mask(bench.model, ids, valid)
        for step in range(steps):
            output = decoder(
                inputs_embeds=embeddings,
                position_ids=positions[0] if axes == 1 else positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            )
            logits = bench.adapter.logits(bench.model, output.last_hidden_state[:, -1])
            picked.append(_picked(logits, tokens[:, step]))
            embeddings = bench.adapter.embed_tokens(bench.model, tokens[:, step : step + 1])
            positions = (following + step)[:, None].expand(axes, -1, -1)
            valid = torch.cat([valid, valid.new_ones(len(valid), 1)], dim=1)
            mask = None if bool(valid.all()) else valid.long()
    expected = [logprobs[:steps] for logprobs in bench.row_logprobs]
    return bench.gap(list(torch.stack(picked, 1)), expected, f"{steps} cached steps of left-padded prompts")


def _blank(bench: _Bench) -> str:
    moved = []
    for index in bench.with_images:
        prompt = bench.prompts[index]
        white = tuple(Image.new("RGB", image.size, "white") for image in prompt.images)
        with torch.no_grad():
            blank = bench.logprobs([bench.encode(_Prompt(prompt.text, white))], [bench.completions[index]])[0]
        moved.append(float((blank - bench.row_logprobs[index]).abs().max()))
    sentence = f"white images move log-probabilities by {min(moved):.1e} or more"
    if not min(moved) > bench.tolerance:
        raise _Failed(sentence + f", which is within the tolerance of {bench.tolerance:.0e}: images do not arrive")
    return sentence


def _direction(bench: _Bench) -> str:
    """A late token of an image block moves an early one as much as in transformers: mostly not at all."""
    index = bench.with_images[0]
    encoded, completion = bench.encoded[index], bench.completions[index]
    block = encoded.input_ids.eq(bench.image_token).nonzero().flatten().tolist()
    if len(block) < 2:
        raise _Skipped("the picture is one token")
    early, late = block[0], block[-1]
    call = bench.plain_rows[index][1]
    ids, _, _ = _rows([encoded], [completion])
    found = []
    with torch.no_grad():
        given = bench.adapter.embed(bench.model, ids, bench.features([encoded]))
        for embeddings in (given, _nudged(given, late)):
            ours = bench.states([encoded], [completion], embeddings)[0, early]
            theirs = bench.adapter.decoder(bench.model)(
                **{**call, "inputs_embeds": embeddings, "use_cache": False}
            ).last_hidden_state[0, early]
            found.append((ours, theirs))
    ours, theirs = ((before - after).abs().max() for before, after in zip(*found, strict=True))
    both = f"the last of {len(block)} image tokens moves the first by {ours:.1e}, in transformers by {theirs:.1e}"
    if (ours > bench.tolerance) != (theirs > bench.tolerance):
        raise _Failed(both)
    return bench.gap([ours[None]], [theirs[None]], both)


def _nudged(embeddings: Tensor, position: int) -> Tensor:
    """The embeddings with one position replaced by its negative: far from where it was, same length."""
    moved = embeddings.clone()
    moved[:, position] = -moved[:, position]
    return moved


def _tokens(bench: _Bench) -> str:
    named = media_ids(bench.config)
    free = {name: value for name, value in named.items() if value not in bench.banned}
    if free:
        raise _Failed(f"{free} may be sampled; add them to banned_ids")
    if not bench.stops:
        raise _Failed("stop_ids is empty: no completion would ever end")
    both = set(bench.stops) & set(bench.banned)
    if both:
        raise _Failed(f"{sorted(both)} end a completion and are banned: no completion would ever end")
    beyond = [value for value in (*bench.stops, *bench.banned) if not 0 <= value < bench.vocabulary]
    if beyond:
        raise _Failed(f"{beyond} are outside the vocabulary of {bench.vocabulary}")
    model: Any = bench.model
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    declared = declared if isinstance(declared, list | tuple) else [declared]
    unknown = sorted({value for value in declared if value is not None} - set(bench.stops))
    if unknown:
        raise _Failed(f"the checkpoint's generation_config.json ends on {unknown}, stop_ids does not")
    return f"{len(bench.banned)} banned, {len(named)} named by the config among them; stops {list(bench.stops)}"


def _gradients(bench: _Bench) -> str:
    index = bench.with_images[0] if bench.adapter.multimodal else 0
    bench.model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        bench.logprobs([bench.encoded[index]], [bench.completions[index]])[0].sum().backward()
    model: Any = bench.model
    language = {id(parameter) for parameter in bench.adapter.decoder(bench.model).parameters()}
    language |= {id(parameter) for parameter in model.get_output_embeddings().parameters()}
    named = list(bench.model.named_parameters())
    bare = [name for name, p in named if p.requires_grad and p.grad is None and id(p) in language]
    reached = sum(p.grad is not None for _, p in named if id(p) not in language)
    others = sum(p.requires_grad for _, p in named if id(p) not in language)
    bench.model.zero_grad(set_to_none=True)
    if bare:
        raise _Failed(f"{len(bare)} of {len(language)} language-model parameters get no gradient, {bare[0]} first")
    if others and not reached:
        raise _Failed("no parameter outside the language model gets a gradient: image_features is cut off")
    return f"all {len(language)} language-model parameters and {reached} of {others} others get a gradient"


_CHECKS: tuple[tuple[str, Callable[[_Bench], str]], ...] = (
    ("same ids as the chat template", _same_ids),
    ("placeholders equal features", _placeholders),
    ("collate then split is identity", _collate_and_split),
    ("positions equal transformers'", _positions),
    ("forward equals transformers'", _forward),
    ("ragged batch scores as its rows", _ragged),
    ("cached generation scores as the forward", _cached),
    ("blanking an image matters", _blank),
    ("attention inside an image block", _direction),
    ("stop and banned tokens", _tokens),
    ("gradients reach everything", _gradients),
)
CHECKS = tuple(name for name, _ in _CHECKS)
"""Names of all checks, in the order they run."""
