"""Whether two answers are the same: the one relation behind voting, reward, diagnostics and grading."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import combinations
from types import TracebackType

from mmcorl.answers.intervals import Interval, interval
from mmcorl.answers.numbers import Exact, approximate
from mmcorl.answers.options import LETTERS, Options, read_options, same_spelling
from mmcorl.answers.parse import Reading, key, read
from mmcorl.answers.polynomials import same_equation, same_form
from mmcorl.answers.symbolic import MAX_EXPRESSION, SymbolicPool, admissible
from mmcorl.errors import UserError

_DEGREES = re.compile(r"(?<![\d.])(\d{1,16}(?:\.\d{1,16})?)°")
_PLAIN = re.compile(r"-?[0-9]{1,18}(?:\.[0-9]{1,5})?")
"""Numbers that need no reading: with fewer than `_ROUNDED_PLACES` places they are equal when their values are."""
_CACHE_SIZE = 1 << 16
_MAX_REMEMBERED = 1024
"""Longer pairs are worked out again rather than kept, so that memory stays small whatever the answers are."""
_MAX_UNMATCHED = 8
_BEARING = {"°", "°T"}
"""True bearings are degrees; the T only says from where they count."""
_ROUNDED_PLACES = 6
"""A decimal with this many places stands for the value it rounds to: 0.333333 is 1/3, 0.33 is not."""


def partition(answers: Sequence[str | None], same: Callable[[str, str], bool]) -> list[int | None]:
    """Number the classes of answers in first-seen order; None for no answer.

    Two answers share a class when they are the same as the same ones of the answers given. So `5` joins `5 cm`, but
    beside `5 m` too it may mean either and stays alone. The partition depends neither on the order of the answers nor
    on how often each is given.
    """
    distinct = list(dict.fromkeys(answer for answer in answers if answer is not None))
    equals = [{index} for index in range(len(distinct))]
    for first, second in combinations(range(len(distinct)), 2):
        if same(distinct[first], distinct[second]):
            equals[first].add(second)
            equals[second].add(first)
    number: dict[frozenset[int], int] = {}
    place = {
        answer: number.setdefault(frozenset(members), len(number))
        for answer, members in zip(distinct, equals, strict=True)
    }
    return [None if answer is None else place[answer] for answer in answers]


class Equivalence:
    """Says whether answers are the same; use it as a context manager, from any thread.

    Plain numbers, letters, lists and words are decided in this process. What is left goes to math-verify in
    worker processes, which are started when first needed and killed when a comparison takes too long.

    The relation is reflexive and symmetric. It is not transitive (`5` equals `5 cm` and `5 m`, which differ),
    so `classes` asks for more: answers that equal the same ones.

    Args:
        timeout: wall-clock seconds for one comparison; longer counts as not the same.
        memory_mb: address space of one worker process, in MiB.
        workers: number of worker processes; more only help when several threads compare at once.
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
        self.symbolic = 0
        """Pairs that math-verify was asked about."""
        self.timeouts = 0
        """Of those, pairs that ran out of time or memory and counted as not the same."""
        self.cache_hits = 0
        """Pairs answered from memory."""
        self._pool = SymbolicPool(workers, timeout, memory_mb)
        self._cache: OrderedDict[tuple[object, ...], bool] = OrderedDict()
        self._options: OrderedDict[tuple[str, tuple[str, ...]], Options] = OrderedDict()
        self._lock = threading.Lock()

    def __enter__(self) -> Equivalence:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the worker processes now, without waiting for them, so that no comparison has to."""
        self._pool.start()

    def close(self) -> None:
        """End the worker processes; a later comparison would start new ones."""
        self._pool.close()

    def same(self, a: str | None, b: str | None, choices: Sequence[str] | None = None) -> bool:
        """Whether two extracted answers are the same; None (no answer) is the same as nothing, not even None.

        `choices` are the option values in order A, B, C, ... of a multiple-choice question: a letter then
        equals its option's value, and an answer that names an option only equals one that names the same.
        """
        if a is None or b is None:
            return False
        if a == b:
            return True
        if not choices and _bare(a) == _bare(b):
            return True
        if not choices and _PLAIN.fullmatch(a) and _PLAIN.fullmatch(b):
            return Decimal(a) == Decimal(b)
        if not choices and ("," in a) != ("," in b) and _same_digits(a, b):
            return True
        options = tuple(choices) if choices else ()
        pair = (*sorted((a, b)), options)
        known = self._recall(pair)
        if known is not None:
            return known
        deadline = _Deadline(self.timeout)
        if options:
            answer = self._same_option(a, b, options, deadline)
        else:
            answer = self._same_text(a, b, deadline)
        self._remember(pair, answer, len(a) + len(b))
        return answer

    def classes(self, answers: Sequence[str | None], choices: Sequence[str] | None = None) -> list[int | None]:
        """Return the class of each answer, numbered in first-seen order; None for no answer. See `partition`."""
        return partition(answers, lambda a, b: self.same(a, b, choices))

    def options(self, answer: str, choices: Sequence[str]) -> Options:
        """The options an answer names, by letter or by value; `choices` are their values in order A, B, C, ..."""
        return self._named(answer, tuple(choices), _Deadline(self.timeout))

    # --- multiple choice ------------------------------------------------------------------------------------

    def _same_option(self, a: str, b: str, choices: tuple[str, ...], deadline: _Deadline) -> bool:
        named_a, named_b = self._named(a, choices, deadline), self._named(b, choices, deadline)
        if named_a.labels or named_b.labels:
            return named_a.labels == named_b.labels
        if named_a.conflict or named_b.conflict:
            return key(a) == key(b)
        return self._same_text(a, b, deadline)

    def _named(self, answer: str, choices: tuple[str, ...], deadline: _Deadline) -> Options:
        named_by = (answer, choices)
        with self._lock:
            if named_by in self._options:
                self._options.move_to_end(named_by)
                return self._options[named_by]
        named = read_options(answer, choices, lambda value, option: self._same_value(value, option, deadline))
        with self._lock:
            if len(answer) <= _MAX_REMEMBERED:
                self._options[named_by] = named
            while len(self._options) > _CACHE_SIZE:
                self._options.popitem(last=False)
        return named

    def _same_value(self, value: Reading, option: Reading, deadline: _Deadline) -> bool:
        # A lone letter that is no label names nothing by value: variable a is not the option "A".
        if same_spelling(value, option):
            return True
        if len(value.body) == 1 and value.body in LETTERS:
            return False
        return self._same(value, option, deadline)

    # --- free form ------------------------------------------------------------------------------------------

    def _same_text(self, a: str, b: str, deadline: _Deadline) -> bool:
        one, other = read(a), read(b)
        if one.number is not None and other.number is not None:
            return self._same(one, other, deadline)
        # The key is what voting shows: one key is one answer.
        return self._same(one, other, deadline) or key(a) == key(b)

    def _same(self, a: Reading, b: Reading, deadline: _Deadline) -> bool:
        if a.text == b.text:
            return True
        for one, other in ((a, b), (b, a)):
            if one.rounded is not None and other.rounded is None and _is_rounding(one.rounded, one):
                exactly = replace(one, rounded=None)
                return self._same(exactly, other, deadline) or self._same(one.rounded, other, deadline)
        if "labelled" in (a.kind, b.kind):
            return "opaque" not in (a.kind, b.kind) and self._same_labelled(a, b, deadline)
        if a.name is not None and b.name is not None and not _may_name_one(a.name, b.name):
            return False
        if "opaque" in (a.kind, b.kind):
            # Nothing is known about it but how it is written: `x = 4343_6` says 4343_6.
            return a.kind == b.kind and _body_text(a) == _body_text(b)
        if a.kind == "relation" or b.kind == "relation":
            return self._same_relation(a, b, deadline)
        if "words" in (a.kind, b.kind):
            return a.kind == b.kind and _body_text(a) == _body_text(b)
        if {a.kind, b.kind} <= {"number", "expression"}:
            return self._same_scalar(a, b, deadline)
        if a.kind != b.kind:
            return False
        if a.kind == "list":
            return self._same_list(a, b, deadline)
        if a.kind == "union":
            return self._matched(a.parts, b.parts, deadline)
        if a.kind == "matrix":
            return len(a.parts) == len(b.parts) and all(
                self._in_order(row.parts, other.parts, deadline) for row, other in zip(a.parts, b.parts, strict=True)
            )
        return self._in_order(a.parts, b.parts, deadline)

    def _same_labelled(self, a: Reading, b: Reading, deadline: _Deadline) -> bool:
        """`B. 45°` against `B`, `B: 45` or `45°`: what one side leaves out cannot contradict the other."""
        if a.kind != "labelled":
            a, b = b, a
        if b.kind == "labelled":
            return a.name == b.name and self._same(a.parts[0], b.parts[0], deadline)
        if b.name is None and len(b.text) == 1 and b.text in LETTERS:
            return a.name == b.text
        return self._same(a.parts[0], b, deadline)

    def _same_relation(self, a: Reading, b: Reading, deadline: _Deadline) -> bool:
        if a.kind != b.kind:
            relation, other = (a, b) if a.kind == "relation" else (b, a)
            equation = "=" in relation.body
            ends = other.kind == "list" and len(other.parts) == 2 and other.brackets in ("()", "[]", "(]", "[)")
            # `x > 2` may be an interval, and `2x + y = 5` may be `y = 5 - 2x`; nothing else is comparable.
            if not (other.name is not None if equation else ends or other.kind == "union"):
                return False
        one, another = interval(a), interval(b)
        if (
            one is not None
            and another is not None
            and (None in (one.variable, another.variable) or one.variable == another.variable)
        ):
            return self._same_interval(one, another, deadline)
        decided = same_equation(_equation(a), _equation(b))
        return self._ask(_equation(a), _equation(b), deadline) if decided is None else decided

    def _same_interval(self, a: Interval, b: Interval, deadline: _Deadline) -> bool:
        if (a.closed_low, a.closed_high) != (b.closed_low, b.closed_high):
            return False
        for x, y in ((a.low, b.low), (a.high, b.high)):
            if (x is None) != (y is None) or (x is not None and y is not None and not self._same(x, y, deadline)):
                return False
        return True

    def _same_list(self, a: Reading, b: Reading, deadline: _Deadline) -> bool:
        if a.brackets == b.brackets:
            ordered = a.brackets not in ("", "{}")
        elif "" in (a.brackets, b.brackets) and {a.brackets, b.brackets} <= {"", "()", "{}"}:
            ordered = "{}" not in (a.brackets, b.brackets)
        else:
            return False
        # `6, 5` does not say which is the x of `x = 5, y = 6`; roots x_1, x_2 come in any order.
        if ordered or _are_named(a.parts) != _are_named(b.parts):
            return self._in_order(a.parts, b.parts, deadline)
        return self._matched(_distinct(a.parts), _distinct(b.parts), deadline)

    def _in_order(self, a: tuple[Reading, ...], b: tuple[Reading, ...], deadline: _Deadline) -> bool:
        return len(a) == len(b) and all(self._same(x, y, deadline) for x, y in zip(a, b, strict=True))

    def _matched(self, a: tuple[Reading, ...], b: tuple[Reading, ...], deadline: _Deadline) -> bool:
        """Whether the parts pair up in some order, each used once: `1, 1` is not `1, 2`, nor is it `1`."""
        if len(a) != len(b):
            return False
        rest = list(b)
        unmatched = []
        for part in a:
            index = next((i for i, other in enumerate(rest) if other.text == part.text), None)
            if index is None:
                unmatched.append(part)
            else:
                del rest[index]
        if len(unmatched) > _MAX_UNMATCHED:
            return False
        for part in unmatched:
            index = next((i for i, other in enumerate(rest) if self._same(part, other, deadline)), None)
            if index is None:
                return False
            del rest[index]
        return True

    def _same_scalar(self, a: Reading, b: Reading, deadline: _Deadline) -> bool:
        if a.unit is not None and b.unit is not None and a.unit != b.unit and {a.unit, b.unit} != _BEARING:
            return False
        if a.number is not None and b.number is not None:
            return _same_number(a, b)
        if a.body == b.body:
            return True
        # `\\infty+1` is no number, and an algebra system says it equals `\\infty`.
        if r"\infty" in a.body or r"\infty" in b.body:
            return False
        rounded = _rounds_to(a, b)
        if rounded is not None:
            return rounded
        decided = same_form(a.body, b.body)
        if decided is not None:
            return decided
        for sample in (1, 2):
            left, right = approximate(a.body, sample), approximate(b.body, sample)
            # 1e-9 is far above the rounding of a float and far below any difference an answer would show.
            if left is not None and right is not None and abs(left - right) > 1e-9 * max(abs(left), abs(right)):
                return False
        return self._ask(a.body, b.body, deadline)

    # --- mathematics elsewhere ------------------------------------------------------------------------------

    def _ask(self, a: str, b: str, deadline: _Deadline) -> bool:
        if max(len(a), len(b)) > MAX_EXPRESSION:
            return False
        a, b = _DEGREES.sub(r"\\frac{\1\\pi}{180}", a), _DEGREES.sub(r"\\frac{\1\\pi}{180}", b)
        if not (admissible(a) and admissible(b)) or _differ_in_case(a, b):
            return False
        a, b = sorted((a, b))
        pair = ("symbolic", a, b)
        known = self._recall(pair)
        if known is not None:
            return known
        seconds = deadline.left()
        outcome, spent = self._pool.compare(a, b, seconds) if seconds > 0 else ("timeout", 0.0)
        deadline.spend(spent)
        with self._lock:
            self.symbolic += 1
            self.timeouts += outcome == "timeout"
        self._remember(pair, outcome == "same", len(a) + len(b))
        return outcome == "same"

    def _recall(self, pair: tuple[object, ...]) -> bool | None:
        with self._lock:
            known = self._cache.get(pair)
            if known is not None:
                self._cache.move_to_end(pair)
                self.cache_hits += 1
            return known

    def _remember(self, pair: tuple[object, ...], answer: bool, size: int) -> None:
        if size > _MAX_REMEMBERED:
            return
        with self._lock:
            self._cache[pair] = answer
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)


class _Deadline:
    """Seconds that the symbolic parts of one comparison may still take; starting a worker is not counted."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    def left(self) -> float:
        return self._left

    def spend(self, seconds: float) -> None:
        self._left -= seconds


def _bare(text: str) -> str:
    """The text without what never matters around it, for the commonest case: the same answer, written the same."""
    return text.strip(" $\n").rstrip(".").replace("dfrac{", "frac{") or text


_DECIMAL_COMMA = re.compile(r"-?(?:0,[0-9]{1,18}|[0-9]{3,18},[0-9]{1,2}|[0-9]{1,18},(?:[0-9]{2}|[0-9]{4,18}))")
_DECIMAL_POINT = re.compile(r"-?[0-9]{1,18}\.[0-9]{1,18}")


def _same_digits(a: str, b: str) -> bool:
    """`1000,99` and `1000.99`: a decimal comma, wherever it separates neither thousands nor two small numbers."""
    comma, point = (a, b) if "," in a else (b, a)
    comma, point = comma.strip(" $"), point.strip(" $")
    return (
        _DECIMAL_COMMA.fullmatch(comma) is not None
        and _DECIMAL_POINT.fullmatch(point) is not None
        and comma.replace(",", ".") == point
    )


def _distinct(parts: tuple[Reading, ...]) -> tuple[Reading, ...]:
    """Points listed twice are the same points; numbers listed twice are a double root, or two blanks filled in."""
    if any(part.kind != "list" for part in parts):
        return parts
    return tuple({part.text: part for part in parts}.values())


def _are_named(parts: tuple[Reading, ...]) -> bool:
    """Whether the parts are values of different quantities, not `x_1`, `x_2`, ... in turn."""
    names = [part.name for part in parts]
    if None in names or len(set(names)) < 2:
        return False
    indexed = [re.fullmatch(r"(.+)_\{?(\d)\}?", str(name)) for name in names]
    if not all(indexed):
        return True
    bases = {match.group(1) for match in indexed if match}
    return len(bases) > 1 or [int(match.group(2)) for match in indexed if match] != list(range(1, len(names) + 1))


def _is_rounding(rounded: Reading, exactly: Reading) -> bool:
    """Whether a decimal is what the value before its `\\approx` rounds to."""
    value = approximate(exactly.body, 1) if exactly.kind in ("number", "expression") else None
    if value is None or rounded.number is None or value != approximate(exactly.body, 2):
        return False
    return _is_within_half(value, rounded.number)


def _is_within_half(value: complex, number: Exact) -> bool:
    """Whether a decimal, of any length, is as near to a float as half its last place and the float's own error."""
    if abs(value.imag) > 1e-12 * abs(value):
        return False
    slack = Fraction(1, 2 * 10 ** (number.places or 0)) + Fraction(abs(value.real)) / 10**14
    return abs(Fraction(value.real) - number.value) <= slack


def _body_text(reading: Reading) -> str:
    return reading.text if reading.name is None else reading.text.partition("=")[2]


def _may_name_one(a: str, b: str) -> bool:
    """Whether two names may stand for one quantity: `Area` and `A` may, `k` and `m` or two descriptions may not."""
    if a == b:
        return True
    short, long = sorted((a, b), key=len)
    initials = {"".join(word[0] for word in long.split()), long[0]}
    described = re.fullmatch(r"[a-z.' ]{4,}", long) is not None
    # An unknown called x may be anything that is asked for.
    return described and (
        short == "x" or short.casefold() in initials or short.casefold() in _SYMBOLS.get(long.split()[-1], ())
    )


_SYMBOLS = {
    "slope": ("m", "k"),
    "area": ("s",),
    "perimeter": ("c", "l"),
    "bearing": (r"\theta",),
    "angle": (r"\theta",),
}
"""Letters that usually stand for a described quantity, beside its initials."""


_COMMAND = re.compile(r"\\[A-Za-z]+")


def _differ_in_case(a: str, b: str) -> bool:
    """Whether a letter of one is a capital in the other, which math-verify does not see."""
    one, other = ({char for char in _COMMAND.sub("", text) if char.isalpha()} for text in (a, b))
    return bool({char.swapcase() for char in one - other} & (other - one))


def _equation(reading: Reading) -> str:
    return reading.text if reading.name is not None else reading.body


def _same_number(a: Reading, b: Reading) -> bool:
    assert a.number is not None
    assert b.number is not None
    x, y = a.number, b.number
    if _close(x, y):
        return True
    # 28% is 0.28, and people write 28 for it.
    if (a.unit == "%") != (b.unit == "%"):
        percent, plain = (a, b) if a.unit == "%" else (b, a)
        assert percent.number is not None
        return plain.number is not None and percent.number.value == plain.number.value * 100
    return False


def _close(x: Exact, y: Exact) -> bool:
    if x.value == y.value:
        return True
    if x.places == y.places:
        return False
    # A decimal and a value it cannot write out in full, or two decimals of different length.
    places = min((number.places or 0 for number in (x, y) if _is_rounded(number)), default=None)
    if places is None:
        return False
    if abs(x.value - y.value) <= Fraction(1, 2 * 10**places):
        return True
    # Models cut off as often as they round: 0.666666 is 2/3, though not 0.6666667.
    number, other = (x, y) if x.places is not None else (y, x)
    return other.places is None and int(other.value * 10**places) == number.value * 10**places != 0


def _is_rounded(number: Exact) -> bool:
    """Whether a decimal has enough places, and digits that count, to stand for what it rounds."""
    if number.places is None or number.places < _ROUNDED_PLACES:
        return False
    return abs(number.value) * 10**number.places >= 10 ** (_ROUNDED_PLACES - 1)


def _rounds_to(a: Reading, b: Reading) -> bool | None:
    """Whether a long decimal is the rounding of a constant such as `\\sqrt{2}`; None: no such pair."""
    if (a.number is None) == (b.number is None):
        return None
    number, other = (a.number, b) if a.number is not None else (b.number, a)
    assert number is not None
    if not _is_rounded(number):
        return None
    value, again = approximate(other.body, 1), approximate(other.body, 2)
    if value is None or value != again:
        return None
    assert number.places is not None
    if _is_within_half(value, number):
        return True
    # Cut off rather than rounded; beyond a dozen digits a float does not say where.
    return (
        not value.imag
        and number.places < 14
        and 10.0 ** (number.places + 1) * abs(value) < 1e14
        and int(value.real * 10**number.places) == number.value * 10**number.places
    )
