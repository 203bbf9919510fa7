"""An evaluation is a folder of files; every step reads files and adds to files.

Rows are keyed by (benchmark, id, sample). A folder made with other settings is refused. Results that no longer fit the
rows are deleted as soon as a row changes.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

from eval_suite.benchmarks.tasks import BENCHMARKS, Benchmark
from eval_suite.metrics.outcomes import Outcome, outcomes_of
from mmcorl.config.load import differences
from mmcorl.errors import RunError, UserError
from mmcorl.grading.items import NO_META, Item, Response, item_key
from mmcorl.run import results_folder as store
from mmcorl.system.user_code import require_known

THUMB_SIDE = 384
STEPS = ("items.jsonl", "unasked.jsonl", "responses.jsonl", "rule.jsonl", "judge.jsonl", "behaviour.jsonl")
RESULTS = ("summary.json", "results.md", "results.csv", "results.tex")
"""Files made from the rows, stale as soon as one of them changes."""
VLMEVALKIT = "vlmevalkit.jsonl"
"""What VLMEvalKit's own rule says of responses that came in a table of its."""
PARTS = ("drafts", "sixth")
"""Evaluations inside a folder of the CoMAS protocol."""
_REDONE = ("versions", "mcq_policy", "reading", "aggregations")
"""Entries of a manifest that may change from run to run: grading and scoring are redone from the files."""


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Turn a full disk or a lost folder into a RunError."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{file} cannot be written ({error.strerror}); what stood there before is safe: free space or mend the "
            "permissions, and give the same command again"
        ) from error


def save(file: Path, content: str | bytes) -> None:
    """Replace a small file atomically, in a folder that is made where it is missing."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        store.atomic_write(file, content)


class _UnchangedError(Exception):
    """Raised where a file would be replaced by its own content."""


class EvalFolder(store.Folder):
    """One evaluation on disk. Use as a context manager: it holds the folder's lock.

    `manifest` says what the folder is about; a folder that already holds another manifest is refused and the
    differing settings are named. None opens whatever is there.
    """

    MARKER = "manifest.json"
    KIND = "evaluation"
    ELSEWHERE = "choose another folder with `out`"
    REPAIR = "delete it and give the same command again, which makes it anew"

    def __init__(self, path: Path, manifest: Mapping[str, Any] | None = None):
        super().__init__(path)
        self._given = None if manifest is None else json.loads(json.dumps(manifest))
        self._anew = False
        self._check()

    def _instead(self) -> str:
        """Return what to do with a folder that is something else."""
        if (self.path / "metrics.jsonl").is_file() or (self.path / "config.yaml").is_file():
            agents = sorted(file.parent for file in self.path.glob("final/*/config.json"))
            model = agents[0] if agents else self.path / "final" / "AGENT"
            return f"it is a run; `mmcorl report` compares runs, `mmcorl eval {model} BENCHMARK` evaluates an agent"
        if (self.path / "config.json").is_file():
            return f"it is a checkpoint; evaluate it with `mmcorl eval {self.path} BENCHMARK`"
        return "give a folder that `mmcorl eval` or `mmcorl grade` wrote"

    def _check(self) -> None:
        """Refuse a folder that is not this evaluation's."""
        if self._given is None and not self.begun:
            parts = [str(self.path / part) for part in PARTS if (self.path / part / self.MARKER).is_file()]
            if parts:
                raise UserError(
                    f"{str(self.path)!r} holds the CoMAS protocol, whose evaluations are {' and '.join(parts)}: give "
                    "one of these (`mmcorl table` takes the whole)"
                )
            raise UserError(f"{str(self.path)!r} holds no evaluation: {self._instead()}")
        if self._given is None:
            return
        self.require_usable()
        if self.begun and (changes := changed_settings(self.manifest, self._given)):
            self.require_same_settings(changes)
            # Nothing was answered, for instance because the model could not be loaded: nothing is lost.
            self._anew = True

    def require_same_settings(self, changes: Sequence[str]) -> None:
        """Refuse other settings, unless no item has been answered or found to be one that cannot be asked."""
        if any((self.path / name).is_file() and (self.path / name).stat().st_size for name in STEPS[1:]):
            super().require_same_settings(changes)

    def __enter__(self) -> Self:
        self.lock()
        try:
            self._check()  # Again: another process may have begun an evaluation here since.
            if self._anew:
                (self.path / STEPS[0]).unlink(missing_ok=True)
            if self._given is not None:
                self.write(self.MARKER, json.dumps(self._given, indent=1, ensure_ascii=True) + "\n")
            for name in STEPS:
                store.cut_torn_line(self.path / name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @property
    def manifest(self) -> dict[str, Any]:
        """Content of manifest.json: what the folder is about."""
        manifest = self.document(self.MARKER) or {}
        benchmarks = manifest.get("benchmarks", {})
        if not isinstance(benchmarks, dict) or not all(isinstance(facts, dict) for facts in benchmarks.values()):
            raise UserError(f"{str(self.path / self.MARKER)!r} is damaged (benchmarks): {self.REPAIR}")
        return manifest

    @property
    def title(self) -> str:
        """Name of the model (a hub id, or the last part of its path), or of the file of responses."""
        manifest = self.manifest
        if "model" in manifest:
            model = str(manifest["model"])
            return Path(model).name if Path(model).exists() else model
        return str(manifest.get("responses", self.path.name))

    def append(self, name: str, records: Iterable[Mapping[str, Any]], *, sync: bool = True) -> None:
        """Add lines in one write."""
        with writing(self.path / name):
            self._delete_results()
            super().append(name, records, sync=sync)

    def replace_rows(self, name: str, rows: Iterable[Mapping[str, Any]], *, stale: Sequence[str] = ()) -> None:
        """Replace a file of lines atomically, if it has changed; `stale` files, made from it, are emptied before.

        `rows` may be read from the file itself while they are written.
        """
        file = self.path / name
        with writing(file), suppress(_UnchangedError), store.replacing(file) as new:
            new.writelines(store.json_line(row).encode() for row in rows)
            new.seek(0)
            with file.open("rb") if file.is_file() else io.BytesIO() as old:
                blocks = iter(partial(new.read, 1 << 20), b"")
                if all(old.read(len(block)) == block for block in blocks) and not old.read(1):
                    raise _UnchangedError
            for other in stale:
                self.replace_rows(other, [])
            self._delete_results()

    def write(self, name: str, text: str | bytes) -> None:
        """Replace a small file atomically."""
        with writing(self.path / name):
            store.atomic_write(self.path / name, text)

    def _delete_results(self) -> None:
        for name in RESULTS:
            (self.path / name).unlink(missing_ok=True)

    def keep_items(self, items: Sequence[Item]) -> None:
        """Write items.jsonl and thumbnails once; later calls must bring the same items.

        Items of more benchmarks may be added; an item that changed is refused.
        """
        known = {item_key(row): row["fingerprint"] for row in self.stream("items.jsonl")}
        fresh = []
        for item in items:
            fingerprint = known.get(item.key)
            if fingerprint is None:
                fresh.append(item)
            elif fingerprint != item.fingerprint:
                raise UserError(
                    f"item {item.id!r} of {item.benchmark} is not the one {str(self.path)!r} was begun with: "
                    "restore the data, or choose another folder"
                )
        for start in range(0, len(fresh), 1024):
            self.append("items.jsonl", [
                _as_row(item)
                | {"images": [self._thumbnail(item, number) for number in range(len(item.images))]}
                | {"fingerprint": item.fingerprint}
                for item in fresh[start : start + 1024]
            ])  # fmt: skip

    def renew_items(self, items: Sequence[Item]) -> None:
        """Make the items these and no others: a file of responses may have changed since it was graded.

        Where any item changed or is gone, what was graded is dropped; verdicts of a judge stay in its cache.
        """
        fresh = {item.key: item.fingerprint for item in items}
        if any(fresh.get(key) != fingerprint for key, fingerprint in self.fingerprints().items()):
            for name in ("items.jsonl", "rule.jsonl", "judge.jsonl", "behaviour.jsonl"):
                self.replace_rows(name, [])
        self.keep_items(items)

    def fingerprints(self) -> dict[tuple[str, str], str]:
        """Fingerprint of every item by (benchmark, id), as it was with its images."""
        return {item_key(row): row["fingerprint"] for row in self.stream("items.jsonl")}

    def items(self) -> list[Item]:
        """Return the items as far as grading and tables need them: without image bytes."""
        return [item_from_row(row) for row in self.stream("items.jsonl")]

    def responses(self) -> Iterator[Response]:
        """Yield all responses in file order."""
        return map(response_from_row, self.stream("responses.jsonl"))

    def benchmarks(self) -> dict[str, Benchmark]:
        """Benchmarks of the items: built-in ones, and a user's own as far as they can be imported."""
        self.import_benchmarks()
        names = dict.fromkeys(row["benchmark"] for row in self.stream("items.jsonl"))
        return {name: BENCHMARKS[name] for name in names if name in BENCHMARKS}

    def import_benchmarks(self) -> None:
        """Import a user's benchmarks that the manifest names, as far as this process can."""
        for facts in self.manifest.get("benchmarks", {}).values():
            if "import" in facts:
                path = require_known(str(facts["import"]), "benchmark", self.path / self.MARKER)
                with suppress(UserError):
                    BENCHMARKS.find(path)

    def outcomes(self) -> list[Outcome]:
        """Return the grade of every response of a graded folder; missing responses count as wrong."""
        return outcomes_of(
            map(item_from_row, self.stream("items.jsonl")),
            self.responses(),
            self.stream("rule.jsonl"),
            self.stream("judge.jsonl"),
            self.stream("behaviour.jsonl"),
            samples=self.manifest.get("samples_by_benchmark"),
        )

    def _thumbnail(self, item: Item, number: int) -> str:
        from model_adapters.images import load_image

        name = f"thumbs/{item.fingerprint}_{number}.png"
        path = self.path / name
        if not path.is_file():
            buffer = io.BytesIO()
            load_image(item.images[number], THUMB_SIDE).save(buffer, "PNG")
            with writing(path):
                path.parent.mkdir(exist_ok=True)
                store.atomic_write(path, buffer.getvalue())
        return name


class RenamedFolder(EvalFolder):
    """An evaluation of a file's own problems, which go by another name than that of the file; to read only."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self._name = name

    @property
    def manifest(self) -> dict[str, Any]:
        manifest = super().manifest
        samples = manifest.get("samples_by_benchmark", {})
        return manifest | {"samples_by_benchmark": dict.fromkeys([self._name] * len(samples), *samples.values())}

    def stream(self, name: str) -> Iterator[dict[str, Any]]:
        for row in super().stream(name):
            renamed = row | {"benchmark": self._name}
            yield renamed | ({"fingerprint": item_from_row(renamed).fingerprint} if "fingerprint" in row else {})


class StoredItems:
    """The items of a folder by (benchmark, id), read when they are asked for."""

    def __init__(self, folder: EvalFolder) -> None:
        self._path = folder.path / "items.jsonl"
        self._offsets: dict[str, dict[str, int]] = {}
        self._last: tuple[tuple[str, str], Item] | None = None
        offset = 0
        with self._path.open("rb") if self._path.is_file() else io.BytesIO() as file:
            for line in file:
                row = json.loads(line)
                self._offsets.setdefault(row["benchmark"], {})[row["id"]] = offset
                offset += len(line)

    def __getitem__(self, key: tuple[str, str]) -> Item:
        # Samples of one item mostly stand together.
        if self._last is None or self._last[0] != key:
            with self._path.open("rb") as file:
                file.seek(self._offsets[key[0]][key[1]])
                self._last = key, item_from_row(json.loads(file.readline()))
        return self._last[1]


@cache
def _known_relation(name: str) -> str:
    return require_known(name, "answer relation", Path("items.jsonl"))


@contextmanager
def _rows_of(file: str) -> Iterator[None]:
    """Refuse in one sentence a row that is none of a file's."""
    try:
        yield
    except UserError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"a line of {file} is none of an evaluation ({error}): restore the file") from error


@_rows_of("items.jsonl")
def item_from_row(row: Mapping[str, Any]) -> Item:
    """Read an item of items.jsonl, without its images. A user's own relation has to be one that a command named."""
    fields = {key: value for key, value in row.items() if key not in ("images", "fingerprint")}
    if (relation := fields.get("relation")) is not None and ":" in relation.strip():
        fields["relation"] = _known_relation(relation)
    fields["benchmark"] = sys.intern(fields["benchmark"])
    fields["meta"] = fields["meta"] or NO_META
    if fields["choices"] is not None:
        fields["choices"] = tuple(fields["choices"])
    fields["stops"] = tuple(fields.get("stops", ()))
    fields["accepted"] = tuple(fields.get("accepted", ()))
    fields["shots"] = tuple((question, answer) for question, answer in fields.get("shots", ()))
    return Item(**fields)


def _as_row(item: Item) -> dict[str, Any]:
    """Return the fields of an item for items.jsonl, without images; those of a relation only where there is one."""
    row = asdict(replace(item, images=()))
    if item.relation is None:
        for name in ("relation", "threshold", "metric", "accepted"):
            del row[name]
    return row


@_rows_of("responses.jsonl")
def response_from_row(row: Mapping[str, Any]) -> Response:
    """Return a response of responses.jsonl."""
    coordinates = row.get("coordinates")
    if coordinates is None:
        return Response(**row)
    right, bottom, order = coordinates
    return Response(**{**row, "coordinates": (right, bottom, order)})


def refuse_early(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse what a folder would refuse later, before data or a model are loaded: other settings, another process.

    `settings` are the entries of the manifest that are known by then. Another process may still come first.
    """
    if not (path / EvalFolder.MARKER).is_file():
        return
    folder = EvalFolder(path)
    held = {key: folder.manifest.get(key) for key in settings}
    folder.require_same_settings(changed_settings(held, json.loads(json.dumps(settings))))
    with suppress(OSError):
        folder.lock()
    folder.__exit__(None, None, None)


def changed_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return what differs between two manifests, each as `setting: old -> new`."""
    # How often a benchmark is sampled stands under `generation`, too.
    skipped = {*_REDONE, "samples_by_benchmark"} if "generation" in new else {*_REDONE}
    before, after = ({key: manifest[key] for key in manifest if key not in skipped} for manifest in (old, new))
    held, given = (", ".join(sorted(manifest.get("generation", {}))) or "none" for manifest in (before, after))
    if held != given:
        return [f"benchmarks: {held} -> {given}"]
    changes: dict[str, None] = {}
    for change in differences(before, after):
        section, _, rest = change.partition(".")
        # The setting as a person knows it: `max_new_tokens`, and of one benchmark's rows `math500 rows`.
        if section == "generation":
            change = rest.partition(".")[2]
        elif section == "benchmarks":
            change = rest.replace(".", " ", 1)
        changes[change] = None
    return list(changes)
