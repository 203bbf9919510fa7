"""The paper's theory of majority-vote labels: how accuracies move under GRPO, and where they end.

One prompt whose answer is right or wrong. Agent i answers it correctly with probability p_i and takes the expected
GRPO step of K completions, with rewards normalised by the population standard deviation of the group (the unbiased
one only rescales time, by sqrt((K - 1) / K)). Its label is the majority of M completions of a teacher, by default K:

    own votes (TTRL)       dp/dt = eta p (1 - p) G(p)
    a peer's votes         dp_i/dt = eta q(p_i) phi(p_teacher),   q(p) = p (1 - p) h(p)

Odd M is exact. With even M a vote can tie. The first answer sampled then wins, which for a peer is a fair coin, since
its answers are exchangeable: phi of 2m votes is phi of 2m - 1. For own votes the coin has memory when M > K, which
`self_drift` counts. A tie that gives no label (reward 0 for all, the group kept in the denominator) has the same mean.
No torch, no model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import solve_ivp
from scipy.optimize import brentq
from scipy.special import expit, logit

Array = NDArray[np.float64]

MAX_SAMPLES = 1000
"""Largest number of completions or votes whose binomial coefficients fit a float."""
TOLERANCE = 1e-11
"""Relative and absolute error per step of the integrator, in logits."""
FAR = 60.0
"""Logit beyond which nothing is searched: p then differs from 1 by less than 1e-26."""


# `wrong` is 1 - p without its rounding, where a logit is known.


def vote_margin(p: ArrayLike, votes: int, wrong: Array | None = None) -> Array:
    """Return phi = P(right majority) - P(wrong majority) in [-1, 1]: the push of a teacher at `p`; a tie counts 0."""
    return np.asarray(_chances(p, _samples(votes), wrong) @ np.sign(2.0 * np.arange(votes + 1) - votes))


def margin_slope(votes: int) -> float:
    """Return the slope of phi at one half: 2 M C(M - 1, (M - 1) / 2) / 2^(M - 1) for odd M; even M as M - 1."""
    odd = _samples(votes) - (votes % 2 == 0)
    return 2.0 * odd * math.comb(odd - 1, (odd - 1) // 2) / 2.0 ** (odd - 1)


def group_spread(p: ArrayLike, completions: int, wrong: Array | None = None) -> Array:
    """Return h = E[sqrt(C (K - C))] / K for C ~ Bin(K, p): the mean standard deviation of 0/1 rewards in a group."""
    c = np.arange(_samples(completions) + 1)
    return np.asarray(_chances(p, completions, wrong) @ (np.sqrt(c * (completions - c)) / completions))


def step_size(p: ArrayLike, completions: int) -> Array:
    """Return how fast an agent at `p` follows a certain label, q = p (1 - p) h(p) per unit of eta t."""
    right = np.asarray(p, dtype=np.float64)
    return right * (1.0 - right) * group_spread(right, completions)


def self_drift(p: ArrayLike, completions: int, votes: int | None = None, wrong: Array | None = None) -> Array:
    """Return G = E[s sqrt(C (K - C))] / K, the push of own votes on the logit; s = 1 for a right majority, else -1.

    The first K of M votes train. The first answer decides a tie and is one of these K: it is right with probability
    C / K, so s is then 2 C / K - 1 (0 where M = K).
    """
    votes = votes or completions
    c = np.arange(completions + 1)
    more = np.arange(votes - completions + 1)
    # The lead of the right answer when c of the K that train and m of the others are right.
    lead = 2.0 * (c[:, None] + more) - votes
    sign = np.where(lead == 0, (2.0 * c / completions - 1.0)[:, None], np.sign(lead))
    mean = np.einsum("...m,cm->...c", _chances(p, votes - completions, wrong), sign)
    return np.asarray((mean * _chances(p, completions, wrong)) @ (np.sqrt(c * (completions - c)) / completions))


def growth_rate(completions: int, votes: int | None = None) -> float:
    """Return lambda = q(1/2) phi'(1/2), the rate at which a pair leaves the saddle (1/2, 1/2)."""
    return float(step_size(0.5, completions)) * margin_slope(votes or completions)


def potential(p: ArrayLike, completions: int, votes: int | None = None) -> Array:
    """Return F(p), the integral of phi / q from 1/2 to p: even about 1/2, 0 there, unbounded towards 0 and 1.

    F(p_A) / eta_A - F(p_B) / eta_B is constant while two agents teach each other. Gauss-Legendre quadrature in the
    logit, where the integrand is phi / h; about 12 digits.

    Raises ValueError: a p outside the open interval (0, 1), or K = 1, which gives no signal.
    """
    return _potential(_logit(p), completions, votes or completions)


@dataclass(frozen=True)
class Dynamics:
    """A cohort on one prompt: its teachers, its sample counts and its learning rates."""

    teachers: tuple[int, ...]
    """Index of each agent's teacher: (0, 1) own votes, (1, 0) a pair, (1, 2, 0) a ring of three."""
    completions: int = 8
    votes: int | None = None
    """Answers that vote, at least `completions`; None: the completions themselves."""
    rates: tuple[float, ...] | None = None
    """eta of each agent; None: 1 for all. The paper's theorem has one eta; see `separatrix` for others."""

    def __post_init__(self) -> None:
        count = len(self.teachers)
        if not count or not all(0 <= teacher < count for teacher in self.teachers):
            raise ValueError(f"teachers {self.teachers} name no agent of a cohort of {count}")
        if _samples(self.completions) < 2:
            raise ValueError("one completion per prompt has no spread, so GRPO has no signal: take 2 or more")
        if self.votes is not None and _samples(self.votes) < self.completions:
            raise ValueError(f"{self.votes} votes are fewer than the {self.completions} completions among them")
        if self.rates is not None and (len(self.rates) != count or min(self.rates) <= 0):
            raise ValueError(f"rates {self.rates} are not one positive number for each of {count} agents")

    @property
    def agents(self) -> int:
        return len(self.teachers)

    @property
    def ballots(self) -> int:
        """M, the number of answers that vote."""
        return self.votes or self.completions

    @property
    def eta(self) -> Array:
        return np.asarray(self.rates or (1.0,) * self.agents)

    @property
    def is_pair(self) -> bool:
        """Whether two agents teach each other, the case of the theorem."""
        return self.teachers == (1, 0)

    def velocity(self, p: ArrayLike) -> Array:
        """Return dp/dt at accuracies of shape (..., agents)."""
        right = np.asarray(p, dtype=np.float64)
        return right * (1.0 - right) * self._logit_velocity(right, 1.0 - right)

    def run(self, start: ArrayLike, times: Sequence[float] | Array) -> Array:
        """Return accuracies (times, agents) on the way from `start` (agents,), strictly inside (0, 1).

        `times` increase from 0 on.
        """
        moments = np.asarray(times, dtype=np.float64)
        if not len(moments) or moments[0] < 0 or np.any(np.diff(moments) < 0):
            raise ValueError("times must increase from 0 on")
        until = float(moments[-1])
        return np.asarray(expit(self._solve(start, until).sol(moments).T)) if until else expit(_logit(start))[None]

    def path(self, start: tuple[float, float]) -> Array:
        """Return accuracies (points, agents) on the way to the end, at times that are denser where it moves faster."""
        times = np.concatenate([np.linspace(0, 12, 97), np.geomspace(12.5, 300, 40)])
        return self.run(start, times / float(self.eta.min()))

    def crossing_time(self, start: ArrayLike, agent: int, *, until: float = 1e4) -> float | None:
        """Return when an agent's accuracy first passes one half on the way from `start` (agents,); None if never."""
        solution = self._solve(start, until, lambda _, state: float(state[agent]))
        crossings = solution.t_events[0]
        return float(crossings[0]) if len(crossings) else None

    def separatrix(self, p: ArrayLike) -> Array:
        """Return the p_B on the border of a pair's two basins at each p_A: 1 - p_A for equal rates.

        With unequal rates F(p_A) / eta_A = F(p_B) / eta_B on it, with p_B on the other side of one half. The slower
        agent then weighs more: the faster one has come over before the slower has moved.

        Raises ValueError: the cohort is not a pair.
        """
        if not self.is_pair:
            raise ValueError("only two agents that teach each other have a border between two basins")
        logits = _logit(p)
        eta = self.eta
        if eta[0] == eta[1]:
            return np.asarray(expit(-logits))
        levels = _potential(logits, self.completions, self.ballots) * eta[1] / eta[0]

        def excess(at: float, level: float) -> float:
            return float(_potential(np.array(at), self.completions, self.ballots)) - level

        roots = [brentq(excess, 0.0, FAR, args=(level,)) if level > 0 else 0.0 for level in levels.ravel()]
        return np.asarray(expit(-np.sign(logits) * np.reshape(roots, levels.shape)))

    def border(self, count: int = 125) -> list[tuple[float, float]]:
        """Return points of `separatrix`, from the top left to the bottom right."""
        p = np.linspace(0.004, 0.996, count)
        return [(float(a), float(b)) for a, b in zip(p, self.separatrix(p), strict=True)]

    def finals(self, starts: ArrayLike, *, until: float = 400.0) -> Array:
        """Return where each agent ends from each start, (n, agents): 1.0 right, 0.0 wrong, 0.5 neither.

        Closed form for own votes (the side of one half) and for a pair of one rate (the side of p_A + p_B = 1); any
        other cohort is integrated until every agent is on its teacher's side, which it then never leaves. 0.5 means on
        the border, or undecided after `until`.
        """
        p = np.asarray(starts, dtype=np.float64)
        if p.ndim != 2 or p.shape[1] != self.agents or np.any((p < 0) | (p > 1)):
            raise ValueError(f"starts are rows of {self.agents} accuracies in [0, 1], not {p.shape}")
        own = all(teacher == agent for agent, teacher in enumerate(self.teachers))
        if own:
            return _side(p - 0.5)
        if self.is_pair and len(set(self.eta)) == 1:
            return np.repeat(_side(p.sum(axis=1, keepdims=True) - 1.0), 2, axis=1)
        return np.stack([self._final(row, until) for row in p])

    def _final(self, start: Array, until: float) -> Array:
        teachers = list(self.teachers)

        def settled(_: float, state: Array) -> float:
            """Return a number above 0 once every agent is clearly on its teacher's side."""
            return float(np.min(state * state[teachers])) - 1e-18

        start = np.clip(start, 1e-12, 1.0 - 1e-12)
        if settled(0.0, _logit(start)) > 0:
            return _side(_logit(start))
        solution = self._solve(start, until, settled)
        if not len(solution.t_events[0]):
            return np.full(self.agents, 0.5)
        # The last agent is at one half here, on its way to its teacher's side.
        state = solution.y_events[0][0]
        return _side(np.where(np.abs(state) > 1e-6, state, state[teachers]))

    def _solve(self, start: ArrayLike, until: float, event: Callable[[float, Array], float] | None = None) -> Any:
        """Integrate the logits up to `until`, or to the first zero of `event`."""

        def velocity(_: float, state: Array) -> Array:
            return self._logit_velocity(expit(state), expit(-state))

        if event is not None:
            event.terminal = True  # type: ignore[attr-defined]
        settings = {"method": "DOP853", "rtol": TOLERANCE, "atol": TOLERANCE, "dense_output": event is None}
        return solve_ivp(velocity, (0.0, until), _logit(start), events=event, **settings)

    def _logit_velocity(self, right: Array, wrong: Array) -> Array:
        teachers = np.asarray(self.teachers)
        own = teachers == np.arange(self.agents)
        moved = np.empty_like(right)
        if own.any():
            moved[..., own] = self_drift(right[..., own], self.completions, self.ballots, wrong[..., own])
        if not own.all():
            others = teachers[~own]
            spread = group_spread(right[..., ~own], self.completions, wrong[..., ~own])
            moved[..., ~own] = spread * vote_margin(right[..., others], self.ballots, wrong[..., others])
        return np.asarray(moved * self.eta)


@dataclass(frozen=True)
class Basins:
    """Ends of own votes and of a peer's votes for one distribution of (p_A, p_B) over prompts; shares of prompts."""

    prompts: int
    start: tuple[float, float]
    """Mean accuracy of A and of B before training."""
    own: tuple[float, float]
    """Final accuracy of A and of B trained on their own votes: P(p > 1/2), one half of a prompt at p = 1/2."""
    peer: float
    """Final accuracy of both trained on each other's votes: P(p_A + p_B > 1), one half of a prompt on that line."""
    repaired: float
    """Prompts that own votes leave wrong for at least one agent and a peer's votes make right for both."""
    spoiled: float
    """Prompts that own votes make right for one agent and a peer's votes make wrong for both."""
    undecided: float
    """Prompts on the line p_A + p_B = 1; with few samples many are, because the grid is coarse."""

    @property
    def gain(self) -> float:
        """`peer` less the mean of `own`."""
        return self.peer - sum(self.own) / 2


def basins(points: ArrayLike, weights: ArrayLike | None = None) -> Basins:
    """Return where both ways of training end for prompts at (n, 2) accuracies of A and B, for odd or even K.

    Exact for independent prompts and known, not estimated, accuracies.
    """
    p = np.asarray(points, dtype=np.float64)
    if p.ndim != 2 or p.shape[1] != 2 or not len(p) or np.any((p < 0) | (p > 1)):
        raise ValueError(f"points are rows of two accuracies in [0, 1], not {p.shape}")
    weight = np.ones(len(p)) if weights is None else np.asarray(weights, dtype=np.float64)
    if weight.shape != (len(p),) or np.any(weight < 0) or not weight.sum():
        raise ValueError("weights are one number per point, none below 0 and not all 0")
    weight = weight / weight.sum()
    own = Dynamics((0, 1)).finals(p)
    peer = Dynamics((1, 0)).finals(p)[:, 0]

    def share(where: Array) -> float:
        return float(weight @ where)

    return Basins(
        prompts=len(p),
        start=(share(p[:, 0]), share(p[:, 1])),
        own=(share(own[:, 0]), share(own[:, 1])),
        peer=share(peer),
        repaired=share((peer == 1.0) & (own.min(axis=1) < 1.0)),
        spoiled=share((peer == 0.0) & (own.max(axis=1) == 1.0)),
        undecided=share(peer == 0.5),
    )


def _samples(count: int) -> int:
    if not 1 <= count <= MAX_SAMPLES:
        raise ValueError(f"{count} samples are out of range: use 1 to {MAX_SAMPLES}")
    return count


@cache
def _binomials(count: int) -> Array:
    return np.array([math.comb(count, right) for right in range(count + 1)], dtype=np.float64)


def _chances(p: ArrayLike, count: int, wrong: Array | None) -> Array:
    """Return P(Bin(count, p) = c), c = 0..count on a new last axis."""
    right = np.asarray(p, dtype=np.float64)
    wrong = 1.0 - right if wrong is None else wrong
    c = np.arange(count + 1)
    return np.asarray(_binomials(count) * right[..., None] ** c * wrong[..., None] ** (count - c))


def _potential(logits: Array, completions: int, votes: int) -> Array:
    if completions < 2:
        raise ValueError("one completion per prompt has no spread, so there is no potential: take 2 or more")
    reach = np.abs(logits)
    panels = max(1, math.ceil(float(np.max(reach, initial=0.0)) / 0.75))
    nodes, weights = leggauss(16)
    # All panels of all values at once: (..., panels * 16) places in [0, reach].
    shares = ((np.arange(panels)[:, None] + (nodes + 1.0) / 2.0) / panels).ravel()
    u = reach[..., None] * shares
    right, wrong = expit(u), expit(-u)
    integrand = vote_margin(right, votes, wrong) / group_spread(right, completions, wrong)
    return np.asarray(integrand @ np.tile(weights / 2.0, panels) * reach / panels)


def _logit(p: ArrayLike) -> Array:
    right = np.asarray(p, dtype=np.float64)
    if np.any(~((right > 0) & (right < 1))):
        raise ValueError("training never leaves an accuracy of 0 or 1: stay strictly between them")
    return np.asarray(logit(right))


def _side(difference: Array) -> Array:
    """Return 1 above, 0 below and 0.5 on the border, which sums of decimals may miss by a rounding."""
    return np.asarray(np.where(np.abs(difference) < 1e-12, 0.5, (difference > 0).astype(np.float64)))
