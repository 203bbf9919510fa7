"""A run of a thousand steps needs no more memory than one of two hundred."""

from __future__ import annotations

import pytest

from bench import memory_growth


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["visual", "text"])
def test_a_thousand_steps_leave_nothing_behind(kind: str) -> None:
    notes = memory_growth.run(memory_growth.arguments().parse_args(["--kind", kind]))
    grown = memory_growth.growth(notes, 200)
    # Per step. Tensors are counted to the last one; a page or so of resident memory is what the measure resolves.
    assert abs(grown["tensors"]) < 0.005
    assert abs(grown["tensor_bytes"]) < 16
    assert grown["objects"] < 1
    assert grown["resident"] < 2048
