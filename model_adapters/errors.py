"""The exception of the adapters, importable without torch."""

from __future__ import annotations


class AdapterError(ValueError):
    """A checkpoint or prompt that an adapter cannot handle, described in one sentence."""
