"""What summary.json says, in words for people."""

from __future__ import annotations

import math

import pytest

from mmcorl.run.summary import memory_sentences, training, window


def test_a_quarter_of_the_steps_stands_for_an_end_three_to_ten_of_them_without_overlap():
    expected = {1: 1, 2: 1, 3: 1, 4: 2, 5: 2, 6: 3, 12: 3, 15: 3, 16: 4, 20: 5, 39: 9, 40: 10, 1000: 10}
    assert {steps: window(steps) for steps in expected} == expected


def test_training_without_known_answers_is_told_by_its_first_and_last_steps():
    def line(step: int) -> dict:
        return {
            "step": step,
            "agents": {"a": {"reward_mean": step / 10, "answer_diversity": 1.0 if step > 1 else None}},
            "cohort": {"agreement": step / 100},
        }

    told = training([line(step) for step in range(1, 31)], ["a"])
    # Seven of 30 steps: 1 to 7 and 24 to 30. The variance of seven numbers in a row is 28 / 6, twice of which by seven.
    error = math.sqrt(2 * 28 / 6 / 7)
    assert told["agreement"] == pytest.approx({"start": 0.04, "end": 0.27, "error": error / 100})
    assert told["agents"]["a"]["reward"] == pytest.approx({"start": 0.4, "end": 2.7, "error": error / 10})
    assert told["agents"]["a"]["answer_diversity"] == {"start": 1.0, "end": 1.0, "error": 0.0}
    none = {"start": None, "end": None, "error": None}
    assert training([line(1)], ["a"])["agents"]["a"]["answer_diversity"] == none
    # Of four steps at either end nothing is known of chance.
    assert training([line(step) for step in range(1, 17)], ["a"])["agreement"]["error"] is None
    # At most ten steps, however long the run is.
    assert training([line(step) for step in range(1, 1001)], ["a"])["agreement"]["start"] == pytest.approx(0.055)


def test_memory_is_told_once_per_process_and_only_where_it_grew():
    grown = {"of": "process", "measured_gb": 2**30 / 1e9, "predicted_gb": 2**29 / 1e9}
    told = "process grown by 1.00 GiB at its peak, 0.50 GiB predicted for tensors"
    shared = {"memory": {**grown, "together": True}}
    assert memory_sentences({"a": shared, "b": shared}) == {"all agents together": told}
    assert memory_sentences({"a": {"memory": grown}, "b": {"memory": grown | {"measured_gb": -0.01}}}) == {"a": told}
    assert memory_sentences({"a": {}, "b": {"memory": {"predicted_gb": 1.0}}}) == {}
