"""Hide packages whose compiled extension does not fit the installed torch.

The PyPI wheels of torchaudio and torchcodec are CUDA builds. With a CPU build of torch they install, but importing them
raises `OSError: Could not load this library`, where callers check for installation or catch ImportError. None in
`sys.modules`, Python's marker for a blocked import, makes both see the package as absent.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def usable_or_hidden(name: str) -> bool:
    """Return whether importing `name` is harmless: it loads, is hidden, or fails as its callers expect."""
    try:
        importlib.import_module(name)
    except OSError as error:
        if "Could not load this library" not in str(error):
            raise
        return False
    except (ImportError, RuntimeError):
        # Already hidden, or another condition (torchcodec without ffmpeg) that callers handle.
        return True
    return True


def hide(name: str) -> None:
    """Make `name` appear not installed in this process, also to transformers' cached check."""
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]
    sys.modules[name] = None  # type: ignore[assignment]  # documented meaning: importing it raises ModuleNotFoundError
    check: Any = getattr(sys.modules.get("transformers.utils.import_utils"), f"is_{name}_available", None)
    if hasattr(check, "cache_clear"):
        check.cache_clear()
