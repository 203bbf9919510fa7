"""The memory of an update, predicted from the config alone, is what its tensors then hold."""

from __future__ import annotations

import pytest

from mmcorl import memory
from tests.bench.memory_estimate import arguments, run


@pytest.mark.parametrize("family", ["qwen2_5_vl", "internvl3_5", "gemma3", "llama"])
def test_predicted_within_a_tenth_of_what_tensors_hold(family: str) -> None:
    # fp32 and bf16, with and without checkpointing and sharing, with adapters, and with a frozen tower.
    for one in run(family, arguments().parse_args(["--threads", "1"])):
        assert one.ratio == pytest.approx(1, abs=0.1), one
        # Gradients are exact, and the count of everything else must not hide behind them.
        assert one.ratio_of_activations == pytest.approx(1, abs=0.1), one
        if family != "llama":
            assert one.predicted["vision tower"] > 0


def test_reserve_comes_on_top() -> None:
    assert memory.Budget({"a": 1}, {"b": 2}, {"c": 3}).peak == 4 + memory.RESERVE
