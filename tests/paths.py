"""Folders and tables of cases that tests read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CONFIGS = ROOT / "configs"
CASES = TESTS / "cases"
FIXTURES = TESTS / "fixtures" / "benchmarks"
DATA = Path(os.environ.get("MMCORL_SHARED_DATA", "MMCORL_SHARED_DATA is not set"))
"""Real data from outside the repository; tests that need it are skipped where it is not set."""


def cases(file: str, table: str) -> list[Any]:
    """Return the rows of a table of `tests/cases/FILE.json`, whose groups each say why their cases exist."""
    tables = json.loads((CASES / f"{file}.json").read_text(encoding="utf-8"))
    return [case for group in tables[table] for case in group["cases"]]
