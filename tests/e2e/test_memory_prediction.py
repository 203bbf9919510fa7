"""The memory of an update, predicted from the config alone, is what its tensors then hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_adapters.testing.tiny import build_tiny
from tests.bench.memory_estimate import SMALL, Case, Found, arguments, cases, compare

FAMILIES = ["qwen2_5_vl", "internvl3_5", "gemma3", "llama"]
SOME = [Case(), Case("bf16", prefix="plain"), Case("bf16", checkpointing=True)]


def predicted(family: str, folder: Path, case: Case) -> Found:
    options = arguments().parse_args(["--threads", "1"])
    return compare(family, build_tiny(family, folder, **SMALL[family].settings()), case, options)


def require_a_tenth(found: Found) -> None:
    assert found.ratio == pytest.approx(1, abs=0.1), found
    # Gradients are exact, and the count of everything else must not hide behind them.
    assert found.ratio_of_activations == pytest.approx(1, abs=0.1), found


@pytest.mark.parametrize("case", SOME, ids=lambda case: f"{case.dtype} {case.prefix} {case.way}")
@pytest.mark.parametrize("family", FAMILIES)
def test_predicted_within_a_tenth_of_what_tensors_hold(family: str, case: Case, tmp_path: Path) -> None:
    found = predicted(family, tmp_path, case)
    require_a_tenth(found)
    assert family == "llama" or found.predicted["vision tower"] > 0


@pytest.mark.parametrize("case", [Case(way="frozen"), Case("bf16", way="lora")], ids=lambda case: case.way)
def test_a_frozen_tower_and_frozen_weights_with_adapters(case: Case, tmp_path: Path) -> None:
    require_a_tenth(predicted("qwen2_5_vl", tmp_path, case))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_to_train_within_a_tenth(family: str, tmp_path: Path) -> None:
    for case in cases(family):
        require_a_tenth(predicted(family, tmp_path / "model", case))
