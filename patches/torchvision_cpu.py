"""The PyPI wheel of torchvision cannot be imported beside a CPU build of torch.

That wheel is the CUDA build. Its `_C.so` needs libraries which a CPU torch does not bring, so torchvision
skips it, and then `_meta_registrations.py` registers fake kernels for two operators that nobody declared:
`RuntimeError: operator torchvision::nms does not exist`. Every processor with a video half, timm and
qwen-vl-utils import torchvision, so all of them fail with it. Declaring the two operators is enough: only
`ops.nms`, the ROI operators and JPEG/PNG decoding stay unavailable, and nothing here uses those.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from patches.base import Patch

# torch.library.Library withdraws its declarations when it is collected: this list keeps it alive.
_KEEP: list[Any] = []
_OPERATORS = ("nms", "qnms")


def _is_applied() -> bool:
    """Try first: with a build that fits its torch the operators exist; declaring them twice raises."""
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        return False
    return True


def _apply() -> None:
    import torch

    # The failed import leaves half-initialised submodules behind, which the next import would reuse.
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
