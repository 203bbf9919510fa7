"""Read files that others wrote: regular ones only, of bounded size, so that no read hangs or fills the memory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path, most: int | None = None) -> BinaryIO:
    """Open a file for reading; OSError says in `strerror` what is no regular file or has more than `most` bytes."""
    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device and no regular file", str(path))
        if most is not None and status.st_size > most:
            raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes, more than {most:,}", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | Path, most: int) -> bytes:
    """Read a regular file of at most `most` bytes; OSError as `open_regular`, also for one that is longer than it says
    (/proc)."""
    with open_regular(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


def home_of(folder: Path) -> Path:
    """Return the real folder that the files of a data set may lie in: itself, or the whole copy of a hub repository,
    whose snapshots link to its blobs."""
    real = folder.resolve()
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots" and (parent.parent.parent / "blobs").is_dir():
            return parent.parent.parent
    return real


def leads_out(path: Path, homes: Iterable[Path]) -> bool:
    """Whether a path, once its `..` and links are followed, lies in none of the real folders `homes`."""
    real = path.resolve()
    return not any(real.is_relative_to(home) for home in homes)
