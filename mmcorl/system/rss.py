"""Peak resident memory of this process."""

from __future__ import annotations

import functools
import resource
import sys


def peak() -> int:
    """Largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache
def before_models() -> int:
    """What `peak` was when this was first called: by the first worker of a process, before it loads its model."""
    return peak()
