"""A benchmark as data: where its rows are, what they must look like, how one row becomes an item.

`Benchmark.load` is the one way in. A benchmark is scored over all its rows, so nothing is ever left out on the
way: a row that cannot be read refuses the whole copy, and a copy that lacks rows says so in its notes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from eval_suite.benchmarks.copies import IMAGE_COLUMNS, Copy, open_copy
from eval_suite.reporter import nth_row
from mmcorl.data.pictures import Pictures
from mmcorl.data.row_parsing import RowError, lookup
from mmcorl.errors import RunError, UserError
from mmcorl.grading.code_task import CodeTask
from mmcorl.grading.items import Item
from mmcorl.grading.official_metrics import METRICS
from mmcorl.grading.options import parse_options
from mmcorl.prompts.styles import PromptStyle
from mmcorl.registry import raised

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

READ_THE_PICTURE = "Answer the question shown in the image."
"""What the model reads where the question stands in the picture alone."""

SHORT_ANSWER = "Answer the question using a single word or phrase."
"""What follows the questions of benchmarks that take the whole response as the answer."""

RULES_ALONE = "right answers in other words count as wrong, as only a judge can compare them"
"""What a score says of a benchmark that is `judged`, where no judge took part."""

SubScores = dict[str, dict[str, dict[str, float | None]]]
"""Field, then value, then `n`, `correct` and `accuracy`; accuracy is always correct / n, None where n is 0. One with
`ratio` is a ratio of two scores, whose parts are no trials, so that it has no interval."""


@dataclass
class Row:
    """One row by official column names; every accessor raises RowError with the column's name."""

    number: int
    values: dict[str, Any]
    read_image: Callable[[str], tuple[bytes, ...]]
    """Encoded image files of a column, read when asked for."""

    def get(self, column: str) -> Any:
        """Return the stored value; a dot reaches into nested columns. None where it is absent."""
        return lookup(self.values, column)

    def text(self, column: str) -> str:
        """Return a text that is not blank; numbers become text, 142.0 becomes `142`."""
        text = self.maybe_text(column)
        if text is None:
            raise RowError("empty", f"column {column!r} is empty")
        return text

    def maybe_text(self, column: str) -> str | None:
        """Return the text as stored, or None where it is absent or blank."""
        value = self.get(column)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise RowError("not_text", f"column {column!r} holds {_shown(value)}, which is not text")
        return None if value is None or not str(value).strip() else str(value)

    def integer(self, column: str) -> int:
        """Return a whole number, however it is stored."""
        value = self.get(column)
        try:
            number = float(value)
        except (TypeError, ValueError) as error:
            raise RowError("not_integer", f"column {column!r} holds {_shown(value)}, not an integer") from error
        if isinstance(value, bool) or not number.is_integer():
            raise RowError("not_integer", f"column {column!r} holds {_shown(value)}, not an integer")
        return int(number)

    def texts(self, column: str) -> tuple[str, ...]:
        """Return a list of texts; empty where it is absent."""
        value = self.get(column)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(part, str | int | float) for part in value):
            raise RowError("not_texts", f"column {column!r} holds {_shown(value)}, not a list of texts")
        return tuple(str(part) for part in value)

    def image(self, column: str) -> tuple[bytes, ...]:
        """Return the one image of a row, as an encoded file."""
        images = self.read_image(column)
        if len(images) != 1:
            raise RowError("missing_image", f"column {column!r} holds {len(images)} images, not one")
        return images


@dataclass(frozen=True)
class Loaded:
    """The items of one copy of a benchmark, and what is known of the copy."""

    items: tuple[Item, ...]
    revision: str | None
    """Commit of the hub data set the rows come from; None for local files."""
    schema_hash: str
    """Hash of the column names found; equal to `Benchmark.schema_hash` for an official copy."""
    rows: int
    """Rows of the copy, before `limit`."""
    notes: tuple[str, ...] = ()
    """Caveats for a reader of the score: partial copies, columns that differ."""


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark."""

    name: str
    hub_id: str
    split: str
    rows: int
    """Rows of the whole split."""
    columns: tuple[str, ...]
    """The official columns; `a.b` is key b of the nested column a."""
    licence: str
    read: Callable[[Row], Item]
    """One row into one item, which gets the name of the benchmark; raises RowError."""
    config: str | None = None
    """Configuration on the hub; None for the default one."""
    questions: int | None = None
    """Items of the whole split, where `arrange` makes several of a row and their number is known."""
    title: str = ""
    """Name in tables, the paper's where it has one; by default `name`."""
    group: Literal["pictures", "text", "code"] = "text"
    """What kind of problems they are."""
    place: int = 1000
    """Position among the columns of a table; built-in benchmarks follow the paper."""
    suites: tuple[str, ...] = ()
    """Sets of benchmarks it belongs to, whose mean tables print where all members are there."""
    form_of: str | None = None
    """The benchmark whose problems it asks in another form, and for which it may stand in a mean."""
    code: CodeTask | None = None
    """How programs are read from responses and run; None for answers that are compared."""
    optional: frozenset[str] = frozenset()
    """Official columns that `read` can do without."""
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names under which published copies hold an official column."""
    names_all_columns: bool = True
    """Whether `columns` are all official ones; otherwise further ones are neither hashed nor noted."""
    arrange: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows
    """Completes rows from each other before they are read; raises RowError."""
    fields: tuple[str, ...] = ()
    """Fields of `Item.meta` by which accuracy is reported; one that holds a list counts a row once per entry."""
    official: Callable[[Iterable[Item], Mapping[str, float]], SubScores] = lambda items, correct: {}
    """Official scores beyond accuracy by field, under their official names."""
    caveats: Callable[[Iterable[Item], Mapping[str, float]], list[str]] = lambda items, correct: []
    """Why official scores are missing, each a footnote; arguments as for `official`."""
    score_name: str = ""
    """What the mean of the items' scores is called, such as ANLS, where answers are scored and not only right or
    wrong."""
    reports_score: bool = False
    """Whether that mean, and not the share of right answers, is the score that the benchmark reports."""
    judged: bool = False
    """Whether right answers may be in words that only a judge can compare, so that rules alone are too low a score."""
    prompt_style: PromptStyle = "boxed"
    """Instruction where neither the user nor the checkpoint's run names one."""
    temperature: float = 0.0
    """Sampling temperature of a single response where the user names none; 0 is greedy."""
    aggregation: str = "pass@1"
    """How several responses per item become one score where the user names no other way."""

    @property
    def samples(self) -> int:
        """Responses per item that `aggregation` needs."""
        return int(self.aggregation.partition("@")[2])

    @property
    def schema_hash(self) -> str:
        """Hash of the official column names."""
        return schema_hash(self.columns)

    def sub_scores(self, items: Iterable[Item], correct: Mapping[str, float]) -> SubScores:
        """Return the accuracy by field and official scores, from the share of correct responses per item id.

        Items without an entry in `correct` are left out.
        """
        items = list(items)
        return by_field(items, correct, self.fields) | self.official(items, correct)

    def load(self, source: str | Path | None = None, limit: int | None = None) -> Loaded:
        """Read the items of the hub data set, or of a local copy in the official schema.

        Args:
            source: a parquet, JSON or JSON Lines file, a glob or a folder; None for the hub.
            limit: the first so many rows only.

        Raises:
            UserError: no such copy, columns missing, rows unreadable, repeated or more than the split has, or
                fewer from the hub than the split has.
        """
        if limit is not None and limit < 1:
            raise UserError(f"limit {limit} leaves nothing of {self.name}; it must be at least 1")
        copy = open_copy(self.name, source, self.hub_id, self.config, self.split)
        alone = f"give the split {self.split!r} alone"
        notes = self.check_count(len(copy.table), copy.where, copy.revision, alone)
        renamed = self._renamed(copy)
        notes += [f"column {theirs!r} is read as {ours!r}" for ours, theirs in renamed.items()]
        rows = self._arranged(copy, renamed)
        columns = _names_of(copy.table.columns, rows)
        if not self.names_all_columns:
            columns = [name for name in columns if name in self.columns]
        absent = [name for name in self.columns if name not in columns and name not in renamed]
        extra = [name for name in columns if name not in self.columns and name not in renamed.values()]
        differ = [
            f"{word} {', '.join(names)}" for word, names in (("without", absent), ("with the further", extra)) if names
        ]
        if differ:
            notes.append(f"schema differs from {self.hub_id}: {'; '.join(differ)}")
        if limit is not None and limit < len(rows):
            notes.append(f"limited: the first {limit} of {len(rows)} rows")
            rows = rows[:limit]
        items = tuple(self._item(row, copy.where) for row in rows)
        self._check_ids(items, copy.where)
        return Loaded(items, copy.revision, schema_hash(columns), len(copy.table), tuple(notes))

    def check_count(self, count: int, where: str, revision: str | None, alone: str) -> list[str]:
        """Return what to note of a number of rows; refuse none, too many (`alone`: way out) and a part of the hub."""
        if count == 0:
            raise UserError(f"{where} has no rows; {self.name} has {self.rows}")
        if count > self.rows:
            raise UserError(f"{where} has {count} rows but {self.name} has {self.rows}; {alone}")
        if count < self.rows and revision is not None:
            raise UserError(
                f"{where} has {count} rows but {self.name} has {self.rows}, so its scores would not compare; "
                "give a local copy, which may be a part"
            )
        return [f"partial: {count} of {self.rows} rows"] if count < self.rows else []

    def _renamed(self, copy: Copy) -> dict[str, str]:
        """Official name to the name this copy has for it, where they differ."""
        have = set(copy.table.columns)
        renamed: dict[str, str] = {}
        missing = []
        for column in self.columns:
            top = column.partition(".")[0]
            if column in have or top in have:
                continue
            theirs = next((name for name in self.aliases.get(column, ()) if name in have), None)
            if theirs is not None:
                renamed[column] = theirs
            elif column not in self.optional and top not in self.optional:
                missing.append(column)
        if missing:
            names, all_names = ", ".join(map(repr, missing)), ", ".join(map(repr, copy.table.columns))
            raise UserError(
                f"{copy.where} has no column {names}, which {self.name} needs; its columns are {all_names}: "
                f"give a copy in the schema of {self.hub_id}"
            )
        return renamed

    def _arranged(self, copy: Copy, renamed: Mapping[str, str]) -> list[Row]:
        stored = [renamed.get(column, column) for column in self.columns]
        names = list(dict.fromkeys(name if name in copy.table.columns else name.partition(".")[0] for name in stored))
        names = [name for name in names if name in copy.table.columns]
        # Images are read only for the rows that are used.
        heavy = {renamed.get(column, column) for column in self.columns if column in IMAGE_COLUMNS}
        light = [name for name in names if name not in heavy] or names[:1]

        def image(number: int, column: str) -> tuple[bytes, ...]:
            stored_name = renamed.get(column, column)
            value = copy.row(number, [stored_name]).get(stored_name)
            if isinstance(value, Mapping) and not value.get("bytes"):
                value = value.get("path")
            root = copy.roots[0]
            if isinstance(value, str) and value.strip():
                root = next((root for root in copy.roots if (root / value).is_file()), root)
            return Pictures(root).read(value)

        rows = []
        for number in range(len(copy.table)):
            values = dict(copy.row(number, light))
            for ours, theirs in renamed.items():
                if theirs in values:
                    values[ours] = values[theirs]
            rows.append(Row(number, values, lambda column, number=number: image(number, column)))  # type: ignore[misc]
        doing = f"arranging {copy.where}"
        return list(self._called(self.arrange, rows, doing, f"{copy.where} is no whole copy of {self.name}: {{}}"))

    def _item(self, row: Row, where: str) -> Item:
        which = nth_row(row.number, where)
        refusal = f"{which} cannot be read as {self.name}: {{}}; repair or replace the copy"
        item = self._called(self.read, row, f"reading {which}", refusal)
        if not isinstance(item, Item):
            raise UserError(f"benchmark {self.name!r} read {item!r} from {which}: return an Item")
        if item.metric is not None and item.metric not in METRICS:
            raise UserError(f"metric {item.metric!r} of benchmark {self.name!r} is unknown: use {', '.join(METRICS)}")
        return item if item.benchmark == self.name else replace(item, benchmark=self.name)

    def _called(self, function: Callable[[Any], Any], argument: Any, doing: str, refusal: str) -> Any:
        """Call a function of the benchmark, which may be a user's and raise anything."""
        try:
            return function(argument)
        except RowError as error:
            raise UserError(refusal.replace("{}", str(error))) from error
        except (UserError, RunError):
            raise
        except (Exception, SystemExit) as error:
            raise raised(f"benchmark {self.name!r}, {doing},", function, error) from error

    def _check_ids(self, items: Sequence[Item], where: str) -> None:
        seen: set[str] = set()
        for item in items:
            if item.id in seen:
                raise UserError(f"{where} has the {self.name} row {item.id!r} twice; give a copy that has it once")
            seen.add(item.id)


def schema_hash(columns: Iterable[str]) -> str:
    """Return a hash of column names, whatever their order."""
    return hashlib.sha256("\n".join(sorted(columns)).encode()).hexdigest()[:16]


def by_field(items: Iterable[Item], correct: Mapping[str, float], fields: Iterable[str]) -> SubScores:
    """Return the accuracy per value of each field of `Item.meta`; an item without the field is left out of it."""
    items = list(items)
    tables = {name: tally(items, correct, lambda item, name=name: _values(item, name)) for name in fields}  # type: ignore[misc]
    return {name: table for name, table in tables.items() if table}


def tally(
    items: Iterable[Item], correct: Mapping[str, float], keys_of: Callable[[Item], Iterable[str]]
) -> dict[str, dict[str, float | None]]:
    """Return the accuracy per key, keys sorted; an item counts once under each of its keys."""
    shares: dict[str, list[float]] = {}
    for item in items:
        if item.id in correct:
            for key in dict.fromkeys(keys_of(item)):
                shares.setdefault(key, []).append(float(correct[item.id]))
    return {key: cell(math.fsum(values), len(values)) for key, values in sorted(shares.items())}


def cell(correct: float, n: int) -> dict[str, float | None]:
    """Return one entry of a table of sub-scores; whole numbers stay integers."""
    whole = round(correct)
    kept = whole if math.isclose(correct, whole, abs_tol=1e-9) else correct
    return {"n": n, "correct": kept, "accuracy": kept / n if n else None}


def with_options(question: str, choices: Sequence[str] | None) -> str:
    """Return the question, then `Choices:` and one line `(A) value` per option; empty options are letters left out."""
    if not choices:
        return question
    lines = [f"({letter}) {value}" for letter, value in zip(LETTERS, choices, strict=False) if value]
    return "\n".join([question, "Choices:", *lines])


def labels_of(gold: str, choices: Sequence[str]) -> str:
    """A gold given as letters (`B`, `(B)`, `C\\nD`) or as the text of an option, as letters: `B` or `C, D`.

    Letters in range come first, so that `D` is the fourth option even where another one reads D. Raises
    RowError where it is neither.
    """
    parts = [part.strip().strip("()（）.") for part in gold.split("\n") if part.strip()]
    if parts and all(len(part) == 1 and part in LETTERS[: len(choices)] for part in parts):
        return ", ".join(dict.fromkeys(parts))
    plain = [" ".join(choice.split()) for choice in choices]
    text = " ".join(gold.split())
    if text in plain:
        return LETTERS[plain.index(text)]
    raise RowError("no_such_option", f"the answer {gold!r} is none of the options {list(choices)}")


def lettered(question: str, gold: str, last: str = "D") -> dict[str, Any]:
    """Return question, options and gold of an item whose options stand in its question and whose answer is a letter.

    An option is its letter alone, A to `last` or the answer's, where the question does not give each a text.
    """
    golds = labels_of(gold.replace(", ", "\n"), LETTERS).split(", ")
    choices = parse_options(question)
    if choices is None or not all(choices) or not set(golds) <= set(LETTERS[: len(choices)]):
        choices = tuple(LETTERS[: LETTERS.index(max([*golds, last])) + 1])
    return {"question": question.strip(), "gold": ", ".join(golds), "choices": choices}


def content_ids(*columns: str) -> Callable[[Sequence[Row]], Sequence[Row]]:
    """`Benchmark.arrange` of sets without ids: column `_id` is a hash of these columns, with `#2`, ... on repeats.

    A row keeps its id in any part of the set and in any order.
    """

    def arrange(rows: Sequence[Row]) -> Sequence[Row]:
        seen: dict[str, int] = {}
        for row in rows:
            content = "\x1f".join(str(row.get(column)) for column in columns)
            digest = hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:12]
            seen[digest] = seen.get(digest, 0) + 1
            row.values["_id"] = digest if seen[digest] == 1 else f"{digest}#{seen[digest]}"
        return rows

    return arrange


def _values(item: Item, field_name: str) -> list[str]:
    value = item.meta.get(field_name)
    values = value if isinstance(value, list | tuple) else (value,)
    return [str(value) for value in values if value is not None]


def _names_of(columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """Return column names, with the keys of nested columns in their place."""
    names: list[str] = []
    for column in columns:
        nested = [row.values[column] for row in rows if isinstance(row.values.get(column), dict)]
        names += [f"{column}.{key}" for key in dict.fromkeys(key for value in nested for key in value)] or [column]
    return names


def _shown(value: Any) -> str:
    return repr(value)[:80]
