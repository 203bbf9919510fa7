"""Rows of the files in which people keep responses: JSON Lines, JSON, CSV, TSV, Excel and parquet."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from mmcorl.errors import UserError

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".xlsx", ".parquet")
_LISTS = ("logs", "samples", "rows", "data")
"""Keys under which a JSON object may hold its rows."""
_ESCAPED = re.compile("_x([0-9A-Fa-f]{4})_")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file by its ending, a byte order mark skipped.

    Raises:
        UserError: there is no such file, another ending, or content that does not fit it; names the line or the row.
    """
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}: give a file of responses")
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise UserError(f"{path} has the ending {kind!r}: give {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    try:
        if kind == ".jsonl":
            return _json_lines(path)
        if kind == ".json":
            return _json(path)
        if kind == ".parquet":
            return _parquet(path)
        if kind == ".xlsx":
            return _workbook(path)
        return _separated(path, "\t" if kind == ".tsv" else ",")
    except (UnicodeDecodeError, RecursionError, csv.Error) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise UserError(
            f"{path} cannot be read as {kind[1:]} ({reason}): repair it, or save it anew as UTF-8"
        ) from error
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror or error}): repair the file or its permissions"
        ) from error


def _json_lines(path: Path) -> list[dict[str, Any]]:
    # Lines end in \n alone: models write other characters that Python counts as line ends, too.
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{path}, line {number} is no JSON ({error.msg}): repair or remove the line") from error
            rows.append(_object(row, path, f"line {number}"))
    return rows


def _json(path: Path) -> list[dict[str, Any]]:
    """A list of rows, rows under a usual key, rows by id, or one row."""
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
    return [_object(row, path, f"row {number}") for number, row in enumerate(content)]


def _object(row: Any, path: Path, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{path}, {where} is no JSON object: give one object per response")
    return row


def _separated(path: Path, delimiter: str) -> list[dict[str, Any]]:
    csv.field_size_limit(2**31 - 1)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        head = next(reader, [])
        if len(set(head)) < len(head):
            twice = next(name for name in head if head.count(name) > 1)
            raise UserError(f"{path} has two columns {twice!r}: give every column a name of its own")
        rows = []
        for cells in reader:
            if cells and len(cells) != len(head):
                raise UserError(
                    f"{path}, line {reader.line_num} has {len(cells)} cells and the head {len(head)}: put texts that "
                    "hold separators or line ends into quotes"
                )
            if cells:
                rows.append(dict(zip(head, cells, strict=True)))
    return rows


def _parquet(path: Path) -> list[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise UserError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}): save it anew") from error
    return table


def _workbook(path: Path) -> list[dict[str, Any]]:
    """Rows of the first sheet: values only, as VLMEvalKit and pandas write them."""
    try:
        import openpyxl
    except ModuleNotFoundError as error:
        raise UserError(f"{path} needs openpyxl: pip install 'mmcorl[xlsx]', or save it as .tsv") from error
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
