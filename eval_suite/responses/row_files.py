"""Rows of the files in which people keep responses: JSON Lines, JSON, CSV, TSV, Excel and parquet."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from eval_suite.reporter import nth_row
from mmcorl.data.tables import UnreadableRowError, json_lines
from mmcorl.errors import UserError
from mmcorl.system.install_hints import install

_LISTS = ("logs", "samples", "rows", "data")
"""Keys under which a JSON object may hold its rows."""
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield all rows of a file by its ending, a byte order mark skipped; JSON and Excel are read as a whole.

    Raises:
        UserError: there is no such file, another ending, or content that does not fit it; names the line or the row.
    """
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}: give a file of responses")
    kind = path.suffix.lower()
    if kind not in _READERS:
        *others, last = _READERS
        raise UserError(f"{path} has the ending {kind!r}: give {', '.join(others)} or {last}")
    try:
        for number, row in enumerate(_READERS[kind](path)):
            if isinstance(row, UnreadableRowError):
                raise UserError(f"{path} cannot be read: {row}; repair or remove the line")
            if not isinstance(row, dict):
                raise UserError(f"{nth_row(number, path)} is not an object: give one object per response")
            yield row
    except (UnicodeDecodeError, RecursionError, csv.Error) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UserError(
            f"{path} cannot be read as {kind[1:]} ({reason}): repair it, or save it anew as UTF-8"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): repair the file or its permissions"
        ) from error


def _json(path: Path) -> list[Any]:
    """Return a list of rows, rows under a usual key, rows by id, or one row."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is no JSON ({error}): repair it") from error
    if isinstance(content, dict):
        listed = next((content[key] for key in _LISTS if isinstance(content.get(key), list)), None)
        if listed is not None:
            content = listed
        elif content and all(isinstance(row, dict) for row in content.values()):
            content = [{"id": key, **row} for key, row in content.items()]  # MathVista's own outputs
        else:
            content = [content]
    if not isinstance(content, list):
        raise UserError(f"{path} holds {type(content).__name__}, no rows: give a list of objects")
    return content


def _separated(path: Path) -> Iterator[Any]:
    csv.field_size_limit(2**31 - 1)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        head = list(reader.fieldnames or ())
        twice = next((name for name in head if head.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"{path} has two columns {twice!r}: give every column a name of its own")
        for row in reader:
            if None in row or None in row.values():
                raise UserError(
                    f"{path}, line {reader.line_num} has more or fewer cells than the head: put texts that hold "
                    "separators or line ends into quotes"
                )
            yield {name: value or None for name, value in row.items()}  # a blank cell holds nothing, as in a workbook


def _parquet(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}): save it anew") from error


def _workbook(path: Path) -> list[Any]:
    """Return rows of the first sheet: values only, as VLMEvalKit and pandas write them."""
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs openpyxl: {install('xlsx')}, or save it as .tsv") from error
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        rows = [[_cell(cell) for cell in row] for row in book.worksheets[0].iter_rows()]
    except (LookupError, ValueError, TypeError, AttributeError, zipfile.BadZipFile, SyntaxError) as error:
        raise UserError(f"{path} is not a readable Excel workbook: save it again as .xlsx or .tsv") from error
    head, *rows = [row for row in rows if any(value is not None for value in row)] or [[]]
    names = ["" if name is None else str(name) for name in head]
    return [{name: value for name, value in zip(names, row, strict=False) if name} for row in rows]


def _cell(cell: Any) -> Any:
    value = cell.value
    if value is None or cell.data_type == "e":
        return None
    if isinstance(value, str):  # characters that XML cannot hold are escaped as _x000D_
        return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


_READERS: Mapping[str, Callable[[Path], Iterable[Any]]] = {
    ".jsonl": json_lines,
    ".json": _json,
    ".csv": _separated,
    ".tsv": _separated,
    ".xlsx": _workbook,
    ".parquet": _parquet,
}
TABLES = (".csv", ".tsv", ".xlsx")
"""Endings of files whose cells have no types, or those of a spreadsheet."""
