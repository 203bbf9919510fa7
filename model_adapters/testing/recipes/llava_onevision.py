"""A tiny LLaVA-OneVision."""

from __future__ import annotations

from itertools import product
from typing import Any

from model_adapters.testing.recipes import parts
from model_adapters.testing.recipes.gemma3 import finish as finish  # its tower is SigLIP, too

_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' }}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{{ '\n' + content['text'] }}{% endfor %}{{ '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_GRID = 3
"""Most tiles per side; 6 on the hub."""


def build(sizes: parts.Sizes, words: parts.Words) -> tuple[Any, Any]:
    import transformers

    tokenizer = parts.qwen_tokenizer(words, (*parts.QWEN_SPECIALS, "<image>", "<video>"))
    token = tokenizer.convert_tokens_to_ids
    text = sizes.text_config(
        len(tokenizer), model_type="qwen2", rope_theta=1e4, **parts.special_ids(tokenizer, bos=False)
    )
    sides = [sizes.image * count for count in range(1, _GRID + 1)]
    grids = [[height, width] for height, width in product(sides, sides)]
    # Patches are not merged, so they have the size of other families' tokens.
    patch = parts.PATCH * parts.MERGE
    config = transformers.LlavaOnevisionConfig(
        text_config=text,
        vision_config=sizes.vision_config(
            model_type="siglip_vision_model",
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=sizes.image,
            patch_size=patch,
            vision_use_head=False,
        ),
        image_token_index=token("<image>"),
        video_token_index=token("<video>"),
        image_grid_pinpoints=grids,
        tie_word_embeddings=text["tie_word_embeddings"],
    )
    model = transformers.LlavaOnevisionForConditionalGeneration(config)
    parts.generation(model, tokenizer, "<|im_end|>")
    size = {"height": sizes.image, "width": sizes.image}
    processor = transformers.LlavaOnevisionProcessor(
        image_processor=parts.fast_class("LlavaOnevisionImageProcessor")(size=size, image_grid_pinpoints=grids),
        tokenizer=tokenizer,
        video_processor=transformers.LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=(sizes.image // patch) ** 2,
        vision_feature_select_strategy="full",
        chat_template=_TEMPLATE,
    )
    return model, processor
