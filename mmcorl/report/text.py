"""Makes any string fit to be written into a page. Escaping is the template engine's work."""

from __future__ import annotations

import re

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, which HTML forbids, and lone surrogates, which UTF-8 cannot hold."""


def clean(text: str) -> str:
    """The text with every character that HTML or UTF-8 cannot hold replaced by U+FFFD."""
    return _UNWRITABLE.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def truncated(text: str, limit: int) -> tuple[str, int]:
    """The first `limit` characters, and how many were left out."""
    return (text, 0) if len(text) <= limit else (text[:limit], len(text) - limit)
