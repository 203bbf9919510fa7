"""pass@k, avg@k and Cover@tau of several samples: by hand, against counting every set, and between two evaluations."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from eval_suite import compare, table
from eval_suite.metrics.sampled import covers, passes, summarised
from evaluations import evaluation
from mmcorl.grading.items import Item


def test_pass_at_k_is_the_share_of_sets_with_a_right_sample() -> None:
    for n in (2, 5, 8):
        assert [measure.at for measure in passes(n)] == {2: [1, 2], 5: [1, 2, 4, 5], 8: [1, 2, 4, 8]}[n]
        for measure in passes(n):
            for right, (count, total) in enumerate(measure.shares):
                sets = list(combinations([1] * right + [0] * (n - right), int(measure.at)))
                assert count / total == pytest.approx(sum(map(max, sets)) / len(sets))


def test_cover_needs_at_least_a_share_of_right_samples() -> None:
    for n in (2, 3, 8):
        for measure in covers(n):
            assert [share.correct for share in measure.shares] == [int(c >= measure.at * n) for c in range(n + 1)]
    # Of two samples a quarter and a half are one right sample, three quarters and all are both.
    assert [measure.name for measure in covers(2)] == ["cover@0.5", "cover@1"]
    assert [measure.name for measure in covers(8)] == ["cover@0.25", "cover@0.5", "cover@0.75", "cover@1"]


def items(count: int, group: int = 1) -> list[Item]:
    return [Item("sums", str(n), f"{n}?", str(n), group=str(n // group) if group > 1 else None) for n in range(count)]


def test_means_by_hand_and_intervals_that_do_not_count_samples_as_problems() -> None:
    # Of four samples 4, 1, 0 and 2 are right.
    right = dict(zip("0123", (4, 1, 0, 2), strict=True))
    values = summarised(items(4), right, 4)
    assert values is not None
    # avg 7/16; pass@2 = 1 - C(4 - c, 2)/6: 1, 1/2, 0, 5/6; pass@4: 1, 1, 0, 1.
    assert {name: pytest.approx(value["value"]) for name, value in values.items()} == {
        "avg@4": 7 / 16, "pass@2": (1 + 1 / 2 + 5 / 6) / 4, "pass@4": 3 / 4,
        "cover@0.25": 3 / 4, "cover@0.5": 2 / 4, "cover@0.75": 1 / 4, "cover@1": 1 / 4,
    }  # fmt: skip
    # Problems that are right or wrong as a whole are as many answers as there are problems: Wilson's of 5 in 10.
    whole = summarised(items(10), {str(n): 8 * (n % 2) for n in range(10)}, 8)
    assert whole is not None
    for value in whole.values():
        # 9 of 10 degrees of freedom: the variance is 1/4 * 10/9 / 10, the effective number 9.
        assert value["value"] == 0.5
        assert value["interval"] == pytest.approx([0.5 - half(9), 0.5 + half(9)])
    # In pairs of dependent problems, both right or both wrong, there are 5 units.
    pairs = summarised(items(10, 2), {str(n): 8 * (n // 2 % 2) for n in range(10)}, 8)
    assert pairs is not None
    assert pairs["avg@8"]["interval"][1] - pairs["avg@8"]["interval"][0] > 2 * half(9)
    # Nothing right: the bound of one answer per problem.
    none = summarised(items(10), dict.fromkeys(map(str, range(10)), 0), 8)
    assert none is not None
    assert none["pass@8"] == {"value": 0.0, "interval": [0.0, pytest.approx(1.96**2 / (10 + 1.96**2), abs=1e-4)]}
    assert summarised(items(4), dict.fromkeys("0123", 1), 1) is None
    many = summarised(items(2), {"0": 0, "1": 600}, 1200)  # sets that no float counts
    assert many is not None
    assert many["pass@512"]["value"] == pytest.approx(0.5)


def half(n: float) -> float:
    """Half of Wilson's interval of n answers of which half are right: z / 2 / sqrt(n + z^2)."""
    return 1.959964 / 2 / float(np.sqrt(n + 1.959964**2))


def sampled(folder: Path, counts: list[int], of: int) -> Path:
    """Problems of which so many of the samples are right."""
    rows = [" ".join([str(n)] * count + ["x"] * (of - count)) for n, count in enumerate(counts)]
    return evaluation(folder, rows)


def test_a_comparison_resamples_problems_and_not_rows(tmp_path: Path) -> None:
    before, after = [0, 1, 1, 2, 4, 0, 3, 1], [2, 4, 0, 2, 4, 1, 4, 3]
    (tmp_path / "b").mkdir()
    a, b = sampled(tmp_path / "a", before, 4), sampled(tmp_path / "b" / "b", after, 4)
    (paired,) = compare(a, b).benchmarks
    assert paired.n == 8
    assert [change.name for change in paired.sampled] == [
        "pass@2", "pass@4", "cover@0.25", "cover@0.5", "cover@0.75", "cover@1",
    ]  # fmt: skip
    shares = {
        "pass@2": lambda c: 1 - (4 - c) * (3 - c) / 12, "pass@4": lambda c: float(c > 0),
        **{f"cover@{tau:g}": (lambda c, tau=tau: float(c >= 4 * tau)) for tau in (0.25, 0.5, 0.75, 1)},
    }  # fmt: skip
    random = np.random.default_rng(1)
    drawn = random.integers(0, 8, (40_000, 8))
    for change in paired.sampled:
        left, right = (np.array([shares[change.name](c) for c in side]) for side in (before, after))
        assert (change.before, change.after) == (pytest.approx(left.mean()), pytest.approx(right.mean()))
        bounds = np.quantile((right - left)[drawn].mean(1), [0.025, 0.975])
        assert change.interval == pytest.approx(bounds, abs=0.02), change.name
    # Rows taken as independent would be four times as many: an interval of half the width.
    low, high = paired.by_item.interval
    expected = np.quantile(((np.array(after) - before) / 4)[drawn].mean(1), [0.025, 0.975])
    assert (low, high) == pytest.approx(expected, abs=0.02)


def test_they_stand_in_summary_table_and_page_and_nowhere_for_single_samples(tmp_path: Path) -> None:
    several = sampled(tmp_path / "a", [2, 1, 0], 2)
    stored = json.loads((several / "summary.json").read_text())["benchmarks"]["sums"]
    assert {name: value["value"] for name, value in stored["sampled"].items()} == {
        "avg@2": 0.5, "pass@2": pytest.approx(2 / 3),
        "cover@0.5": pytest.approx(2 / 3), "cover@1": pytest.approx(1 / 3),
    }  # fmt: skip
    assert stored["sampled"]["avg@2"]["interval"] == pytest.approx(stored["clustered"]["interval"])
    assert "Several samples per problem" in (several / "results.md").read_text()
    (tmp_path / "b").mkdir()
    single = sampled(tmp_path / "b" / "b", [1, 1, 0], 1)
    assert json.loads((single / "summary.json").read_text())["benchmarks"]["sums"]["sampled"] is None
    assert "Several samples" not in (single / "results.md").read_text()
    both = table(several, single).tables()[-1]
    assert [head for head, _ in both.columns] == ["", "sums a"]
