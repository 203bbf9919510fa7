"""Rows that are held out where no validation set is named: how many, which, and what resumes without them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmcorl import config as settings
from mmcorl.data.mixture import Mixture
from mmcorl.data.settings import DataSettings
from mmcorl.data.sources import load_prompts
from mmcorl.data.training_prompts import hold_out
from mmcorl.errors import UserError


def rows_of(each: int = 1) -> Any:
    """Rows that are made of stored rows, `each` of one."""
    return SimpleNamespace(stored_row=lambda index: index // each)


@pytest.mark.parametrize(
    ("rows", "held"), [(19, 0), (20, 5), (50, 5), (90, 9), (1000, 100), (2000, 200), (100_000, 200)]
)
def test_a_tenth_is_held_out_a_handful_at_least_and_200_at_most(rows: int, held: int) -> None:
    train, kept_out = hold_out(rows_of(), range(rows), 0.1, 4)
    assert len(kept_out) == held
    assert sorted([*train, *kept_out]) == list(range(rows))
    assert train == sorted(train)
    assert kept_out == sorted(kept_out)
    # The same in every run, and none where it is turned off.
    assert hold_out(rows_of(), range(rows), 0.1, 4) == (train, kept_out)
    assert hold_out(rows_of(), range(rows), 0.0, 4) == ([*range(rows)], [])


def test_a_batch_is_always_left_and_what_one_stored_row_says_stays_together() -> None:
    train, held = hold_out(rows_of(), range(24), 0.2, 21)
    assert (len(train), len(held)) == (21, 3)
    assert hold_out(rows_of(), range(24), 0.2, 24)[1] == []
    train, held = hold_out(rows_of(3), range(300), 0.1, 16)
    assert len(held) == 30
    assert {row // 3 for row in train} & {row // 3 for row in held} == set()
    # Of rows that a check has skipped none comes back.
    kept = [row for row in range(300) if row % 7]
    assert sorted([row for part in hold_out(rows_of(3), kept, 0.1, 16) for row in part]) == kept


def test_rows_of_several_sets_are_told_apart() -> None:
    part = load_prompts(DataSettings(source="synthetic:arithmetic", size=30))
    mixed = Mixture([part, part])
    assert part.stored_row(7) == part.select([7]).stored_row(0) == 7
    assert [mixed.stored_row(row) for row in (0, 29, 30)] == [(0, 0), (0, 29), (1, 0)]
    assert len(hold_out(mixed, range(60), 0.5, 4)[1]) == 30


def _config(**validation: Any) -> dict[str, Any]:
    agents = [{"name": name, "model": "zoo:qwen2"} for name in ("a", "b")]
    data = {"train": {"source": "synthetic:arithmetic", "size": 40}}
    return {"name": "x", "steps": 1, "agents": agents, "data": data, "validation": validation}


def test_sets_hold_nothing_out_and_both_at_once_are_refused() -> None:
    named = {"sets": [{"name": "own", "data": {"source": "synthetic:arithmetic", "seed": 1, "size": 8}}]}
    assert settings.parse(_config(**named)).validation.hold_out == 0.0
    assert settings.parse(_config(hold_out=0, **named)).validation.hold_out == 0.0
    with pytest.raises(UserError, match=r"hold_out is 0\.1, but rows are held out only where"):
        settings.parse(_config(hold_out=0.1, **named))
