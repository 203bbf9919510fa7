"""The exception of the adapters; it imports no torch."""

from __future__ import annotations


class AdapterError(ValueError):
    """A checkpoint or a prompt this family cannot take, said in one sentence."""
