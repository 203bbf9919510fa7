"""Ranking partners: what the paper's own rows say, numbers worked out by hand, and what is refused."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from mmcorl.apps.analysis.diversity import ModelResponses
from mmcorl.apps.analysis.partners import label_free, labelled, strengths
from mmcorl.errors import UserError
from paper_pairs import spelled


def draw(name: str, answers: str, model: str = "", labels: bool = True) -> ModelResponses:
    """One answer per letter; `r` is right, `-` is none, any other letter is a wrong answer."""
    told = {str(k): None if letter == "-" else letter for k, letter in enumerate(answers)}
    correct = {k: letter == "r" for k, letter in told.items()} if labels else None
    return ModelResponses(name, model or name, told, correct)


def test_benefit_is_corrected_minus_confirmed() -> None:
    anchor = draw("anchor", "rrrrxxxx--")
    other = draw("other", "rrxxrrxyr-")
    copy = draw("copy", "rrrrxxxx-y")
    ranking = labelled(anchor, [copy, other], spelled)
    assert [one.name for one in ranking.candidates] == ["other", "copy"]
    best, worst = ranking.candidates
    # Of the six errors of the anchor `other` corrects 4, 5 and 8, and repeats 6; two of its own stand against r.
    assert best.benefit == pytest.approx((3 - 1) / 10)
    assert best.pair.cells is not None
    assert (best.pair.cells.only_b, best.pair.cells.same_wrong, best.pair.cells.only_a) == (3, 1, 2)
    # The copy corrects nothing and confirms four; no answer on either side confirms nothing.
    assert worst.benefit == pytest.approx(-4 / 10)
    assert best.benefit == pytest.approx(best.pair.cells.accuracy_b - best.pair.agreement)
    assert best.interval.low < best.benefit < best.interval.high


def test_the_anchor_drawn_anew_is_the_measure() -> None:
    ranking = labelled(draw("a", "rrxxxx"), [draw("a #2", "rrxxyy", "a"), draw("b", "rrxxrr")], spelled)
    b = ranking.candidates[0]
    # b: corrected 2, confirmed 2; a #2: corrected none, confirmed 2: 2/6 = 33.3 points apart.
    assert (b.name, b.benefit) == ("b", 0)
    assert any("33.3 points more" in reason for reason in b.why)
    assert any(re.search(r"4 problems .* 2 right \(50%\) .* on 2 \(50%\)", reason) for reason in b.why)


def test_a_clear_winner_is_told_from_one_that_leads_by_chance() -> None:
    anchor = draw("anchor", "x" * 100)
    clear = labelled(anchor, [draw("good", "r" * 90 + "y" * 10), draw("bad", "r" * 10 + "x" * 90)], spelled)
    assert clear.verdict.startswith("good: first in 100%")
    close = labelled(anchor, [draw("b", "r" * 50 + "y" * 50), draw("c", "y" * 51 + "r" * 49)], spelled)
    assert close.verdict.startswith("b leads, but")
    assert sum(one.first for one in close.candidates) == pytest.approx(1)


def test_a_partner_that_is_merely_weaker_is_told_as_such() -> None:
    # c is 50 %, all of it the gap in accuracy: the partner is right nowhere that the anchor is not.
    (one,) = labelled(draw("strong", "r" * 9 + "x"), [draw("weak", "r" * 4 + "y" * 6)], spelled).candidates
    assert one.benefit == 0
    assert any("50.0 points less accurate" in reason for reason in one.why)


# --- without labels -----------------------------------------------------------------------------------------


def test_strengths_from_the_agreement_of_three_models_of_the_paper() -> None:
    # Qwen2.5-3B, Llama-3.2-3B, Phi-3.5-mini agree on n11 + same wrong: 171, 141 and 116 of 500.
    # s_Q = sqrt(.342 * .282 / .232), and so on.
    q, llama, phi = strengths([0.342, 0.282, 0.232], 3)
    assert q == pytest.approx(math.sqrt(0.342 * 0.282 / 0.232))
    assert llama == pytest.approx(math.sqrt(0.342 * 0.232 / 0.282))
    assert phi == pytest.approx(math.sqrt(0.282 * 0.232 / 0.342))
    # In the order of their accuracies 50.6, 44.2 and 29.0, and all too high, which is the stated limit.
    assert q > llama > phi
    assert (q > 0.506, llama > 0.442, phi > 0.290) == (True, True, True)


def test_label_free_ranks_as_the_labels_do_where_errors_are_independent() -> None:
    rng = np.random.default_rng(0)
    n = 4000

    def sample(name: str, accuracy: float) -> ModelResponses:
        right = rng.random(n) < accuracy
        wrong = rng.integers(0, 10**9, n)
        answers = {str(k): "r" if right[k] else str(wrong[k]) for k in range(n)}
        return ModelResponses(name, name, answers, {str(k): bool(right[k]) for k in range(n)})

    anchor, *others = (sample(name, p) for name, p in [("a", 0.6), ("b", 0.8), ("c", 0.7), ("d", 0.4)])
    known = labelled(anchor, others, spelled)
    blind = label_free(anchor, others, spelled)
    assert [one.name for one in blind.candidates] == [one.name for one in known.candidates] == ["b", "c", "d"]
    for one, other in zip(known.candidates, blind.candidates, strict=True):
        assert other.benefit == pytest.approx(one.benefit, abs=0.03)
    assert not blind.labelled


def test_label_free_needs_three_models_and_the_anchors_own_draws_are_not_one() -> None:
    a, again, b = draw("a", "rx", labels=False), draw("a #2", "rx", "a", labels=False), draw("b", "rx", labels=False)
    with pytest.raises(UserError, match=r"2 models are given \(a, b\).*at least 3"):
        label_free(a, [again, b], spelled)
    ranking = label_free(a, [again, b, draw("c", "ry", labels=False)], spelled)
    assert {one.name for one in ranking.candidates} == {"a #2", "b", "c"}


def test_models_that_never_agree_and_missing_answers() -> None:
    a, b, c = (draw(name, text, labels=False) for name, text in (("a", "12"), ("b", "32"), ("c", "34")))
    with pytest.raises(UserError, match="a and c agree on none of 2 problems"):
        label_free(a, [b, c], spelled)
    silent = [draw(name, "rr--", labels=False) for name in "abc"]
    ranking = label_free(silent[0], silent[1:], spelled)
    assert all(candidate.pair.agreement == 0.5 for candidate in ranking.candidates)
