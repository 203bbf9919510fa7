"""The checks of the adapter contract, in the order they run: each compares one promise with transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from PIL import Image

from model_adapters.base import AdapterError, Encoded, VisionSettings, padded_rows
from model_adapters.templates import NoImageMarkupError
from model_adapters.testing.subject import Failed, Prompt, Skipped, Subject, drawn, logprobs_of, media_ids

CHECKS: dict[str, Callable[[Subject], str]] = {}


def _check(name: str) -> Callable[[Callable[[Subject], str]], Callable[[Subject], str]]:
    """Register a check: a function that returns its measurement or raises `Failed` or `Skipped`."""

    def register(check: Callable[[Subject], str]) -> Callable[[Subject], str]:
        CHECKS[name] = check
        return check

    return register


@_check("same ids as the chat template")
def _same_ids(subject: Subject) -> str:
    lengths = []
    for prompt in (*subject.prompts, *subject.odd_prompts):
        expected = subject.plain(prompt)["input_ids"][0].tolist()
        ids = subject.encode(prompt).input_ids.tolist()
        lengths.append(len(ids))
        if ids != expected:
            at = next((i for i, (a, b) in enumerate(zip(ids, expected, strict=False)) if a != b), None)
            where = f"first differ at {at}" if at is not None else "one is a prefix of the other"
            raise Failed(
                f"{len(ids)} ids against {len(expected)} of the processor ({where}) for {prompt.text!r} "
                f"with {len(prompt.images)} images"
            )
    return f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} ids, all equal"


@_check("prompt_length equals encode")
def _length(subject: Subject) -> str:
    lengths = []
    for prompt in (*subject.prompts, *subject.odd_prompts):
        lengths.append(len(subject.encode(prompt).input_ids))
        count = subject.adapter.prompt_length(subject.processor, prompt.text, prompt.images, vision=subject.vision)
        if count != lengths[-1]:
            raise Failed(
                f"{count} instead of {lengths[-1]} tokens for {prompt.text!r} with {prompt.sizes}: see image_tokens, "
                "or leave it out"
            )
    return f"{lengths} tokens"


@_check("images between words")
def _between_words(subject: Subject) -> str:
    if not subject.adapter.multimodal:
        raise Skipped("a text family has no images")
    images = (drawn(84, 84, 1), drawn(112, 56, 2))
    texts = ("Is <image> wider than <image>?", "<image>Is this\n<image>\nthe same?", "What is in <image><image>")
    prompts = [Prompt(text, images) for text in texts]
    try:
        encoded = [subject.encode(prompt) for prompt in prompts]
    except AdapterError as refusal:
        subject.raised.discard("encode")  # of these prompts alone: the checks below need others
        raise (Failed if isinstance(refusal, NoImageMarkupError) else Skipped)(str(refusal)) from refusal
    for prompt, encoding in zip(prompts, encoded, strict=True):
        if encoding.input_ids.tolist() != subject.plain(prompt)["input_ids"][0].tolist():
            raise Failed(f"{prompt.text!r} is read otherwise than by the processor, given its parts in this order")
    return f"{len(prompts)} prompts, all equal"


@_check("the family's own image settings")
def _own_settings(subject: Subject) -> str:
    """Give each a value that nothing can use: whoever reads it raises, or makes another prompt."""
    names = subject.adapter.vision_options
    if not names:
        raise Skipped("vision_options names none")
    prompts = [prompt for prompt, encoding in zip(subject.prompts, subject.encoded, strict=True) if encoding.vision]
    tiles = {subject.vision.tiles: None, 1: None, 4: None}  # some settings hold only where there are several
    ignored = [name for name in names if not any(_read(subject, prompts, name, most) for most in tiles)]
    if ignored:
        raise Failed(
            f"{', '.join(f'vision.options.{name}' for name in ignored)} changes no prompt with images: read it in "
            "processor_options or load_processor, or take it out of vision_options"
        )
    return f"{', '.join(names)}: each changes some of {len(prompts)} prompts with images"


def _read(subject: Subject, prompts: list[Prompt], name: str, tiles: int) -> bool:
    """Whether prompts with images depend on a setting of the family's own."""

    def encoded(vision: VisionSettings) -> list[Encoded]:
        processor = subject.adapter.load_processor(subject.path, vision)
        return [subject.adapter.encode(processor, prompt.text, prompt.images, vision=vision) for prompt in prompts]

    vision = replace(subject.vision, tiles=tiles)
    try:
        before = encoded(vision)
    except AdapterError:  # a family may refuse tiles; what it says of the run's own settings is told above
        return False
    try:
        after = encoded(replace(vision, options={**vision.options, name: object()}))
    except Exception:  # whatever an unusable value makes a family or its processor raise
        return True
    return any(
        not torch.equal(old.input_ids, new.input_ids)
        or old.vision.keys() != new.vision.keys()
        or any(not torch.equal(old.vision[key], new.vision[key]) for key in old.vision)
        for old, new in zip(before, after, strict=True)
    )


@_check("placeholders equal features")
def _placeholders(subject: Subject) -> str:
    counts = []
    for index in subject.with_images:
        encoded = subject.encoded[index]
        with torch.no_grad():
            features = subject.features([encoded])
        count = 0 if features is None else len(features)
        expected = int(encoded.input_ids.eq(subject.image_token).sum())
        if count != expected or not count:
            raise Failed(f"{expected} placeholders in the prompt but {count} features from the model")
        counts.append(count)
    return f"{counts} of each, by prompt"


@_check("collate then split is identity")
def _collate_and_split(subject: Subject) -> str:
    if not subject.with_images:
        raise Failed("no prompt with images was encoded")
    counts = [len(prompt.images) for prompt in subject.prompts]
    collated = subject.adapter.collate_vision([encoded.vision for encoded in subject.encoded])
    for index, part in enumerate(subject.adapter.split_vision(collated, counts)):
        original = subject.encoded[index].vision
        if part.keys() != original.keys():
            raise Failed(f"prompt {index} had {sorted(original)} and came back as {sorted(part)}")
        for name, tensor in part.items():
            if not torch.equal(tensor, original[name]):
                were, are = tuple(original[name].shape), tuple(tensor.shape)
                shapes = "" if were == are else f", {are} instead of {were}: see rows_per_image"
                raise Failed(f"prompt {index} came back with a different `{name}`{shapes}")
    with torch.no_grad():
        joint = subject.features(subject.encoded)
        single = [subject.features([subject.encoded[index]]) for index in subject.with_images]
    features = torch.cat([part for part in single if part is not None])
    if joint is None or joint.shape != features.shape:
        raise Failed(f"features of all prompts in one pass differ in shape from {tuple(features.shape)}")
    unit = features.abs().max().clamp_min(1)  # rounding grows with them
    return subject.compare(
        [joint / unit], [features / unit], f"images {counts} come back unchanged; features in one pass"
    )


@_check("positions equal transformers'")
def _positions(subject: Subject) -> str:
    for index, (encoded, completion) in enumerate(zip(subject.encoded, subject.completions, strict=True)):
        shape, length = tuple(encoded.positions.shape), len(encoded.input_ids)
        if len(shape) != 2 or shape[1] != length:
            raise Failed(f"prompt {index} has positions of shape {shape}: write (axes, {length}), see `finish`")
        _, _, positions = padded_rows([encoded], [completion])
        expected = subject.plain_rows[index][1].get("position_ids")
        if expected is None:  # the decoder counts from 0
            expected = torch.arange(positions.shape[-1])
        # M-RoPE models may prepend a row of plain text positions.
        expected = expected.reshape(-1, positions.shape[-1])[-len(positions) :].expand(len(positions), -1)
        if not torch.equal(positions[:, 0], expected):
            axis, at = (positions[:, 0] != expected).nonzero()[0].tolist()
            raise Failed(
                f"prompt {index} has positions that differ from those of transformers, first at token {at} of "
                f"{len(encoded.input_ids)} + {len(completion)} on axis {axis}: expected {int(expected[axis, at])}, got "
                f"{int(positions[axis, 0, at])}"
            )
    return f"{len(subject.encoded)} rows of {len(subject.encoded[0].positions)} axes, prompt and completion equal"


@_check("forward equals transformers'")
def _forward(subject: Subject) -> str:
    plain = [logprobs for logprobs, _ in subject.plain_rows]
    try:
        return subject.compare(subject.row_logprobs, plain, "log-probabilities against a plain forward pass")
    except Failed as failure:
        apart = [float((a - b).abs().max()) for a, b in zip(subject.row_logprobs, plain, strict=True)]
        rows = ", ".join(f"{d:.1e} with {len(p.images)}" for d, p in zip(apart, subject.prompts, strict=True))
        sentence = f"{failure}; by the number of images: {rows}"
        if names := subject.unpassed():
            sentence += f"; transformers also gave the decoder {', '.join(names)}: return them in decoder_inputs"
        raise Failed(sentence) from None


@_check("images of any shape")
def _any_shape(subject: Subject) -> str:
    """Images that are resized, a pixel and a strip: transformers gets them as the family prepares them."""
    if not subject.adapter.multimodal:
        raise Skipped("a text family has no images")
    rows, refused = subject.odd_rows
    with torch.no_grad():
        ours = [subject.logprobs([encoded], [completion])[0] for encoded, completion, _ in rows]
    sentence = subject.compare(ours, [expected for _, _, expected in rows], f"{len(rows)} prompts")
    return "; ".join([sentence, *(f"not compared: {reason}" for reason in refused)])


@_check("ragged batch scores as its rows")
def _ragged(subject: Subject) -> str:
    again = [subject.encode(prompt) for prompt in reversed(subject.prompts)][::-1]
    for first, second in zip(subject.encoded, again, strict=True):
        if not torch.equal(first.input_ids, second.input_ids):
            raise Failed("encoding a prompt twice gives different ids")
    with torch.no_grad():
        batch = subject.logprobs(again, subject.completions)
    lengths = [len(e.input_ids) + len(c) for e, c in zip(again, subject.completions, strict=True)]
    return subject.compare(batch, subject.row_logprobs, f"rows of {lengths} tokens in one batch against one by one")


@_check("cached generation scores as the forward")
def _cached(subject: Subject) -> str:
    """Generate as the engine does: left-padded prompts into a cache, then one token at a time."""
    from transformers import DynamicCache

    prompts, steps = subject.encoded, min(map(len, subject.completions))
    ids, valid, positions = padded_rows(prompts, [prompt.input_ids[:0] for prompt in prompts], left=True)
    axes = len(positions)
    following = torch.tensor([prompt.next_position for prompt in prompts])
    tokens = torch.stack([completion[:steps] for completion in subject.completions])
    decoder: Any = subject.adapter.decoder(subject.model)
    cache, picked = DynamicCache(config=decoder.config), []
    with torch.no_grad():
        inputs = subject.adapter.decoder_inputs(subject.model, ids, subject.features(prompts))
        mask = subject.adapter.attention_mask(subject.model, ids, valid)
        for step in range(steps):
            output = decoder(
                **inputs,
                position_ids=positions[0] if axes == 1 else positions,
                attention_mask=mask,
                past_key_values=cache,
                use_cache=True,
            )
            logits = subject.adapter.logits(subject.model, output.last_hidden_state[:, -1])
            picked.append(logprobs_of(logits, tokens[:, step]))
            inputs = subject.adapter.decoder_inputs(subject.model, tokens[:, step : step + 1], None)
            positions = (following + step)[:, None].expand(axes, -1, -1)
            valid = torch.cat([valid, valid.new_ones(len(valid), 1)], dim=1)
            mask = None if bool(valid.all()) else valid.long()
    expected = [logprobs[:steps] for logprobs in subject.row_logprobs]
    return subject.compare(list(torch.stack(picked, 1)), expected, f"{steps} cached steps of left-padded prompts")


@_check("blanking an image matters")
def _blank(subject: Subject) -> str:
    moved = []
    for index in subject.with_images:
        prompt = subject.prompts[index]
        white = tuple(Image.new("RGB", image.size, "white") for image in prompt.images)
        with torch.no_grad():
            blank = subject.logprobs([subject.encode(Prompt(prompt.text, white))], [subject.completions[index]])[0]
        moved.append(float((blank - subject.row_logprobs[index]).abs().max()))
    sentence = f"white images move log-probabilities by {min(moved):.1e} or more"
    if not min(moved) > subject.tolerance:
        raise Failed(sentence + f", which is within the tolerance of {subject.tolerance:.0e}: images have no effect")
    return sentence


@_check("attention inside an image block")
def _direction(subject: Subject) -> str:
    """Compare the effect of a late token of an image block on an early one (mostly none) with transformers."""
    index = subject.with_images[0]
    encoded, completion = subject.encoded[index], subject.completions[index]
    block = encoded.input_ids.eq(subject.image_token).nonzero().flatten().tolist()
    if len(block) < 2:
        raise Skipped("an image is one token")
    early, late = block[0], block[-1]
    call = subject.plain_rows[index][1]
    ids, _, _ = padded_rows([encoded], [completion])
    pairs = []
    with torch.no_grad():
        inputs = subject.adapter.decoder_inputs(subject.model, ids, subject.features([encoded]))
        original = inputs["inputs_embeds"]
        changed = original.clone()
        changed[:, late] = -changed[:, late]  # far from the original, same norm
        for embeddings in (original, changed):
            ours = subject.states([encoded], [completion], {**inputs, "inputs_embeds": embeddings})[0, early]
            theirs = subject.adapter.decoder(subject.model)(
                **{**call, "inputs_embeds": embeddings, "use_cache": False}
            ).last_hidden_state[0, early]
            pairs.append((ours, theirs))
    ours, theirs = ((before - after).abs().max() for before, after in zip(*pairs, strict=True))
    both = f"the last of {len(block)} image tokens moves the first by {ours:.1e}, in transformers by {theirs:.1e}"
    if (ours > subject.tolerance) != (theirs > subject.tolerance):
        raise Failed(both)
    return subject.compare([ours[None]], [theirs[None]], both)


@_check("stop and banned tokens")
def _tokens(subject: Subject) -> str:
    # The text family lists the markup of many.
    unknown = _unknown_markup(subject) if subject.adapter.model_types else ""
    named = media_ids(subject.model.config)
    free = [f"{subject.named([value])}, {name}" for name, value in named.items() if value not in subject.banned]
    if free:
        raise Failed(f"{'; '.join(free)} of the config, may be sampled: add it to banned_ids (media_tokens)")
    if not subject.stops:
        raise Failed("stop_ids is empty: no completion would ever end")
    both = set(subject.stops) & set(subject.banned)
    if both:
        raise Failed(f"{subject.named(both)} ends a completion and is banned: no completion would ever end in it")
    beyond = [value for value in (*subject.stops, *subject.banned) if not 0 <= value < subject.vocabulary]
    if beyond:
        raise Failed(f"{beyond} are outside the vocabulary of {subject.vocabulary}")
    declared = getattr(getattr(subject.model, "generation_config", None), "eos_token_id", None)
    declared = declared if isinstance(declared, list | tuple) else [declared]
    lacking = sorted({value for value in declared if value is not None} - set(subject.stops))
    if lacking:
        raise Failed(
            f"the checkpoint's generation_config.json ends on {subject.named(lacking)}, which stop_ids lacks: see "
            "end_of_turn"
        )
    inserted = _inserted_for_images(subject) - {*subject.banned, *subject.stops}
    if inserted:
        raise Failed(
            f"{subject.named(inserted)}, which encode inserts for an image, may be sampled: add it to media_tokens"
        )
    counts = f"{len(subject.banned)} banned, {len(named)} named by the config among them"
    head = len(subject.model.get_output_embeddings().weight)
    if unsampled := [value for value in subject.banned if value >= head]:
        counts += f"; {subject.named(unsampled)} beyond the head of {head}, which nobody samples"
    return f"{counts}; stops {list(subject.stops)}{unknown}"


def _inserted_for_images(subject: Subject) -> set[int]:
    """Return the added tokens of prompts with images that are not in the same prompts without."""
    inserted: set[int] = set()
    for prompt in (prompt for prompt in subject.prompts if prompt.images and not subject.adapter.needs_images):
        alone = subject.encode(Prompt(prompt.text)).input_ids.tolist()
        inserted |= {*subject.encode(prompt).input_ids.tolist()} - {*alone}
    added = subject.tokenizer.added_tokens_decoder
    # Not line breaks, which are added tokens of Gemma's and belong to text as well.
    return {value for value in inserted if value in added and added[value].content.strip()}


def _unknown_markup(subject: Subject) -> str:
    """Name markup of the class that is not in this checkpoint's vocabulary; fail where no other is."""
    vocabulary, mark = subject.tokenizer.get_vocab(), getattr(subject.processor, "image_token", None)
    media: tuple[str, ...] = getattr(subject.adapter, "media_tokens", ())
    sentence = ""
    for name, tokens in (("media_tokens", media), ("end_of_turn", subject.adapter.end_of_turn)):
        unknown = [token for token in tokens if token not in vocabulary and token != mark]
        if not unknown:
            continue
        listed = f"{', '.join(map(repr, unknown[:3]))}{', ...' if len(unknown) > 3 else ''}"
        if len(unknown) == len(tokens):
            raise Failed(f"none of {name} is in the vocabulary ({listed}): correct it")
        sentence += f"; of {name} {len(unknown)} of {len(tokens)} are not in this vocabulary: {listed}"
    if media and (token := subject.tokenizer.convert_ids_to_tokens(subject.image_token)) not in (*media, mark):
        raise Failed(f"media_tokens lacks {token!r}, the token of image_token_id: add it")
    return sentence


@_check("freezing the vision tower")
def _freezing(subject: Subject) -> str:
    if not subject.adapter.multimodal:
        raise Skipped("a text family has no images")
    modules = subject.adapter.vision_modules(subject.model)
    frozen = {id(parameter) for module in modules for parameter in module.parameters()}
    for name, part in (
        ("decoder", subject.adapter.decoder(subject.model)),
        ("head", subject.model.get_output_embeddings()),
    ):
        shared = sum(id(parameter) in frozen for parameter in part.parameters())
        if shared:
            raise Failed(f"vision_modules holds {shared} parameters of the {name}, which freeze_vision would freeze")
    if modules and not frozen:
        raise Failed("the modules of vision_modules have no parameters: freeze_vision would freeze nothing")
    return f"{len(frozen)} parameters in {len(modules)} modules, none of the decoder or the head"


@_check("gradients reach everything")
def _gradients(subject: Subject) -> str:
    index = subject.with_images[0] if subject.adapter.multimodal else 0
    subject.model.zero_grad(set_to_none=True)
    with torch.enable_grad():
        subject.logprobs([subject.encoded[index]], [subject.completions[index]])[0].sum().backward()
    language = {id(parameter) for parameter in subject.adapter.decoder(subject.model).parameters()}
    language |= {id(parameter) for parameter in subject.model.get_output_embeddings().parameters()}
    named = list(subject.model.named_parameters())
    missing = [name for name, p in named if p.requires_grad and p.grad is None and id(p) in language]
    reached = sum(p.grad is not None for _, p in named if id(p) not in language)
    others = sum(p.requires_grad for _, p in named if id(p) not in language)
    subject.model.zero_grad(set_to_none=True)
    if missing:
        raise Failed(f"{len(missing)} of {len(language)} language-model parameters get no gradient, first {missing[0]}")
    if others and not reached:
        raise Failed("no parameter outside the language model gets a gradient: image_features is cut off")
    return f"all {len(language)} language-model parameters and {reached} of {others} others get a gradient"
