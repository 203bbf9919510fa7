"""Answer relations: when two answers are the same. One relation serves voting, reward and diagnostics of a run, unless
`answers.vote_by: strings` counts votes as the authors do.

`answers.relation` names a row of `RELATIONS`, or a user's `package.module:function`, called for two different extracted
answers and, if it takes a third argument, the option values of the question (None for an open one). Answers of programs
(`mmcorl.answers.outputs`) are the same where all outputs are, whatever the relation says of texts:

    def same(a, b, choices):
        return a.strip().lower() == b.strip().lower()
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from mmcorl.answers.equivalence import Equivalence, partition
from mmcorl.answers.outputs import is_outputs
from mmcorl.answers.strings import string_key
from mmcorl.errors import UserError
from mmcorl.registry import Row, Table, check_call


@dataclass(frozen=True)
class RelationRow(Row):
    """An answer relation and the name and version that are stored beside every score."""

    identity: tuple[str, str] | None = None
    """By default the row's name and a hash of the function's source."""
    open: Callable[[], AbstractContextManager[Any]] | None = None
    """Opens the relation, for one that holds resources; by default pairs are compared by the function."""

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


RELATION = ("mmcorl-answers", "6")
"""Name and version of the built-in relation, stored beside every score; any changed verdict raises the version."""


def _takes_choices(row: RelationRow) -> bool:
    """Whether the function takes a third argument by position."""
    try:
        inspect.signature(row.function).bind("1", "2", None)
    except TypeError:
        return False
    return True


def _check(row: RelationRow) -> None:
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


class PairwiseRelation:
    """A relation made of a user's function of two answers; symmetric and reflexive whatever the function does."""

    symbolic = timeouts = cache_hits = 0
    """Counters that `Equivalence` has."""

    def __init__(self, row: RelationRow) -> None:
        takes_choices = _takes_choices(row)

        def compare(a: str, b: str, choices: tuple[str, ...] | None) -> bool:
            return bool(row.function(a, b, choices) if takes_choices else row.function(a, b))

        self._compare = lru_cache(1 << 16)(compare)

    def same(self, a: str | None, b: str | None, choices: Sequence[str] | None = None) -> bool:
        """Return whether two answers are the same; None (no answer) is the same as nothing."""
        if a is None or b is None:
            return False
        if a == b:
            return True
        if is_outputs(a) or is_outputs(b):
            return False
        return self._compare(min(a, b), max(a, b), tuple(choices) if choices else None)

    def classes(self, answers: Sequence[str | None], choices: Sequence[str] | None = None) -> list[int | None]:
        """Return the class of each answer; see `partition`."""
        return partition(answers, lambda a, b: self.same(a, b, choices))


class StringVotes:
    """A relation whose classes, the votes, are equal strings; `same`, which pays rewards, stays that of values."""

    def __init__(self, relation: Any) -> None:
        self.relation, self.same = relation, relation.same

    def __getattr__(self, name: str) -> Any:
        return getattr(self.relation, name)

    def classes(self, answers: Sequence[str | None], choices: Sequence[str] | None = None) -> list[int | None]:
        """Return the class of each answer, numbered in first-seen order; None for no answer and for a blank string."""
        keys = [answer if answer is None or is_outputs(answer) else string_key(answer) for answer in answers]
        number = {key: place for place, key in enumerate(dict.fromkeys(key for key in keys if key is not None))}
        return [None if key is None else number[key] for key in keys]


@contextmanager
def open_relation(name: str = "math", vote_by: Literal["values", "strings"] = "values") -> Iterator[Any]:
    """Open a relation of `RELATIONS` or a user's own; UserError for one that does not fit."""
    row = RELATIONS.find(name)
    with row.open() if row.open is not None else nullcontext(PairwiseRelation(row)) as relation:
        yield StringVotes(relation) if vote_by == "strings" else relation
