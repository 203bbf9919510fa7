"""Checkpoints of a whole cohort: all agents at one step, or nothing.

A checkpoint is a folder that gets its final name only when every agent has written its part and the COMMIT file, with
the sizes of its files and of the logs at that moment, is on disk. A kill or a full disk at any point leaves the last
committed checkpoint untouched, and only committed checkpoints are ever read.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmcorl.errors import UserError

COMMIT = "COMMIT"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Committed:
    path: Path
    step: int
    files: dict[str, int]
    """Bytes of each file, by its path within the checkpoint."""
    meta: dict[str, Any]
    """Log sizes and scores, as given to `commit`."""

    def verify(self) -> None:
        """Refuse a checkpoint whose files are not those that were committed: damage from outside."""
        for name, size in self.files.items():
            file = self.path / name
            present = file.stat().st_size if file.is_file() else None
            if present != size:
                state = "is missing" if present is None else f"has {present} bytes instead of {size}"
                raise UserError(
                    f"checkpoint {str(self.path)!r} is damaged ({name} {state}): restore it, or remove that folder "
                    "to go on from the checkpoint before it"
                )


def commit(directory: Path, step: int, write: Callable[[Path], None], meta: dict[str, Any]) -> Committed:
    """Write one checkpoint under `directory` and make it visible at once.

    `write` fills the folder it is given; when it raises, what was written is removed.
    """
    final = directory / f"step_{step:06d}"
    partial = directory / f".partial_{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write(partial)
        files = {}
        for file in sorted(path for path in partial.rglob("*") if path.is_file()):
            _sync(file)
            files[str(file.relative_to(partial))] = file.stat().st_size
        record = partial / COMMIT
        record.write_text(json.dumps({"step": step, "files": files, **meta}, indent=1) + "\n")
        _sync(record)
        for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            _sync(folder)
        shutil.rmtree(final, ignore_errors=True)  # Left of a checkpoint that was being removed.
        partial.rename(final)
        _sync(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Committed(final, step, files, meta)


def committed(directory: Path) -> list[Committed]:
    """Return all committed checkpoints, oldest first; anything else in the folder is ignored."""
    sets = []
    for path in sorted(directory.glob("step_*")):
        record = path / COMMIT
        if not record.is_file():
            continue
        try:
            meta = json.loads(record.read_text())
            sets.append(Committed(path, meta.pop("step"), meta.pop("files"), meta))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{str(record)!r} is damaged ({error}): restore it, or remove its folder to go on from the "
                "checkpoint before it"
            ) from error
    return sets


def prune(directory: Path, keep_last: int) -> None:
    """Remove all but the newest checkpoints and the best by each score; link the best as `best-by-SCORE`.

    Scores are in `meta["scores"]`: name to number, higher is better, None where unknown. The earliest of equals is the
    best. Whatever a kill left half-written or half-removed goes too.
    """
    sets = committed(directory)
    keep = {checkpoint.step for checkpoint in sets[-keep_last:]}
    for score in sorted({name for checkpoint in sets for name in checkpoint.meta.get("scores", {})}):
        scored = [checkpoint for checkpoint in sets if checkpoint.meta.get("scores", {}).get(score) is not None]
        if scored:
            best = max(scored, key=lambda checkpoint: (checkpoint.meta["scores"][score], -checkpoint.step))
            keep.add(best.step)
            fresh = directory / f".best-by-{score}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(best.path.name)
            os.replace(fresh, directory / f"best-by-{score}")
    _remove(checkpoint.path for checkpoint in sets if checkpoint.step not in keep)
    _remove(directory.glob(".partial_*"))
    _remove(path for path in directory.glob("step_*") if not (path / COMMIT).is_file())


def no_room(error: BaseException) -> str | None:
    """Return the system's message if an error came from a full disk; None for any other error."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return os.strerror(error.errno)
        # safetensors keeps the system's number in its text; torch's writer knows only that the file is too short.
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number and int(number[1]) in NO_ROOM:
            return os.strerror(int(number[1]))
        if isinstance(error, RuntimeError) and "inline_container" in str(error):
            return "a file could not be written in full"
        error = error.__cause__ or error.__context__ or error
    return None


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        # Without its COMMIT a half-removed checkpoint is never taken for a whole one.
        (path / COMMIT).unlink(missing_ok=True)
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
