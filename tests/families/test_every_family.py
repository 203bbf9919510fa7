"""Whatever the family: what it offers works on its tiny checkpoint, and what it does not offer is refused in words.

Families are those with a recipe in model_adapters/testing/recipes; a new one is found by itself. Their numbers are in
docs/families.md, their parts that need vLLM or several ranks in tests/stack/test_every_family_stack.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import family_checks
from adapter_passes import each_family
from family_checks import NotOffered
from model_adapters.testing.tiny import VISION_FAMILIES

FIRST = "qwen2_5_vl"
"""The family of the default tier, and the partner of the others."""


every_family = each_family(FIRST, *(name for name in VISION_FAMILIES if name != FIRST))


@every_family
def test_the_contract_holds(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    family_checks.contract(tiny_checkpoints[family])


@every_family
def test_a_prompt_computed_once_gives_the_same_update(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    try:
        family_checks.shared_prefix(tiny_checkpoints[family])
    except NotOffered as reason:
        pytest.skip(str(reason))


@every_family
def test_the_policy_scores_what_its_engine_samples(family: str, tiny_checkpoints: Mapping[str, Path]) -> None:
    family_checks.transformers_engine(tiny_checkpoints[family])


@every_family
def test_adapters_train_alone_and_merge(family: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    family_checks.lora(tiny_checkpoints[family], tmp_path)


@pytest.mark.slow
@every_family
def test_it_trains_beside_another_family(family: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path) -> None:
    partner = "internvl3_5" if family == FIRST else FIRST
    family_checks.training(tiny_checkpoints[family], tiny_checkpoints[partner], tmp_path)
