"""The math relation: whether two answers are the same, for voting, reward, diagnostics and grading."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from decimal import Decimal
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from mmcorl.answers.comparison import Comparison
from mmcorl.answers.options import NamedOptions, match_options
from mmcorl.answers.parse import canonical_text, parse_value
from mmcorl.answers.relation_base import Choices, Relation, only_if_equal
from mmcorl.answers.symbolic import MAX_EXPRESSION, Outcome, SymbolicPool, admissible, with_directed_bars
from mmcorl.errors import UserError

_DEGREES = re.compile(r"(?<![\d.])(\d{1,16}(?:\.\d{1,16})?)°")
_MIXED = re.compile(r"(?<![\d.}^_])(\d{1,9}) ?(?:\\frac\{(\d{1,9})\}\{(\d{1,9})\}| (\d{1,9})/(\d{1,9})(?!\d))")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_PLAIN = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,5})?")
"""Numbers that need no parsing: with fewer than `ROUNDED_PLACES` places they are equal when their values are."""
_DECIMAL_COMMA = re.compile(r"-?(?:0,[0-9]{1,18}|[0-9]{3,18},[0-9]{1,2}|[0-9]{1,18},(?:[0-9]{2}|[0-9]{4,18}))")
_RATIO = re.compile(r"\$?\d{1,3}\s?:\s?\d\$?")
_DECIMAL_POINT = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")
_FIRST = 0.15
"""The first share of `timeout`. With the start of a worker, about 1 s, it stays below 1.5 s of processor time."""
_MAX_SECOND_TRIES = 64
"""Second tries without a result; a policy could write such answers by the thousand."""
_MEMORY_ENTRIES = 1 << 16
_MEMORY_CHARACTERS = 1024
"""Longer pairs are compared again rather than remembered, which bounds the memory whatever the answers are."""

V = TypeVar("V")


class Equivalence(Relation):
    """Decides whether answers are the same; a context manager, usable from any thread.

    Plain numbers, letters, lists and words are decided in this process. The rest goes to math-verify in worker
    processes, which start when first needed and are killed when a comparison takes too long.

    The relation is reflexive and symmetric. It is not transitive (`5` equals `5 cm` and `5 m`, which differ), so
    `classes` is stricter: answers share a class when they equal the same answers.

    Args:
        timeout: processor seconds of one comparison; a longer one counts as not the same. A seventh of
            it decides nearly all; what runs out of that is asked again.
        memory_mb: address space of one worker process, in MiB.
        workers: number of worker processes; several only help when several threads compare at once.

    Raises UserError for a setting out of range.
    """

    def __init__(self, timeout: float = 3.0, memory_mb: int = 1024, workers: int = 1) -> None:
        if not timeout > 0:
            raise UserError(f"answers timeout {timeout!r} is not above 0 seconds; the default is 3.0.")
        if memory_mb < 256:
            raise UserError(
                f"answers memory_mb {memory_mb!r} is too small to load the algebra system; use 256 or more."
            )
        if workers < 1:
            raise UserError(f"answers workers {workers!r} is not at least 1; use 1.")
        self.timeout = timeout
        self.symbolic = self.timeouts = self._vain = 0
        self._pool = SymbolicPool(workers, timeout, memory_mb)
        self._pairs: _Memory[bool] = _Memory()
        self._proofs: _Memory[tuple[Outcome, float]] = _Memory()
        self._late: _Memory[bool] = _Memory()
        self._options: _Memory[NamedOptions] = _Memory()
        self._lock = threading.Lock()

    @property
    def cache_hits(self) -> int:  # type: ignore[override]
        """Pairs answered from memory."""
        return self._pairs.hits

    def __enter__(self) -> Equivalence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the worker processes without waiting for them."""
        self._pool.start()

    def close(self) -> None:
        """End the worker processes; a later comparison starts new ones."""
        self._pool.close()

    def same(self, a: str | None, b: str | None, choices: Choices = None) -> bool:
        """Return whether two extracted answers are the same; None (no answer) is the same as nothing, even None.

        `choices` are the option values in order A, B, C, ... of a multiple-choice question: a letter then
        equals its option's value, and an answer that names an option only equals one that names the same.
        """
        if a is None or b is None:
            return False
        if a == b:
            return True
        if only_if_equal(a, b):
            return False
        if not choices and _same_spelling(a, b):
            return True
        if not choices and _PLAIN.fullmatch(a) and _PLAIN.fullmatch(b):
            return Decimal(a) == Decimal(b)
        options = tuple(choices) if choices else ()
        pair = (*sorted((a, b)), options)
        known = self._pairs.get(pair)
        if known is not None:
            return known
        comparison = self._comparison(pair)
        result = self._same_option(a, b, options, comparison) if options else comparison.same_text(a, b)
        self._pairs.put(pair, result, len(a) + len(b))
        return result

    def out_of_time(self, a: str, b: str, choices: Choices = None) -> bool:
        """Return whether the comparison of `a` with `b`, or with each of `choices`, ran out of processor time."""
        options = tuple(choices) if choices else ()
        return bool(self._late.get((*sorted((a, b)), options)) or (options and self._late.get((a, options))))

    def same_value(self, answer: str, gold: str, ratio_asked: bool = False) -> bool:
        """Return whether an answer has the value of a gold; unlike `same`, 5/6 answers the ratio 5:6.

        `ratio_asked`: the question asks for a ratio, so that 7:30 is no time.
        """
        return self._comparison((answer, gold, ())).same_value(parse_value(answer), parse_value(gold), ratio_asked)

    def options(self, answer: str, choices: Sequence[str]) -> NamedOptions:
        """Return the options that an answer names by letter or value; `choices` as in `same`."""
        return self._named_options(answer, tuple(choices))

    def _same_option(self, a: str, b: str, choices: tuple[str, ...], comparison: Comparison) -> bool:
        named_a = self._named_options(a, choices)
        named_b = self._named_options(b, choices)
        if named_a.labels or named_b.labels:
            return named_a.labels == named_b.labels
        if named_a.conflict or named_b.conflict:
            return canonical_text(a) == canonical_text(b)
        return comparison.same_text(a, b)

    def _named_options(self, answer: str, choices: tuple[str, ...]) -> NamedOptions:
        named = self._options.get((answer, choices))
        if named is None:
            # Beside the option 1:3 the option 5:12 is no time.
            ratios = any(_RATIO.fullmatch(choice.strip()) for choice in choices)
            same_value = partial(self._comparison((answer, choices)).same_value, ratio_asked=ratios)
            named = match_options(answer, choices, same_value)
            self._options.put((answer, choices), named, len(answer))
        return named

    def _comparison(self, question: Hashable) -> Comparison:
        """Return the comparison of one pair, whose symbolic parts share their seconds of processor time.

        A part that runs out of the first share is asked again, in a fresh fork and with all of `timeout`.
        """
        remaining, again = self.timeout * _FIRST, False

        def prove(a: str, b: str) -> bool:
            nonlocal remaining, again
            outcome, seconds = self._prove(a, b, remaining)
            if outcome == "timeout" and not again and self._vain < _MAX_SECOND_TRIES:
                remaining, again = self.timeout, True
                outcome, seconds = self._prove(a, b, remaining)
                self._vain += outcome == "timeout"
            remaining -= seconds
            if outcome == "timeout":
                self._late.put(question, True, len(str(question)))
                with self._lock:
                    self.timeouts += 1
            return outcome == "same"

        return Comparison(prove)

    def _prove(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        """Return what math-verify finds of two expressions, and the processor seconds that took."""
        if max(len(a), len(b)) > MAX_EXPRESSION:
            return "different", 0.0
        a, b = sorted(_DEGREES.sub(r"\\frac{\1\\pi}{180}", _MIXED.sub(_improper, text)) for text in (a, b))
        if not (admissible(a) and admissible(b)) or _mix_cases(a, b):
            return "different", 0.0
        a, b = with_directed_bars(a), with_directed_bars(b)
        if not (a and b):
            return "different", 0.0
        known = self._proofs.get((a, b))
        if known is not None:
            # What is remembered costs what it cost, so that no verdict depends on what was asked before.
            return known
        proof: tuple[Outcome, float] = self._pool.compare(a, b, seconds) if seconds > 0 else ("timeout", 0.0)
        with self._lock:
            self.symbolic += seconds != self.timeout
        if proof[0] != "timeout" or seconds == self.timeout:
            self._proofs.put((a, b), proof, len(a) + len(b))
        return proof


class WithoutAlgebra(Equivalence):
    """The same without worker processes: expressions that only algebra proves equal count as different."""

    def _prove(self, a: str, b: str, seconds: float) -> tuple[Outcome, float]:
        return "different", 0.0


class _Memory(Generic[V]):
    """A thread-safe least-recently-used cache of short entries that counts its hits."""

    def __init__(self) -> None:
        self.hits = 0
        self._entries: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
                self.hits += 1
            return value

    def put(self, key: Hashable, value: V, characters: int) -> None:
        if characters > _MEMORY_CHARACTERS:
            return
        with self._lock:
            self._entries[key] = value
            while len(self._entries) > _MEMORY_ENTRIES:
                self._entries.popitem(last=False)


def _same_spelling(a: str, b: str) -> bool:
    """Whether two texts differ only in their surroundings (the commonest case) or in the decimal sign."""
    return _bare(a) == _bare(b) or (("," in a) != ("," in b) and _same_digits(a, b))


def _bare(text: str) -> str:
    bare = text.strip(" $\n")
    return (bare if bare.endswith("..") else bare.rstrip(".")).replace("dfrac{", "frac{") or text


def _same_digits(a: str, b: str) -> bool:
    """`1000,99` and `1000.99`: a decimal comma, wherever it separates neither thousands nor two small numbers."""
    comma, point = (a, b) if "," in a else (b, a)
    comma, point = comma.strip(" $"), point.strip(" $")
    return (
        _DECIMAL_COMMA.fullmatch(comma) is not None
        and _DECIMAL_POINT.fullmatch(point) is not None
        and comma.replace(",", ".") == point
    )


def _improper(mixed: re.Match[str]) -> str:
    """Return 7/2 for `3 1/2`, which the algebra system would read as (3 + 1)/2, and a product as it is."""
    whole, above, below = (int(part) for part in mixed.groups() if part is not None)
    if not 0 < above < below:
        return mixed.group()
    return rf"\frac{{{whole * below + above}}}{{{below}}}"


def _mix_cases(a: str, b: str) -> bool:
    """Whether a letter occurs as a capital and small, which math-verify does not tell apart."""
    letters = {char for text in (a, b) for char in _COMMAND.sub("", text) if char.isalpha()}
    return any(char.isupper() and char.lower() in letters for char in letters)
