"""vLLM plugin: apply the patches that vLLM needs in every process it starts.

`early` is an entry point of `vllm.platform_plugins`, called in each process during hardware detection, before vLLM
imports transformers. It fixes what would break `import vllm` in a spawned engine process or `vllm serve`, and names no
platform. `load` is an entry point of `vllm.general_plugins`, called in each process before a model is built. It applies
the rest and logs one line. Both may be called repeatedly.
"""

from __future__ import annotations

import logging

import patches

ALL = (*patches.BEFORE_VLLM, "vllm_vision_attention")
"""Every patch a vLLM process may need."""


def early() -> None:
    """Fix the import of vLLM; return no platform. Entry point, called by vLLM."""
    patches.apply(*patches.BEFORE_VLLM)


def load() -> None:
    """Apply every patch vLLM needs in this process and log one line. Entry point, called by vLLM.

    Raises PatchError when a patch fails, which stops the engine.
    """
    applied = patches.apply(*ALL)
    # Under vLLM's logger, whose handler names the process; ours has no handler in vLLM's processes.
    log = logging.getLogger("vllm.mmcorl")
    log.info("mmcorl patches: %s", ", ".join(f"{row.patch.name} {row.state.replace('_', ' ')}" for row in applied))
