"""Checkpoints of a whole cohort: all agents at one step, or nothing.

A checkpoint is a folder that gets its final name only when every agent has written its part and the COMMIT
file, with the sizes of the logs at that moment, is on disk. A kill or a full disk at any point leaves the last
committed set untouched, and only committed sets are ever read.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMIT = "COMMIT"


@dataclass(frozen=True)
class Committed:
    """One committed set."""

    path: Path
    step: int
    meta: dict[str, Any]
    """What `commit` was given: log sizes, scores."""


def commit(directory: Path, step: int, write: Callable[[Path], None], meta: dict[str, Any]) -> Committed:
    """Write one set under `directory` and make it visible at once.

    `write` fills the folder it is given. Raises the OSError of a failed write after removing what was written.
    """
    final = directory / f"step_{step:06d}"
    partial = directory / f".partial_{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        for file in sorted(path for path in partial.rglob("*") if path.is_file()):
            _sync(file)
        record = partial / COMMIT
        record.write_text(json.dumps({"step": step, **meta}, indent=1) + "\n")
        _sync(record)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Committed(final, step, meta)


def committed(directory: Path) -> list[Committed]:
    """All committed sets, oldest first; anything else in the folder is not looked at."""
    sets = []
    for path in sorted(directory.glob("step_*")):
        record = path / COMMIT
        if record.is_file():
            meta = json.loads(record.read_text())
            sets.append(Committed(path, meta.pop("step"), meta))
    return sets


def prune(directory: Path, keep_last: int) -> None:
    """Remove all but the newest sets and the best by each score; name the best ones by links.

    A set's scores are in `meta["scores"]`: name to number, higher is better, None where unknown. The earliest
    of equals is the best.
    """
    sets = committed(directory)
    keep = {one.step for one in sets[-keep_last:]}
    for score in sorted({name for one in sets for name in one.meta.get("scores", {})}):
        scored = [one for one in sets if one.meta.get("scores", {}).get(score) is not None]
        if scored:
            best = max(scored, key=lambda one: (one.meta["scores"][score], -one.step))
            keep.add(best.step)
            _link(directory / f"best-by-{score}", best.path.name)
    _remove(one.path for one in sets if one.step not in keep)
    _remove(directory.glob(".partial_*"))


def _link(link: Path, target: str) -> None:
    fresh = link.with_name(f".{link.name}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    os.replace(fresh, link)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # Without its COMMIT a half-removed set can never be taken for a whole one.
        (path / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
