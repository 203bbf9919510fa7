"""Checkpoints of a whole cohort: all agents at one step, or nothing.

A checkpoint is a folder that gets its final name only when every agent has written its part and the COMMIT file, with
sizes and hashes of its files and of the logs at that moment and last a hash of itself, is on disk. A kill or a full
disk at any point leaves the last committed checkpoint untouched, and only committed checkpoints are ever read.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from mmcorl.errors import UserError

COMMIT = "COMMIT"
DAMAGED = "damaged_"
"""Prefix of the name of a checkpoint that has been set aside."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READERS = 4
"""Number of files that are hashed at the same time."""
SEAL = b"sha256 of the above: "
"""Beginning of the last line of COMMIT."""


class DamagedError(UserError):
    """A file in the folder of a run differs from what was written there."""


class Record(BaseModel):
    """Content of COMMIT. Hashes are SHA-256."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    step: NonNegativeInt
    files: dict[str, NonNegativeInt]
    """Bytes of each file, by its path within the checkpoint."""
    sha256: dict[str, str] = {}
    logs: dict[str, NonNegativeInt]
    """Bytes of each log at that moment; what follows belongs to later steps."""
    logs_sha256: dict[str, str] = {}
    """Hashes of that many bytes of each log."""
    scores: dict[str, float | None] = {}
    """Scores of this step's evaluation, higher is better; None where unknown."""
    code: dict[str, str] = {}
    """SHA-256 of each of the user's files that the run used up to here."""
    changed: list[str] = []
    """Sentences on user files that changed when the run was resumed."""


@dataclass(frozen=True)
class Committed:
    """A committed checkpoint: its folder and the content of its COMMIT."""

    path: Path
    record: Record

    @property
    def step(self) -> int:
        return self.record.step

    def verify(self) -> None:
        """Raise DamagedError for files that are not those that were committed."""
        for name, size in self.record.files.items():
            file = self.path / name
            present = file.stat().st_size if file.is_file() else None
            if present != size:
                state = "is missing" if present is None else f"has {present} bytes instead of {size}"
                raise DamagedError(f"{str(self.path)!r} is damaged ({name} {state})")
        for name, digest in _hashes(self.path, self.record.sha256).items():
            if digest != self.record.sha256[name]:
                raise DamagedError(f"{str(self.path)!r} is damaged (the content of {name} has changed)")


def commit(
    directory: Path,
    step: int,
    write: Callable[[Path], None],
    logs: Mapping[str, tuple[int, str]],
    scores: Mapping[str, float | None],
    **facts: Any,
) -> Committed:
    """Write one checkpoint under `directory` and make it visible at once.

    `write` fills the folder it is given; when it raises, what was written is removed. `logs` are size and hash of each,
    `facts` further fields of the record.
    """
    directory.mkdir(exist_ok=True)
    final = directory / f"step_{step:06d}"
    partial = directory / f".partial_{step:06d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        record = seal(partial, step, logs, scores, **facts)
        publish(partial, final)  # In place of what is left of a checkpoint that was being removed.
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Committed(final, record)


def seal(
    folder: Path,
    step: int,
    logs: Mapping[str, tuple[int, str]] | None = None,
    scores: Mapping[str, float | None] | None = None,
    **facts: Any,
) -> Record:
    """Hash all files of a folder, write its COMMIT, and wait until everything is on disk."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    # What was just written is in memory still: it is hashed from there while the disk takes it.
    with ThreadPoolExecutor(1) as aside:
        hashes = aside.submit(_hashes, folder, files)
        for file in files.values():
            _sync(file)
        record = Record(
            step=step,
            files={name: file.stat().st_size for name, file in files.items()},
            sha256=hashes.result(),
            logs={name: size for name, (size, _) in (logs or {}).items()},
            logs_sha256={name: digest for name, (_, digest) in (logs or {}).items()},
            scores=dict(scores or {}),
            **facts,
        )
    content = record.model_dump_json(indent=1, exclude_defaults=True).encode() + b"\n"
    (folder / COMMIT).write_bytes(content + SEAL + hashlib.sha256(content).hexdigest().encode() + b"\n")
    _sync(folder / COMMIT)
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        _sync(directory)
    return record


def publish(folder: Path, final: Path) -> None:
    """Give a sealed folder its name, in place of what has it, and wait until that is on disk."""
    shutil.rmtree(final, ignore_errors=True)
    folder.rename(final)
    _sync(final.parent)


def read(path: Path) -> Committed:
    """Return the checkpoint in a folder; DamagedError where its COMMIT is not what was written."""
    file = path / COMMIT
    content, sealed, digest = file.read_bytes().rpartition(SEAL)
    if not sealed or digest != hashlib.sha256(content).hexdigest().encode() + b"\n":
        raise DamagedError(f"{str(file)!r} is damaged (it is not what was written)")
    try:
        record = Record.model_validate_json(content)
    except ValidationError as error:
        raise DamagedError(f"{str(file)!r} is damaged (it is that of another version of mmcorl)") from error
    if path.name.startswith("step_") and record.step != _step(path):
        raise DamagedError(f"{str(file)!r} is damaged (it says step {record.step})")
    return Committed(path, record)


def folders(directory: Path) -> list[Path]:
    """Return the folders of all committed checkpoints, oldest first, damaged ones included."""
    return [path for path in _steps(directory) if (path / COMMIT).is_file()]


def committed(directory: Path) -> list[Committed]:
    """Return all committed checkpoints, oldest first; anything else in the folder is ignored."""
    return _read_all(directory)[0]


def faults(directory: Path) -> list[DamagedError]:
    """Return what is wrong with the COMMIT files of committed checkpoints."""
    return _read_all(directory)[1]


def _read_all(directory: Path) -> tuple[list[Committed], list[DamagedError]]:
    sets, damaged = list[Committed](), list[DamagedError]()
    for path in folders(directory):
        try:
            sets.append(read(path))
        except DamagedError as error:
            damaged.append(error)
    return sets, damaged


def set_aside(path: Path) -> Path:
    """Rename a damaged checkpoint so that nothing takes it for one; `prune` removes it once its step is regained."""
    aside = path.with_name(DAMAGED + path.name)
    shutil.rmtree(aside, ignore_errors=True)
    path.rename(aside)
    return aside


def prune(directory: Path, keep_last: int) -> None:
    """Remove all but the newest checkpoints and the best by each score; link the best as `best-by-SCORE`.

    The earliest of equals is the best. Whatever a kill left half-written or half-removed goes too.
    """
    sets = committed(directory)
    keep = {checkpoint.step for checkpoint in sets[-keep_last:]}
    for score in sorted({name for checkpoint in sets for name in checkpoint.record.scores}):
        scored = [checkpoint for checkpoint in sets if checkpoint.record.scores.get(score) is not None]
        if scored:
            best = max(scored, key=lambda checkpoint: (checkpoint.record.scores[score], -checkpoint.step))
            keep.add(best.step)
            fresh, link = directory / f".best-by-{score}", directory / f"best-by-{score}"
            if _is_copy(link, sets):
                shutil.rmtree(link)
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(best.path.name)
            os.replace(fresh, link)
    _remove(checkpoint.path for checkpoint in sets if checkpoint.step not in keep)
    _remove(directory.glob(".partial_*"))
    _remove(path for path in _steps(directory) if not (path / COMMIT).is_file())
    newest = sets[-1].step if sets else -1
    _remove(path for path in _steps(directory, DAMAGED) if _step(path) <= newest)


def system_error(error: BaseException) -> OSError | None:
    """Return the system's error behind one that a writer of files raised; None for any other error."""
    if isinstance(error, OSError):
        return error
    # safetensors keeps the system's number in its text; torch's writer knows only that the file is too short.
    if number := re.search(r"\(os error (\d+)\)", str(error)):
        return OSError(int(number[1]), os.strerror(int(number[1])))
    if isinstance(error, RuntimeError) and "inline_container" in str(error):
        return OSError(errno.ENOSPC, "a file could not be written in full")
    if isinstance(error, RuntimeError) and "Parent directory" in str(error):
        return OSError(errno.ENOENT, str(error).rstrip("."))
    return None


def no_room(error: BaseException) -> str | None:
    """Return the system's message if an error came from a full disk; None for any other error."""
    seen: list[BaseException] = []
    while error not in seen:
        seen.append(error)
        system = system_error(error)
        if system is not None and system.errno in NO_ROOM:
            return system.strerror if not isinstance(error, OSError) else os.strerror(system.errno)
        error = error.__cause__ or error.__context__ or error
    return None


def _is_copy(link: Path, sets: Iterable[Committed]) -> bool:
    """Return whether a folder is a copy of one of these checkpoints, made from a link by a copy that follows links."""
    if link.is_symlink() or not (link / COMMIT).is_file():
        return False
    return any((entry.path / COMMIT).read_bytes() == (link / COMMIT).read_bytes() for entry in sets)


def _steps(directory: Path, prefix: str = "") -> list[Path]:
    """Return the folders called `prefix` and then step_ and a number, in the order of their steps."""
    paths = [path for path in directory.glob(f"{prefix}step_*") if path.name.rpartition("_")[2].isdecimal()]
    return sorted((path for path in paths if path.is_dir()), key=_step)


def _step(path: Path) -> int:
    return int(path.name.rpartition("_")[2])


def _hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files by their paths within a folder."""

    def digest(name: str) -> str:
        with (folder / name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    names = list(names)
    with ThreadPoolExecutor(READERS) as pool:
        return dict(zip(names, pool.map(digest, names), strict=True))


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
