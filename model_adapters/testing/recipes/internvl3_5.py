"""A tiny InternVL3.5."""

from __future__ import annotations

from typing import Any

from model_adapters.testing.recipes import parts

_INTERN_MEDIA = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
_INTERN_TEMPLATE = parts.CHATML.replace("IMAGE", "<IMG_CONTEXT>\n")


def build(sizes: parts.Sizes, words: parts.Words) -> tuple[Any, Any]:
    import transformers

    names = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    tokenizer = parts.qwen_tokenizer(words, (*parts.QWEN_SPECIALS, *_INTERN_MEDIA), extra_special_tokens=names)
    text = sizes.text_config(
        len(tokenizer), model_type="qwen3", head_dim=32, rope_theta=1e4, **parts.special_ids(tokenizer, bos=False)
    )
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
        vision_config={**vision, "patch_size": [parts.PATCH, parts.PATCH]},
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=sizes.image_tokens,
        downsample_ratio=1 / parts.MERGE,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = transformers.InternVLForConditionalGeneration(config)
    parts.generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    size = {"height": sizes.image, "width": sizes.image}
    processor = transformers.InternVLProcessor(
        image_processor=parts.fast_class("GotOcr2ImageProcessor")(size=size, crop_to_patches=False),
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size=size),
        image_seq_length=sizes.image_tokens,
        chat_template=_INTERN_TEMPLATE,
    )
    return model, processor
