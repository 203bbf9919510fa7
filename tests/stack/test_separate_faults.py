"""An engine with a process of its own that breaks: the run ends as when a rank does. Timed against the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fault_drills import DIED, Drill, Range, problems

from runs import assert_it_learns, assert_same_run, changed, records, small_config, taught

pytestmark = pytest.mark.stack

APART = {"kind": "vllm", "kv_cache_gib": 0.1, "separate": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Range:
    return OneAgent(tmp_path_factory.mktemp("range"))


class OneAgent(Range):
    """Two ranks that divide their weights, and one engine for both."""

    def settings(self) -> dict[str, Any]:
        config = small_config({"qwen": taught("qwen2", self.folder / "zoo")}, "text")
        return changed(
            config,
            launcher="ray",
            supervision={"kind": "self"},
            engine=APART,
            training__sharding="zero3",
            agents__0__ranks=2,
            agents__0__adapter="saboteur:Saboteur",
        )


# Of `VllmEngine` only the engine's process has one.
BROKEN = (
    Drill(
        "an engine is killed while it samples",
        "at_call('mmcorl.engines.vllm:VllmEngine.generate', 8, marked(kill))",
        said=("agent 'qwen', engine 0 of 1", "during the rollout", DIED, "qwen-engine0.log"),
    ),
    Drill(
        "an engine raises",
        "at_call('mmcorl.engines.vllm:VllmEngine.generate', 8, marked(explode))",
        said=("agent 'qwen', engine 0 of 1", "failed: ValueError: the third shoe dropped", "qwen-engine0.log"),
    ),
    Drill(
        "an engine stands still for ever in a sync",
        "at_call('mmcorl.engines.vllm:VllmEngine.sync', 5, marked(stand_still))",
        said=("agent 'qwen', engine 0 of 1", "during the update", "hangs: it stands still", "qwen-engine0.log"),
    ),
)


def test_an_engine_that_breaks_ends_the_run_and_the_same_command_goes_on(place: Range, tmp_path: Path) -> None:
    """Two ranks feed and ask one engine; every sync leaves it with the trainer's weights."""
    alone = place.finish(place.start(tmp_path / "alone"))
    assert alone.code == 0, alone.output
    assert_it_learns(tmp_path / "alone")
    # At step 0 and after the first update all of its weights were compared; after that, what it samples with.
    steps = records(tmp_path / "alone", "metrics.jsonl")
    assert max(line["agents"]["qwen"]["importance_drift_abs_max"] for line in steps) < 1e-3
    for drill in BROKEN:
        outcome = place.do(drill, tmp_path / "run")
        assert problems(outcome) == [], f"{drill.name}: {outcome.ended.output}"
    last = place.finish(place.start(tmp_path / "run"))
    assert last.code == 0, last.output
    assert place.left() == []
    assert_same_run(tmp_path / "run", tmp_path / "alone")
