"""Folders that tests read."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
CASES = TESTS / "cases"
FIXTURES = TESTS / "fixtures" / "benchmarks"
DATA = Path(os.environ.get("MMCORL_SHARED_DATA", ROOT.parent / "shared" / "data"))
"""Real data from outside the repository; tests that need it are skipped where it is absent."""
