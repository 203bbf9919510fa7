"""Rows of the files in which people keep responses: JSON Lines, JSON, CSV, TSV, Excel and parquet."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from mmcorl.errors import UserError

KINDS = (".jsonl", ".json", ".csv", ".tsv", ".xlsx", ".parquet")
_LISTS = ("logs", "samples", "rows", "data")
"""Keys under which a JSON object may hold its rows."""
_EXCEL = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
_RELATION = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}id"
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
    except (UnicodeDecodeError, RecursionError, csv.Error, zipfile.BadZipFile, ElementTree.ParseError) as error:
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
        told = json.loads(path.read_text(encoding="utf-8-sig"))
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is no JSON ({error}): repair it") from error
    if isinstance(told, dict):
        listed = next((told[key] for key in _LISTS if isinstance(told.get(key), list)), None)
        if listed is not None:
            told = listed
        elif told and all(isinstance(row, dict) for row in told.values()):
            told = [{"id": key, **row} for key, row in told.items()]  # MathVista's own outputs
        else:
            told = [told]
    if not isinstance(told, list):
        raise UserError(f"{path} holds {type(told).__name__}, no rows: give a list of objects")
    return [_object(row, path, f"row {number}") for number, row in enumerate(told)]


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
    try:
        return list(_excel(path))
    except (LookupError, ValueError, NotImplementedError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path} is no Excel workbook that can be read: save it anew as .xlsx or .tsv") from error


def _excel(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of the first sheet: values only, as VLMEvalKit and pandas write them."""
    with zipfile.ZipFile(path) as book:
        names = set(book.namelist())
        sheet = _first_sheet(book) if "xl/workbook.xml" in names else ""
        if sheet not in names:
            raise UserError(f"{path} is no Excel workbook: save it anew as .xlsx or .tsv")
        shared = list(_shared_texts(book)) if "xl/sharedStrings.xml" in names else []
        head: list[str] = []
        with book.open(sheet) as file:
            for _, row in ElementTree.iterparse(file):
                if row.tag != f"{_EXCEL}row":
                    continue
                cells = {_column(cell.get("r", "")): _cell(cell, shared) for cell in row.iter(f"{_EXCEL}c")}
                if not head:
                    head = [str(cells.get(k, "")) for k in range(max(cells, default=-1) + 1)]
                elif cells:
                    yield {name: cells.get(k) for k, name in enumerate(head) if name}
                row.clear()


def _first_sheet(book: zipfile.ZipFile) -> str:
    """Path of the first sheet inside the archive."""
    first = next(ElementTree.fromstring(book.read("xl/workbook.xml")).iter(f"{_EXCEL}sheet"), None)
    wanted = None if first is None else first.get(_RELATION)
    for relation in ElementTree.fromstring(book.read("xl/_rels/workbook.xml.rels")):
        if relation.get("Id") == wanted:
            target = relation.get("Target", "")
            return target.removeprefix("/") if target.startswith("/") else f"xl/{target}"
    return ""


def _shared_texts(book: zipfile.ZipFile) -> Iterator[str]:
    with book.open("xl/sharedStrings.xml") as file:
        for _, entry in ElementTree.iterparse(file):
            if entry.tag == f"{_EXCEL}si":
                yield _text(entry)
                entry.clear()


def _text(entry: ElementTree.Element) -> str:
    """The runs of a text, characters that XML cannot hold put back."""
    runs = "".join(run.text or "" for run in entry.iter(f"{_EXCEL}t"))
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), runs)


def _cell(cell: ElementTree.Element, shared: list[str]) -> Any:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return _text(cell)
    value = cell.findtext(f"{_EXCEL}v")
    if value is None or kind == "e":
        return None
    if kind == "s":
        return shared[int(value)]
    if kind == "b":
        return value == "1"
    return value if kind == "str" else float(value)


def _column(reference: str) -> int:
    """0 for A7, 27 for AB7."""
    number = 0
    for letter in reference.rstrip("0123456789"):
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
