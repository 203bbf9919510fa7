"""We-Math's four-way score: does a model that solves a composite problem also know its steps?

For a group with sub-answers s_1..s_n and composite answer m (We-Math, evaluation/four_dimensional_metrics.py):

    state                               strict              loose
    IK  insufficient knowledge          not all s, not m    same
    IG  inadequate generalisation       all s, not m        same
    CM  complete mastery                all s, m            any s, m
    RM  rote memorisation               not all s, m        no s, m

IK, IG and CM are shares of the groups, RM is RM / (CM + RM), and the score is (CM + IG / 2) / groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FourWay:
    """Groups by state, and what follows from them."""

    insufficient_knowledge: int
    inadequate_generalisation: int
    complete_mastery: int
    rote_memorisation: int

    @property
    def groups(self) -> int:
        return (
            self.insufficient_knowledge
            + self.inadequate_generalisation
            + self.complete_mastery
            + self.rote_memorisation
        )

    @property
    def points(self) -> float:
        """Numerator of the score: a group mastered counts one, one not generalised a half."""
        return self.complete_mastery + 0.5 * self.inadequate_generalisation

    @property
    def composite_right(self) -> int:
        """Groups whose composite answer is right: what rote memorisation is a share of."""
        return self.complete_mastery + self.rote_memorisation

    @property
    def score(self) -> float | None:
        """Official score in [0, 1]; None without groups."""
        return self.points / self.groups if self.groups else None

    @property
    def rote_rate(self) -> float | None:
        """Share of rote memorisation; None where no composite answer is right (the official script divides by 0)."""
        return self.rote_memorisation / self.composite_right if self.composite_right else None


def four_way(groups: Iterable[tuple[Sequence[bool], bool]], *, loose: bool) -> FourWay:
    """Count complete groups of (sub-answers right, composite answer right) by state."""
    counts = {"ik": 0, "ig": 0, "cm": 0, "rm": 0}
    for steps, composite in groups:
        if not steps:
            raise ValueError("a group has no sub-answers")
        knows = any(steps) if loose and composite else all(steps)
        counts[("cm" if knows else "rm") if composite else ("ig" if knows else "ik")] += 1
    return FourWay(counts["ik"], counts["ig"], counts["cm"], counts["rm"])
