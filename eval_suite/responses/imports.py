"""Responses made elsewhere, whatever the columns are called.

Known shapes are recognised by their columns: our own files, sample logs of lmms-eval and lm-evaluation-harness
(`doc_id`, `target`, `resps`, `filtered_resps`), VLMEvalKit result tables (`index`, `prediction`, options in columns
A, B, C, ...), completions of APIs (`completions`). Anything else is read by the first of a few usual names, and a file
that has none is refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from eval_suite.answer_form import MATHEMATICS, AnswerForm, bare_place, is_plain, literal
from eval_suite.reporter import counted, nth_row
from eval_suite.responses.completions import THOUGHT_COLUMNS, continued_thoughts, endings, thoughts_apart, unwrapped
from eval_suite.responses.row_files import TABLES, read_rows
from eval_suite.responses.vlmevalkit import ResultTable
from mmcorl.answers.regions import is_bare_place
from mmcorl.answers.thinking import CLOSES
from mmcorl.data.columns import USUAL
from mmcorl.errors import UserError
from mmcorl.grading.finish import Finish
from mmcorl.grading.items import Item, Keys, Response
from mmcorl.grading.options import parse_options
from mmcorl.grading.reference import to_text

RESPONSE_COLUMNS = (
    *("response", "prediction", "output", "completion", "model_output", "generation", "text"),
    *("responses", "predictions", "outputs", "completions", "generations"),
)
GOLD_COLUMNS, ID_COLUMNS = [name for name in USUAL["answer"] if "." not in name], USUAL["id"]
SIZE_COLUMNS = (("width", "height"), ("image_width", "image_height"), ("img_width", "img_height"))
OPTION_FORMS = """a list as JSON or Python (["40", "45"]), {"A": "40", "B": "45"}, or `A. 40; B. 45`"""
_FAILED = "Failed to obtain answer"
"""How VLMEvalKit begins a prediction that stands for a call that failed."""


@dataclass(frozen=True)
class Imported:
    """One response of a file of responses."""

    id: str
    sample: int
    text: str | None
    """None where no response came: an empty cell of a table, or a call that failed."""
    finish_reason: Finish
    gold: str | None
    """None where the file holds none: then a benchmark has to supply it."""
    question: str
    choices: tuple[str, ...] | None
    names: Mapping[str, str]
    """By column, everything that may name the problem in a benchmark."""
    benchmark: str | None
    """The benchmark that the file itself names."""
    no_gold: str = ""
    """Why `gold` is None, and how to fix it."""
    accepted: tuple[str, ...] = ()
    """Further known answers, of rows that are compared by a relation."""
    coordinates: tuple[float, float, str] | None = None
    """How the response writes places, where the row says so."""
    size: tuple[int, int] | None = None
    """Width and height of the picture, where the row has them."""
    thinking: bool = False
    """Whether the prompt opened a thought that the response continues, as far as the row says so."""
    as_vlmevalkit: bool | None = None
    """Whether VLMEvalKit's own rule credits the response; None where that is not known."""


class ResponseFile:
    """The responses of a file, read anew in every pass over them: there may be more than memory holds.

    Raises:
        UserError: while iterating, for what `read_responses` refuses of one row.
    """

    def __init__(self, path: Path, golds: bool, answers: AnswerForm = MATHEMATICS) -> None:
        self.path, self._golds, self._answers = path, golds, answers
        self.rows = 0
        """Rows of the file."""
        self.filters: dict[str, None] = {}
        given: dict[str | None, int] = {}
        self._table = ResultTable(texts=path.suffix.lower() in TABLES)
        for row in read_rows(path):
            self.rows += 1
            self._table.see(row)
            if "filter" in row and "resps" in row:
                self.filters[str(row["filter"])] = None
            if self._is_read(row):
                number = row.get("sample")
                given.setdefault(to_text(number) if is_plain(number) else None, self.rows - 1)
        if not self.rows:
            raise UserError(f"{path} holds no rows: give a file with one response per row")
        self._numbers = _sample_numbers(given, path)
        keys = Keys()
        self.samples = 0
        """Largest number of responses to one problem."""
        self.count = 0
        """Responses, without those that never came."""
        self.absent = 0
        """Responses that never came."""
        self.opened = self.closed = 0
        """Responses that continue a thought of their prompt, and those of them that end it."""
        for each in self:
            if not keys.add(("", each.id, each.sample)):
                raise UserError(f"id {each.id!r}, sample {each.sample} stands twice: number the samples of a problem")
            self.samples = max(self.samples, each.sample + 1)
            self.count += each.text is not None
            self.absent += each.text is None
            self.opened += each.thinking and each.text is not None
            self.closed += each.thinking and CLOSES.search(each.text or "") is not None
        if self._numbers is None:
            _check_even(keys.counts(""), path)

    def _is_read(self, row: Mapping[str, Any]) -> bool:
        """Sample logs repeat every response for each filter that read it; we read responses ourselves."""
        first = next(iter(self.filters), "")
        return len(self.filters) < 2 or str(row.get("filter", first)) == first

    def __iter__(self) -> Iterator[Imported]:
        """Yield the responses in file order."""
        drawn: dict[str, int] = {}
        for index, stored in enumerate(read_rows(self.path)):
            if not self._is_read(stored):
                continue
            row, where = unwrapped(stored), nth_row(index, self.path)
            doc = row.get("doc") if isinstance(row.get("doc"), dict) else {}
            merged = {**{key: value for key, value in (doc or {}).items() if key not in row}, **row}
            texts = _texts(merged, where)
            names = {column: to_text(merged[column]) for column in ID_COLUMNS if is_plain(merged.get(column))}
            identity = next(iter(names.values()), str(index))
            numbered = self._numbers is not None
            if len(texts) > 1 and numbered:
                raise UserError(f"{where} holds {len(texts)} responses and a sample number: give one of them")
            if "doc_hash" in row and not numbered and identity in drawn:
                raise UserError(
                    f"{where} answers {identity!r} a second time: keep one filter of a sample log, or number the rows "
                    "of several runs in a column 'sample'"
                )
            first = drawn.get(identity, 0) if self._numbers is None else self._numbers[to_text(row["sample"])]
            drawn[identity] = drawn.get(identity, 0) + len(texts)
            question = next((merged[name] for name in USUAL["question"] if is_plain(merged.get(name))), "")
            choices, unread = _choices(merged)
            gold, accepted, trouble = self._known(merged, choices, where)
            if self._golds and (unread or trouble):
                raise UserError(f"{where} {unread or trouble}")
            reasons, apart = endings(merged, len(texts)), thoughts_apart(row, len(texts))
            thinking = continued_thoughts(row, len(texts))
            for number, text in enumerate(texts):
                # What ended, or has thoughts, came: the rest of it is empty.
                came = text is not None or apart[number] or reasons[number] == "length"
                yield Imported(
                    id=identity,
                    sample=first + number,
                    text=(text or "") if came else None,
                    finish_reason=reasons[number],
                    thinking=thinking[number],
                    gold=gold,
                    question=to_text(question),
                    choices=choices,
                    names=names,
                    benchmark=merged["benchmark"] if isinstance(merged.get("benchmark"), str) else None,
                    no_gold="" if gold is not None else _no_gold(merged),
                    accepted=accepted,
                    coordinates=_coordinates(merged, where),
                    size=_size(merged),
                    as_vlmevalkit=self._table.verdict(row),
                )

    def _known(
        self, row: Mapping[str, Any], choices: tuple[str, ...] | None, where: str
    ) -> tuple[str | None, tuple[str, ...], str]:
        """Return the known answer of a row, further ones, and why they cannot be used."""
        if self._answers.relation is None or not self._golds:
            gold, trouble = _gold(row, choices)
            return gold, (), trouble
        value = _known_value(row)
        if value is None:
            return None, (), ""
        gold, accepted, trouble = self._answers.known(value, _size(row), where)
        return gold or None, accepted, trouble


def read_responses(
    path: Path, *, golds: bool = True, answers: AnswerForm = MATHEMATICS
) -> tuple[ResponseFile, list[str]]:
    """Return all responses of a file, and caveats; without `golds`, known answers that cannot be used are ignored.

    Raises:
        UserError: nothing in the file is a response, what should be a text, a number or options is not, a problem and
            sample stand twice, or some problems have more responses than others and nothing numbers them; names the
            row and the columns found.
    """
    file = ResponseFile(path, golds, answers)
    notes = []
    if len(file.filters) > 1:
        filters = ", ".join(file.filters)
        notes.append(f"every response stands once per filter ({filters}); it is read once, unfiltered")
    if not file.count:
        raise UserError(f"{path} holds no response in any of its {file.rows} rows: every call seems to have failed")
    if file.absent:
        hold = "hold no response, or a failed call; they count" if file.absent > 1 else "holds no response; it counts"
        notes.append(f"{file.absent} of {file.count + file.absent} rows {hold} as missing")
    if file.opened and not file.closed:
        notes.append(
            f"the prompt of {counted(file.opened, 'response', 'responses')} opened a thought that none of them ends: "
            "drafts without an answer (where a harness took the thoughts away, leave the prompts out of the file)"
        )
    return file, notes


def as_items(
    rows: Iterable[Imported], name: str, *, golds: bool = True, answers: AnswerForm = MATHEMATICS
) -> list[Item]:
    """Make the items of a file; rows of the same id are samples of one item. Texts that are compared by a relation are
    read from the whole response, where it commits to none.

    With `golds`, raises UserError for a row without a gold, and where samples of one id disagree about it.
    """
    items: dict[str, Item] = {}
    for row in rows:
        if not golds:
            items[row.id] = Item(name, row.id, row.question, row.gold or "", choices=row.choices)
            continue
        if row.gold is None:
            raise UserError(
                f"row {row.id!r} has no gold answer: {row.no_gold}, or say which benchmark with `benchmark`"
            )
        item = Item(name, row.id, row.question, row.gold, choices=row.choices)
        if answers.relation is not None:
            item = replace(
                item,
                relation=answers.relation,
                threshold=answers.threshold,
                accepted=row.accepted,
                reading="commitment" if answers.form else "whole",
            )
        if items.setdefault(row.id, item) != item:
            raise UserError(f"id {row.id!r} stands for different questions or golds: give every problem its own id")
    return list(items.values())


def as_responses(
    rows: Iterable[Imported],
    benchmark: str,
    ids: Mapping[str, str] | None = None,
    written: Callable[[Imported, str], tuple[float, float, str] | None] = lambda row, id: None,
) -> Iterator[Response]:
    """Yield the responses of a file, without those that never came; `ids` maps row ids to problems.

    `written` says how a row, an answer to a problem, writes places.
    """
    for row in rows:
        if row.text is not None:
            id = row.id if ids is None else ids[row.id]
            yield Response(
                *(benchmark, id, row.sample, row.text, row.finish_reason),
                coordinates=written(row, id),
                thinking=row.thinking,
            )


def _check_even(held: Mapping[str, int], path: Path) -> None:
    """Refuse a file in which an id stands more often than others: repeated by mistake, or some responses are lost.

    A score over the largest number of samples would count what the others lack as wrong.
    """
    usual, others = Counter(held.values()).most_common(1)[0]
    odd = next(((id, count) for id, count in held.items() if count != usual), None)
    if odd is not None:
        id, count = odd
        raise UserError(
            f"{path} holds {counted(count, 'response', 'responses')} to id {id!r} and {usual} to each of "
            f"{counted(others, 'other id', 'other ids')}: give every problem an id of its own, number repeated "
            "responses in a column 'sample', or give as many responses to each"
        )


def _sample_numbers(given: Mapping[str | None, int], path: Path) -> dict[str, int] | None:
    """0-based numbers for a column `sample` of any numbers or names, such as seeds; None without the column.

    `given`: its values, None where it has none, and the row of each that came first.
    """
    if None in given and len(given) > 1:
        raise UserError(f"{nth_row(given[None], path)} has no sample number, but other rows have: number all or none")
    names = [name for name in given if name is not None]
    order = sorted(names, key=float) if all(map(_is_number, names)) else sorted(names)
    return {name: number for number, name in enumerate(order)} or None


def _texts(row: Mapping[str, Any], where: str) -> list[str | None]:
    """Return the responses of one row, as the model wrote them."""
    if "resps" in row or "filtered_resps" in row:
        # `filtered_resps` is what a harness made of them: `18` of `so it is \\boxed{18}`.
        value = row.get("resps", row.get("filtered_resps"))
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        listed = value if isinstance(value, list) else [value]
        if not listed:
            return [None]
        # Pairs of a log-probability and whether it was the greedy choice.
        pair = len(listed) == 2 and _is_number(str(listed[0])) and str(listed[1]) in ("True", "False")
        if pair or not all(isinstance(text, str) for text in listed):
            raise UserError(
                f"{where} holds likelihoods of given answers instead of a response: grade a task that generates text"
            )
        return list(listed)
    column = next((name for name in RESPONSE_COLUMNS if row.get(name) is not None), None)
    if column is None:
        if any(name in row for name in (*RESPONSE_COLUMNS, *THOUGHT_COLUMNS)):
            return [None]
        raise UserError(
            f"{where} holds no response among the columns {sorted(map(str, row))}: name it {RESPONSE_COLUMNS[0]!r}"
        )
    value = row[column]
    listed = value if isinstance(value, list) and value else [value]
    return [_text(value, column, where) for value in listed]


def _text(value: Any, column: str, where: str) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise UserError(f"{where} holds {type(value).__name__} as {column!r}, no text: give the text of the response")
    text = to_text(value)
    return None if column == "prediction" and text.startswith(_FAILED) else text


def _gold(row: Mapping[str, Any], choices: tuple[str, ...] | None) -> tuple[str | None, str]:
    """Return the known answer as the file has it, and why it cannot be used; a harness compared with its `target`."""
    value = _known_value(row)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return None, ""
    if is_bare_place(value):
        return None, bare_place(value)
    if not is_plain(value):
        return None, (
            f"holds {value!r:.80} as the known answer: give a text or a number, or say what it is: relation=box, "
            "boxes, point or points for places, another relation for several texts"
        )
    text = to_text(value)
    index = isinstance(value, int) and not isinstance(value, bool)
    if index and choices and text not in choices and 0 <= int(value) <= len(choices):
        return None, (
            f"has {len(choices)} options and the number {text} as the known answer, which may count from 0 or from 1: "
            "give the letter or the text of the option"
        )
    return text if text.strip() else None, ""


def _known_value(row: Mapping[str, Any]) -> Any:
    return _first(row, ("target", *GOLD_COLUMNS) if "resps" in row or "filtered_resps" in row else GOLD_COLUMNS)


def _coordinates(row: Mapping[str, Any], where: str) -> tuple[float, float, str] | None:
    """Read how the response of a row writes places: x at the right edge, y at the lower one, and the order."""
    stored = row.get("coordinates")
    if stored is None:
        return None
    try:
        right, bottom, order = stored
        right, bottom = float(right), float(bottom)
    except (TypeError, ValueError):
        right = bottom = 0.0
        order = ""
    if right <= 0 or bottom <= 0 or order not in ("xy", "yx"):
        raise UserError(f"{where} has coordinates {stored!r:.80}: give [x at the right edge, y at the lower one, 'xy']")
    return right, bottom, order


def _size(row: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the width and height of the picture that a row is about, where it has them."""
    for names in SIZE_COLUMNS:
        if all(is_plain(row.get(name)) and _is_number(str(row[name])) and float(row[name]) >= 1 for name in names):
            return round(float(row[names[0]])), round(float(row[names[1]]))
    return None


def _no_gold(row: Mapping[str, Any]) -> str:
    """Return why a row brings no known answer: its column is blank, or there is none."""
    blank = next((name for name in GOLD_COLUMNS if name in row), None)
    if blank is not None:
        return f"its column {blank!r} is blank, so fill it in"
    return (
        f"none of its columns {sorted(map(str, row))} holds known answers, so add one called {GOLD_COLUMNS[0]!r} (or "
        f"{', '.join(GOLD_COLUMNS[1:])})"
    )


def _first(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the first of some columns that is there and not empty."""
    for name in names:
        value = row.get(name)
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            return value
    return None


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _choices(row: Mapping[str, Any]) -> tuple[tuple[str, ...] | None, str]:
    """Option values in order A, B, C, ..., and why they cannot be read; a letter left out is an empty option."""
    column = next((name for name in USUAL["choices"] if _first(row, (name,)) not in (None, "", [], {})), None)
    if column is None:
        return _by_letter(row), ""
    given = row[column]
    if isinstance(given, str) and not given.strip():
        return None, ""
    options = given
    if isinstance(options, str):
        options = literal(options) if options.strip()[0] in "[{" else parse_options(options)
    if isinstance(options, dict) and set(options) <= set(ascii_uppercase) and all(map(_is_option, options.values())):
        options = _by_letter(options)
    # pandas writes an array as ['40' '45'], which Python reads as one text: one option is none.
    if isinstance(options, list | tuple) and len(options) > 1 and all(map(_is_option, options)):
        return tuple("" if option is None else to_text(option) for option in options), ""
    if options == [] or options == {}:
        return None, ""
    return None, f"holds {str(given)[:60]!r} as {column!r}, in which no options can be read: give {OPTION_FORMS}"


def _is_option(value: Any) -> bool:
    return value is None or is_plain(value)


def _by_letter(row: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return options that stand under their letters."""
    values = ["" if _first(row, (letter,)) is None else to_text(row[letter]) for letter in ascii_uppercase]
    while values and not values[-1]:
        values.pop()
    return tuple(values) if sum(map(bool, values)) >= 2 and values[0] else None
