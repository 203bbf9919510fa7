"""An evaluation is a folder of files; every step reads files and adds to files.

Rows are keyed by (benchmark, id, sample). A step that was killed leaves at most a torn last line, which is
cut off when the folder is opened again. Two processes in one folder, and a folder made with other settings,
are refused. Results that no longer fit the rows are gone as soon as a row changes.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

from eval_suite.items import Item, Response
from eval_suite.metrics.outcomes import Outcome, outcomes_of
from eval_suite.tasks import BENCHMARKS, Benchmark
from mmcorl.errors import RunError, UserError

Key = tuple[str, str, int]
"""(benchmark, item id, sample)."""
THUMB_SIDE = 384
STEPS = ("items.jsonl", "unasked.jsonl", "responses.jsonl", "rule.jsonl", "judge.jsonl", "behaviour.jsonl")
RESULTS = ("summary.json", "results.md", "results.csv", "results.tex")
"""What is made from the rows, and wrong as soon as one of them changes."""
PARTS = ("drafts", "sixth")
"""Evaluations inside a folder of the CoMAS protocol."""
_REDONE = ("versions", "mcq_policy", "aggregations")
"""Entries of a manifest that may change from run to run: grading and scoring are done again from the files."""


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
        self._given = None if manifest is None else json.loads(json.dumps(manifest))
        self._check()

    def _check(self) -> None:
        """Refuse a folder that is not this evaluation's."""
        held = self.path / "manifest.json"
        if self._given is None and not held.is_file():
            parts = [str(self.path / part) for part in PARTS if (self.path / part / "manifest.json").is_file()]
            if parts:
                raise UserError(
                    f"{str(self.path)!r} holds the CoMAS protocol, whose evaluations are {' and '.join(parts)}: give "
                    "one of these (`mmcorl table` takes the whole)"
                )
            raise UserError(
                f"{str(self.path)!r} holds no evaluation: give a folder that `mmcorl eval` or `mmcorl grade` wrote"
            )
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{str(self.path)!r} is a file: choose a folder for the results")
        # A run that was killed before it wrote its manifest leaves hidden files at most.
        if not held.is_file() and self.path.is_dir() and any(not p.name.startswith(".") for p in self.path.iterdir()):
            raise UserError(f"{str(self.path)!r} is not empty and holds no evaluation: choose another folder")
        if self._given is not None and held.is_file():
            _same_manifest(self.path, self.manifest, self._given)

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise UserError(
                f"nothing can be written into {str(self.path)!r} ({error.strerror}): choose another folder for the "
                "results, or mend its permissions"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise _at_work(self.path) from None
        try:
            self._check()  # Again: another process may have begun an evaluation here since.
            if self._given is not None:
                self.write("manifest.json", json.dumps(self._given, indent=1, ensure_ascii=True) + "\n")
            for name in STEPS:
                _cut_torn_line(self.path / name)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def manifest(self) -> dict[str, Any]:
        """What the folder is about."""
        return self.facts("manifest.json") or {}

    @property
    def title(self) -> str:
        """Name of the model (a hub id, or the last part of its path), or of the file of responses."""
        manifest = self.manifest
        if "model" in manifest:
            model = str(manifest["model"])
            return Path(model).name if Path(model).exists() else model
        return str(manifest.get("responses", self.path.name))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All whole lines of one file; none when the step has not begun.

        Raises UserError for a line that is no JSON object.
        """
        file = self.path / name
        if not file.is_file():
            return []
        # A last line without its end is being written by another process, or was when it was killed.
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
        return [_object(line, file, number) for number, line in enumerate(lines, 1)]

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines in one write."""
        text = "".join(_line(row) for row in rows)
        with self.writing(name):
            self._spoil_results()
            with (self.path / name).open("a", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())

    def replace_rows(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace a file of lines in one piece, if it has changed."""
        text = "".join(_line(row) for row in rows)
        file = self.path / name
        if text != (file.read_text(encoding="utf-8") if file.is_file() else ""):
            with self.writing(name):
                self._spoil_results()
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Replace a small file in one piece."""
        fresh = self.path / f".{name}.new"
        with self.writing(name):
            with fresh.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path / name)

    def _spoil_results(self) -> None:
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def writing(self, name: str) -> Iterator[None]:
        """A full disk or a lost folder, in a sentence."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"{self.path / name} cannot be written ({error.strerror}); what stood there before is safe: free "
                "space or mend the permissions, and give the same command again"
            ) from error

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
                raise UserError(
                    f"item {item.id!r} of {item.benchmark} is not the one {str(self.path)!r} was begun with: "
                    "restore the data, or choose another folder"
                )
        if fresh:
            self.append("items.jsonl", [self._item_row(item) for item in fresh])

    def renew_items(self, items: Sequence[Item]) -> None:
        """Make the items these and no others: a file of responses may have changed since it was graded.

        Where any item changed or is gone, what was graded is dropped; verdicts of a judge stay in its cache.
        """
        fresh = {(item.benchmark, item.id): item.fingerprint for item in items}
        if any(fresh.get(key) != fingerprint for key, fingerprint in self.fingerprints().items()):
            for name in ("items.jsonl", "rule.jsonl", "judge.jsonl", "behaviour.jsonl"):
                self.replace_rows(name, [])
        self.keep_items(items)

    def facts(self, name: str) -> dict[str, Any] | None:
        """A small JSON file of a step, such as which grader wrote rule.jsonl; None before there is one."""
        file = self.path / name
        if not file.is_file():
            return None
        return _object(file.read_text(encoding="utf-8"), file)

    def fingerprints(self) -> dict[tuple[str, str], str]:
        """Fingerprint of every item by (benchmark, id), as it was with its images."""
        return {(row["benchmark"], row["id"]): row["fingerprint"] for row in self.rows("items.jsonl")}

    def items(self) -> list[Item]:
        """The items as far as grading and tables need them: without image bytes."""
        return [item_from_row(row) for row in self.rows("items.jsonl")]

    def responses(self) -> list[Response]:
        """All responses in file order."""
        return [Response(**row) for row in self.rows("responses.jsonl")]

    def benchmarks(self) -> dict[str, Benchmark]:
        """Benchmarks of the items: built-in ones, and a user's own as far as they can be imported."""
        self.import_benchmarks()
        names = dict.fromkeys(row["benchmark"] for row in self.rows("items.jsonl"))
        return {name: BENCHMARKS[name] for name in names if name in BENCHMARKS}

    def import_benchmarks(self) -> None:
        """Import a user's benchmarks that the manifest names, as far as this process can."""
        for facts in self.manifest.get("benchmarks", {}).values():
            if "import" in facts:
                with suppress(UserError):
                    BENCHMARKS.find(facts["import"])

    def outcomes(self) -> list[Outcome]:
        """The grade of every response of a graded folder; missing responses count as wrong."""
        return outcomes_of(
            self.items(),
            self.responses(),
            self.rows("rule.jsonl"),
            self.rows("judge.jsonl"),
            self.rows("behaviour.jsonl"),
            samples=self.manifest.get("samples_by_benchmark"),
        )

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
            buffer = io.BytesIO()
            load_image(item.images[number], THUMB_SIDE).save(buffer, "PNG")
            with self.writing(name):
                path.parent.mkdir(exist_ok=True)
                # Under its name only once it is whole: a thumbnail that is there is not made again.
                partial = path.with_suffix(".new")
                partial.write_bytes(buffer.getvalue())
                os.replace(partial, path)
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


def _object(text: str, file: Path, line: int | None = None) -> dict[str, Any]:
    """One JSON object of a file of ours; refused when somebody has damaged it."""
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        where = str(file) if line is None else f"line {line} of {file}"
        raise UserError(f"{where} is damaged: delete it and give the same command again, which makes it anew")
    return told


def _cut_torn_line(file: Path) -> None:
    """A write that was killed half-way leaves a line without its end."""
    if not file.is_file():
        return
    data = file.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(file, data.rfind(b"\n") + 1)


def refuse_early(path: Path, told: Mapping[str, Any]) -> None:
    """Refuse what a folder would refuse later, before data or a model are loaded: other settings, another process.

    `told` are the entries of the manifest that are known by then. Another process may still come first.
    """
    held = path / "manifest.json"
    if not held.is_file():
        return
    old = _object(held.read_text(encoding="utf-8"), held)
    _same_manifest(path, {key: old.get(key) for key in told}, json.loads(json.dumps(told)))
    with suppress(OSError), (path / ".lock").open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _at_work(path) from None


def _at_work(path: Path) -> UserError:
    return UserError(f"another process is working in {str(path)!r}: wait for it or choose another folder")


def _same_manifest(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    # How often a benchmark is sampled stands under `generation`, too.
    skipped = {*_REDONE, "samples_by_benchmark"} if "generation" in new else {*_REDONE}
    before, after = (
        dict(_leaves({key: value for key, value in told.items() if key not in skipped})) for told in (old, new)
    )
    changed: dict[str, None] = {}
    held, asked = (sorted({place[1] for place in told if place[0] == "generation"}) for told in (before, after))
    if held != asked:
        changed[f"benchmarks: {', '.join(held) or 'none'} -> {', '.join(asked) or 'none'}"] = None
    else:
        for place in sorted({*before, *after}):
            was, now = before.get(place, "none"), after.get(place, "none")
            if was != now:
                # The setting as a person knows it: `max_new_tokens`, and of one benchmark's rows `math500 rows`.
                name = " ".join(place[1:] if place[0] == "benchmarks" else place[2:] or place)
                changed[f"{name}: {was} -> {now}"] = None
    if changed:
        raise UserError(
            f"{str(path)!r} holds an evaluation with other settings ({'; '.join(list(changed)[:3])}): "
            "give back the old ones to go on with it, or choose another folder with --out"
        )


def _leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Place and text of everything in a manifest that holds no more; a list is one text."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*place, key))
    else:
        text = "; ".join(map(str, value)) if isinstance(value, list) else value
        yield place, "none" if text in (None, "") else str(text)
