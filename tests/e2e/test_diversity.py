"""Kappa and what belongs to it: the paper's table, numbers worked out by hand, and what must always hold."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import correlation

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcorl.analysis.diversity import (
    Cells,
    Draw,
    Pair,
    all_pairs,
    anchors,
    by_kind,
    count_cells,
    kappa_interval,
    ladder,
    measure,
    measures,
    wilson,
)
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from paper_pairs import ROWS, Row, draws


class Spelling:
    """The simplest relation: two answers are the same when they are written alike."""

    def same(self, a: str, b: str, choices: Sequence[str] | None = None) -> bool:
        return a == b

    def classes(self, answers: Sequence[str | None], choices: Sequence[str] | None = None) -> list[int | None]:
        raise NotImplementedError


@pytest.fixture(scope="module")
def relation() -> Iterator[Equivalence]:
    with Equivalence() as own:
        yield own


def draw(name: str, answers: Sequence[str | None], right: Sequence[bool] | None, model: str = "") -> Draw:
    correct = None if right is None else {str(k): told for k, told in enumerate(right)}
    return Draw(name, model or name, {str(k): answer for k, answer in enumerate(answers)}, correct)


# --- the paper's table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.a} x {row.b}")
def test_the_rows_of_the_paper_come_out_to_the_printed_digit(row: Row, relation: Equivalence) -> None:
    pair = measure(*draws(row), relation)
    cells = pair.cells
    assert cells is not None
    assert (cells.both, cells.only_a, cells.only_b, cells.neither, cells.same_wrong) == row.cells
    shares = (cells.complementarity, cells.wrong_agreement, cells.oracle)
    assert (f"{cells.kappa:.2f}", *(f"{100 * share:.1f}" for share in shares)) == row.printed
    assert round(cells.kappa, 4) == row.kappa
    assert (100 * cells.accuracy_a, 100 * cells.accuracy_b) == pytest.approx(row.accuracies)
    assert pair.kind == row.kind
    # Both right is the same answer; so agreement is n11 and the shared errors.
    assert pair.agreeing == cells.both + cells.same_wrong


def test_kappa_worked_out_by_hand() -> None:
    # Qwen2.5-3B x Llama-3.2-3B: p_A .506, p_B .442; p_o = 344/500 = .688; p_e = .506*.442 + .494*.558 = .499304;
    # kappa = (.688 - .499304) / (1 - .499304) = .188696 / .500696
    cells = Cells(159, 94, 62, 185, 12)
    assert cells.chance_agreement == pytest.approx(0.499304, abs=1e-12)
    assert cells.kappa == pytest.approx(0.188696 / 0.500696, abs=1e-12)


def paper_pairs() -> list[Pair]:
    return [measure(*draws(row), Spelling()) for row in ROWS]


def test_the_three_levels_of_the_paper() -> None:
    told = by_kind(paper_pairs())
    # "crossing families lowers kappa from 0.53 to 0.38 and raises c from 23.2 to 30.8"; 7 rows do not cross.
    count, kappa, c = told["different_family"]
    assert (count, round(kappa, 2), round(100 * c, 1)) == (5, 0.38, 30.8)
    (same, k_same, c_same), (seed, k_seed, c_seed) = told["same_family"], told["seed"]
    assert (same, seed) == (3, 4)
    assert round((3 * k_same + 4 * k_seed) / 7, 2) == 0.53
    assert round(100 * (3 * c_same + 4 * c_seed) / 7, 1) == 23.2


@pytest.mark.parametrize(
    ("anchor", "same", "different", "more"), [("Qwen2.5-3B", 0.04, 0.18, 9.2), ("Qwen2.5-7B", 0.07, 0.16, 10.4)]
)
def test_the_ladders_of_the_paper(anchor: str, same: float, different: float, more: float) -> None:
    rungs = ladder(paper_pairs(), anchor)
    assert all(rung.a == anchor for rung in rungs)
    assert [rung.kind for rung in rungs] == sorted(
        (rung.kind for rung in rungs), key=["seed", "same_family", "different_family"].index
    )
    by_partner = {rung.b: rung.cells for rung in rungs}
    assert all(by_partner.values())
    own, last = rungs[0].cells, rungs[-1].cells
    assert own is not None
    assert last is not None
    siblings = [rung.cells for rung in rungs if rung.kind == "same_family" and rung.b != "Qwen2.5-7B"]
    # As the paper does, from the printed kappas: 0.56 to 0.52 and 0.38; 0.58 to 0.51 and 0.42.
    lowered = {round(round(own.kappa, 2) - round(one.kappa, 2), 2) for one in siblings if one}
    assert lowered == {same}
    assert round(round(own.kappa, 2) - round(last.kappa, 2), 2) == different
    assert round(100 * (last.complementarity - own.complementarity), 1) == more


def test_kappa_and_complementarity_are_two_readings_of_one_measurement() -> None:
    cells = [pair.cells for pair in paper_pairs() if pair.cells]
    printed = [(round(one.kappa, 2), round(one.complementarity, 3)) for one in cells]
    # The paper reports -0.98.
    assert correlation(*zip(*printed, strict=True)) == pytest.approx(-0.98379, abs=5e-6)


# --- what must always hold ----------------------------------------------------------------------------------

counts = st.integers(0, 40)
some_cells = (
    st.tuples(counts, counts, counts, counts)
    .filter(any)
    .flatmap(lambda told: st.integers(0, told[3]).map(lambda same: Cells(*told, same)))
)


@given(some_cells)
def test_identities(cells: Cells) -> None:
    n, p_a, p_b = cells.problems, cells.accuracy_a, cells.accuracy_b
    c, u, w = cells.complementarity, cells.oracle, cells.wrong_agreement
    assert cells.both / n == pytest.approx(u - c)
    assert p_a + p_b == pytest.approx(2 * u - c)
    assert w <= 1 - u + 1e-12
    assert c >= abs(p_a - p_b) - 1e-12
    mean = (p_a + p_b) / 2
    assert c <= 2 * min(mean, 1 - mean) + 1e-12
    if not math.isnan(cells.kappa):
        # Accuracy and dependence enter c as factors, and p_e and p_A p_B follow from the printed numbers.
        assert c == pytest.approx((1 - cells.chance_agreement) * (1 - cells.kappa))
        assert cells.chance_agreement * (1 - cells.kappa) == pytest.approx(1 - c - cells.kappa)
        assert p_a * p_b == pytest.approx((cells.chance_agreement - 1 + p_a + p_b) / 2)
        assert -1 - 1e-12 <= cells.kappa <= 1


@given(some_cells)
def test_swapping_the_two_changes_nothing_but_their_names(cells: Cells) -> None:
    other = cells.swapped()
    assert other.swapped() == cells
    assert (other.accuracy_a, other.accuracy_b) == (cells.accuracy_b, cells.accuracy_a)
    for name in ("complementarity", "wrong_agreement", "oracle"):
        assert getattr(other, name) == getattr(cells, name)
    assert other.kappa == cells.kappa or (math.isnan(other.kappa) and math.isnan(cells.kappa))


@given(some_cells)
def test_kappa_is_undefined_exactly_where_both_never_vary_and_are_alike(cells: Cells) -> None:
    constant = cells.problems in (cells.both, cells.neither)
    assert math.isnan(cells.kappa) == constant
    low, high = kappa_interval(cells, resamples=200)
    assert math.isnan(low) == math.isnan(high) == constant
    if not constant:
        assert -1 <= low <= high <= 1


answers = st.sampled_from(["1", "2", "3", None])
responses = st.tuples(answers, st.booleans()).map(lambda told: (told[0], told[1] and told[0] is not None))


@given(st.lists(st.tuples(responses, responses), min_size=1, max_size=30))
def test_measuring_is_symmetric_and_missing_answers_never_agree(
    rows: list[tuple[tuple[str | None, bool], ...]],
) -> None:
    a, b = (draw(name, [row[k][0] for row in rows], [row[k][1] for row in rows]) for k, name in enumerate("ab"))
    one, other = measure(a, b, Spelling()), measure(b, a, Spelling())
    assert one.cells is not None
    assert other.cells == one.cells.swapped()
    assert one.agreeing == other.agreeing
    both_answer = sum(x[0] is not None and y[0] is not None for x, y in rows)
    assert one.agreeing <= both_answer
    assert one.cells.same_wrong <= sum(not x[1] and not y[1] and x[0] is not None for x, y in rows)


def test_two_missing_answers_are_not_the_same_wrong_answer() -> None:
    pair = measure(draw("a", [None, "7"], [False, False]), draw("b", [None, "7"], [False, False]), Spelling())
    assert pair.cells == Cells(0, 0, 0, 2, 1)
    assert pair.agreement == 0.5
    assert pair.cells is not None
    assert math.isnan(pair.cells.kappa)


def test_one_relation_says_when_two_wrong_answers_are_the_same(relation: Equivalence) -> None:
    # The answers of 0.25 and 1/4 are one error; B is the option 45.
    a = draw("a", ["0.25", "B", "x+1"], [False] * 3)
    b = draw("b", ["\\frac{1}{4}", "45", "1+x"], [False] * 3)
    told = measure(a, b, relation, {"0": None, "1": ("30", "45"), "2": None})
    assert told.cells is not None
    assert told.cells.same_wrong == 3
    assert measure(a, b, Spelling()).agreeing == 0


def test_vectors_become_cells() -> None:
    cells = count_cells(
        [True, True, False, False, False], [True, False, True, False, False], [True, False, False, True, False]
    )
    assert cells == Cells(1, 1, 1, 2, 1)
    with pytest.raises(ValueError, match="zip"):
        count_cells([True], [True, False], [True, False])


def test_draws_over_other_problems_are_refused_in_a_sentence() -> None:
    a, b = draw("a", ["1", "2"], [True, True]), draw("b", ["1", "2", "3"], [True, True, True])
    with pytest.raises(
        UserError, match=r"a answers 2 problems and b 3, of which 2 are the same \(problem '2' is in b only"
    ):
        measure(a, b, Spelling())


def test_without_known_answers_there_is_agreement_and_nothing_else() -> None:
    pair = measure(draw("a", ["1", "2"], None), draw("b", ["1", "3"], None), Spelling())
    assert (pair.agreement, pair.cells) == (0.5, None)
    assert "kappa" not in pair.as_dict()


# --- all pairs ----------------------------------------------------------------------------------------------


def test_every_two_models_meet_once_and_each_its_own_further_draws() -> None:
    told = [
        draw(name, ["1", "2"], [True, False], model)
        for name, model in [("a", "a"), ("a #2", "a"), ("a #3", "a"), ("b", "b"), ("b #2", "b"), ("c", "c")]
    ]
    pairs = all_pairs(told, Spelling())
    met = {(pair.a, pair.b) for pair in pairs}
    assert met == {("a", "b"), ("a", "c"), ("b", "c"), ("a", "a #2"), ("a", "a #3"), ("b", "b #2")}
    assert [pair.kind for pair in pairs] == ["seed"] * 3 + ["unstated"] * 3
    assert anchors(pairs) == ["a", "b", "c"]


# --- intervals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "total"), [(15, 500), (1, 7), (250, 500), (39, 40)])
def test_wilson_bounds_are_where_the_score_test_just_rejects(count: int, total: int) -> None:
    # Its definition: both bounds b solve (p - b)^2 = z^2 b (1 - b) / n, with z = 1.959964 at 95 %.
    for bound in wilson(count, total):
        assert (count / total - bound) ** 2 == pytest.approx(1.959964**2 * bound * (1 - bound) / total, rel=1e-5)


def test_wilson_bounds_at_the_ends_of_the_scale() -> None:
    assert wilson(0, 40).low == 0.0
    assert 0 < wilson(0, 40).high < 0.1
    assert wilson(40, 40).high == 1.0


def test_the_interval_of_kappa_is_about_as_wide_as_the_large_sample_formula_says() -> None:
    cells = Cells(159, 94, 62, 185, 12)
    low, high = kappa_interval(cells)
    assert (low, high) == kappa_interval(cells)
    # Fleiss, Cohen and Everitt 1969 for this table, worked out below.
    n, po, pe = 500, 0.688, cells.chance_agreement
    rows, columns = (cells.accuracy_a, 1 - cells.accuracy_a), (cells.accuracy_b, 1 - cells.accuracy_b)
    shares = ((159 / n, 94 / n), (62 / n, 185 / n))
    on = sum(shares[i][i] * ((1 - pe) - (rows[i] + columns[i]) * (1 - po)) ** 2 for i in (0, 1))
    off = (1 - po) ** 2 * sum(shares[i][j] * (columns[i] + rows[j]) ** 2 for i, j in ((0, 1), (1, 0)))
    error = math.sqrt((on + off - (po * pe - 2 * pe + po) ** 2) / n) / (1 - pe) ** 2
    assert 1.96 * error == pytest.approx(0.08, abs=0.005)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert low < cells.kappa < high


def test_every_measure_lies_within_its_interval() -> None:
    for pair in paper_pairs():
        assert pair.cells is not None
        assert all(low < value < high for value, (low, high) in measures(pair.cells).values())


def test_json_has_null_where_a_number_is_undefined() -> None:
    told = measure(draw("a", ["1"], [True]), draw("b", ["1"], [True]), Spelling()).as_dict()
    assert told["kappa"] == {"value": None, "low": None, "high": None}
    assert told["oracle"]["value"] == 1.0
