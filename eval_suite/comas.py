"""Several drafts, one answer: majority, behaviour vote, sixth call, and the pass@k that a sixth call can hide.

CoMAS (arXiv 2510.08529) draws five drafts and grades a sixth text that reads them; for code its grader runs every
block of that text, so quoting five drafts scores pass@5. Here the sixth text gives one program like any other, and
the replacement for code is a vote: programs that act alike on the public examples are one candidate. Every score
names its aggregation, because the four are different numbers.

Public examples only: docstring `>>>` calls of HumanEval, the assertions of MBPP but the last with expected values
taken away, LiveCodeBench's public inputs. Inputs never come from hidden tests.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from eval_suite.code.sandbox import Sandbox
from eval_suite.code.task import Reading, task_of
from eval_suite.items import Item, Response
from mmcorl.answers import extract
from mmcorl.errors import Refused
from mmcorl.voting import Relation

DRAFTS = 5
TEMPERATURE = 0.7
TOP_P = 0.95

By = Literal["relation", "behaviour", "syntax", "nothing"]


@dataclass(frozen=True)
class Election:
    """Which draft speaks for all."""

    index: int | None
    """The first member of the largest cluster; None when no draft commits to an answer."""
    clusters: tuple[tuple[int, ...], ...]
    """Drafts that give one answer, largest cluster first, ties in order of their first members."""
    by: By
    """What made drafts the same: the answer relation, what programs do, or, where none runs, their syntax trees."""


@dataclass(frozen=True)
class Aggregated:
    """One item under one aggregation."""

    benchmark: str
    id: str
    aggregation: str
    """`maj@5`, `pass@5` or `sixth_call`."""
    correct: bool
    index: int | None
    """The draft that was graded; None for pass@k, the sixth call, and where nothing was elected."""
    by: By | None
    """How the drafts were compared; None where they were not."""


def elect(item: Item, drafts: Sequence[Response], relation: Relation, sandbox: Sandbox | None = None) -> Election:
    """The draft that the largest cluster of drafts agrees with; coding items need a sandbox.

    Answers of mathematics and multiple choice are compared by the run's relation, programs by what they do.
    """
    _check(item, drafts)
    if item.kind == "code":
        if sandbox is None:
            raise Refused(
                f"voting on {item.benchmark} runs the drafts, which is off: allow it with --run-code (run_code=True)"
            )
        return _elect_program(item, drafts, sandbox)
    answers = [extract(draft.text, "length" if draft.finish_reason == "length" else "stop").answer for draft in drafts]
    return _largest(relation.classes(answers, item.choices), "relation")


def _elect_program(item: Item, drafts: Sequence[Response], sandbox: Sandbox) -> Election:
    task = task_of(item)
    readings = [task.read(item, draft) for draft in drafts]
    seen: dict[str, Hashable] = {}
    behaviours: list[Hashable] = []
    for reading in readings:
        key = "" if reading.program is None else reading.program.source
        if reading.program is not None and key not in seen:
            behaviour = task.observe(item, reading.program, sandbox)
            seen[key] = behaviour.outputs if behaviour.ran else None
        behaviours.append(seen.get(key))
    if any(behaviour is not None for behaviour in behaviours):
        return _largest(behaviours, "behaviour")
    trees = [_tree(reading) for reading in readings]
    return _largest(trees, "syntax" if any(tree is not None for tree in trees) else "nothing")


def _tree(reading: Reading) -> str | None:
    """The syntax tree of a program without places, so that layout and comments do not count."""
    if reading.program is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.dump(ast.parse(reading.program.source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _largest(labels: Sequence[Hashable | None], by: By) -> Election:
    """Elect by equal labels; None has no vote."""
    members: dict[Hashable, list[int]] = {}
    for index, label in enumerate(labels):
        if label is not None:
            members.setdefault(label, []).append(index)
    # Sorting is stable, so clusters of one size stay in the order of their first members.
    clusters = tuple(sorted(map(tuple, members.values()), key=lambda cluster: -len(cluster)))
    return Election(clusters[0][0] if clusters else None, clusters, by if clusters else "nothing")


def majority_at_k(
    item: Item,
    drafts: Sequence[Response],
    correct: Callable[[Response], bool],
    relation: Relation,
    sandbox: Sandbox | None = None,
) -> Aggregated:
    """maj@k: grade the elected draft alone; nothing elected is incorrect."""
    election = elect(item, drafts, relation, sandbox)
    right = election.index is not None and correct(drafts[election.index])
    return Aggregated(item.benchmark, item.id, f"maj@{len(drafts)}", right, election.index, election.by)


def pass_at_k(item: Item, drafts: Sequence[Response], correct: Callable[[Response], bool]) -> Aggregated:
    """pass@k with k drafts: whether any of them is correct. Needs the gold, so no user could act on it."""
    _check(item, drafts)
    right = any(correct(draft) for draft in drafts)
    return Aggregated(item.benchmark, item.id, f"pass@{len(drafts)}", right, None, None)


def sixth_call(item: Item, sixth: Response, correct: Callable[[Response], bool]) -> Aggregated:
    """CoMAS' own form: only the text that read the drafts is graded, and of it one answer or one program."""
    _check(item, [sixth])
    return Aggregated(item.benchmark, item.id, "sixth_call", correct(sixth), None, None)


def sixth_prompt(question: str, drafts: Sequence[str]) -> str:
    """What the sixth call reads: the task, the drafts, the request to finish, in CoMAS' words.

    `question` is the whole prompt the drafts answered, with its request for a format.
    """
    if not drafts:
        raise Refused("a sixth call reads drafts, and there are none: sample some first")
    solutions = "".join(f"[Solution {number}]:\n{draft}\n\n" for number, draft in enumerate(drafts, 1))
    return (
        f"[Task]:\n{question}\n\n{solutions}Given the task and all the above solutions, reason over them carefully "
        "and provide a final answer to the task."
    )


def _check(item: Item, drafts: Sequence[Response]) -> None:
    if not drafts:
        raise Refused(f"{item.benchmark} {item.id} has no drafts to choose from: generate {DRAFTS}")
    strangers = [draft for draft in drafts if (draft.benchmark, draft.id) != (item.benchmark, item.id)]
    if strangers:
        raise ValueError(f"a draft of {strangers[0].benchmark}/{strangers[0].id} among those of {item.id}")
