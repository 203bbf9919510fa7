"""Rank candidates as a partner of an anchor model, by what their answers would do to its errors.

The ranking is ours; the paper compares partners by kappa and complementarity and picks by family. Where the anchor is
wrong, a partner's answer can be right (it corrects), the same wrong answer (it confirms the error) or another wrong
answer (it rewards nothing the anchor says). So

    benefit = corrected - confirmed = (n01 - n_same_wrong) / N

n01 is (c + p_B - p_A) / 2 and c is (1 - p_e)(1 - kappa): accuracy and independence both count, in points of accuracy.
Since right answers agree and p_B = n11 + n01, the benefit equals p_B minus the agreement of the two: a good partner is
often right and rarely repeats the anchor. Agreement needs no labels; `label_free` estimates p_B from the agreement of
three models or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from mmcorl.apps.analysis.diversity import ModelResponses, Pair, Same, agree, measure
from mmcorl.apps.analysis.statistics import RESAMPLES, Interval, percentile_interval
from mmcorl.errors import UserError
from mmcorl.labels.adaptive import log_strengths

_CHUNK = 500
"""Resamples at once, which bounds memory."""
CLEAR = 0.9
"""Share of resamples in which the best must stay first to count as clear."""

LIMITS_LABELLED = (
    "One answer per problem stands for a vote of many: a vote is right more often than a single answer, most of all "
    "where wrong answers are scattered.",
    "c and kappa mix accuracy and dependence: c = (1 - p_e)(1 - kappa), it cannot be below |p_A - p_B|, and a strong "
    "with a weak model can show a large c and little mutual help. Read them beside the accuracies.",
    "Where the anchor is right and the partner wrong, the partner's label rewards nothing unless the anchor also "
    "gives that wrong answer now and then; the benefit leaves these denials out.",
)
LIMITS_LABEL_FREE = (
    "No answer is known: the strength of a model is inferred from how often it agrees with the others, as if two "
    "models agreed only by being right, independently of each other.",
    "Problems that are easy for all and errors that are shared both add agreement and make strengths too high; models "
    "that fail on different problems agree less and look too weak, although that is what makes them good partners. Use "
    "the order, not the level, and take it as a hint: resampling says nothing about whether the assumption holds.",
    "Accuracy and dependence cannot be told apart by agreement alone: models of one lineage that share their errors "
    "look strong. Take models of three lineages or more.",
    "With few options to choose from, wrong answers coincide by chance: use problems with free-form answers.",
)


@dataclass(frozen=True)
class Candidate:
    name: str
    pair: Pair
    """The anchor is A."""
    benefit: float
    """Corrected minus confirmed, as a share of all problems; label-free: strength minus agreement."""
    interval: Interval
    """95 %: percentiles over resamples of the problems, the same for all candidates."""
    first: float
    """Share of the resamples in which this candidate has the largest benefit."""
    strength: float | None = None
    """Label-free estimate of its accuracy; None where answers are known."""
    why: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        low, high = (None if math.isnan(bound) else bound for bound in self.interval)
        record = {"name": self.name, "benefit": self.benefit, "low": low, "high": high, "first": self.first}
        return record | {"strength": self.strength, "why": list(self.why), "pair": self.pair.as_dict()}


@dataclass(frozen=True)
class Ranking:
    """Candidates for one anchor, the best first."""

    anchor: str
    candidates: tuple[Candidate, ...]
    labelled: bool
    verdict: str
    limits: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        facts = {"anchor": self.anchor, "labelled": self.labelled, "verdict": self.verdict}
        candidates = [candidate.as_dict() for candidate in self.candidates]
        return {**facts, "candidates": candidates, "limits": list(self.limits)}


def labelled(anchor: ModelResponses, candidates: Sequence[ModelResponses], same: Same) -> Ranking:
    """Rank partners where answers are known, by corrected minus confirmed errors of the anchor.

    A further sample of the anchor may be among the candidates: co-training two copies starts there. Raises UserError
    where models answer different problems, see `measure`; ValueError where one has no labels.
    """
    pairs = [measure(anchor, candidate, same) for candidate in candidates]
    problems = list(anchor.answers)
    effects = np.zeros((len(problems), len(candidates)))
    for column, candidate in enumerate(candidates):
        if anchor.correct is None or candidate.correct is None:
            raise ValueError(f"{anchor.name} and {candidate.name} need known answers to be ranked by them")
        for row, problem in enumerate(problems):
            if anchor.correct[problem]:
                continue
            if candidate.correct[problem]:
                effects[row, column] = 1
            elif agree(anchor, candidate, problem, same):
                effects[row, column] = -1
    benefits = effects.mean(axis=0)
    own = next((b for b, c in zip(benefits, candidates, strict=True) if c.model == anchor.model), None)
    ranked = _ranked(candidates, pairs, benefits, _resampled(effects))
    scored = [replace(candidate, why=_why_labelled(candidate, own)) for candidate in ranked]
    return Ranking(anchor.name, tuple(scored), True, _verdict(scored, ""), LIMITS_LABELLED)


def label_free(anchor: ModelResponses, candidates: Sequence[ModelResponses], same: Same) -> Ranking:
    """Rank partners from pairwise agreement alone, by estimated strength minus agreement with the anchor.

    Raises UserError for fewer than three models, where strength and dependence cannot be separated, and where two
    models never agree.
    """
    models: dict[str, ModelResponses] = {anchor.model: anchor}
    for candidate in candidates:
        models.setdefault(candidate.model, candidate)
    if len(models) < 3:
        raise UserError(
            f"{len(models)} models are given ({', '.join(models)}), and without known answers it takes at least 3 to "
            "tell a strong model from one that merely agrees: add candidates, or give known answers"
        )
    places = list(models)
    problems = list(anchor.answers)
    between = list(combinations(range(len(places)), 2))
    drawn = list(models.values())
    # The first columns are pairs of models, the others anchor and candidate.
    columns = [(drawn[i], drawn[j]) for i, j in between] + [(anchor, candidate) for candidate in candidates]
    pairs = [measure(anchor, candidate, same) for candidate in candidates]
    agreeing = np.array([[agree(a, b, problem, same) for a, b in columns] for problem in problems], float)
    agreement = agreeing.mean(axis=0)
    never = next((pair for pair, share in zip(between, agreement, strict=False) if share == 0), None)
    if never is not None:
        raise UserError(
            f"{places[never[0]]} and {places[never[1]]} agree on none of {len(problems)} problems, so nothing follows "
            "about how good either is: leave one out, or check that their answers can be read"
        )
    column_of = [places.index(candidate.model) for candidate in candidates]

    def benefit(shares: np.ndarray) -> np.ndarray:
        # Two models that never agree in a resample have no strength there; the candidate is not first in it.
        with np.errstate(divide="ignore", invalid="ignore"):
            strong = strengths(shares[..., : len(between)], len(places))
            return np.nan_to_num(strong[..., column_of] - shares[..., len(between) :], nan=-np.inf, neginf=-np.inf)

    strong = strengths(agreement[: len(between)], len(places))
    ranked = _ranked(candidates, pairs, benefit(agreement), benefit(_resampled(agreeing)))
    order = {candidate.name: strong[place] for candidate, place in zip(candidates, column_of, strict=True)}
    scored = []
    for c in ranked:
        strength = float(order[c.name])
        why = (
            f"It agrees with {c.pair.a} on {c.pair.agreement:.0%} of the problems; its agreement with all models "
            f"suggests a strength of {strength:.0%}."
        )
        scored.append(replace(c, strength=strength, why=(why,)))
    limits: tuple[str, ...] = LIMITS_LABEL_FREE
    if (strong > 1).any():
        limits += (
            "A strength above 100 % shows that the assumption does not hold here: some models agree with each other "
            "far more than with the rest.",
        )
    return Ranking(anchor.name, tuple(scored), False, _verdict(scored, "if its assumption holds, "), limits)


def strengths(agreement: Any, models: int) -> np.ndarray:
    """Return the strength s_i of every model from pairwise agreement, assuming a_ij = s_i s_j.

    `agreement`: shares in the order of `itertools.combinations`, (..., pairs); returns (..., models). With three
    models it is exact, s_1 = sqrt(a_12 a_13 / a_23). It equals the accuracy where errors are independent and wrong
    answers never coincide. See `mmcorl.labels.adaptive`.
    """
    logs = np.moveaxis(np.log(np.asarray(agreement, dtype=np.float64)), -1, 0)
    return np.asarray(np.exp(np.stack(log_strengths(list(logs), models), axis=-1)))


def _resampled(rows: np.ndarray) -> np.ndarray:
    """Return means of `rows` (problems, columns) over resamples of the problems, the same for all columns.

    Equal rows are drawn together, by how often each kind comes up: the same distribution at a fraction of the work.
    """
    kinds, counts = np.unique(rows, axis=0, return_counts=True)
    rng = np.random.default_rng(0)
    drawn = (rng.multinomial(len(rows), counts / len(rows), size=_CHUNK) for _ in range(RESAMPLES // _CHUNK))
    return np.concatenate([weights @ kinds for weights in drawn]) / len(rows)


def _ranked(
    candidates: Sequence[ModelResponses], pairs: Sequence[Pair], benefits: np.ndarray, resampled: np.ndarray
) -> list[Candidate]:
    best = resampled == resampled.max(axis=1, keepdims=True)
    first = (best / best.sum(axis=1, keepdims=True)).mean(axis=0)
    ranked = []
    for column, (model, pair) in enumerate(zip(candidates, pairs, strict=True)):
        finite = resampled[:, column][np.isfinite(resampled[:, column])]
        interval = percentile_interval(finite) if len(finite) else Interval(math.nan, math.nan)
        ranked.append(Candidate(model.name, pair, float(benefits[column]), interval, float(first[column])))
    return sorted(ranked, key=lambda candidate: -candidate.benefit)


def _verdict(ranked: Sequence[Candidate], condition: str) -> str:
    best, *others = ranked
    if not others:
        return f"{best.name} is the only candidate: {100 * best.benefit:+.1f} points; give others to compare it with."
    if best.first >= CLEAR:
        return f"{best.name}: {condition}first in {best.first:.0%} of resamples of the problems."
    rivals = " or ".join(candidate.name for candidate in others if candidate.first >= (1 - CLEAR) / 2)
    return (
        f"{best.name} leads, but these problems do not separate it from {rivals}: {condition}first in "
        f"{best.first:.0%} of resamples. More problems would."
    )


def _why_labelled(candidate: Candidate, own: float | None) -> tuple[str, ...]:
    cells = candidate.pair.cells
    assert cells is not None
    assert cells.same_wrong is not None  # `measure` counts it
    wrong = cells.only_b + cells.neither
    if not wrong:
        return (f"{candidate.pair.a} is right everywhere: no partner can correct it on these problems.",)
    reasons = [
        f"Of the {wrong} problems {candidate.pair.a} gets wrong it gets {cells.only_b} right "
        f"({cells.only_b / wrong:.0%}) and repeats the wrong answer on {cells.same_wrong} "
        f"({cells.same_wrong / wrong:.0%})."
    ]
    if own is not None and candidate.pair.kind != "seed":
        change = candidate.benefit - own
        word = "more" if change > 0 else "less"
        reasons.append(
            f"That is {100 * abs(change):.1f} points {word} than {candidate.pair.a} with a new seed."
            if round(100 * change, 1)
            else f"That equals {candidate.pair.a} with a new seed."
        )
    if math.isnan(cells.kappa):
        reasons.append("kappa is undefined: both are always right, or both always wrong.")
    else:
        reasons.append(
            f"c {100 * cells.complementarity:.1f} % = {100 * (1 - cells.chance_agreement):.1f} % that their accuracies "
            f"alone would give x (1 - kappa {cells.kappa:.2f})."
        )
    gap = cells.accuracy_b - cells.accuracy_a
    if candidate.pair.kind != "seed" and abs(gap) >= cells.complementarity / 3 and round(100 * gap, 1):
        side = "less" if gap < 0 else "more"
        reasons.append(
            f"Caution: it is {100 * abs(gap):.1f} points {side} accurate, which alone explains that much of c"
            + ("; the anchor would mostly teach it." if gap < 0 else ".")
        )
    if cells.only_a:
        right = cells.right_a
        reasons.append(
            f"Of the {right} that {candidate.pair.a} gets right it denies {cells.only_a} ({cells.only_a / right:.0%})."
        )
    return tuple(reasons)
