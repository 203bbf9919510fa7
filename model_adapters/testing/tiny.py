"""Build tiny checkpoints of every family in hub layout: real classes and processors, random weights.

Used by the tests and the zoo: the code paths of a hub model in about a megabyte and a second. Load a checkpoint with
the transformers version that built it, because 4.x cannot read the processor files of 5.x.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

import patches
from model_adapters.base import AdapterError

TinyFamily = Literal["qwen2_5_vl", "internvl3_5", "gemma3", "qwen2", "qwen3", "llama"]
FAMILIES: tuple[str, ...] = get_args(TinyFamily)

ANSWER_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
"""Response markup as single tokens, not special ones, so that decoding keeps them."""

CORPUS = (
    "How many dots are there? What is the total of the two dice? How tall is the bar?",
    "What is the sum of the two digits? Is the triangle left of the square? Which shape is the largest?",
    "A user asks a question about the image and the assistant answers it. Describe the picture in one word.",
    "<think>3+4</think><answer>7</answer> <think>the red circle</think><answer>A</answer>",
    "Put your final answer in \\boxed{}. The answer is 12, 30 or 45; choose A, B, C or D.",
    "\n\nuser\nassistant\nmodel\n",
)
"""Default training text of the tokenizer."""

_PATCH = 14  # pixels; the patch size of all three vision towers
_MERGE = 2  # patches per side that become one image token (Qwen's merge, InternVL's 1 / downsample ratio)

_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN_TEMPLATE = _CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
_INTERN_TEMPLATE = _CHATML.replace("IMAGE", "<IMG_CONTEXT>\n")
_LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# Gemma has no system role: its template prepends the system text to the first user turn.
_GEMMA_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% if messages[0]['content'] is string %}{% set prefix = messages[0]['content'] + '\n\n' %}"
    "{% else %}{% set prefix = messages[0]['content'][0]['text'] + '\n\n' %}{% endif %}"
    "{% set turns = messages[1:] %}{% else %}{% set prefix = '' %}{% set turns = messages %}{% endif %}"
    "{% for message in turns %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    "{{ prefix if loop.first else '' }}"
    "{% if message['content'] is string %}{{ message['content'] | trim }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<start_of_image>{% elif part['type'] == 'text' %}"
    "{{ part['text'] | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

_QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_MEDIA = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
_INTERN_MEDIA = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
_LLAMA_SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_GEMMA_SPECIALS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_GEMMA_MEDIA = ("<start_of_image>", "<image_soft_token>", "<end_of_image>")


@dataclass(frozen=True)
class _Sizes:
    image: int
    hidden: int
    layers: int
    initializer_range: float
    text: Mapping[str, Any]
    vision: Mapping[str, Any]

    def text_config(self, vocab: int, **more: Any) -> dict[str, Any]:
        """Return the language model's config; overrides win."""
        heads = max(2, self.hidden // 32)
        config = {
            "vocab_size": vocab,
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2,
            "max_position_embeddings": 4096,
            "initializer_range": self.initializer_range,
            "tie_word_embeddings": True,
            "attention_dropout": 0.0,
        }
        return {**config, **more, **self.text}

    def vision_config(self, **more: Any) -> dict[str, Any]:
        """Return the vision tower's config; overrides win."""
        config = {
            "hidden_size": self.hidden,
            "intermediate_size": 2 * self.hidden,
            "initializer_range": self.initializer_range,
            "patch_size": _PATCH,
        }
        return {**config, **more, **self.vision}


def build_tiny(
    family: TinyFamily,
    path: str | Path,
    *,
    corpus: Sequence[str] = CORPUS,
    vocab_size: int = 512,
    image_size: int = 56,
    hidden: int = 64,
    layers: int = 2,
    initializer_range: float = 0.1,
    mm_tokens_per_image: int | None = None,
    extra_tokens: Sequence[str] = ANSWER_TOKENS,
    text_config: Mapping[str, Any] | None = None,
    vision_config: Mapping[str, Any] | None = None,
    seed: int = 0,
    weights: bool = True,
) -> Path:
    """Write a checkpoint folder of one family with random weights and return its path.

    `vocab_size` bounds the tokenizer, which stops earlier on a small `corpus`; the model has the tokenizer's size. An
    image of `image_size` pixels squared gives (image_size / 28)^2 tokens; Gemma-3 may keep more with
    `mm_tokens_per_image` (16 at 56 pixels means no pooling, which learns better). `text_config` and `vision_config`
    override fields of the sub-configs. The same arguments give the same weights. The `initializer_range` of 0.1 instead
    of 0.02 lets so small a model learn. Without `weights` the folder has everything else, for
    `model_adapters.loading.random_weights`: nothing of the model's size is made. Raises AdapterError for an unknown
    family or an image size that is not a multiple of 28.
    """
    if family not in FAMILIES:
        raise AdapterError(f"unknown tiny family {family!r}: use one of {', '.join(FAMILIES)}")
    if image_size % (_PATCH * _MERGE):
        raise AdapterError(f"image_size {image_size} must be a multiple of {_PATCH * _MERGE} pixels")
    patches.apply(*patches.BEFORE_TRANSFORMERS)
    sizes = _Sizes(image_size, hidden, layers, initializer_range, text_config or {}, vision_config or {})
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), contextlib.nullcontext() if weights else torch.device("meta"):
        torch.manual_seed(seed)
        words = (corpus, vocab_size, extra_tokens)
        if family == "qwen2_5_vl":
            model, processor = _qwen2_5_vl(sizes, *words)
        elif family == "internvl3_5":
            model, processor = _internvl3_5(sizes, *words)
        elif family == "gemma3":
            tokens = mm_tokens_per_image or (image_size // _PATCH // _MERGE) ** 2
            model, processor = _gemma3(sizes, *words, tokens)
        else:
            model, processor = _text(family, sizes, *words)
    processor.save_pretrained(path)
    if not weights:
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(path)
        model.generation_config.save_pretrained(path)
        return path
    model.save_pretrained(path)
    if family == "gemma3":
        _hub_layout(path)
    return path


# -- families ------------------------------------------------------------------------------------------------


def _qwen2_5_vl(sizes: _Sizes, corpus: Sequence[str], vocab: int, extra: Sequence[str]) -> tuple[Any, Any]:
    import transformers

    tokenizer = _qwen_tokenizer(corpus, vocab, (*_QWEN_SPECIALS, *_QWEN_MEDIA), extra)
    token = tokenizer.convert_tokens_to_ids
    text = sizes.text_config(len(tokenizer), rope_theta=1e4, **_special_ids(tokenizer, bos=False))
    head = text["hidden_size"] // text["num_attention_heads"]
    # The three sections share head / 2 frequencies in Qwen's ratio of 2 : 3 : 3.
    section = [head // 8, 3 * head // 16, 3 * head // 16]
    text.setdefault("rope_scaling", {"type": "mrope", "rope_type": "default", "mrope_section": section})
    depth = sizes.vision.get("depth", 2)
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=sizes.vision_config(
            depth=depth,
            num_heads=4,
            out_hidden_size=text["hidden_size"],
            spatial_merge_size=_MERGE,
            temporal_patch_size=2,
            window_size=112,
            fullatt_block_indexes=list(range(depth)),
        ),
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    _generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    pixels = {"min_pixels": sizes.image**2, "max_pixels": 4 * sizes.image**2}
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=_fast_class("Qwen2VLImageProcessor")(patch_size=_PATCH, merge_size=_MERGE, **pixels),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(patch_size=_PATCH, merge_size=_MERGE, **pixels),
        chat_template=_QWEN_TEMPLATE,
    )
    return model, processor


def _internvl3_5(sizes: _Sizes, corpus: Sequence[str], vocab: int, extra: Sequence[str]) -> tuple[Any, Any]:
    import transformers

    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = _qwen_tokenizer(corpus, vocab, (*_QWEN_SPECIALS, *_INTERN_MEDIA), extra, extra_special_tokens=names)
    text = sizes.text_config(
        len(tokenizer), model_type="qwen3", head_dim=32, rope_theta=1e4, **_special_ids(tokenizer, bos=False)
    )
    tokens = (sizes.image // _PATCH // _MERGE) ** 2
    vision = sizes.vision_config(
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=[sizes.image, sizes.image],
        attention_bias=True,
        # The default of 0.1 shrinks every residual branch and slows training from scratch.
        layer_scale_init_value=1.0,
    )
    config = transformers.InternVLConfig(
        text_config=text,
        vision_config={**vision, "patch_size": [_PATCH, _PATCH]},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=tokens,
        downsample_ratio=1 / _MERGE,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = transformers.InternVLForConditionalGeneration(config)
    _generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    size = {"height": sizes.image, "width": sizes.image}
    processor = transformers.InternVLProcessor(
        image_processor=_fast_class("GotOcr2ImageProcessor")(size=size, crop_to_patches=False),
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size=size),
        image_seq_length=tokens,
        chat_template=_INTERN_TEMPLATE,
    )
    return model, processor


def _gemma3(
    sizes: _Sizes, corpus: Sequence[str], vocab: int, extra: Sequence[str], image_tokens: int
) -> tuple[Any, Any]:
    import transformers

    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    backend = _gemma_bpe(corpus, vocab, (*_GEMMA_SPECIALS, *_GEMMA_MEDIA), extra)
    tokenizer = _fast_class("GemmaTokenizer")(
        tokenizer_object=backend,
        pad_token="<pad>",
        eos_token="<eos>",
        bos_token="<bos>",
        unk_token="<unk>",
        mask_token="<unk>",  # else the class adds a <mask> beyond the last row of the embedding
        extra_special_tokens=names,
        padding_side="left",
    )
    token = tokenizer.convert_tokens_to_ids
    # One full layer after each sliding one; the real ratio of 1 in 6 needs six layers.
    kinds = ["full_attention" if i % 2 else "sliding_attention" for i in range(sizes.layers)]
    text = sizes.text_config(
        len(tokenizer),
        head_dim=32,
        query_pre_attn_scalar=32,
        sliding_window=64,
        layer_types=kinds,
        **_special_ids(tokenizer, bos=True),
    )
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=sizes.vision_config(
            model_type="siglip_vision_model",
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=sizes.image,
            vision_use_head=False,
        ),
        mm_tokens_per_image=image_tokens,
        boi_token_index=token("<start_of_image>"),
        eoi_token_index=token("<end_of_image>"),
        image_token_index=token("<image_soft_token>"),
        initializer_range=sizes.initializer_range,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    # The class initialises this matrix to zero: image features are then zero, and normalising them gives gradient
    # norms of 59,000 on the first step.
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=sizes.initializer_range)
    _generation(model, tokenizer, "<eos>", "<end_of_turn>")
    size = {"height": sizes.image, "width": sizes.image}
    processor = transformers.Gemma3Processor(
        image_processor=_fast_class("Gemma3ImageProcessor")(size=size),
        tokenizer=tokenizer,
        image_seq_length=image_tokens,
        chat_template=_GEMMA_TEMPLATE,
    )
    return model, processor


def _text(family: str, sizes: _Sizes, corpus: Sequence[str], vocab: int, extra: Sequence[str]) -> tuple[Any, Any]:
    import transformers

    if family == "llama":
        backend = _byte_bpe(corpus, vocab, _LLAMA_SPECIALS, extra)
        bos = "<|begin_of_text|>"
        _prepend(backend, bos)
        # No pad token, as on the hub.
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=bos, eos_token="<|eot_id|>", padding_side="left"
        )
        tokenizer.chat_template = _LLAMA_TEMPLATE
    else:
        tokenizer = _qwen_tokenizer(corpus, vocab, _QWEN_SPECIALS, extra)
        tokenizer.chat_template = _CHATML
    more: dict[str, Any] = _special_ids(tokenizer, bos=family == "llama")
    if family == "qwen3":
        more["head_dim"] = 32
    config = transformers.AutoConfig.for_model(family, **sizes.text_config(len(tokenizer), **more))
    model = transformers.AutoModelForCausalLM.from_config(config)
    if family == "llama":
        _generation(model, tokenizer, "<|end_of_text|>", "<|eot_id|>")
    else:
        _generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    return model, tokenizer


# -- parts ---------------------------------------------------------------------------------------------------


def _special_ids(tokenizer: Any, *, bos: bool) -> dict[str, int | None]:
    return {
        "bos_token_id": tokenizer.bos_token_id if bos else None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


def _generation(model: Any, tokenizer: Any, *stops: str) -> None:
    model.generation_config.eos_token_id = [tokenizer.convert_tokens_to_ids(stop) for stop in stops]
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.bos_token_id = tokenizer.bos_token_id


def _fast_class(name: str) -> Any:
    """Return a class by name: `...Fast` in transformers 4.x, the plain name in 5.x."""
    import transformers

    return getattr(transformers, name if transformers.__version__ >= "5" else f"{name}Fast")


def _qwen_tokenizer(
    corpus: Sequence[str], vocab: int, specials: Sequence[str], extra: Sequence[str], **more: Any
) -> Any:
    return _fast_class("Qwen2Tokenizer")(
        tokenizer_object=_byte_bpe(corpus, vocab, specials, extra),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token=None,
        bos_token=None,
        padding_side="left",
        **more,
    )


def _byte_bpe(corpus: Sequence[str], vocab: int, specials: Sequence[str], extra: Sequence[str]) -> Any:
    """Train byte-level BPE with Qwen's splitting rule, which makes every digit a token.

    The rule must be Qwen's: transformers 5 restores it on loading, whatever the file.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        corpus,
        trainers.BpeTrainer(
            vocab_size=vocab - len(extra),
            special_tokens=list(specials),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in extra])
    return tokenizer


def _gemma_bpe(corpus: Sequence[str], vocab: int, specials: Sequence[str], extra: Sequence[str]) -> Any:
    """Train SentencePiece-like BPE with byte fallback; transformers 5 restores Gemma's normaliser on loading.

    Runs of newlines are tokens because serving engines look them up by name.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    newlines = ["\n" * count for count in (1, 2, 3, 4)]
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("\u2581", "merged_with_next"),
            pre_tokenizers.Digits(individual_digits=True),
        ]
    )
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab, 400) - len(extra),
        special_tokens=[*specials, *newlines, *fallback],
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    # The trainer marks all of these special, but bytes are plain entries and newlines must survive decoding.
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [
        {**added, "special": added["content"] in specials, "normalized": False}
        for added in state["added_tokens"]
        if added["content"] in (*specials, *newlines)
    ]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in extra])
    _prepend(tokenizer, "<bos>")
    return tokenizer


def _prepend(tokenizer: Any, bos: str) -> None:
    from tokenizers import processors

    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )


def _hub_layout(path: Path) -> None:
    """Rename Gemma-3's vision weights to their names on the hub.

    For a model built from a config, transformers 5 saves `vision_tower.embeddings...`; 4.x then initialises those
    tensors at random with only a log line, and vLLM refuses the file.
    """
    from safetensors.torch import load_file, save_file

    file = path / "model.safetensors"
    new, old = "vision_tower.vision_model.", "vision_tower."
    weights = {name if new in name else name.replace(old, new): tensor for name, tensor in load_file(file).items()}
    save_file(weights, file, metadata={"format": "pt"})
