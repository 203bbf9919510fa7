"""What a grader says about one response."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mmcorl.answers import RELATION

Stage = Literal["no_answer", "rule", "judge", "judge_unclear", "judge_failed"]
McqPolicy = Literal["letter_or_value", "letter_only"]

GRADER = ("mmcorl-grader", f"1.{RELATION[1]}")
"""Name and version, stored beside every score; the version changes with the rules, those of the relation included."""


@dataclass(frozen=True)
class Verdict:
    """`correct` is `rule or (committed and not cut_off and judge)`, whatever a judge says."""

    correct: bool
    stage: Stage
    """`no_answer`: no commitment, or cut off (never judged). `rule`: the rules decided (or no judge was asked).
    `judge`: a judge decided. `judge_unclear`: the judge answered off its menu. `judge_failed`: it did not answer."""
    answer: str | None
    """The extracted answer."""
    reason: str
    """A few words for people: which rule, or the judge's word."""
    rule: bool
    """Whether the rules alone credit it."""
    committed: bool
    cut_off: bool

    def __post_init__(self) -> None:
        # What nobody may break, whoever builds a verdict: only a committed, complete answer is ever right, a rule's
        # credit stands, and everything else that is right was said to be so by a judge.
        assert self.committed == (self.answer is not None), self
        assert not (self.committed and self.cut_off), self
        assert self.committed or not (self.rule or self.correct), self
        assert self.correct == (self.rule or (self.stage == "judge" and self.correct)), self
        assert (self.stage == "no_answer") == (not self.committed), self
        assert not self.rule or self.stage == "rule", self
