"""What every benchmark becomes before anything is generated or graded: a list of items.

Items are frozen inputs. They carry all that grading needs, so responses can be graded again on any machine,
without the model, the images or the network.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Literal

McqPolicy = Literal["letter_or_value", "letter_only"]
"""What credits a choice: its letter or its value, or only its letter."""

GradedReading = Literal["commitment", "prose"]
"""What an answer is read from: answer tags and boxes alone, or sentences as well (`mmcorl.answers.prose`)."""

NO_META: Mapping[str, Any] = {}
"""Shared by all items without such fields, of which there may be millions."""


@dataclass(frozen=True, slots=True)
class Item:
    """One problem of one benchmark."""

    benchmark: str
    """Name in `eval_suite.benchmarks.tasks.BENCHMARKS`."""
    id: str
    """Unique within the benchmark; responses, verdicts and scores are joined by it, never by position."""
    question: str
    """What the model reads (without the instruction for the answer format), options included. Images stand at its
    `<image>`, or in front."""
    gold: str
    """The known answer, cleaned once at load: no dollars, no box, no `label =`, no mojibake."""
    images: tuple[bytes, ...] = ()
    """Encoded image files in reading order; empty for text."""
    choices: tuple[str, ...] | None = None
    """Option values in order A, B, C, ...; None for free form."""
    question_for_eval: str | None = None
    """What a judge reads when it differs from `question` (MathVerse's Vision Only has no question text)."""
    group: str | None = None
    """Items that are not independent share it (MathVerse problem, We-Math group); intervals cluster by it."""
    kind: Literal["math", "code"] = "math"
    precision: int | None = None
    """Decimals to which a numeric answer is rounded before comparison (MathVista)."""
    answer_type: Literal["integer", "float", "list", "text"] | None = None
    """Typed comparison (MathVista); None compares as mathematics."""
    unit: str | None = None
    """Unit asked for, for the prompt."""
    relative_tolerance: float | None = None
    """Relative tolerance of a numeric answer (SciBench: 0.05)."""
    absolute_tolerance: float | None = None
    """Accepted difference of a numeric answer (DynaMath: 0.001)."""
    relation: str | None = None
    """How answers are compared, a row of `mmcorl.answers.relation_table.RELATIONS`; None: as mathematics, by the rules.
    Places are in thousandths of the picture (`mmcorl.answers.regions`), the known answer, too."""
    threshold: float | None = None
    """From which score on an answer is right; None: the relation's or the metric's own."""
    metric: str | None = None
    """A row of `mmcorl.grading.official_metrics.METRICS` that scores an answer in place of its similarity under
    `relation`, by which it still votes."""
    accepted: tuple[str, ...] = ()
    """Further answers that are as right as `gold`, where `relation` is set."""
    reading: Literal["commitment", "last_number", "whole", "verbatim", "first_place"] = "commitment"
    """What the answer of a response is: what it commits to; its last number; what it commits to or, without tags and
    box, all that follows its thinking; all that follows its thinking, boxes and all; or of several places the first."""
    shots: tuple[tuple[str, str], ...] = ()
    """Solved problems or earlier turns before the question: what the user asks and what the assistant answers."""
    system: str | None = None
    """System message of one's own row, which one that is set for the evaluation replaces."""
    answer_prefix: str = ""
    """Words that begin the answer for the model; no part of its response."""
    stops: tuple[str, ...] = ()
    """Where a response ends for the grader: what a base model goes on to write after its answer."""
    meta: Mapping[str, Any] = field(default_factory=lambda: NO_META)
    """Fields for sub-scores: subject, level, version, task, skills, tests of a coding problem, ..."""

    @property
    def key(self) -> tuple[str, str]:
        """(benchmark, id)."""
        return self.benchmark, self.id

    @property
    def cluster(self) -> tuple[bool, str]:
        """Unit that is independent of all others: its group, else itself."""
        return (False, self.id) if self.group is None else (True, self.group)

    @property
    def for_judge(self) -> str:
        """The question as a judge reads it."""
        return self.question if self.question_for_eval is None else self.question_for_eval

    @property
    def may_be_judged(self) -> bool:
        """True unless its answers are programs or compared by a relation: no judge is asked about these."""
        return self.kind != "code" and self.relation is None

    @property
    def fingerprint(self) -> str:
        """Hash of everything a response or a verdict depends on."""
        parts: tuple[str, ...] = (self.benchmark, self.id, self.question, self.gold, self.for_judge, repr(self.choices))
        if self.shots or self.answer_prefix:
            parts += (repr(self.shots), self.answer_prefix)
        if self.system:
            parts += (self.system,)
        if self.relation is not None:
            parts += (self.relation, repr(self.threshold), repr(self.metric), repr(self.accepted))
        digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass"))
        for image in self.images:
            digest.update(hashlib.sha256(image).digest())
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Response:
    """One completion of one item, as it stands in responses.jsonl."""

    benchmark: str
    id: str
    sample: int
    """0-based number of the sample; 0 for greedy."""
    text: str
    finish_reason: Literal["stop", "length", "unknown"] = "unknown"
    tokens: int | None = None
    coordinates: tuple[float, float, str] | None = None
    """How the model writes places in the picture: x at the right edge, y at the lower one, and `xy` or `yx`. Kept where
    answers are places, so that they can be graded again without the model and the picture."""
    thinking: bool = False
    """Whether the prompt opened a thought, which the text continues: it has the closing mark alone, or none."""

    def as_row(self) -> dict[str, Any]:
        """Return a line of responses.jsonl; coordinates and thinking only where they say something."""
        row = dict(vars(self))
        return {name: row[name] for name in row if name not in ("coordinates", "thinking") or row[name]}


Key = tuple[str, str, int]
"""(benchmark, item id, sample)."""


key_of: Callable[[Mapping[str, Any]], Key] = itemgetter("benchmark", "id", "sample")
"""Return the key of a line of responses.jsonl, rule.jsonl, judge.jsonl or behaviour.jsonl."""
item_key: Callable[[Mapping[str, Any]], tuple[str, str]] = itemgetter("benchmark", "id")
"""Return the key of the item that a line of any of an evaluation's files is about."""


class Keys:
    """A set of keys, at a bit for each sample of an item."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._samples: dict[str, dict[str, int]] = {}
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> bool:
        """Add a key; return whether it is new."""
        if new := key not in self:
            held = self._samples.setdefault(key[0], {})
            held[key[1]] = held.get(key[1], 0) | 1 << key[2]
        return new

    def __contains__(self, key: Key) -> bool:
        return self._samples.get(key[0], {}).get(key[1], 0) >> key[2] & 1 == 1

    def __iter__(self) -> Iterator[Key]:
        for benchmark, held in self._samples.items():
            for id, bits in held.items():
                yield from ((benchmark, id, n) for n, bit in enumerate(bin(bits)[:1:-1]) if bit == "1")

    def counts(self, benchmark: str) -> dict[str, int]:
        """Return how many samples each item of a benchmark has."""
        return {id: bits.bit_count() for id, bits in self._samples.get(benchmark, {}).items()}

    def __len__(self) -> int:
        return sum(bits.bit_count() for held in self._samples.values() for bits in held.values())
