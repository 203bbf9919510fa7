"""The exception of the adapters, importable without torch."""

from __future__ import annotations


class AdapterError(ValueError):
    """A checkpoint or prompt that an adapter cannot handle, described in one sentence."""


def in_a_line(error: Exception) -> str:
    """What was raised, for a sentence: an AdapterError's own, or the type and first line of anything else."""
    text = str(error).strip()
    if isinstance(error, AdapterError):
        return text
    return f"{type(error).__name__}: {text.splitlines()[0].rstrip('.')[:200]}" if text else type(error).__name__
