"""How accuracy moves when votes are the labels: the differential equations of the paper's theory, and what they say.

One prompt whose answer is right or wrong. Agent i answers it right with probability p_i and takes the expected GRPO
step of K completions, with rewards normalised by the population standard deviation of the group (the unbiased one
only rescales time, by sqrt((K - 1) / K)). Its label is the majority of M completions of a teacher, by default M = K:

    own votes (TTRL)       dp/dt = eta p (1 - p) G(p)
    a peer's votes         dp_i/dt = eta q(p_i) phi(p_teacher),   q(p) = p (1 - p) h(p)

Odd M is exact. With even M a vote may be tied. The first answer seen then wins, which among exchangeable answers is a
fair coin for a peer, so that phi of 2m votes is phi of 2m - 1; for one's own votes the coin has memory when M > K,
which `self_drift` counts. A tie that gives no label (reward 0 for all, the group still in the denominator) has the
same mean. Numbers only: no torch, no model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

MAX_SAMPLES = 1000
"""Completions or votes up to which binomial coefficients fit a float."""
TOLERANCE = 1e-11
"""Error that one step of the integrator may make, in logits."""
FAR = 60.0
"""Logit beyond which nothing is looked for: p then differs from 1 by less than 1e-26."""


def vote_accuracy(p: ArrayLike, votes: int) -> Array:
    """Probability that the majority of `votes` answers is right, the paper's V_K; a tie counts one half."""
    return (1.0 + vote_margin(p, votes)) / 2.0


def vote_margin(p: ArrayLike, votes: int) -> Array:
    """Right minus wrong majorities, phi = 2 V - 1, in [-1, 1]: which way a teacher at `p` pushes, and how surely."""
    right = np.asarray(p, dtype=np.float64)
    return _margin(right, 1.0 - right, _samples(votes))


def margin_slope(votes: int) -> float:
    """Slope of `vote_margin` at one half: 2 M C(M - 1, (M - 1) / 2) / 2^(M - 1) for odd M, that of M - 1 for even."""
    odd = _samples(votes) - (votes % 2 == 0)
    return 2.0 * odd * math.comb(odd - 1, (odd - 1) // 2) / 2.0 ** (odd - 1)


def group_spread(p: ArrayLike, completions: int) -> Array:
    """Mean standard deviation of 0/1 rewards within a group, h = E[sqrt(C (K - C))] / K for C ~ Bin(K, p)."""
    right = np.asarray(p, dtype=np.float64)
    return _spread(right, 1.0 - right, _samples(completions))


def step_size(p: ArrayLike, completions: int) -> Array:
    """How fast an agent at `p` follows a sure label, q = p (1 - p) h(p) per unit of eta t."""
    right = np.asarray(p, dtype=np.float64)
    return right * (1.0 - right) * group_spread(right, completions)


def self_drift(p: ArrayLike, completions: int, votes: int | None = None) -> Array:
    """What own votes push the logit by, G = E[s sqrt(C (K - C))] / K with s = 1 for a right majority and -1 else.

    The first K of M votes train. A tie is decided by the first answer, which is one of these K: it is right with
    probability C / K, so s is then 2 C / K - 1 (0 where M = K).
    """
    right = np.asarray(p, dtype=np.float64)
    return _drift(right, 1.0 - right, completions, votes or completions)


def growth_rate(completions: int, votes: int | None = None) -> float:
    """lambda = q(1/2) phi'(1/2): how fast a pair leaves the saddle (1/2, 1/2), and comes in along p_A + p_B = 1."""
    return float(step_size(0.5, completions)) * margin_slope(votes or completions)


def potential(p: ArrayLike, completions: int, votes: int | None = None) -> Array:
    """F(p), the integral of phi / q from 1/2 to p: even about 1/2, 0 there, without bound towards 0 and 1.

    F(p_A) / eta_A - F(p_B) / eta_B stays constant while two agents teach each other. Gauss-Legendre quadrature in the
    logit, where the integrand is phi / h; good to about 12 digits.

    Raises:
        ValueError: a p outside the open interval (0, 1), or K = 1, which gives no signal at all.
    """
    return _potential(_logit(p), completions, votes or completions)


@dataclass(frozen=True)
class Trajectory:
    """Accuracies at some times; `p` has shape (times, ..., agents)."""

    times: Array
    p: Array


@dataclass(frozen=True)
class Dynamics:
    """A cohort on one prompt: who teaches whom, how many answers it samples, how fast each agent learns."""

    teachers: tuple[int, ...]
    """The teacher of each agent by place: (0, 1) own votes, (1, 0) a pair, (1, 2, 0) a ring of three."""
    completions: int = 8
    votes: int | None = None
    """Answers that vote, at least `completions`; None: the completions themselves."""
    rates: tuple[float, ...] | None = None
    """eta of each agent; None: 1 for all. The paper's theorem has one eta; `separatrix` says what others change."""

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
        """How many agents there are."""
        return len(self.teachers)

    @property
    def ballots(self) -> int:
        """M, the answers that vote."""
        return self.votes or self.completions

    @property
    def eta(self) -> Array:
        """The rate of each agent."""
        return np.asarray(self.rates or (1.0,) * self.agents)

    @property
    def is_pair(self) -> bool:
        """Whether two agents teach each other: what the theorem is about."""
        return self.teachers == (1, 0)

    def velocity(self, p: ArrayLike) -> Array:
        """dp/dt at accuracies of shape (..., agents)."""
        right = np.asarray(p, dtype=np.float64)
        return right * (1.0 - right) * self._logit_velocity(right, 1.0 - right)

    def run(self, start: ArrayLike, times: Sequence[float] | Array) -> Trajectory:
        """Follow the equations from `start` (..., agents), strictly inside (0, 1), to growing `times` from 0 on."""
        moments = np.asarray(times, dtype=np.float64)
        if not len(moments) or moments[0] < 0 or np.any(np.diff(moments) < 0):
            raise ValueError("times must grow and none may lie before 0")
        state, now, step = _logit(start), 0.0, 0.05
        places = []
        for moment in moments:
            while now < moment:
                last = step >= moment - now
                state, taken, step = self._advance(state, min(step, moment - now))
                now = moment if last and taken >= moment - now else now + taken
            places.append(_sigmoid(state))
        return Trajectory(moments, np.stack(places))

    def crossing_time(self, start: ArrayLike, agent: int, *, until: float = 1e4) -> float | None:
        """When an agent's accuracy first passes one half on the way from one `start` (agents,); None if never."""
        state, now, step = _logit(start), 0.0, 0.05
        while now < until:
            before = state
            state, taken, step = self._advance(before, step)
            if before[agent] * state[agent] < 0:
                low, high = 0.0, taken
                while high - low > 1e-13:
                    middle = (low + high) / 2
                    same = self._stages(before, middle)[0][agent] * before[agent] > 0
                    low, high = (middle, high) if same else (low, middle)
                return now + high
            now += taken
        return None

    def invariant(self, p: ArrayLike) -> Array:
        """F(p_A) / eta_A - F(p_B) / eta_B of a pair at (..., 2): constant along every trajectory."""
        self._require_pair()
        told = _potential(_logit(p), self.completions, self.ballots) / self.eta
        return np.asarray(told[..., 0] - told[..., 1])

    def separatrix(self, p: ArrayLike) -> Array:
        """The p_B that lies between the two basins of a pair at each p_A: 1 - p_A for equal rates.

        With unequal rates it bends: on it F(p_A) / eta_A = F(p_B) / eta_B, on the other side of one half. The slower
        agent's opinion then weighs more, since the faster one has come over before the slower has moved.
        """
        self._require_pair()
        logits = _logit(p)
        eta = self.eta
        if eta[0] == eta[1]:
            return np.asarray(_sigmoid(-logits))
        wanted = _potential(logits, self.completions, self.ballots) * eta[1] / eta[0]
        low, high = np.zeros_like(logits), np.full_like(logits, FAR)
        for _ in range(100):
            middle = (low + high) / 2
            above = _potential(middle, self.completions, self.ballots) > wanted
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return np.asarray(_sigmoid(-np.sign(logits) * low))

    def finals(self, starts: ArrayLike, *, until: float = 400.0) -> Array:
        """Where each agent ends from each start, (n, agents) to 1.0 right, 0.0 wrong, 0.5 neither.

        Closed form for own votes (the side of one half) and for a pair of one rate (the side of p_A + p_B = 1); any
        other cohort is followed until every agent is on its teacher's side, which it then never leaves. 0.5 means on
        the border, or still undecided after `until`.
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

    def jacobian(self) -> Array:
        """Derivative of the velocity at (1/2, ..., 1/2), (agents, agents); its eigenvalues say how cohorts leave it."""
        told = np.zeros((self.agents, self.agents))
        for agent, teacher in enumerate(self.teachers):
            rate = self.eta[agent]
            if teacher == agent:
                told[agent, agent] = rate * _drift_slope(self.completions, self.ballots) / 4.0
            else:
                told[agent, teacher] = rate * growth_rate(self.completions, self.ballots)
        return told

    def _require_pair(self) -> None:
        if not self.is_pair:
            raise ValueError(
                "only two agents that teach each other have a conserved quantity and a line between basins"
            )

    def _final(self, start: Array, until: float) -> Array:
        state = _logit(np.clip(start, 1e-12, 1.0 - 1e-12))
        now, step = 0.0, 0.05
        teachers = list(self.teachers)
        while now < until:
            if np.all(np.abs(state) > 1e-9) and np.all(np.sign(state) == np.sign(state[teachers])):
                return _side(state)
            state, taken, step = self._advance(state, min(step, until - now))
            now += taken
        return np.full(self.agents, 0.5)

    def _logit_velocity(self, right: Array, wrong: Array) -> Array:
        teachers = np.asarray(self.teachers)
        own = teachers == np.arange(self.agents)
        moved = np.empty_like(right)
        if own.any():
            moved[..., own] = _drift(right[..., own], wrong[..., own], self.completions, self.ballots)
        if not own.all():
            others = teachers[~own]
            spread = _spread(right[..., ~own], wrong[..., ~own], self.completions)
            moved[..., ~own] = spread * _margin(right[..., others], wrong[..., others], self.ballots)
        return np.asarray(moved * self.eta)

    def _stages(self, state: Array, step: float) -> tuple[Array, Array]:
        """One Dormand-Prince step of order 5 and its difference from order 4."""
        slopes: list[Array] = []
        for row in _STAGES:
            at = state + step * sum((w * slope for w, slope in zip(row, slopes, strict=True)), np.zeros_like(state))
            slopes.append(self._logit_velocity(_sigmoid(at), _sigmoid(-at)))
        fifth = state + step * sum((w * slope for w, slope in zip(_FIFTH, slopes, strict=True)), np.zeros_like(state))
        error = step * sum((w * slope for w, slope in zip(_ERROR, slopes, strict=True)), np.zeros_like(state))
        return fifth, error

    def _advance(self, state: Array, step: float) -> tuple[Array, float, float]:
        """The next state, the step taken, and the step to try next."""
        while True:
            after, error = self._stages(state, step)
            size = float(np.max(np.abs(error))) / TOLERANCE
            factor = min(4.0, max(0.2, 0.9 * (size + 1e-12) ** -0.2))
            if size <= 1.0:
                return after, step, step * factor
            step *= factor


def ring(agents: int) -> tuple[int, ...]:
    """Each agent learns from the next, the last from the first; one agent learns from itself."""
    return tuple((agent + 1) % agents for agent in range(agents))


@dataclass(frozen=True)
class Basins:
    """What own votes and a peer's votes make of one distribution of (p_A, p_B) over prompts; shares of prompts."""

    prompts: int
    start: tuple[float, float]
    """Mean accuracy of A and of B before training."""
    own: tuple[float, float]
    """Final accuracy of A and of B trained on their own votes: P(p > 1/2), one half of a prompt at p = 1/2."""
    peer: float
    """Final accuracy of both trained on each other's votes: P(p_A + p_B > 1), one half of a prompt on that line."""
    repaired: float
    """Prompts that own votes would leave wrong with at least one agent, and a peer's votes make right with both."""
    spoiled: float
    """Prompts that own votes would make right with one agent, and a peer's votes make wrong with both."""
    undecided: float
    """Prompts on the line p_A + p_B = 1; measured from few samples many are, by the coarse grid alone."""

    @property
    def gain(self) -> float:
        """`peer` less the mean of `own`."""
        return self.peer - sum(self.own) / 2


def basins(points: ArrayLike, weights: ArrayLike | None = None) -> Basins:
    """Where both ways of training end for prompts at (n, 2) accuracies of A and B, odd or even K alike.

    Exact for prompts that do not influence each other and accuracies that are known, not estimated.
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


TAKEAWAY = ((0.9, 0.2), (0.2, 0.9))
"""The paper's example: each agent is strong on one half of the prompts, weak on the other, 0.55 on average."""


def _samples(count: int) -> int:
    if not 1 <= count <= MAX_SAMPLES:
        raise ValueError(f"{count} samples cannot be: 1 to {MAX_SAMPLES}")
    return count


@cache
def _binomials(count: int) -> Array:
    return np.array([math.comb(count, right) for right in range(count + 1)], dtype=np.float64)


def _chances(right: Array, wrong: Array, count: int) -> Array:
    """P(Bin(count, right) = c) for c = 0..count along a new last axis; `wrong` is 1 - right without its rounding."""
    c = np.arange(count + 1)
    told: Array = _binomials(count) * right[..., None] ** c * wrong[..., None] ** (count - c)
    return told


def _margin(right: Array, wrong: Array, votes: int) -> Array:
    return np.asarray(_chances(right, wrong, votes) @ np.sign(2.0 * np.arange(votes + 1) - votes))


def _spread(right: Array, wrong: Array, completions: int) -> Array:
    c = np.arange(completions + 1)
    return np.asarray(_chances(right, wrong, completions) @ (np.sqrt(c * (completions - c)) / completions))


def _drift(right: Array, wrong: Array, completions: int, votes: int) -> Array:
    c = np.arange(completions + 1)
    more = np.arange(votes - completions + 1)
    # A right answer leads by this much when c of the K that train and m of the others are right.
    lead = 2.0 * (c[:, None] + more) - votes
    says = np.where(lead == 0, (2.0 * c / completions - 1.0)[:, None], np.sign(lead))
    told = np.einsum("...m,cm->...c", _chances(right, wrong, votes - completions), says)
    told = told * _chances(right, wrong, completions)
    return np.asarray(told @ (np.sqrt(c * (completions - c)) / completions))


def _drift_slope(completions: int, votes: int) -> float:
    step = 1e-5
    return float((self_drift(0.5 + step, completions, votes) - self_drift(0.5 - step, completions, votes)) / (2 * step))


def _potential(logits: Array, completions: int, votes: int) -> Array:
    if completions < 2:
        raise ValueError("one completion per prompt has no spread, so there is no potential: take 2 or more")
    reach = np.abs(logits)
    panels = max(1, math.ceil(float(np.max(reach, initial=0.0)) / 0.75))
    nodes, weights = leggauss(16)
    # All panels of all values at once: (..., panels * 16) places in [0, reach].
    shares = ((np.arange(panels)[:, None] + (nodes + 1.0) / 2.0) / panels).ravel()
    u = reach[..., None] * shares
    right, wrong = _sigmoid(u), _sigmoid(-u)
    integrand = _margin(right, wrong, votes) / _spread(right, wrong, completions)
    return np.asarray(integrand @ np.tile(weights / 2.0, panels) * reach / panels)


def _logit(p: ArrayLike) -> Array:
    right = np.asarray(p, dtype=np.float64)
    if np.any(~((right > 0) & (right < 1))):
        raise ValueError("an accuracy of 0 or 1 is never left, and others do not exist: stay strictly between")
    return np.asarray(np.log(right) - np.log1p(-right))


def _sigmoid(logits: Array) -> Array:
    small = np.exp(-np.abs(logits))
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _side(difference: Array) -> Array:
    """1 above, 0 below, 0.5 on the border, where sums of decimals may miss it by a rounding."""
    return np.asarray(np.where(np.abs(difference) < 1e-12, 0.5, (difference > 0).astype(np.float64)))


# Dormand and Prince 1980, order 5 with an embedded order 4.
_STAGES: tuple[tuple[float, ...], ...] = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
_FIFTH = (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0)
_FOURTH = (5179 / 57600, 0.0, 7571 / 16695, 393 / 640, -92097 / 339200, 187 / 2100, 1 / 40)
_ERROR = tuple(fifth - fourth for fifth, fourth in zip(_FIFTH, _FOURTH, strict=True))
