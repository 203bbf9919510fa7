"""The verdict on one response, and the grader's name and version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcorl.answers import RELATION

Stage = Literal["no_answer", "rule", "judge", "judge_unclear", "judge_failed"]

GRADER = ("mmcorl-grader", f"1.{RELATION[1]}")
"""Name and version, stored with every score; the version changes with the rules and the relation."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of grading, true where `correct` is: `rule or (committed and not cut_off and judge)`."""

    correct: bool
    stage: Stage
    """`no_answer`: no answer, or cut off (never judged). `rule`: decided by rules, or without a judge. `judge`: decided
    by a judge. `judge_unclear`: the judge gave no verdict. `judge_failed`: the judge did not answer."""
    answer: str | None
    """The extracted answer."""
    reason: str
    """A few words for people: the rule or the judge's verdict."""
    rule: bool
    """Whether the rules alone credit it."""
    committed: bool
    cut_off: bool
    """The token limit ended it before an answer."""
    unclosed: bool = False
    """It ended by itself in a tag, box, fence or think block that never closes, before an answer."""
    score: float | None = None
    """Where a partial score was asked for: 1.0 if correct, else the share of the gold's parts that are right."""

    def __bool__(self) -> bool:
        return self.correct

    def __post_init__(self) -> None:
        # Only a committed, complete answer can be correct, a rule's credit stands, and only a judge credits the rest.
        assert self.committed == (self.answer is not None), self
        assert self.committed + self.cut_off + self.unclosed <= 1, self
        assert self.committed or not (self.rule or self.correct), self
        assert self.correct == (self.rule or (self.stage == "judge" and self.correct)), self
        assert (self.stage == "no_answer") == (not self.committed), self
        assert not self.rule or self.stage == "rule", self
