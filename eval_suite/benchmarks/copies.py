"""Where the rows of a benchmark come from: the hub at a known commit, or files in the official schema."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_suite.reporter import nth_row
from mmcorl.data.tables import ArrowTable, JsonTable, Table, UnreadableRowError, open_table
from mmcorl.errors import UserError

_COMMIT = re.compile(r"[0-9a-f]{40}")
SEVERAL = "+"
"""Between the names of configurations, or splits, that are read as one."""
_SUFFIXES = (".parquet", ".jsonl", ".json")
IMAGE_COLUMNS = frozenset(
    {"image", "images", "decoded_image", "image_path", *(f"image_{number}" for number in range(1, 8))}
)
"""Columns that may hold encoded images."""


@dataclass(frozen=True)
class Copy:
    """An opened copy of a benchmark's rows."""

    table: Table
    where: str
    """What a sentence calls it."""
    revision: str | None
    """Commit on the hub; None for local files."""
    roots: tuple[Path, ...]
    """Folders in which relative image paths may start."""

    def row(self, number: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Named columns of one row, images undecoded."""
        try:
            return self.table.row(number, columns)
        except UnreadableRowError as error:
            raise UserError(f"{nth_row(number, self.where)} is unreadable: {error}; replace the copy") from error


def open_copy(name: str, source: str | Path | None, hub_id: str, config: str | None, split: str) -> Copy:
    """Open a benchmark on the hub (`source` None) or in local files; refuses in one sentence what it cannot open."""
    if source is None:
        return _open_hub(name, hub_id, config, split)
    path = Path(source).expanduser()
    table = _open_local(name, str(source), path, config, split)
    folder = table.folder
    # Repositories keep `data/test.jsonl` beside `images/1.jpg`, and some name images from inside `images/`.
    roots = (folder, folder.parent, folder / "images", folder.parent / "images")
    return Copy(table, str(source), None, roots)


def _open_local(name: str, source: str, path: Path, config: str | None, split: str) -> Table:
    if path.is_dir():
        saved = (path / "dataset_dict.json").is_file()
        if saved or (path / "state.json").is_file():
            return open_table(source, split if saved else None)
        described = (path / "README.md").is_file() and "configs:" in (path / "README.md").read_text(errors="replace")
        if described and SEVERAL not in (config or ""):
            return open_table(source, split, config)  # a snapshot of the hub repository
        return _open_files(name, path, config, split)
    if not path.exists() and not glob.has_magic(source):
        raise UserError(f"{source!r}, given for {name}, does not exist; check the path (relative to {Path.cwd()})")
    if path.suffix == ".json":
        rows = _rows_by_key(path)
        if rows is not None:
            return rows
    return open_table(source)


def _open_files(name: str, folder: Path, config: str | None, split: str) -> Table:
    """Return the files of a plain folder: those named after the split, else after the configuration, else all."""
    stems = [f"{word}{rest}" for word in (split, config) if word for rest in ("", "[-_.]*", "*")]
    for stem in [*stems, "*"]:
        for suffix in _SUFFIXES:
            pattern = f"{glob.escape(str(folder))}/**/{stem}{suffix}"
            files = glob.glob(pattern, recursive=True)
            if len(files) == 1:
                return _open_local(name, files[0], Path(files[0]), config, split)
            if files:
                return open_table(pattern)
    raise UserError(f"folder {folder}, given for {name}, holds no {', '.join(_SUFFIXES)} file; name the file itself")


def _rows_by_key(path: Path) -> Table | None:
    """Return a JSON object of rows by id, as MathVista's repository has them; None for any other file."""
    with path.open("rb") as file:
        if file.read(64).lstrip()[:1] != b"{":
            return None
    try:
        stored = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None  # open_table says what is wrong with it
    if not isinstance(stored, dict) or not stored or not all(isinstance(row, dict) for row in stored.values()):
        return None
    return JsonTable(list(stored.values()), path.parent)


def _open_hub(name: str, hub_id: str, config: str | None, split: str) -> Copy:
    import datasets

    try:
        builders = [datasets.load_dataset_builder(hub_id, name=each or None) for each in (config or "").split(SEVERAL)]
        for builder in builders:
            builder.download_and_prepare()
        dataset = datasets.concatenate_datasets([builder.as_dataset(split=split) for builder in builders])
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")[:200]
        raise UserError(
            f"{name} cannot be loaded from the hub as {hub_id} ({cause}); "
            "check the network and your access to it, or give the path of a local copy"
        ) from error
    # The builder of a data set without code is named by the commit it reads, also when it comes from the cache.
    commit = builder.hash if builder.hash and _COMMIT.fullmatch(builder.hash) else "unknown"
    return Copy(ArrowTable(dataset, Path()), hub_id, commit, (Path(),))
