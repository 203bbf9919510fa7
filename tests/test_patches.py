"""Patches act inside their range, once, and are verified; torchvision imports beside a CPU torch."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import patches
from patches import Patch, PatchError

INSTALLED = Version(metadata.version("packaging"))


class Bug:
    """A bug in an installed package, which a patch cures or does not."""

    def __init__(self, *, present: bool = True, curable: bool = True) -> None:
        self.present, self.curable, self.calls = present, curable, 0

    def cure(self) -> None:
        self.calls += 1
        self.present = self.present and not self.curable

    def patch(self, versions: str = f"=={INSTALLED}", package: str = "packaging") -> Patch:
        return Patch(
            name="bug",
            package=package,
            versions=versions,
            symptom="it breaks",
            upstream="https://example.org/bug",
            remove_when="it is fixed",
            apply=self.cure,
            is_applied=lambda: not self.present,
        )


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Patch], None]:
    def put(patch: Patch) -> None:
        monkeypatch.setattr(patches, "all_patches", lambda: (patch,))

    return put


def test_it_acts_once_and_says_so_in_one_line(
    install: Callable[[Patch], None], caplog: pytest.LogCaptureFixture
) -> None:
    bug = Bug()
    install(bug.patch())
    with caplog.at_level(logging.INFO, logger="mmcorl.patches"):
        states = [patches.apply("bug")[0].state for _ in range(3)]
    assert states == ["applied", "already", "already"]
    assert bug.calls == 1
    assert [record.getMessage() for record in caplog.records] == [f"bug: applied (packaging {INSTALLED})"]


def test_a_build_without_the_bug_is_left_alone(install: Callable[[Patch], None]) -> None:
    bug = Bug(present=False)
    install(bug.patch())
    assert patches.apply("bug")[0].state == "already"
    assert bug.calls == 0


@pytest.mark.parametrize("versions", [f"<{INSTALLED}", f">{INSTALLED}"])
def test_other_versions_are_left_alone(install: Callable[[Patch], None], versions: str) -> None:
    bug = Bug()
    install(bug.patch(versions))
    assert patches.apply("bug")[0].state == "out_of_range"
    assert bug.calls == 0


def test_a_package_that_is_not_installed(install: Callable[[Patch], None]) -> None:
    bug = Bug()
    install(bug.patch(package="no-such-distribution"))
    (applied,) = patches.apply("bug")
    assert (applied.state, applied.version, bug.calls) == ("not_installed", None, 0)


def test_a_cure_that_does_not_work_is_an_error(install: Callable[[Patch], None]) -> None:
    install(Bug(curable=False).patch())
    with pytest.raises(PatchError, match=r"ran on packaging .* but the symptom stayed \(it breaks\)"):
        patches.apply("bug")


def test_an_unknown_name_is_refused_before_anything_is_applied(install: Callable[[Patch], None]) -> None:
    bug = Bug()
    install(bug.patch())
    with pytest.raises(PatchError, match="`bugg` is not a patch; there are: bug"):
        patches.apply("bug", "bugg")
    assert bug.calls == 0


def test_local_labels_and_pre_releases_count_as_their_version() -> None:
    patch = Bug().patch(">=0.24,<0.29")
    assert patch.concerns("0.28.0+cpu")
    assert patch.concerns("0.28.0rc1")
    assert not patch.concerns("0.29.0")


@pytest.mark.parametrize("patch", patches.all_patches(), ids=lambda patch: patch.name)
def test_every_patch_says_what_it_is(patch: Patch) -> None:
    assert (Path(patches.__file__).parent / f"{patch.name}.py").is_file()
    assert str(SpecifierSet(patch.versions))  # bounded, not "any version"
    assert "<" in patch.versions or "==" in patch.versions
    assert patch.upstream.startswith("https://")
    assert patch.symptom
    assert patch.remove_when


def test_torchvision_works_in_a_fresh_process_even_after_a_failed_import() -> None:
    """Listing imports no torch; the second `apply` does nothing; processors and timm can be imported."""
    code = """
import sys, patches
patches.all_patches()
assert "torch" not in sys.modules
try:
    import torchvision
except RuntimeError:
    pass
first, second = (patches.apply("torchvision_cpu")[0].state for _ in range(2))
assert first in ("applied", "already") and second == "already", (first, second)
import timm, torch, torchvision
from torchvision.transforms.v2 import functional
from transformers import AutoProcessor
print(tuple(functional.resize(torch.zeros(3, 8, 8), [4, 4]).shape))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(3, 4, 4)"
