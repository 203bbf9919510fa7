"""What summary.json says, in words for people."""

from __future__ import annotations

import pytest

from mmcorl.run.summary import memory_sentences, training


def test_training_without_known_answers_is_told_by_its_first_and_last_tenth():
    def line(step: int) -> dict:
        return {
            "step": step,
            "agents": {"a": {"reward_mean": step / 10, "answer_diversity": 1.0 if step > 1 else None}},
            "cohort": {"agreement": step / 100},
        }

    told = training([line(step) for step in range(1, 31)], ["a"])
    assert told["agreement"] == {"start": pytest.approx(0.02), "end": pytest.approx(0.29)}
    assert told["agents"]["a"]["reward"] == {"start": pytest.approx(0.2), "end": pytest.approx(2.9)}
    assert told["agents"]["a"]["answer_diversity"] == {"start": 1.0, "end": 1.0}
    assert training([line(1)], ["a"])["agents"]["a"]["answer_diversity"] == {"start": None, "end": None}
    # At most ten steps, however long the run is.
    assert training([line(step) for step in range(1, 1001)], ["a"])["agreement"]["start"] == pytest.approx(0.055)


def test_memory_is_told_once_per_process_and_only_where_it_grew():
    grown = {"of": "process", "measured_gb": 2**30 / 1e9, "predicted_gb": 2**29 / 1e9}
    told = "process grown by 1.00 GiB at its peak, 0.50 GiB predicted for tensors"
    shared = {"memory": {**grown, "together": True}}
    assert memory_sentences({"a": shared, "b": shared}) == {"all agents together": told}
    assert memory_sentences({"a": {"memory": grown}, "b": {"memory": grown | {"measured_gb": -0.01}}}) == {"a": told}
    assert memory_sentences({"a": {}, "b": {"memory": {"predicted_gb": 1.0}}}) == {}
