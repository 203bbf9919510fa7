"""Packages whose compiled half does not fit this torch: to count as absent rather than to break their users.

The wheels of torchaudio and torchcodec on PyPI are CUDA builds. Beside a CPU build of torch they install and are
found, but importing them raises `OSError: Could not load this library`. Their users look whether they are
installed, or catch ImportError; nobody expects an OSError. With None in `sys.modules`, Python's own mark for a
module that must not be imported, both questions get an honest answer: it is not there.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def usable_or_hidden(name: str) -> bool:
    """Whether importing `name` does no harm: it loads, is hidden, or fails in a way its users expect."""
    try:
        importlib.import_module(name)
    except OSError as error:
        if "Could not load this library" not in str(error):
            raise
        return False
    except (ImportError, RuntimeError):
        # Hidden already, or another condition (torchcodec without ffmpeg) which the callers handle themselves.
        return True
    return True


def hide(name: str) -> None:
    """Make `name` count as not installed in this process, also for transformers if it has asked before."""
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]
    sys.modules[name] = None  # type: ignore[assignment]  # documented meaning: importing it raises ModuleNotFoundError
    asked: Any = getattr(sys.modules.get("transformers.utils.import_utils"), f"is_{name}_available", None)
    if hasattr(asked, "cache_clear"):
        asked.cache_clear()
