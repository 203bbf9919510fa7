"""A tiny Qwen3-VL."""

from __future__ import annotations

from typing import Any

from model_adapters.testing.recipes import parts
from model_adapters.testing.recipes.qwen2_5_vl import QWEN_MEDIA, QWEN_TEMPLATE

_PATCH = 16


def build(sizes: parts.Sizes, words: parts.Words) -> tuple[Any, Any]:
    import transformers

    tokenizer = parts.qwen_tokenizer(words, (*parts.QWEN_SPECIALS, *QWEN_MEDIA))
    text = sizes.text_config(len(tokenizer), head_dim=32, rope_theta=1e4, **parts.special_ids(tokenizer, bos=False))
    # The axes share head_dim / 2 frequencies in Qwen's ratio of 24 : 20 : 20.
    others = 5 * text["head_dim"] // 32
    section = [text["head_dim"] // 2 - 2 * others, others, others]
    text.setdefault("rope_scaling", {"rope_type": "default", "mrope_section": section, "mrope_interleaved": True})
    # Features for as many layers of the decoder; three at full size.
    settings = config_fields(sizes, text, tokenizer, deepstack_visual_indexes=[0, 1])
    model = transformers.Qwen3VLForConditionalGeneration(transformers.Qwen3VLConfig(**settings))
    parts.generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    return model, processor(sizes, tokenizer, QWEN_TEMPLATE)


def config_fields(sizes: parts.Sizes, text: dict[str, Any], tokenizer: Any, **vision: Any) -> dict[str, Any]:
    """Return the fields of a config of this tower and any language model."""
    token = tokenizer.convert_tokens_to_ids
    tower = {
        "depth": 2,
        "num_heads": 4,
        "out_hidden_size": text["hidden_size"],
        "patch_size": _PATCH,
        "spatial_merge_size": parts.MERGE,
        "temporal_patch_size": 2,
        "num_position_embeddings": 16,
    }
    return {
        "text_config": text,
        "vision_config": sizes.vision_config(**tower, **vision),
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


def processor(sizes: parts.Sizes, tokenizer: Any, template: str) -> Any:
    import transformers

    patches: Any = {"patch_size": _PATCH, "merge_size": parts.MERGE}
    pixels: Any = {"shortest_edge": sizes.image**2, "longest_edge": 4 * (sizes.image + 8) ** 2}
    return transformers.Qwen3VLProcessor(
        image_processor=parts.fast_class("Qwen2VLImageProcessor")(
            size=pixels, image_mean=[0.5] * 3, image_std=[0.5] * 3, **patches
        ),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen3VLVideoProcessor(size=pixels, **patches),
        chat_template=template,
    )
