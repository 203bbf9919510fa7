"""The command by which a process starts mmcorl again, as another process."""

from __future__ import annotations

import sys
from pathlib import Path


def itself(module: str = "mmcorl.cli") -> list[str]:
    """Return `python -m mmcorl.cli`, which looks into the working folder for packages only where mmcorl lies there.

    Otherwise a user's patches.py would take the place of the package of that name, unlike with the command `mmcorl`.
    `module` is another one to run.
    """
    here = Path.cwd().resolve() == Path(__file__).resolve().parents[2]
    return [sys.executable, *([] if here else ["-P"]), "-m", module]
