"""A disk without room and folders that move, vanish or may not be written: one sentence, then the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.drills.lab import Lab, Verdict, drills, lines, refused, there


@contextmanager
def small_disk(lab: Lab, options: str) -> Iterator[Path | None]:
    """A file system of its own; None where this user may not mount one."""
    folder = lab.folder()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """A file that takes all room but some bytes."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while file.write(bytes(size)):
                    continue
    os.truncate(filler, max(0, filler.stat().st_size - leave))
    return filler


def full(pattern: str, leave: int = 0, count: int = 0) -> Callable[[Lab], Verdict]:
    """The disk fills up as something appears, or once metrics have `count` lines; with room again, the run goes on."""

    def body(lab: Lab) -> Verdict:
        with small_disk(lab, "size=64m") as disk:
            if disk is None:
                return Verdict("unclear", "mounting a small disk needs root")
            run = disk / "run"
            running = lab.start("train", lab.config, "--run-dir", run)
            found = there(run, pattern)
            if not lab.when(running, lambda: found() and lines(run / "metrics.jsonl") >= count):
                return Verdict("unclear", "it was too quick to be caught")
            filler = fill(disk, leave)
            told = refused(lab.wait(running), "no room", otherwise="unclear")
            filler.unlink()
            verdict = lab.resumed(run)
            return verdict if verdict.outcome != "survived" else told

    return body


def full_at_start(options: str) -> Callable[[Lab], Verdict]:
    """A disk too small from the beginning, in bytes or in files."""

    def body(lab: Lab) -> Verdict:
        with small_disk(lab, options) as disk:
            if disk is None:
                return Verdict("unclear", "mounting a small disk needs root")
            return refused(lab.run("train", lab.config, "--run-dir", disk / "run"), "no room")

    return body


def while_it_runs(spoil: Callable[[Path], None], mend: Callable[[Path], None]) -> Callable[[Lab], Verdict]:
    """The folder is spoiled after step 3: one sentence; mended, the run goes on to the same bytes."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / "run"
        running = lab.start("train", lab.config, "--run-dir", run)
        if not lab.when(running, lambda: lines(run / "metrics.jsonl") >= 3):
            return Verdict("unclear", "it was too quick to be caught")
        try:
            spoil(run)
            told = refused(lab.wait(running), otherwise="lost")
        finally:
            mend(run)
        verdict = lab.resumed(run)
        return verdict if verdict.outcome != "survived" else told

    return body


def immutable(*flags: str) -> Callable[[Path], None]:
    """Set or take the flag that forbids changes, also to root."""

    def change(run: Path) -> None:
        subprocess.run(["chattr", *flags, str(run)], check=True, capture_output=True)

    return change


def back(run: Path) -> None:
    away = run.with_name("away")
    if run.exists():
        shutil.rmtree(run)
    away.rename(run)


def file_instead(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("")


DRILLS = drills(
    "disk",
    [
        ("full in the first checkpoint", full("checkpoints/.partial_000002")),
        ("full in the second checkpoint", full("checkpoints/.partial_000004")),
        ("full in the logs", full("metrics.jsonl", count=1)),
        ("room for logs, not for a checkpoint", full("checkpoints/step_000002", leave=300_000)),
        ("full in the last checkpoint", full("checkpoints/.partial_000006")),
        ("full in the export", full("*final*")),
        ("full at the summary", full("final")),
        ("full from the beginning", full_at_start("size=256k")),
        ("no more files from the beginning", full_at_start("size=64m,nr_inodes=12")),
        ("renamed", while_it_runs(lambda run: run.rename(run.with_name("away")) and None, back)),
        ("deleted", while_it_runs(shutil.rmtree, lambda run: None)),
        ("may not be written", while_it_runs(immutable("+i"), immutable("-i"))),
        (
            "checkpoints may not be written",
            while_it_runs(
                lambda run: immutable("+i")(run / "checkpoints"), lambda run: immutable("-i")(run / "checkpoints")
            ),
        ),
        (
            "a file in place of checkpoints",
            while_it_runs(file_instead, lambda run: (run / "checkpoints").unlink(missing_ok=True)),
        ),
    ],
)
