"""Break a run under Ray in many ways; each time it stops in seconds, says why, leaves nothing, and goes on later."""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_drills import DRILLS, Range, problems

from runs import assert_it_learns, assert_same_run

pytestmark = pytest.mark.stack

CHOSEN = ("a worker is killed in an update", "a worker is suspended", "the driver is killed")
"""Of the drills; `python tests/stack/fault_drills.py` does all of them."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Range:
    return Range(tmp_path_factory.mktemp("range"))


def test_a_run_broken_again_and_again_ends_with_the_same_bytes(place: Range, tmp_path: Path) -> None:
    alone = place.finish(place.start(tmp_path / "alone"))
    assert alone.code == 0, alone.output
    assert_it_learns(tmp_path / "alone")
    for name in CHOSEN:
        (drill,) = [one for one in DRILLS if one.name == name]
        outcome = place.do(drill, tmp_path / "run")
        assert problems(outcome) == [], f"{name}: {outcome.ended.output}"
    last = place.finish(place.start(tmp_path / "run"))
    assert last.code == 0, last.output
    assert place.left() == []
    assert_same_run(tmp_path / "run", tmp_path / "alone")
