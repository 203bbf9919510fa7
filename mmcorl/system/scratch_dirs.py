"""Folders of temporary files that bear the number of their process, so that they can be cleared when it is killed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def prefix(pid: int) -> str:
    """How the name of such a folder begins."""
    return f"mmcorl-{pid}-"


def clear(pid: int) -> None:
    """Remove what a process that has ended left of them on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix(pid)}*/"):
        shutil.rmtree(folder, ignore_errors=True)
