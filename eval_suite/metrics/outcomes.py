"""The grade of every response: the rules' verdict and the judge's, joined by (benchmark, id, sample).

The one place where `final = rule or (committed and not cut_off and judge)` is computed from the files.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from eval_suite.items import Item, Response
from eval_suite.sandbox.behaviour import ProgramVote
from mmcorl.errors import UserError

Key = tuple[str, str, int]
"""(benchmark, item id, sample)."""
JudgeWord = Literal["yes", "no", "unclear", "failed"]


def key_of(row: Mapping[str, Any]) -> Key:
    """Return the key of a line of responses.jsonl, rule.jsonl, judge.jsonl or behaviour.jsonl."""
    return row["benchmark"], row["id"], row["sample"]


class Keys:
    """A set of keys, at a byte for each sample of an item."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._samples: dict[tuple[str, str], bytearray] = {}
        for key in keys:
            self.add(key)

    def add(self, key: Key) -> bool:
        """Add a key; return whether it is new."""
        if new := key not in self:
            held = self._samples.setdefault(key[:2], bytearray())
            held.extend(bytes(max(0, key[2] + 1 - len(held))))
            held[key[2]] = 1
        return new

    def __contains__(self, key: Key) -> bool:
        held = self._samples.get(key[:2], b"")
        return key[2] < len(held) and held[key[2]] == 1

    def __iter__(self) -> Iterator[Key]:
        return ((*place, n) for place, held in self._samples.items() for n, has in enumerate(held) if has)

    def __len__(self) -> int:
        return sum(map(sum, self._samples.values()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """One response, or the place where one is missing."""

    benchmark: str
    id: str
    sample: int
    correct: bool
    """`rule or (committed and not cut_off and judge == "yes")`."""
    rule: bool
    committed: bool
    cut_off: bool
    answer: str | None
    judge: JudgeWord | None = None
    """The judge's latest word; None when it was not asked."""
    reason: str = ""
    missing: bool = False
    """There is no response; it counts as wrong."""
    program: ProgramVote | None = None
    """How a program votes; None for what is no code, and for code that was not run on its examples."""

    @property
    def key(self) -> Key:
        """(benchmark, item id, sample)."""
        return self.benchmark, self.id, self.sample

    @property
    def vote(self) -> str | None:
        """The answer as far as it may vote: a response that was cut off or never committed has no vote."""
        return self.answer if self.committed and not self.cut_off else None


def outcomes_of(
    items: Iterable[Item],
    responses: Iterable[Response],
    rule_rows: Iterable[Mapping[str, Any]],
    judge_rows: Iterable[Mapping[str, Any]] = (),
    behaviour_rows: Iterable[Mapping[str, Any]] = (),
    *,
    samples: Mapping[str, int] | None = None,
) -> list[Outcome]:
    """Return one outcome per item and sample, in item order; a missing response counts as wrong.

    `rule_rows`, `judge_rows`: lines of rule.jsonl and judge.jsonl; of several lines with one key the last
    holds (a failed judge call is asked again). `behaviour_rows`: lines of behaviour.jsonl, which let programs
    vote. `samples`: responses due per item by benchmark; by default
    the largest number that any item of the benchmark has.

    Raises:
        UserError: a response of an unknown item, two responses under one key, or a response without a line in
            rule.jsonl.
    """
    items = list(items)
    known = {(item.benchmark, item.id): item for item in items}
    given = Keys()
    most: dict[str, int] = {}
    for response in responses:
        benchmark, id, sample = response.benchmark, response.id, response.sample
        if (benchmark, id) not in known:
            raise UserError(
                f"a response answers item {id!r} of {benchmark}, which is not among the items: "
                "score the responses with the items they were made for"
            )
        if not given.add((benchmark, id, sample)):
            raise UserError(f"sample {sample} of item {id!r} of {benchmark} appears twice: number samples 0, 1, 2, ...")
        most[benchmark] = max(most.get(benchmark, 1), sample + 1)
    due = most if samples is None else samples
    programs = {key_of(row): ProgramVote(row["outputs"], row["tree"]) for row in behaviour_rows}
    words: dict[tuple[str, str], dict[int, JudgeWord]] = {}
    for row in judge_rows:
        words.setdefault((row["benchmark"], row["id"]), {})[row["sample"]] = row["verdict"]
    # There may be millions: outcomes share what they can.
    graded: dict[tuple[str, str], list[Outcome | None]] = {place: [] for place in known}
    for row in rule_rows:
        key = key_of(row)
        if key not in given:
            continue
        item, held = known[key[:2]], graded[key[:2]]
        held.extend([None] * (key[2] + 1 - len(held)))
        committed, cut_off, by_rule = bool(row["committed"]), bool(row["cut_off"]), bool(row["rule"])
        word = words.get(key[:2], {}).get(key[2])
        held[key[2]] = Outcome(
            item.benchmark,
            item.id,
            key[2],
            correct=by_rule or (committed and not cut_off and word == "yes"),
            rule=by_rule,
            committed=committed,
            cut_off=cut_off,
            answer=row["answer"],
            judge=word,
            reason=sys.intern(str(row.get("reason", ""))),
            program=programs.get(key),
        )
    ungraded = len(given) - sum(outcome is not None for held in graded.values() for outcome in held)
    if ungraded:
        raise UserError(f"{ungraded} of {len(given)} responses have not been graded: run `mmcorl grade` on the folder")
    outcomes = []
    for item in items:
        held = graded[item.benchmark, item.id]
        for sample in range(due.get(item.benchmark, 1)):
            outcome = held[sample] if sample < len(held) else None
            if outcome is None:
                outcome = Outcome(item.benchmark, item.id, sample, False, False, False, False, None, missing=True)
            outcomes.append(outcome)
    return outcomes


def pool(runs: Sequence[Sequence[Outcome]]) -> list[Outcome]:
    """Merge the responses of several checkpoints to the same items as if one had given them all.

    The paper's matched-budget ensemble: four of each of two checkpoints make eight votes. Samples are
    numbered run after run, so a tie that the first answer seen decides favours the first checkpoint.

    Raises:
        UserError: fewer than two runs, or runs that differ in items or in responses per item.
    """
    if len(runs) < 2:
        raise UserError("an ensemble needs the responses of two checkpoints or more: give another evaluation")
    first = [(outcome.benchmark, outcome.id, outcome.sample) for outcome in runs[0]]
    for number, run in enumerate(runs[1:], 2):
        if sorted(outcome.key for outcome in run) != sorted(first):
            raise UserError(
                f"evaluations 1 and {number} of the ensemble differ in items or in responses per item "
                f"({len(first)} and {len(run)} responses): evaluate both with the same items and samples"
            )
    count: dict[str, int] = {}
    for benchmark, _, sample in first:
        count[benchmark] = max(count.get(benchmark, 0), sample + 1)
    by_key = [{outcome.key: outcome for outcome in run} for run in runs]
    pooled = []
    for key in (key for key in first if key[2] == 0):
        size = count[key[0]]
        for number, run_outcomes in enumerate(by_key):
            for sample in range(size):
                outcome = run_outcomes[(key[0], key[1], sample)]
                pooled.append(replace(outcome, sample=number * size + sample))
    return pooled
