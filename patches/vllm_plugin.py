"""The patches that vLLM needs, applied in every process vLLM starts, through its own plugin entry points.

`early` is an entry point of `vllm.platform_plugins`: vLLM calls it in each process while it finds out which
hardware it runs on, before it imports transformers. It cures what would keep vLLM from being imported at all, so
that a spawned engine process or `vllm serve` on a CPU machine needs no uninstalling. It names no platform.
`load` is an entry point of `vllm.general_plugins`: called in each process before a model is built. It applies the
rest and logs one line. Both may be called many times.
"""

from __future__ import annotations

import logging

import patches

ALL = (*patches.BEFORE_VLLM, "vllm_vision_attention")
"""Every patch a vLLM process may need."""


def early() -> None:
    """Cure what breaks `import vllm`; answers that this is no platform. Entry point, called by vLLM."""
    patches.apply(*patches.BEFORE_VLLM)


def load() -> None:
    """Apply every patch vLLM needs to this process and say so in one line. Entry point, called by vLLM.

    Raises PatchError when a patch cannot cure its bug: the engine stops rather than run with it.
    """
    done = patches.apply(*ALL)
    # Below vLLM's own logger, whose handler names the process; ours has none in a process that vLLM started.
    log = logging.getLogger("vllm.mmcorl")
    log.info("mmcorl patches: %s", ", ".join(f"{row.name} {row.state.replace('_', ' ')}" for row in done))
