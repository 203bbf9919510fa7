"""Damage by hand in the folder of a stopped or finished run: the same bytes after all, or a refusal in one sentence.

Damage that a run neither reads nor keeps, as in a tracker's files, ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.drills.lab import Lab, Verdict, drills, problem, refused

Damage = Callable[[Path], object]
LAST = "checkpoints/step_000004"
SEAL = "sha256 of the above: "


def flip(name: str, at: int = -5000, bit: int = 16) -> Damage:
    """One bit of a file, counted from its end when negative."""

    def damage(run: Path) -> None:
        data = bytearray((run / name).read_bytes())
        data[at] ^= bit
        (run / name).write_bytes(bytes(data))

    return damage


def cut(name: str, share: float = 0.5) -> Damage:
    """A file that ends too early."""
    return lambda run: os.truncate(run / name, int((run / name).stat().st_size * share))


def gone(name: str) -> Damage:
    """A file or folder removed."""

    def damage(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    return damage


def holds(name: str, text: str | bytes) -> Damage:
    """A file that holds something else, or that should not be there."""

    def damage(run: Path) -> None:
        path = run / name
        if path.exists():
            gone(name)(run)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    return damage


def commit(**changes: Any) -> Damage:
    """Other values in COMMIT, with the hash of it that is due; None removes a key."""

    def damage(run: Path) -> None:
        file = run / LAST / "COMMIT"
        record = {**json.loads(file.read_text().partition(SEAL)[0]), **changes}
        text = json.dumps({key: value for key, value in record.items() if value is not None}) + "\n"
        file.write_text(f"{text}{SEAL}{hashlib.sha256(text.encode()).hexdigest()}\n")

    return damage


def swapped(name: str, old: str, new: str) -> Damage:
    """Some text of a file replaced once, by as many characters."""

    def damage(run: Path) -> None:
        text = (run / name).read_text()
        if old not in text or len(old) != len(new):
            raise ValueError(f"{name} has no {old!r}")
        (run / name).write_text(text.replace(old, new, 1))

    return damage


def digit(name: str) -> Damage:
    """Another last digit of the first fraction of a log: valid JSON of the same length."""

    def damage(run: Path) -> None:
        data = bytearray((run / name).read_bytes())
        at = next(n for n in range(data.index(b"."), len(data)) if not chr(data[n + 1]).isdigit())
        data[at if data[at] != 46 else at + 1] = ord("7") if data[at] != ord("7") else ord("3")
        (run / name).write_bytes(bytes(data))

    return damage


def linked(name: str, target: str) -> Damage:
    """A symbolic link in place of a file or folder."""

    def damage(run: Path) -> None:
        path = run / name
        if path.is_symlink() or path.exists():
            gone(name)(run)
        path.symlink_to(target)

    return damage


def moved(name: str, new: str) -> Damage:
    return lambda run: (run / name).rename(run / new) and None


def folder_instead(name: str) -> Damage:
    def damage(run: Path) -> None:
        (run / name).unlink()
        (run / name).mkdir()

    return damage


def fifo(name: str) -> Damage:
    def damage(run: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return damage


STOPPED: dict[str, Damage] = {
    "a bit of an optimizer": flip(f"{LAST}/other/optimizer.pt", at=-200_000),
    "a bit of the header of weights": flip(f"{LAST}/qwen/model.safetensors", at=60),
    "a bit of a tokenizer": flip(f"{LAST}/qwen/tokenizer.json", at=-40, bit=1),
    "a bit of a model's config": swapped(f"{LAST}/qwen/config.json", "silu", "gelu"),
    "weights cut": cut(f"{LAST}/qwen/model.safetensors"),
    "weights empty": cut(f"{LAST}/qwen/model.safetensors", 0),
    "weights gone": gone(f"{LAST}/qwen/model.safetensors"),
    "an optimizer cut": cut(f"{LAST}/other/optimizer.pt"),
    "an optimizer gone": gone(f"{LAST}/other/optimizer.pt"),
    "an agent gone": gone(f"{LAST}/other"),
    "an agent renamed": moved(f"{LAST}/other", f"{LAST}/another"),
    "two agents swapped": lambda run: (
        [(run / LAST / a).rename(run / LAST / b) for a, b in (("qwen", "x"), ("other", "qwen"), ("x", "other"))]
        and None
    ),
    "the set gone": gone(LAST),
    "all sets gone": gone("checkpoints"),
    "the set renamed to a later step": moved(LAST, "checkpoints/step_000005"),
    "COMMIT gone": gone(f"{LAST}/COMMIT"),
    "COMMIT with logs of another size": commit(logs={"metrics.jsonl": 17}),
    "COMMIT with files elsewhere": commit(files={"../../../../../etc/passwd": 17}),
    "COMMIT is a FIFO": fifo(f"{LAST}/COMMIT"),
    "a digit of validation": digit("validation.jsonl"),
    "metrics gone": gone("metrics.jsonl"),
    "metrics of zeros": holds("metrics.jsonl", b"\0" * 20000),
    "votes gone": gone("votes.jsonl"),
    "accuracy of 9 in validation": swapped("validation.jsonl", '"accuracy": 0', '"accuracy": 9'),
    "timings of garbage": holds("timings.jsonl", b"\xff\xfe" * 4000),
    "config.yaml empty": cut("config.yaml", 0),
    "config.yaml of garbage": holds("config.yaml", b"\x00\xff\xfe[{"),
    "config.yaml of another seed": swapped("config.yaml", "seed: 0", "seed: 7"),
    "data_check.json empty": cut("data_check.json", 0),
    "data_check.json is a list": holds("data_check.json", "[1, 2]"),
    "data_check.json of text": holds("data_check.json", '{"train": "all"}'),
    "data_check.json gone": gone("data_check.json"),
    "trackers.json empty": cut("trackers.json", 0),
    "trackers.json cut": cut("trackers.json"),
    "trackers.json is a list": holds("trackers.json", "[]"),
    "trackers.json of another shape": holds("trackers.json", '{"tensorboard": {"a": []}}'),
    "trackers.json gone": gone("trackers.json"),
    "tensorboard is a file": holds("tensorboard", "x"),
    "final is a file": holds("final", "x"),
    "checkpoints is a file": holds("checkpoints", "x"),
    "a file beside the sets": holds("checkpoints/step_zzz", "x"),
    "a file named as a set": holds("checkpoints/step_000009", "x"),
    "an empty folder named as a set": lambda run: (run / "checkpoints/step_000009").mkdir(),
    "best-by is a file": holds("checkpoints/best-by-validation", "x"),
    "best-by is a folder": folder_instead("checkpoints/best-by-agreement"),
    "the set is a link to itself": linked(LAST, "step_000004"),
    "a partial set is a file": holds("checkpoints/.partial_000006", "x"),
    "summary.json of a run not finished": holds("summary.json", '{"steps": 6}'),
    "report.html is a folder": lambda run: (run / "report.html").mkdir(),
    ".lock is a folder": folder_instead(".lock"),
    "a bit of the gallery": flip("gallery.jsonl", at=20),
    "a bit of the probes": flip("probes.jsonl", at=20),
    "a bit of the responses": flip("responses.jsonl", at=20),
    "a bit of the timings": flip("timings.jsonl", at=20),
    "timings gone": gone("timings.jsonl"),
    "a hash in COMMIT under another name": swapped(f"{LAST}/COMMIT", "sha256", "sha257"),
    "links that a copy followed": lambda run: (
        [linked.unlink() or shutil.copytree(run / LAST, linked) for linked in (run / "checkpoints").glob("best-by-*")]
        and None
    ),
}
FINISHED: dict[str, Damage] = {
    "weights gone": gone("final/qwen/model.safetensors"),
    "final gone": gone("final"),
    "final is a file": holds("final", "x"),
    "a tokenizer gone": gone("final/qwen/tokenizer.json"),
    "summary.json empty": cut("summary.json", 0),
    "summary.json is a list": holds("summary.json", "[]"),
    "summary.json of another shape": holds("summary.json", '{"steps": "many"}'),
    "summary.json gone": gone("summary.json"),
    "metrics cut": cut("metrics.jsonl"),
    "metrics gone": gone("metrics.jsonl"),
    "validation of bare numbers": holds("validation.jsonl", "1\n2\n"),
    "the page gone": gone("report.html"),
}


def again(damage: Damage, finished: bool) -> Callable[[Lab], Verdict]:
    """The same command after the damage: refused in a sentence, or the reference's bytes."""

    def body(lab: Lab) -> Verdict:
        run = lab.finished() if finished else lab.stopped()
        damage(run)
        ended = lab.run("train", lab.config, "--run-dir", run)
        if ended.code in (1, 2):
            return refused(ended)
        return problem(ended) or lab.same(run, ended, otherwise="silent")

    return body


def reported(damage: Damage) -> Callable[[Lab], Verdict]:
    """`report` on damaged logs: a page or a refusal, no traceback."""

    def body(lab: Lab) -> Verdict:
        run = lab.finished()
        damage(run)
        ended = lab.run("report", run)
        return (problem(ended) or Verdict("survived")) if ended.code == 0 else refused(ended)

    return body


def any_bit(seed: int) -> Damage:
    """A random bit of a random file."""

    def damage(run: Path) -> None:
        draw = random.Random(seed)
        files = sorted(path for path in run.rglob("*") if path.is_file() and path.stat().st_size)
        name = str(draw.choice(files).relative_to(run))
        flip(name, draw.randrange((run / name).stat().st_size), 1 << draw.randrange(8))(run)

    return damage


def rescored(lab: Lab) -> Verdict:
    """Another score in the checkpoint before the last: the best is not that one, and it is said."""
    run = lab.stopped()
    (file,) = set((run / "checkpoints").glob("step_*/COMMIT")) - {run / LAST / "COMMIT"}
    file.write_text(re.sub(r'("(?:validation|agreement)": )[\d.]+', r"\g<1>0.99", file.read_text()))
    ended = lab.run("train", lab.config, "--run-dir", run)
    if ended.code == 0 and file.parent in [link.resolve() for link in (run / "checkpoints").glob("best-by-*")]:
        return Verdict("silent", "a link leads to the changed score")
    return lab.same(run, ended, otherwise="silent")


def half_a_page(lab: Lab) -> Verdict:
    """`report` after one that was killed."""
    run = lab.finished()
    (run / ".report.html.99999999.new").write_text("<html>")
    return lab.same(run, lab.run("report", run))


def elsewhere(name: str) -> Callable[[Lab], Verdict]:
    """A run in a folder with an odd name: the same bytes, or a sentence."""

    def body(lab: Lab) -> Verdict:
        run = lab.folder() / name
        ended = lab.run("train", lab.config, "--run-dir", run)
        return refused(ended) if ended.code else lab.same(run, ended)

    return body


def nowhere(lab: Lab) -> Verdict:
    """A command in a folder that was removed."""
    folder = lab.folder() / "gone"
    folder.mkdir()
    return refused(lab.run("train", lab.config, cwd=folder, before=folder.rmdir), "removed")


DRILLS = [
    *drills("bits", ((f"seed {seed}", again(any_bit(seed), finished=False)) for seed in range(26))),
    *drills("commit", [("a score", rescored)]),
    *drills(
        "names",
        [
            ("half a page", half_a_page),
            ("not ASCII", elsewhere("ä 雪")),
            ("not UTF-8", elsewhere(os.fsdecode(b"a\xff"))),
            ("a working folder that is gone", nowhere),
        ],
    ),
    *drills("damage", ((name, again(damage, finished=False)) for name, damage in STOPPED.items())),
    *drills("damage-finished", ((name, again(damage, finished=True)) for name, damage in FINISHED.items())),
    *drills(
        "damage-report",
        (
            (name, reported(damage))
            for name, damage in {
                "metrics of bare numbers": holds("metrics.jsonl", "1\n2\n"),
                "validation cut": cut("validation.jsonl"),
                "gallery is a file": holds("gallery", "x"),
                "summary.json cut": cut("summary.json"),
                "config.yaml of garbage": holds("config.yaml", b"\x00\xff\xfe[{"),
                "timings of text": holds("timings.jsonl", '{"step": "x", "seconds": []}\n'),
                "votes of another shape": holds("votes.jsonl", '{"step": 1, "agents": 3}\n'),
            }.items()
        ),
    ),
]
