"""Responses made elsewhere: JSON Lines, JSON, CSV, TSV and parquet, whatever the columns are called.

Known shapes are recognised by their columns: our own files, lmms-eval and lm-evaluation-harness sample logs
(`doc_id`, `target`, `filtered_resps`), VLMEvalKit result tables (`index`, `prediction`, options in columns A,
B, C, ...). Anything else is read by the first of a few usual names, and a file that has none is refused.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_suite.items import Item, Response
from mmcorl.errors import Refused

RESPONSE_COLUMNS = ("response", "prediction", "output", "completion", "model_output", "generation", "text")
GOLD_COLUMNS = ("gold", "answer", "target", "ground_truth", "label", "solution")
QUESTION_COLUMNS = ("question", "problem", "prompt", "query", "input")
ID_COLUMNS = ("id", "index", "doc_id", "pid", "sample_index", "question_id", "uid")
_LETTERS = "ABCDEFGHIJ"


@dataclass(frozen=True)
class Imported:
    """One row of a file of responses."""

    id: str
    sample: int
    text: str
    finish_reason: str
    gold: str | None
    """None where the file holds none: then a benchmark has to supply it."""
    question: str
    choices: tuple[str, ...] | None
    benchmark: str | None


def read_responses(path: Path) -> list[Imported]:
    """All rows of a file; raises Refused naming the columns that were found when no response is among them."""
    rows = _read(path)
    if not rows:
        raise Refused(f"{path} holds no rows: give a file with one response per row")
    counts: dict[str, int] = {}
    imported = []
    for number, row in enumerate(rows):
        doc = row.get("doc") if isinstance(row.get("doc"), dict) else {}
        merged = {**{key: value for key, value in (doc or {}).items() if key not in row}, **row}
        text = _response(merged)
        if text is None:
            raise Refused(
                f"{path}, row {number}: no response among the columns {sorted(map(str, merged))}: name it "
                f"{RESPONSE_COLUMNS[0]!r}"
            )
        identity = _first(merged, ID_COLUMNS)
        identity = str(number) if identity is None else _plain(identity)
        sample = merged.get("sample")
        if sample is None:
            sample = counts.get(identity, 0)
        counts[identity] = counts.get(identity, 0) + 1
        gold = _first(merged, GOLD_COLUMNS)
        question = _first(merged, QUESTION_COLUMNS)
        imported.append(
            Imported(
                id=identity,
                sample=int(sample),
                text=text,
                finish_reason=str(merged.get("finish_reason") or "unknown"),
                gold=None if gold is None else _plain(gold),
                question="" if question is None else str(question),
                choices=_choices(merged),
                benchmark=merged.get("benchmark"),
            )
        )
    return imported


def as_items(rows: Sequence[Imported], name: str) -> list[Item]:
    """Items for a file that brings its own golds; the rows of one id are samples of one item.

    Raises Refused for a row without a gold, and where samples of one id disagree about it.
    """
    items: dict[str, Item] = {}
    for row in rows:
        if row.gold is None:
            raise Refused(
                f"row {row.id!r} has no gold answer: add a column {GOLD_COLUMNS[0]!r}, or say which benchmark it is "
                "with --benchmark"
            )
        item = Item(name, row.id, row.question, row.gold, choices=row.choices)
        if items.setdefault(row.id, item) != item:
            raise Refused(f"id {row.id!r} stands for different questions or golds: give every problem its own id")
    return list(items.values())


def as_responses(rows: Sequence[Imported], benchmark: str) -> list[Response]:
    """The responses of a file; raises Refused where an id and sample stand twice."""
    seen = set()
    responses = []
    for row in rows:
        if (row.id, row.sample) in seen:
            raise Refused(f"id {row.id!r}, sample {row.sample} stands twice: number the samples of one problem")
        seen.add((row.id, row.sample))
        reason = row.finish_reason if row.finish_reason in ("stop", "length") else "unknown"
        responses.append(Response(benchmark, row.id, row.sample, row.text, reason))  # type: ignore[arg-type]
    return responses


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise Refused(f"there is no file {str(path)!r}: give a file of responses")
    kind = path.suffix.lower()
    try:
        if kind == ".jsonl":
            lines = path.read_text(encoding="utf-8").splitlines()
            return [_object(json.loads(line), path, n) for n, line in enumerate(lines) if line.strip()]
        if kind == ".json":
            told = json.loads(path.read_text(encoding="utf-8"))
            rows = told if isinstance(told, list) else told.get("logs") or told.get("samples") or [told]
            return [_object(row, path, n) for n, row in enumerate(rows)]
        if kind in (".csv", ".tsv"):
            csv.field_size_limit(2**31 - 1)
            with path.open(newline="", encoding="utf-8-sig") as file:
                return list(csv.DictReader(file, delimiter="\t" if kind == ".tsv" else ","))
        if kind == ".parquet":
            import pyarrow.parquet

            table: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
            return table
    except (json.JSONDecodeError, UnicodeDecodeError, csv.Error, OSError) as error:
        raise Refused(f"{path} cannot be read as {kind[1:]}: {error}") from error
    raise Refused(f"{path} has the ending {kind!r}: give .jsonl, .json, .csv, .tsv or .parquet")


def _object(row: Any, path: Path, number: int) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise Refused(f"{path}, row {number} is no JSON object: give one object per response")
    return row


def _response(row: Mapping[str, Any]) -> str | None:
    for name in ("filtered_resps", "resps"):  # the sample logs of the two evaluation harnesses
        value = row.get(name)
        while isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, str):
            return value
    value = _first(row, RESPONSE_COLUMNS)
    return None if value is None else str(value)


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The first of some columns that is there and not empty."""
    for name in names:
        value = row.get(name)
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            return value
    return None


def _plain(value: Any) -> str:
    """142.0 as `142`: tables store whole numbers as floats."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _choices(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    given = row.get("choices", row.get("options"))
    if isinstance(given, str) and given.strip().startswith("["):
        try:
            given = json.loads(given)
        except json.JSONDecodeError:
            given = None
    if isinstance(given, list) and given:
        return tuple(map(str, given))
    letters = []
    for letter in _LETTERS:
        value = row.get(letter)
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
            break
        letters.append(_plain(value))
    return tuple(letters) if len(letters) >= 2 else None
