"""Ways to end a process at a chosen moment; called in the process that is to end."""

from __future__ import annotations

import importlib
import itertools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_call(target: str, call: int, action: Callable[..., None], after: bool = False) -> None:
    """Run `action` on the nth call of a function or method, with its arguments, before or after the call itself.

    `target` is `package.module:name` or `package.module:Class.name`.
    """
    module_name, _, path = target.partition(":")
    owner: Any = importlib.import_module(module_name)
    *holders, name = path.split(".")
    for holder in holders:
        owner = getattr(owner, holder)
    original, calls = getattr(owner, name), 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and not after:
            action(*args, **kwargs)
        result = original(*args, **kwargs)
        if calls == call and after:
            action(*args, **kwargs)
        return result

    setattr(owner, name, counted)


def kill(*_: Any, **__: Any) -> None:
    """The end, with nothing flushed and nothing said."""
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_change(folder: str, number: int) -> None:
    """Die at the nth change below a folder: before a file is opened for writing, renamed or removed."""
    count = itertools.count(1)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            changes = bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
        else:
            changes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
        if changes and str(arguments[0]).startswith(folder) and next(count) == number:
            kill()

    sys.addaudithook(hook)


def interrupt(*_: Any, **__: Any) -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


def hang_up(*_: Any, **__: Any) -> None:
    """The terminal is gone."""
    os.kill(os.getpid(), signal.SIGHUP)


def kill_in_line(folder: Any, name: str, records: Any) -> None:
    """Die with half a line of a log on disk."""
    with (folder.path / name).open("a") as log:
        log.write('{"step": 1, "ag')
    kill()


def kill_in_file(_: Any, path: Path, **__: Any) -> None:
    """Die with the first bytes of a file on disk."""
    Path(path).write_bytes(b"PK\x03\x04")
    kill()


def kill_in_removal(at: str) -> None:
    """Die when a folder whose name starts with `at` is half removed: its COMMIT is gone, other files are not."""
    import shutil

    original = shutil.rmtree

    def half(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith(at) and Path(path).is_dir():
            next(file for file in Path(path).rglob("*") if file.is_file()).unlink()
            kill()
        original(path, *args, **kwargs)

    shutil.rmtree = half  # type: ignore[assignment]
