"""Stored rows behind one interface: JSON files, Arrow (parquet, saved data sets, the hub) and synthetic rows."""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from mmcorl.data import row_parsing, synthetic
from mmcorl.errors import UserError

_FILE_SUFFIXES = (".jsonl", ".json", ".parquet")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


class UnreadableRowError(ValueError):
    """A row that cannot be read at all, such as a line that is not JSON."""


class Table(Protocol):
    """Rows by number; `columns` are the top-level names that occur in any row."""

    columns: tuple[str, ...]
    folder: Path
    """Where relative image paths start."""

    def __len__(self) -> int: ...

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        """Return the named columns of a row, images undecoded; raises UnreadableRowError."""
        ...


class JsonTable:
    """Objects of JSON Lines files or JSON lists, in memory, with the types they were written with."""

    def __init__(self, rows: Sequence[Mapping[str, Any] | UnreadableRowError], folder: Path) -> None:
        self._rows, self.folder = rows, folder
        self.columns = tuple(dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row))

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        row = self._rows[index]
        if isinstance(row, UnreadableRowError):
            raise row
        return {name: row[name] for name in columns if name in row}


class ArrowTable:
    """A `datasets` data set, read row by row in its stored form: encoded image bytes pass through unchanged."""

    def __init__(self, dataset: Any, folder: Path) -> None:
        self._dataset = dataset.with_format("arrow")
        self._selected: dict[tuple[str, ...], Any] = {}
        self.columns = tuple(dataset.column_names)
        self.folder = folder

    def __len__(self) -> int:
        return len(self._dataset)

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        key = tuple(columns)
        if key not in self._selected:
            self._selected[key] = self._dataset.select_columns(list(key))
        return self._selected[key][index].to_pylist()[0]


class SyntheticTable:
    """Rows of a synthetic task under the default column names."""

    def __init__(self, kind: synthetic.Kind, seed: int, size: int, skills: Sequence[str] | None) -> None:
        self._kind, self._seed, self._size, self._skills = kind, seed, size, skills
        self.columns: tuple[str, ...] = ("question", "reworded", "image", "answer", "id", "tag")
        self.folder = Path()

    def __len__(self) -> int:
        return self._size

    def row(self, index: int, columns: Sequence[str]) -> Mapping[str, Any]:
        row = synthetic.row(self._kind, self._seed, index, self._skills, draw="image" in columns)
        return {
            "question": row.question,
            "reworded": row.reworded,
            "image": row.image,
            "answer": row.answer,
            "id": row.row_id,
            "tag": row.skill,
        }


def open_table(source: str, split: str | None = None, config: str | None = None) -> Table:
    """Open a file, a glob, a folder or a hub id; UserError for anything that cannot be opened."""
    path = Path(source).expanduser()
    if path.is_dir():
        return ArrowTable(_load_folder(path, split, config), path)
    if path.suffix in _FILE_SUFFIXES or glob.has_magic(source):
        return _open_files(source, path, split, config)
    if path.exists():
        raise UserError(f"{source} is neither {', '.join(_FILE_SUFFIXES)} nor a folder; convert it to one of these")
    if not _HUB_ID.fullmatch(source):
        raise UserError(f"data source {source!r} does not exist; check the path (relative to {Path.cwd()})")
    return ArrowTable(_load_hub(source, split, config), Path())


def require_columns(table: Table, wanted: Mapping[str, str | None], where: str) -> None:
    """Refuse columns that a table lacks; `wanted` maps the setting to the column."""
    missing = {
        field: column
        for field, column in wanted.items()
        if column is not None and row_parsing.top_level(column, table.columns) not in table.columns
    }
    if missing:
        names = ", ".join(f"{column!r} ({field})" for field, column in missing.items())
        have = ", ".join(map(repr, table.columns)) or "none"
        raise UserError(f"{where} has no column {names}; its columns are {have}: set `columns` accordingly")


def stored_columns(named: Sequence[str | None], table: Table) -> list[str]:
    """Return the top-level columns that the named ones live in, as far as the table has them."""
    stored = (row_parsing.top_level(column, table.columns) for column in named if column is not None)
    return [column for column in dict.fromkeys(stored) if column in table.columns]


def _open_files(source: str, path: Path, split: str | None, config: str | None) -> Table:
    if split is not None or config is not None:
        raise UserError(f"split and config are for folders and hub ids, not for {source!r}; remove them")
    files = sorted(Path(name) for name in glob.glob(str(path), recursive=True)) or [path]
    files = [file for file in files if file.is_file()]
    if not files:
        raise UserError(f"no file matches the data source {source!r}; check the path (relative to {Path.cwd()})")
    suffixes = {file.suffix for file in files}
    if suffixes == {".parquet"}:
        return ArrowTable(_load_parquet(source, files), files[0].parent)
    if suffixes <= {".json", ".jsonl"}:
        parts = (json_lines(file) if file.suffix == ".jsonl" else _json_list(file) for file in files)
        return JsonTable([row for part in parts for row in part], files[0].parent)
    raise UserError(
        f"{source!r} matches files of kinds {sorted(suffixes)}; name only .parquet, or only .json and .jsonl"
    )


def json_lines(file: Path) -> Iterator[Mapping[str, Any] | UnreadableRowError]:
    """Yield the objects of a JSON Lines file; a line that holds none is an error in its place."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield UnreadableRowError(f"line {number} of {file.name} is not JSON ({_first_line(error)})")
                continue
            yield _as_row(value, f"line {number} of {file.name}")


def _json_list(file: Path) -> list[Mapping[str, Any] | UnreadableRowError]:
    try:
        values = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        way_out = "rename it to .jsonl if it holds one object per line, else repair it"
        raise UserError(f"{file} is not JSON ({_first_line(error)}); {way_out}") from error
    if not isinstance(values, list):
        raise UserError(f"{file} holds a JSON {type(values).__name__}; it must be a list of objects, one per row")
    return [_as_row(value, f"entry {number} of {file.name}") for number, value in enumerate(values)]


def _as_row(value: Any, where: str) -> Mapping[str, Any] | UnreadableRowError:
    return value if isinstance(value, dict) else UnreadableRowError(f"{where} is not an object")


def _load_parquet(source: str, files: Sequence[Path]) -> Any:
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    try:
        datasets.disable_progress_bars()  # a local file takes a moment, and `--quiet` means quiet
        return datasets.load_dataset("parquet", data_files=[str(file) for file in files], split="train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        cause = _first_line(error.__cause__ or error)
        raise UserError(f"{source!r} cannot be read as parquet ({cause}); replace the damaged file") from error
    finally:
        if shown:
            datasets.enable_progress_bars()


def _load_folder(path: Path, split: str | None, config: str | None) -> Any:
    import datasets

    saved = (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()
    try:
        if saved:
            loaded = datasets.load_from_disk(str(path))
        else:
            loaded = datasets.load_dataset(str(path), name=config, split=split)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        cause = _first_line(error.__cause__ or error)
        way_out = "name the file inside it, or save it with Dataset.save_to_disk"
        raise UserError(f"folder {path} cannot be read as a data set ({cause}); {way_out}") from error
    if saved and config is not None:
        raise UserError(f"{path} was saved by datasets and has no configurations; remove config {config!r}")
    if saved and split is not None and not isinstance(loaded, datasets.DatasetDict):
        raise UserError(f"{path} holds a single data set without splits; remove split {split!r}")
    return _pick_split(loaded, str(path), split)


def _load_hub(name: str, split: str | None, config: str | None) -> Any:
    import datasets

    try:
        return _pick_split(datasets.load_dataset(name, name=config, split=split), name, split)
    except UserError:
        raise
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise UserError(
            f"data source {name!r} is no file or folder here and cannot be loaded from the hub "
            f"({_first_line(error)}); check its name, split and the network, or give the path of a local copy"
        ) from error


def _pick_split(loaded: Any, name: str, split: str | None) -> Any:
    import datasets

    if not isinstance(loaded, datasets.DatasetDict):
        return loaded
    chosen = split if split is not None else next(iter(loaded)) if len(loaded) == 1 else "train"
    if chosen not in loaded:
        raise UserError(f"{name!r} has the splits {', '.join(loaded)}; set `split` to one of them")
    return loaded[chosen]


def _first_line(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].rstrip(".")[:200]
