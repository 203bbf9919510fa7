"""Fixes for bugs in upstream libraries: one module per bug, never an edit of site-packages.

`apply("torchvision_cpu")` cures this process. A patch acts only on the versions it names, does nothing the
second time, is checked after it ran, and logs one line. To add one: a module here with a `PATCH`, its name
in `_MODULES`, and a test.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module

from patches.base import Applied, Patch, PatchError, State

__all__ = ["Applied", "Patch", "PatchError", "all_patches", "apply"]

_MODULES = ("torchvision_cpu",)
_LOCK = threading.Lock()
_LOG = logging.getLogger("mmcorl.patches")


def all_patches() -> tuple[Patch, ...]:
    """Every patch there is, in the order in which they are applied; imports no patched library."""
    return tuple(import_module(f"patches.{module}").PATCH for module in _MODULES)


def apply(*names: str) -> list[Applied]:
    """Cure this process of the named bugs, in the given order; call it before the patched library is used.

    Raises PatchError for a name that is not a patch, and when a patch ran but its symptom stayed.
    """
    known = {patch.name: patch for patch in all_patches()}
    for name in names:
        if name not in known:
            raise PatchError(f"`{name}` is not a patch; there are: {', '.join(known)}")
    with _LOCK:
        return [_apply(known[name]) for name in names]


def _apply(patch: Patch) -> Applied:
    version = patch.installed()
    state: State
    if version is None:
        state = "not_installed"
    elif not patch.concerns(version):
        state = "out_of_range"
    elif patch.is_applied():
        state = "already"
    else:
        patch.apply()
        if not patch.is_applied():
            raise PatchError(
                f"Patch `{patch.name}` ran on {patch.package} {version} but the symptom stayed "
                f"({patch.symptom}); install a version outside `{patch.versions}` or see {patch.upstream}."
            )
        state = "applied"
    level = logging.INFO if state == "applied" else logging.DEBUG
    _LOG.log(level, "%s: %s (%s %s)", patch.name, state, patch.package, version or "not installed")
    return Applied(name=patch.name, package=patch.package, version=version, state=state)
