"""The thumbnails of a page: inside it up to a budget, else read from their files."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

_SIGNATURES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True)
class Images:
    """The images of all items."""

    kind: Literal["none", "embedded", "linked"]
    sources: Sequence[str]
    """What goes into `src`; every distinct file once."""
    by_item: Sequence[Sequence[int]]
    """Per item the places of its images in `sources`; -1 for one that cannot be shown."""


def collect_images(root: Path, names: Sequence[Sequence[str]], budget: int) -> Images:
    """Find the thumbnails named relative to `root`, per item.

    A name that leaves `root`, is missing or is no PNG, JPEG or GIF becomes -1. Files are put into the page when
    all of them together have at most `budget` bytes, else none is.
    """
    root = root.resolve()
    places: dict[Path, int] = {}
    kinds: list[str] = []
    known: dict[str, int] = {}
    for name in dict.fromkeys(name for listed in names for name in listed):
        path = (root / name).resolve()
        kind = _kind(path) if path.is_relative_to(root) else None
        if kind is not None and path not in places:
            places[path] = len(kinds)
            kinds.append(kind)
        known[name] = -1 if kind is None else places[path]
    by_item = [[known[name] for name in listed] for listed in names]
    if not places:
        return Images("none", [], by_item)
    if sum(path.stat().st_size for path in places) > budget:
        relative = (path.relative_to(root).as_posix() for path in places)
        return Images("linked", [quote(name) for name in relative], by_item)
    encoded = (base64.b64encode(path.read_bytes()).decode("ascii") for path in places)
    return Images(
        "embedded", [f"data:{kind};base64,{text}" for kind, text in zip(kinds, encoded, strict=True)], by_item
    )


def _kind(path: Path) -> str | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        start = file.read(8)
    return next((kind for signature, kind in _SIGNATURES.items() if start.startswith(signature)), None)
