"""Answer relations by name: when two answers are the same. One relation serves voting, reward and diagnostics of a run,
unless `answers.vote_by: strings` counts votes as the authors do.

`answers.relation` names a row of `RELATIONS`, or a user's `file.py:name`, called for two different extracted
answers and, if it takes a third argument, the option values of the question (None for an open one). One that is
annotated to return a float is a similarity from 0 to 1, of which `answers.threshold` makes a relation; others return
True or False. Both say the same of two answers in either order. One that compares places is a row with a `form`.
Answers of programs (`mmcorl.answers.outputs`) are the same where all outputs are, whatever the relation says of texts:

    def same(a, b, choices):
        return a.strip().lower() == b.strip().lower()

    def overlap(a, b) -> float:
        return len(set(a) & set(b)) / len(set(a) | set(b))
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, get_args

from mmcorl.answers import regions as places
from mmcorl.answers import text_relations
from mmcorl.answers.equivalence import Equivalence
from mmcorl.answers.outputs import is_outputs
from mmcorl.answers.regions import Form
from mmcorl.answers.relation_base import LONGEST, Choices, PairwiseRelation, Relation, SimilarityRelation, fraction
from mmcorl.answers.strings import string_key
from mmcorl.errors import RunError, UserError
from mmcorl.registry import Row, Table, check_call, shown


@dataclass(frozen=True)
class RelationRow(Row):
    """An answer relation and the name and version that are stored beside every score."""

    identity: tuple[str, str] | None = None
    """Name and version; by default the row's name and a hash of the function's source."""
    open: Callable[[], AbstractContextManager[Any]] | None = None
    """Opens the relation, for one that holds resources; by default pairs are compared by the function."""
    threshold: float = 0.5
    """Similarity from which on two answers are the same, unless `answers.threshold` says otherwise."""
    form: Form | None = None
    """What answers are, where they are places in a picture: the function gets `[x1, y1, x2, y2]` and the like in
    thousandths of its sides. None for texts as they are written."""
    bound: Callable[[str, str], float] | None = None
    """A cheap number that a similarity which takes long never exceeds."""
    longest: int = LONGEST
    """Characters of an answer up to which it is looked into; fewer where the time grows with their square."""
    measure: str = "similarity"
    """What a similarity is called in tables and charts."""

    @property
    def graded(self) -> bool:
        """Whether the function is a similarity."""
        return inspect.signature(self.function).return_annotation in (float, "float")

    @property
    def version(self) -> tuple[str, str]:
        """Name and version."""
        if self.identity is not None:
            return self.identity
        try:
            source = inspect.getsource(self.function)
        except (OSError, TypeError):
            source = ""
        return self.name, hashlib.sha256(source.encode()).hexdigest()[:8]


RELATION = ("mmcorl-answers", "11")
"""Name and version of the built-in relation, stored beside every score; any changed verdict raises the version."""


_MIRRORED = 100
"""Pairs of answers for which a user's function is asked in both orders."""


def _takes_choices(row: RelationRow) -> bool:
    """Whether the function takes a third argument by position."""
    try:
        inspect.signature(row.function).bind("1", "2", None)
    except TypeError:
        return False
    return True


def _check(row: RelationRow) -> None:
    if row.form not in (None, *get_args(Form)):
        raise UserError(f"form of answer relation {row.name!r} is {row.form!r}: use {', '.join(get_args(Form))}")
    try:
        check_call(row, "answer relation", "same(a, b)", "1", "2")
    except UserError:
        check_call(row, "answer relation", "same(a, b, choices)", "1", "2", None)


RELATIONS: Table[RelationRow] = Table("answer relation", RelationRow, _check)


@RELATIONS.add("math", "numbers, expressions, units, options and words by value", identity=RELATION, open=Equivalence)
def same_value(a: str, b: str, choices: Sequence[str] | None = None) -> bool:
    """Return whether two answers have the same value."""
    with Equivalence() as relation:
        return relation.same(a, b, choices)


def _add(
    name: str, summary: str, same: Callable[..., Any], measure: str = "similarity", threshold: float = 0.5, **more: Any
) -> None:
    facts: dict[str, Any] = {"identity": (name, "1"), "threshold": threshold, "measure": measure} | more
    RELATIONS.add_row(RelationRow(name, summary, same, **facts))


_add("exact", "equal texts", text_relations.same_text)
_add("text", "equal words, whatever their case, spaces and outer marks", text_relations.same_words)
_edits = "readings by edit distance: 1 - edits / length of the longer"
_edit: dict[str, Any] = {"bound": text_relations.most_edit_similarity, "longest": 1 << 12, "identity": ("edit", "2")}
_add("edit", _edits, text_relations.edit_similarity, "edit similarity", 0.8, **_edit)
_add("number", "numbers by relative difference, other texts as `text`", text_relations.closeness, "closeness", 0.95)
_add("point", "points by distance, a point and a box by lying inside", places.nearness, "nearness", 0.95, form="point")
_points, _boxes = "sets of points by the nearness of matched ones", "sets of boxes by the overlap of matched ones"
_sets: dict[str, Any] = {"bound": places.most_of_sets}
_add("points", _points, places.nearness_of_sets, "matched nearness", 0.95, form="points", **_sets)
_add("box", "boxes by overlap (intersection over union)", places.overlap, "IoU", form="box")
_add("boxes", _boxes, places.overlap_of_sets, "matched IoU", form="boxes", **_sets)


class StringVotes(Relation):
    """A relation whose classes, the votes, are equal strings; `same`, which pays rewards, stays that of values."""

    symbolic = property(lambda self: self._values.symbolic)
    timeouts = property(lambda self: self._values.timeouts)
    cache_hits = property(lambda self: self._values.cache_hits)
    graded = property(lambda self: self._values.graded)

    def __init__(self, values: Relation) -> None:
        self._values = values

    def same(self, a: str | None, b: str | None, choices: Choices = None) -> bool:
        return self._values.same(a, b, choices)

    def similarity(self, a: str | None, b: str | None, choices: Choices = None) -> float:
        return self._values.similarity(a, b, choices)

    def classes(self, answers: Sequence[str | None], choices: Choices = None) -> list[int | None]:
        """Return the class of each answer, numbered in first-seen order; None for no answer and for a blank string."""
        keys = [answer if answer is None or is_outputs(answer) else string_key(answer) for answer in answers]
        number = {key: index for index, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
        return [None if key is None else number[key] for key in keys]

    def supports(self, labels: Sequence[str], answers: Sequence[str | None], choices: Choices = None) -> list[bool]:
        return [any(self.same(label, answer, choices) for label in labels) for answer in answers]


@contextmanager
def open_relation(
    name: str = "math", vote_by: Literal["values", "strings"] = "values", threshold: float | None = None
) -> Iterator[Relation]:
    """Open a relation of `RELATIONS` or a user's own; UserError for one that does not fit, or that has no threshold."""
    row = RELATIONS.find(name)
    if threshold is not None and not row.graded:
        raise UserError(f"answers.threshold is {threshold:g}, but relation {name!r} is no similarity: leave it out")
    with row.open() if row.open is not None else nullcontext(_relation(row, threshold)) as relation:
        yield StringVotes(relation) if vote_by == "strings" else relation


def _relation(row: RelationRow, threshold: float | None) -> Relation:
    """Return the relation of a row's function. A user's own is asked for its first pairs in both orders: a vote that
    depended on which answer is the smaller text would go unnoticed."""
    takes_choices, pairs = _takes_choices(row), count()

    def ask(a: str, b: str, choices: Choices) -> float:
        returned = row.function(a, b, choices) if takes_choices else row.function(a, b)
        return fraction(a, b, returned) if row.graded else _verdict(row.name, a, b, returned)

    def compare(a: str, b: str, choices: Choices) -> float:
        value = ask(a, b, choices)
        if ":" in row.name and next(pairs) < _MIRRORED and abs(value - (turned := ask(b, a, choices))) > 1e-6:
            raise RunError(
                f"answer relation {shown(row.name)!r} gives {value:g} for {a!r} and {b!r}, but {turned:g} for {b!r} "
                f"and {a!r}: let it return the same in both orders"
            )
        return value

    if row.graded:
        return SimilarityRelation(compare, row.threshold if threshold is None else threshold, row.bound, row.longest)
    return PairwiseRelation(lambda a, b, choices: compare(a, b, choices) == 1)


def _verdict(name: str, a: str, b: str, returned: Any) -> float:
    try:
        if returned in (0, 1):  # what numpy calls bool, too
            return float(returned)
    except (TypeError, ValueError, RuntimeError):  # an array
        pass
    raise RunError(
        f"answer relation {shown(name)!r} returned {returned!r} for {a!r} and {b!r}: annotate it `-> float` to use it "
        "as a similarity, or return True or False"
    )
