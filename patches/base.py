"""What a fix for an upstream bug has to say about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from packaging.specifiers import SpecifierSet

State = Literal["applied", "already", "out_of_range", "not_installed"]


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

    def installed(self) -> str | None:
        """The installed version of `package`; None when it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

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
    """`already`: the symptom was absent, be it by an earlier call or because this build never had it."""
