"""The memory of an update, predicted from the config alone, is what its tensors then hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_adapters.testing.tiny import build_tiny
from tests.bench.memory_estimate import SMALL, Case, arguments, cases, compare

FAMILIES = ["qwen2_5_vl", "internvl3_5", "gemma3", "llama"]
SOME = [
    ("llama", Case()),
    ("internvl3_5", Case("bf16", prefix="plain")),
    ("gemma3", Case("bf16", checkpointing=True)),
    ("qwen2_5_vl", Case(way="frozen")),
    pytest.param("qwen2_5_vl", Case("bf16", way="lora"), marks=pytest.mark.slow),
]


def require_a_tenth(family: str, folder: Path, case: Case) -> None:
    options = arguments().parse_args(["--threads", "1"])
    found = compare(family, build_tiny(family, folder, **SMALL[family].settings()), case, options)
    assert found.ratio == pytest.approx(1, abs=0.1), found
    # Gradients are exact, and the count of everything else must not hide behind them.
    assert found.ratio_of_activations == pytest.approx(1, abs=0.1), found
    assert family == "llama" or found.predicted["vision tower"] > 0 or case.way == "lora"


@pytest.mark.parametrize(("family", "case"), SOME, ids=str)
def test_predicted_within_a_tenth_of_what_tensors_hold(family: str, case: Case, tmp_path: Path) -> None:
    require_a_tenth(family, tmp_path, case)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_to_train_within_a_tenth(family: str, tmp_path: Path) -> None:
    for case in cases(family):
        require_a_tenth(family, tmp_path / "model", case)
