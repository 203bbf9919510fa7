"""Runs on the fake GPU, each in a process of its own; see `tests/fake_gpu/child.py`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest

from gpu_check.fake_gpu.library import COMPILER
from paths import ROOT


def child(*words: str) -> Any:
    """The result of a function of `tests.fake_gpu.child`; the test is skipped where nothing can compile the device."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"no {COMPILER} to compile the fake GPU with")
    command = [sys.executable, "-m", "tests.fake_gpu.child", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
