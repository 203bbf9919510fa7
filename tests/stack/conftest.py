"""Engines and worlds of ranks that several test files share: starting one takes seconds."""

from __future__ import annotations

import os

# Ray gives its workers the lowest claim on a processor: beside another test they would hardly move.
os.environ.setdefault("RAY_worker_niceness", "0")

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sharding_worlds import Worlds
from vllm_parts import Bench, Benches


@pytest.fixture(scope="session")
def benches(tiny_checkpoints: Mapping[str, Path]) -> Mapping[str, Bench]:
    """A policy and its engines for each family, made when first asked for; tests leave the weights as they were."""
    return Benches(tiny_checkpoints)


@pytest.fixture(scope="session")
def worlds() -> Iterator[Worlds]:
    """Processes that train together, one world per number of ranks."""
    worlds = Worlds()
    yield worlds
    worlds.close()
