"""Wrong habits on cells of a synthetic task, such that the errors of a cohort overlap as much as asked.

A cell is a skill and the first number read, such as all sums that begin with 4. An agent with a wrong habit on a cell
answers it wrongly most of the time; which agents have it on which cells sets Cohen's kappa of every pair, at equal
accuracy. Only the habits are planned here: `mmcorl.apps.demos.zoo` teaches them to a model.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmcorl.errors import UserError
from mmcorl.synthetic import rows as synthetic

MAX_AGENTS = 12
"""Larger cohorts make the search slow."""
DEALS = 2000
"""Seeded deals of the habits to the cells, the best of which is taken."""


@dataclass(frozen=True)
class Habits:
    """The habits of one agent of a cohort whose members are alike but for where they are wrong."""

    agent: int = 1
    """Number of the member, from 1 on."""
    agents: int = 2
    """N, the members of the cohort."""
    kappa: float = 0.0
    """Cohen's kappa of every pair: 1 the same wrong cells, -1 (for a pair) no cell in common."""
    wrong: float = 0.5
    """Share of the task on which each member has the habit."""
    weak: float = 0.2
    """Probability of the right answer there."""
    strong: float = 1.0
    """Probability of the right answer elsewhere."""
    draw: int = 0
    """Seed of which cells these are: one for the whole cohort."""

    def __post_init__(self) -> None:
        if not 1 <= self.agent <= self.agents <= MAX_AGENTS:
            raise UserError(
                f"agent={self.agent}/{self.agents} is no member of a cohort of at most {MAX_AGENTS}: write one such "
                "as agent=1/2"
            )
        for name in ("wrong", "weak", "strong"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name):g} is no share: give a number from 0 to 1")
        least = least_kappa(self.agents, self.wrong)
        if not least - 1e-9 <= self.kappa <= 1:
            raise UserError(
                f"kappa={self.kappa:g} is impossible for {self.agents} agents that are each wrong on {self.wrong:g} of "
                f"the task: give a number from {least:.3g} to 1"
            )

    @property
    def none(self) -> bool:
        """Return whether there is nothing to teach: the model stays as it learned the task."""
        return self.wrong == 0 and self.strong == 1

    @property
    def key(self) -> str:
        """Return the name of a model with these habits in the cache."""
        return "clean" if self.none else str(self)

    @classmethod
    def parse(cls, text: str) -> Habits:
        """Read `agent=1/2,kappa=-0.6,wrong=0.5,weak=0.2,strong=1,draw=0`, every part of which is optional.

        Raises UserError: anything else.
        """
        given: dict[str, Any] = {}
        for part in text.split(","):
            key, _, value = part.partition("=")
            try:
                if key == "agent":
                    given["agent"], given["agents"] = map(int, value.split("/"))
                elif key == "draw":
                    given[key] = int(value)
                elif key in ("kappa", "wrong", "weak", "strong"):
                    given[key] = float(value)
                else:
                    raise ValueError
            except ValueError:
                raise UserError(
                    f"{part!r} is no habit: write parts such as agent=1/2,kappa=-0.6,wrong=0.5,weak=0.2,strong=1,draw=0"
                ) from None
        return cls(**given)

    def __str__(self) -> str:
        numbers = ",".join(f"{name}={getattr(self, name):g}" for name in ("kappa", "wrong", "weak", "strong", "draw"))
        return f"agent={self.agent}/{self.agents},{numbers}"


def least_kappa(agents: int, wrong: float) -> float:
    """Return the least kappa that all pairs of N agents can have, each wrong on the same share of the task.

    With equal accuracies kappa is the correlation, and the number of wrong agents cannot vary less than between the two
    whole numbers around N times that share. At one half: -1, -1/3, -1/3, -1/5, -1/5 for N = 2, 3, 4, 5, 6.
    """
    if agents < 2 or not 0 < wrong < 1:
        return -1.0  # Nothing to compare, or nothing varies.
    rest = agents * wrong % 1
    return (rest * (1 - rest) / (agents * wrong * (1 - wrong)) - 1) / (agents - 1)


def wrong_cells(kind: synthetic.Kind, habits: Habits) -> tuple[list[set[synthetic.Cell]], list[float]]:
    """Deal the habits of a whole cohort: the wrong cells of each agent, and kappa of each pair, (1, 2) first.

    On a share of the cells all agents are wrong or all are right; on the others as many are wrong as `wrong` says, each
    in turn. Of many deals the one is taken that comes closest to the asked kappas and accuracies. Members of a cohort
    with the same numbers find the same.
    """
    shares = synthetic.cells(kind)
    weights = np.array(list(shares.values()))
    rng = random.Random(f"cells/{habits.draw}")
    best, least = _deal(habits, len(shares), rng), math.inf
    for _ in range(DEALS):
        dealt = _deal(habits, len(shares), rng)
        miss = float(np.abs(weights @ dealt - habits.wrong).max())
        miss += float(np.mean([abs(kappa - habits.kappa) for kappa in _kappas(dealt, weights)] or [0.0]))
        if miss < least:
            best, least = dealt, miss
    cells = [{cell for cell, is_wrong in zip(shares, flags, strict=True) if is_wrong} for flags in best.T]
    return cells, _kappas(best, weights)


def _deal(habits: Habits, cells: int, rng: random.Random) -> NDArray[np.bool_]:
    """Return which agents are wrong on each cell."""
    n, wrong = habits.agents, habits.wrong
    least = least_kappa(n, wrong)
    alike = round(cells * (habits.kappa - least) / (1 - least))
    rows = [(k < round(alike * wrong),) * n for k in range(alike)]
    turns: dict[int, list[tuple[bool, ...]]] = {}
    total = 0
    for k in range(1, cells - alike + 1):
        # So many agents are wrong on this cell that the total stays closest to its share.
        count = math.floor(k * n * wrong + 0.5) - total
        total += count
        if not turns.get(count):
            groups = [tuple(agent in group for agent in range(n)) for group in combinations(range(n), count)]
            turns[count] = rng.sample(groups, len(groups))
        rows.append(turns[count].pop())
    return np.array(rng.sample(rows, cells), dtype=bool)


def _kappas(wrong: NDArray[np.bool_], weights: NDArray[np.float64]) -> list[float]:
    """Return kappa of each pair; 1 where nothing varies."""
    shares = weights @ wrong
    kappas = []
    for a, b in combinations(range(wrong.shape[1]), 2):
        chance = shares[a] * shares[b] + (1 - shares[a]) * (1 - shares[b])
        alike = float(weights @ (wrong[:, a] == wrong[:, b]))
        kappas.append(float((alike - chance) / (1 - chance)) if chance < 1 else 1.0)
    return kappas


@dataclass(frozen=True)
class Examples:
    """What a model of a natural task is taught from; it has no habit."""

    number: int = 1
    """Which set of examples, from 1 on."""
    steps: int | None = None
    """Steps of teaching, after fewer of which a model is less sure of what it reads; None for those of the task."""
    imbalanced: bool = False
    """Of handwriting: digits as they come instead of as many of each, so that every model lacks others."""

    none = True

    @property
    def key(self) -> str:
        """Return the name of a model with these examples in the cache; the steps are part of its recipe."""
        return f"examples={self.number}{',imbalanced' * self.imbalanced}"

    @classmethod
    def parse(cls, text: str) -> Examples:
        """Read `examples=K`, `steps=S` and `imbalanced`, each optional. Raises UserError: anything else."""
        parts = text.split(",")
        given = dict(part.split("=", 1) for part in parts if "=" in part)
        numbers = {key: int(value) for key, value in given.items() if value.isdecimal() and int(value)}
        imbalanced = "imbalanced" in parts
        if len(numbers) + imbalanced != len(parts) or not numbers.keys() <= {"examples", "steps"}:
            raise UserError(
                f"{text!r} names no examples: write examples=1, or another number from 1 on, steps=150 or imbalanced"
            )
        return cls(numbers.get("examples", 1), numbers.get("steps"), imbalanced)
