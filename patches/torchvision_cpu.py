"""The PyPI wheel of torchvision cannot be imported with a CPU build of torch.

The wheel is the CUDA build. Its `_C.so` needs libraries that a CPU torch lacks, so torchvision skips it, and then
`_meta_registrations.py` registers fake kernels for two undeclared operators: `RuntimeError: operator torchvision::nms
does not exist`. Every processor with video support, timm and qwen-vl-utils import torchvision and fail too. The fix
declares the two operators; `ops.nms`, the ROI operators and JPEG/PNG decoding stay unavailable and are not used here.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from patches.base import Patch

# torch.library.Library withdraws its declarations when collected; this list keeps it alive.
_KEEP: list[Any] = []
_OPERATORS = ("nms", "qnms")


def _is_applied() -> bool:
    """Import torchvision: with a build that fits torch the operators exist, and declaring them twice would raise."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        return False
    return True


def _apply() -> None:
    import torch

    # The failed import leaves half-initialised submodules, which the next import would reuse.
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _KEEP.append(library)
    importlib.import_module("torchvision")


PATCH = Patch(
    name="torchvision_cpu",
    package="torchvision",
    versions=">=0.24,<0.29",
    symptom="importing torchvision raises `operator torchvision::nms does not exist` on a CPU build of torch",
    upstream="https://github.com/pytorch/vision/issues/9085",
    remove_when="torchvision skips its fake kernels when its compiled operators are missing",
    apply=_apply,
    is_applied=_is_applied,
)
