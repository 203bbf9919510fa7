"""An evaluation is a folder of files; every step reads files and adds to files.

Rows are keyed by (benchmark, id, sample). A step that was killed leaves at most a torn last line, which is
cut off when the folder is opened again. Two processes in one folder, and a folder made with other settings,
are refused.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from eval_suite.items import Item, Response
from mmcorl.errors import Refused

Key = tuple[str, str, int]
"""(benchmark, item id, sample)."""
THUMB_SIDE = 384
STEPS = ("items.jsonl", "responses.jsonl", "rule.jsonl", "behaviour.jsonl", "judge.jsonl")


def key_of(row: Mapping[str, Any]) -> Key:
    """The key of a line of responses.jsonl, rule.jsonl or judge.jsonl."""
    return row["benchmark"], row["id"], row["sample"]


class EvalFolder:
    """One evaluation on disk. Use as a context manager: it holds the folder's lock.

    `manifest` says what the folder is about; a folder that already holds another manifest is refused and
    the differing settings are named. None opens whatever is there.
    """

    def __init__(self, path: Path, manifest: Mapping[str, Any] | None = None):
        self.path = path
        held = path / "manifest.json"
        if manifest is None and not held.is_file():
            raise Refused(
                f"{str(path)!r} holds no evaluation: give a folder that `mmcorl eval` or `mmcorl grade` wrote"
            )
        if path.exists() and not path.is_dir():
            raise Refused(f"{str(path)!r} is a file: choose a folder for the results")
        if path.is_dir() and not held.is_file() and any(path.iterdir()):
            raise Refused(f"{str(path)!r} is not empty and holds no evaluation: choose another folder")
        if manifest is not None and held.is_file():
            _same_manifest(path, json.loads(held.read_text()), json.loads(json.dumps(manifest)))
        self._fresh = manifest if not held.is_file() else None

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise Refused(
                f"another process is working in {str(self.path)!r}: wait for it or choose another folder"
            ) from None
        if self._fresh is not None:
            self.write("manifest.json", json.dumps(self._fresh, indent=1, ensure_ascii=True) + "\n")
        for name in STEPS:
            _cut_torn_line(self.path / name)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def manifest(self) -> dict[str, Any]:
        """What the folder is about."""
        manifest: dict[str, Any] = json.loads((self.path / "manifest.json").read_text())
        return manifest

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All lines of one file; none when the step has not begun."""
        file = self.path / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines in one write."""
        text = "".join(_line(row) for row in rows)
        with (self.path / name).open("a", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def replace_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace a file of lines in one piece."""
        self.write(name, "".join(_line(row) for row in rows))

    def write(self, name: str, text: str) -> None:
        """Replace a small file in one piece."""
        fresh = self.path / f".{name}.new"
        fresh.write_text(text, encoding="utf-8")
        os.replace(fresh, self.path / name)

    def keep_items(self, items: Sequence[Item]) -> None:
        """Write items.jsonl and thumbnails once; later calls must bring the same items.

        Items of more benchmarks may be added; an item that changed is refused.
        """
        known = {(row["benchmark"], row["id"]): row["fingerprint"] for row in self.rows("items.jsonl")}
        fresh = []
        for item in items:
            fingerprint = known.get((item.benchmark, item.id))
            if fingerprint is None:
                fresh.append(item)
            elif fingerprint != item.fingerprint:
                raise Refused(
                    f"item {item.id!r} of {item.benchmark} is not the one {str(self.path)!r} was begun with: "
                    "restore the data, or choose another folder"
                )
        if fresh:
            self.append("items.jsonl", [self._item_row(item) for item in fresh])

    def facts(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of a step, such as which grader wrote rule.jsonl; None before there is one."""
        file = self.path / name
        if not file.is_file():
            return None
        told: dict[str, Any] = json.loads(file.read_text())
        return told

    def fingerprints(self) -> dict[tuple[str, str], str]:
        """Fingerprint of every item by (benchmark, id), as it was with its images."""
        return {(row["benchmark"], row["id"]): row["fingerprint"] for row in self.rows("items.jsonl")}

    def items(self) -> list[Item]:
        """The items as far as grading and tables need them: without image bytes."""
        return [item_from_row(row) for row in self.rows("items.jsonl")]

    def responses(self) -> list[Response]:
        """All responses in file order."""
        return [Response(**row) for row in self.rows("responses.jsonl")]

    def _item_row(self, item: Item) -> dict[str, Any]:
        row = asdict(replace(item, images=()))
        row["images"] = [self._thumbnail(item, number) for number in range(len(item.images))]
        row["fingerprint"] = item.fingerprint
        return row

    def _thumbnail(self, item: Item, number: int) -> str:
        from model_adapters.images import load_image

        name = f"thumbs/{item.fingerprint}_{number}.png"
        path = self.path / name
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            buffer = io.BytesIO()
            load_image(item.images[number], THUMB_SIDE).save(buffer, "PNG")
            path.write_bytes(buffer.getvalue())
        return name


def item_from_row(row: Mapping[str, Any]) -> Item:
    """An item of items.jsonl; its images are left out."""
    fields = {key: value for key, value in row.items() if key not in ("images", "fingerprint")}
    if fields["choices"] is not None:
        fields["choices"] = tuple(fields["choices"])
    return Item(**fields)


def _line(row: Mapping[str, Any]) -> str:
    # ASCII escapes keep lone surrogates of a model's text, and line separators cannot split a line.
    return json.dumps(row, allow_nan=False, ensure_ascii=True) + "\n"


def _cut_torn_line(file: Path) -> None:
    """A write that was killed half-way leaves a line without its end."""
    if not file.is_file():
        return
    data = file.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


def _same_manifest(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    changed = [
        f"{key}: {old.get(key)!r} -> {new.get(key)!r}"
        for key in sorted({*old, *new})
        if key not in ("versions", "judge") and old.get(key) != new.get(key)
    ]
    if changed:
        raise Refused(
            f"{str(path)!r} holds an evaluation with other settings ({'; '.join(changed[:3])}): "
            "give back the old ones to go on with it, or choose another folder"
        )
