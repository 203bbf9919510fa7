"""Tiny text models: Qwen2, Qwen3 and Llama."""

from __future__ import annotations

from typing import Any

from model_adapters.testing.recipes import parts

FAMILIES = ("qwen2", "qwen3", "llama")

_LLAMA_SPECIALS = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
_LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def build(family: str, sizes: parts.Sizes, words: parts.Words) -> tuple[Any, Any]:
    import transformers

    if family == "llama":
        backend = parts.byte_bpe(words, _LLAMA_SPECIALS)
        bos = "<|begin_of_text|>"
        parts.prepend(backend, bos)
        # No pad token, as on the hub.
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, bos_token=bos, eos_token="<|eot_id|>", padding_side="left"
        )
        tokenizer.chat_template = _LLAMA_TEMPLATE
    else:
        tokenizer = parts.qwen_tokenizer(words, parts.QWEN_SPECIALS)
        tokenizer.chat_template = parts.CHATML
    more: dict[str, Any] = parts.special_ids(tokenizer, bos=family == "llama")
    if family == "qwen3":
        more["head_dim"] = 32
    config = transformers.AutoConfig.for_model(family, **sizes.text_config(len(tokenizer), **more))
    model = transformers.AutoModelForCausalLM.from_config(config)
    if family == "llama":
        parts.generation(model, tokenizer, "<|end_of_text|>", "<|eot_id|>")
    else:
        parts.generation(model, tokenizer, "<|im_end|>", "<|endoftext|>")
    return model, tokenizer
