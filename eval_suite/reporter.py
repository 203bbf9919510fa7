"""Progress and notes of a job. Functions of the suite print nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from mmcorl.run import progress


@dataclass(frozen=True)
class Reporter:
    """Writes progress bars, notes and warnings to stderr, options as `spelled`; `quiet` keeps the warnings only."""

    quiet: bool = False
    spelled: Callable[[str], str] = str

    def note(self, text: str) -> None:
        """Print one line that a user may skip."""
        if not self.quiet:
            print(self.spelled(text), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Print one line that changes how the numbers are read."""
        print(self.spelled(text), file=sys.stderr)

    def task(self, text: str, total: int) -> AbstractContextManager[progress.Task]:
        """Open a progress bar; nothing is drawn for no work."""
        return progress.task(text, total, quiet=self.quiet or not total)


SILENT = Reporter(quiet=True)


def nth_row(index: int, where: object) -> str:
    """Return `row 3 of FILE (counted from 1)` for the row at an index, which is 2: what all messages call it."""
    return f"row {index + 1} of {where} (counted from 1)"


def counted(count: int, singular: str, plural: str) -> str:
    """Return `1 problem is` or `1,319 problems are`: a count with the words that fit it."""
    return f"{count:,} {singular if count == 1 else plural}"
