"""Folders that tests read."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
CASES = TESTS / "cases"
FIXTURES = TESTS / "fixtures" / "benchmarks"
DATA = Path(os.environ.get("MMCORL_SHARED_DATA", "MMCORL_SHARED_DATA is not set"))
"""Real data from outside the repository; tests that need it are skipped where it is not set."""
