"""A tiny Qwen2.5-VL."""

from __future__ import annotations

from typing import Any

from model_adapters.testing.recipes import parts

QWEN_MEDIA = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
QWEN_TEMPLATE = parts.CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")


def build(sizes: parts.Sizes, words: parts.Words) -> tuple[Any, Any]:
    import transformers

    tokenizer = parts.qwen_tokenizer(words, (*parts.QWEN_SPECIALS, *QWEN_MEDIA))
    token = tokenizer.convert_tokens_to_ids
    text = sizes.text_config(len(tokenizer), rope_theta=1e4, **parts.special_ids(tokenizer, bos=False))
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
            spatial_merge_size=parts.MERGE,
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
    parts.generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    size: Any = {"patch_size": parts.PATCH, "merge_size": parts.MERGE}
    size |= {"min_pixels": sizes.image**2, "max_pixels": 4 * sizes.image**2}
    processor = transformers.Qwen2_5_VLProcessor(
        image_processor=parts.fast_class("Qwen2VLImageProcessor")(**size),
        tokenizer=tokenizer,
        video_processor=transformers.Qwen2VLVideoProcessor(**size),
        chat_template=QWEN_TEMPLATE,
    )
    return model, processor
