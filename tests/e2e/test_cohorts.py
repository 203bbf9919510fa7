"""The other cohorts of configs/: three families in a ring, one family twice, text. The weakness is planted."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_quickstart import outcome, zoo_cache

__all__ = ["zoo_cache"]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    # In the ring Gemma learns from the agent that begins without dots, and is on its way after 60 steps: .75 to .86
    # with this seed, to .96 with the next.
    ("config", "enough"),
    [("ring_of_three.yaml", 0.82), ("same_family.yaml", 0.95), ("text.yaml", 0.95)],
)
def test_other_cohorts(tmp_path: Path, config: str, enough: float) -> None:
    end = outcome(tmp_path, config)["end"]
    assert min(end.values()) >= enough
