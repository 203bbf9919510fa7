"""Every method by name trains the quickstart for three steps: numbers are numbers, teachers and penalties its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import mmcorl
from mmcorl.config import load, methods
from paths import CONFIGS
from runs import records, taught

QUICKSTART = CONFIGS / "quickstart.yaml"
SMALL = {
    "steps": 3,
    "batch__prompts": 4,
    "data__train__size": 40,
    "data__train__views": {"rephrased": {"columns": {"question": "reworded"}}},
    "validation__sets": [],
    "checkpoint__every": 3,
}
PEER, OWN = {"qwen": "intern", "intern": "qwen"}, {"qwen": "qwen", "intern": "intern"}
TEACHERS = {"co_rl": PEER, "ring_previous": PEER, "ttrl": OWN, "mm_upt": OWN, "gt": dict.fromkeys(PEER, "gold")}


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, int | float):
        yield float(value)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(methods.names()))
def test_three_steps_of_every_method(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.getbasetemp() / "taught"
    models = {"qwen": taught("qwen2.5-vl", cache), "intern": taught("internvl3.5", cache)}
    agents = [{"name": agent, "model": str(model)} for agent, model in models.items()]
    config = load(QUICKSTART, ["data.train.views={rephrased: {columns: {question: reworded}}}"], name)
    given = SMALL | {"agents": agents} | ({"batch__completions": 4} if config.episode is None else {})
    run = mmcorl.train(QUICKSTART, tmp_path / "run", method=name, quiet=True, **given)
    steps = records(run.path, "metrics.jsonl")
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert all(math.isfinite(number) for step in steps for number in numbers(step))
    for step in steps:
        for agent in step["agents"].values():
            # Without any signal, as on an all-equal batch, nothing is trained and no divergence measured.
            assert ("kl" in agent) == (config.objective.kl_coef > 0 and agent["trained_tokens"] > 0)
    if name not in ("comas", "maporl", "marti"):  # agents of this size write no scores
        assert any(agent["grad_norm"] > 0 for step in steps for agent in step["agents"].values())
    votes = records(run.path, "votes.jsonl")
    for vote in votes if name in TEACHERS else ():
        assert {agent: own["teacher"] for agent, own in vote["agents"].items()} == TEACHERS[name]
