"""Items whose answers are no mathematics: read as texts or places, and scored by a relation or an official metric."""

from __future__ import annotations

import re
import threading
from contextlib import ExitStack
from itertools import islice
from typing import Any, Literal

from mmcorl.answers.extract import Extraction, Mode, extract
from mmcorl.answers.regions import Canonical, Form, read_answer, read_places
from mmcorl.answers.relation_base import LONGEST, Relation
from mmcorl.answers.relation_table import RELATIONS, open_relation
from mmcorl.answers.thinking import without_thoughts
from mmcorl.errors import UserError
from mmcorl.grading.items import Item, Response
from mmcorl.grading.official_metrics import METRICS
from mmcorl.grading.rules import TOO_LONG, RuleResult, without_answer

_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
_ESCAPED = re.compile(r"\\([%$#&_])")
_BRACKETS = 64
"""Brackets in which the first place of a response has to end."""


class Relations:
    """The relations of items, each opened once; a context manager, usable from any thread.

    `mathematics`: the relation of items that name none; by default opened like the others.
    """

    def __init__(self, mathematics: Relation | None = None) -> None:
        self._open: dict[tuple[str, float | None], Any] = {}
        self._stack = ExitStack()
        self._lock = threading.Lock()
        if mathematics is not None:
            self._open["math", None] = mathematics

    def __enter__(self) -> Relations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what the relations hold."""
        with self._lock:
            self._stack.close()
            self._open.clear()

    def of(self, item: Item) -> Any:
        """Return the relation by which answers to an item are compared and vote."""
        name = item.relation or "math"
        key = name, None if item.metric else item.threshold
        with self._lock:
            if key not in self._open:
                self._open[key] = self._stack.enter_context(open_relation(name, threshold=key[1]))
            return self._open[key]


def form_of(item: Item) -> Form | None:
    """Return what answers to an item are, where they are places in a picture."""
    return None if item.relation is None else RELATIONS.find(item.relation).form


def how_compared(item: Item) -> str:
    """Return in words when two answers to an item are the same."""
    if item.relation is None:
        return "by mmcorl.answers.Equivalence, the relation that also votes and grades"
    row = RELATIONS.find(item.relation)
    if not row.graded:
        return f"by relation {row.name}: {row.help}"
    threshold = row.threshold if item.threshold is None or item.metric else item.threshold
    return f"by relation {row.name}: {row.measure} of at least {threshold:g}"


def apply_relation(item: Item, response: Response, relation: Relation) -> RuleResult:
    """Return the result for one response to an item that has a relation.

    Raises UserError where the answer is a place and nobody says in which coordinates the model wrote it.
    """
    answer, source = read_alike(item, response)
    if answer is None:
        return without_answer(source, 0.0)
    score, right = score_of(answer, item, relation)
    shown = "right" if right else TOO_LONG if len(answer) > LONGEST else "wrong"
    if 0 < score < 1:
        shown = f"{score:.3f}, {shown}"
    return RuleResult(answer, True, False, right, f"by {item.metric or item.relation}: {shown}", score)


def score_of(answer: str, item: Item, relation: Relation) -> tuple[float, bool]:
    """Return the score of an answer, 0.0 to 1.0, against the closest known one, and whether it is right."""
    known = [gold for gold in (item.gold, *item.accepted) if gold]
    if not known:
        return 0.0, False
    if item.metric is None or len(answer) > LONGEST:
        score = max(relation.similarity(answer, gold, item.choices) for gold in known)
        return score, any(relation.same(answer, gold, item.choices) for gold in known)
    metric = METRICS[item.metric]
    score = metric.score(answer, known)
    return score, score >= (metric.threshold if item.threshold is None else item.threshold)


def read_alike(item: Item, response: Response) -> tuple[str | None, str]:
    """Return the answer of a response, places in their canonical form, and where it was found."""
    assert item.relation is not None
    reason: Literal["stop", "length"] = "length" if response.finish_reason == "length" else "stop"
    mode: Mode = "whole" if item.reading == "whole" else "commit"
    form = form_of(item)
    if form is not None:
        if response.coordinates is None:
            raise UserError(
                f"answers to {item.benchmark} are places in a picture, and nothing says how the model writes them: "
                "name it with `coordinates`, such as thousandths"
            )
        from model_adapters.coordinates import Coordinates  # whose name a folder of the user's may hide

        right, bottom, order = response.coordinates
        canonical = Coordinates(right, bottom, "yx" if order == "yx" else "xy").canonical
        region = read_answer(response.text, reason, mode, form, canonical, thinking=response.thinking)
        if region is None and item.reading == "first_place":
            region = _first_place(
                extract(response.text, reason, "whole", thinking=response.thinking).answer or "", form, canonical
            )
        return region, "" if region is not None else extract(
            response.text, reason, mode, thinking=response.thinking
        ).source
    if item.reading == "verbatim":
        extraction = _verbatim(response.text, reason, response.thinking)
    else:
        extraction = extract(response.text, reason, mode, thinking=response.thinking)
    answer = extraction.answer
    return answer if answer is None or extraction.source != "boxed" else _without_latex(answer), extraction.source


def _without_latex(answer: str) -> str:
    """Return the text of a box: `\\text{Yes}` is Yes, and `12\\%` is 12%."""
    return _ESCAPED.sub(r"\1", _TEXT.sub(r"\1", answer)).strip()


def _first_place(text: str, form: Form, canonical: Canonical) -> str | None:
    """Return the first of several places, in the order they were written."""
    ends = (match.end() for match in islice(re.finditer(r"[\])}]", text), _BRACKETS))
    return next((region for end in ends if (region := read_places(text[:end], form, canonical)) is not None), None)


def _verbatim(text: str, finish_reason: Literal["stop", "length"], thinking: bool) -> Extraction:
    """Return all that follows the thinking, as it stands."""
    rest, drafting = without_thoughts(text, thinking)
    answer = rest.strip()
    if drafting and not answer:
        return Extraction(None, "cut_off" if finish_reason == "length" else "unclosed")
    return Extraction(answer or None, "whole" if answer else "none")
