"""Fixes for bugs in upstream libraries: one module per bug, never an edit of site-packages.

`apply("torchvision_cpu")` cures this process. A patch acts only on the versions it names, does nothing the
second time, is checked after it ran, and logs one line. vLLM's own processes apply theirs through
`patches.vllm_plugin`. `status()` is the table of all of them, `check()` the same after trying each. To add one:
a module here with a `PATCH`, its name in `_MODULES`, and a test.
"""

from __future__ import annotations

import logging
import threading
from importlib import import_module

from patches.base import Applied, Patch, PatchError, Standing, State, Status, plugin_obstacle

__all__ = [
    "BEFORE_TRANSFORMERS",
    "BEFORE_VLLM",
    "Applied",
    "Patch",
    "PatchError",
    "Status",
    "all_patches",
    "apply",
    "check",
    "status",
]

BEFORE_TRANSFORMERS = ("torchvision_cpu", "torchaudio_cpu")
"""What breaks the import of transformers' models and processors: for code that imports them by itself."""
BEFORE_VLLM = (*BEFORE_TRANSFORMERS, "torchcodec_cpu")
"""What breaks the import of vLLM, in a process that vLLM's plugin may come too late for or never reach."""

_MODULES = (
    "torchvision_cpu",
    "torchaudio_cpu",
    "torchcodec_cpu",
    "gemma3_zero3",
    "gemma3_ragged",
    "vllm_vision_attention",
)
# Importing vLLM inside a patch runs its plugins, and ours applies patches: the same thread comes back in.
_LOCK = threading.RLock()
_LOG = logging.getLogger("mmcorl.patches")
# How this process stands to the patches that were tried in their range, for `status`.
_TRIED: dict[str, tuple[Standing, str]] = {}


def all_patches() -> tuple[Patch, ...]:
    """Every patch there is, in the order in which they are applied; imports no patched library."""
    return tuple(import_module(f"patches.{module}").PATCH for module in _MODULES)


def apply(*names: str) -> list[Applied]:
    """Cure this process of the named bugs, in the given order; call it before the patched library is used.

    Raises PatchError for a name that is not a patch, when a patch could not run on a version it is for, and
    when it ran but its symptom stayed.
    """
    known = {patch.name: patch for patch in all_patches()}
    for name in names:
        if name not in known:
            raise PatchError(f"`{name}` is not a patch; there are: {', '.join(known)}")
    with _LOCK:
        return [_apply(known[name]) for name in names]


def status() -> list[Status]:
    """The table of patches as this process stands; imports and changes nothing."""
    return [_status(patch) for patch in all_patches()]


def check() -> list[Status]:
    """`status` after trying every patch here, for `mmcorl doctor`: a failure is a row, nothing is raised."""
    for patch in all_patches():
        with _LOCK:
            try:
                _apply(patch)
            except PatchError as error:
                _LOG.debug("%s", error)  # its sentence is the `reason` of the row
    return status()


def _apply(patch: Patch) -> Applied:
    version = patch.installed()
    state: State
    if version is None:
        state = "not_installed"
    elif not patch.concerns(version):
        state = "out_of_range"
    elif patch.waits():
        state = "waiting"
    else:
        state = _try(patch, version)
    level = logging.INFO if state == "applied" else logging.DEBUG
    _LOG.log(level, "%s: %s (%s %s)", patch.name, state, patch.package, version or "not installed")
    return Applied(name=patch.name, package=patch.package, version=version, state=state)


def _try(patch: Patch, version: str) -> State:
    try:
        state = _cure(patch, version)
    except PatchError as error:
        _TRIED[patch.name] = ("cannot", str(error))
        raise
    if state == "applied":
        _TRIED[patch.name] = ("applied", f"cured in this process ({patch.package} {version})")
    elif _TRIED.get(patch.name, ("cannot", ""))[0] == "cannot":
        _TRIED[patch.name] = ("not needed", f"{patch.package} {version} works as installed here")
    return state


def _cure(patch: Patch, version: str) -> State:
    way_out = f"install a version outside `{patch.versions}` or see {patch.upstream}"
    try:
        if patch.is_applied():
            return "already"
        patch.apply()
        cured = patch.is_applied()
    except Exception as error:
        # Whatever an upstream library raises on the versions this patch was written for, the user gets one
        # sentence that names the patch; the cause stays attached.
        raise PatchError(
            f"Patch `{patch.name}` could not run on {patch.package} {version} "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); {way_out}."
        ) from error
    if not cured:
        raise PatchError(
            f"Patch `{patch.name}` ran on {patch.package} {version} but the symptom stayed "
            f"({patch.symptom}); {way_out}."
        )
    return "applied"


def _status(patch: Patch) -> Status:
    version = patch.installed()
    state, reason = _standing(patch, version)
    return Status(
        name=patch.name,
        package=patch.package,
        versions=patch.versions,
        version=version,
        symptom=patch.symptom,
        upstream=patch.upstream,
        remove_when=patch.remove_when,
        state=state,
        reason=reason,
    )


def _standing(patch: Patch, version: str | None) -> tuple[Standing, str]:
    if version is None:
        return "not needed", f"{patch.package} is not installed"
    if not patch.concerns(version):
        return "not needed", f"{patch.package} {version} does not have the bug"
    if patch.name in _TRIED:
        return _TRIED[patch.name]
    if patch.after_import != "vllm":
        return "pending", "applied when a model family that needs it is loaded"
    hindered = plugin_obstacle()
    return ("cannot", hindered) if hindered else ("pending", "applied by vLLM's own processes when they start")
