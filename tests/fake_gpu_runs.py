"""Runs on the fake GPU, each in a process of its own; see `tests/fake_gpu/child.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from paths import ROOT


def child(*words: str) -> Any:
    """The result of a function of `tests.fake_gpu.child`."""
    command = [sys.executable, "-m", "tests.fake_gpu.child", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
