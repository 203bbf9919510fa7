"""`profile=true`: a trace and a table of where a step's time goes, and the run that it would have been without."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mmcorl.api import train
from mmcorl.config import parse
from mmcorl.errors import UserError
from mmcorl.run.run_folder import RunFolder
from mmcorl.system.timing import Timer, span
from model_adapters.testing.tiny import build_tiny
from runs import changed, records, small_config

ASKED = {"steps": [2, 3]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of three steps, and the same with a profile."""
    folder = tmp_path_factory.mktemp("profiled")
    models = {family: build_tiny(family, folder / family, seed=0) for family in ("qwen2_5_vl", "internvl3_5")}
    objective, batch = {"kl_coef": 0.01, "minibatches": 2}, {"prompts": 2, "completions": 2}
    config = changed(small_config(models), steps=3, objective=objective, batch=batch, sampling__max_new_tokens=3)
    for name, settings in {"plain": config, "profiled": changed(config, profile=ASKED)}.items():
        train(parse(settings), folder / name, quiet=True)
    return {name: folder / name for name in ("plain", "profiled")}


def test_a_profiled_run_is_the_run_without(runs: dict[str, Path]) -> None:
    for log in ("metrics.jsonl", "votes.jsonl", "validation.jsonl", "responses.jsonl"):
        assert (runs["profiled"] / log).read_bytes() == (runs["plain"] / log).read_bytes()
    assert not (runs["plain"] / "profile").exists()


def test_each_rank_leaves_a_trace_with_the_parts_by_name(runs: dict[str, Path]) -> None:
    for agent in ("qwen2_5_vl", "internvl3_5"):
        with gzip.open(runs["profiled"] / "profile" / f"{agent}-rank0.trace.json.gz") as file:
            events = json.load(file)["traceEvents"]
        spans = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
        parts = {"encode", "vision", "prefill", "decode", "old log-probs", "forward", "backward", "optimizer", "sync"}
        assert parts | {"rollout", "update"} <= set(spans)
        # Two calls in one trace, on one clock.
        assert spans["rollout"]["ts"] + spans["rollout"]["dur"] <= spans["update"]["ts"]
        assert any(event["name"] == "aten::addmm" for event in events)


def test_the_numbers_are_those_of_the_timed_steps(runs: dict[str, Path]) -> None:
    told = json.loads((runs["profiled"] / "profile" / "qwen2_5_vl-rank0.json").read_text())
    assert (told["timed"], told["traced"]) == ([2], 3)
    line = records(runs["profiled"], "timings.jsonl")[1]["agents"]["qwen2_5_vl"]
    seconds = {call: sum(value for of, _, value in told["parts"] if of == call) for call in ("rollout", "update")}
    # A worker's own clock stops a moment before the call ends; milliseconds, on a machine that is not overrun.
    assert line["rollout_seconds"] <= seconds["rollout"] + 1e-4
    assert line["update_seconds"] + line["sync_seconds"] <= seconds["update"] + 1e-4
    # From the step's first call to the next step's, before that is traced.
    (whole,) = told["seconds"]
    # Starting to trace takes a second or more.
    assert sum(seconds.values()) <= whole < sum(seconds.values()) + 2.0
    assert told["timings"][0]["update_flops"] > 0
    assert told["matmul_flops"] > 1e7


def test_a_second_belongs_to_the_innermost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(100))  # each look at it is a second later
    monkeypatch.setattr("mmcorl.system.timing.time.perf_counter", lambda: float(next(clock)))
    timer = Timer(lambda: None)
    with span("unseen"), timer.at_work("rollout"), span("prefill"):
        with span("vision"):
            pass
        with span("vision"):
            pass
    # Looks: rollout, prefill, vision begin 0 1 2, end 3, begin 4, end 5, prefill and rollout end 6 7.
    assert timer.seconds == {("rollout", "other"): 2.0, ("rollout", "prefill"): 3.0, ("rollout", "vision"): 2.0}


def test_what_it_may_be_and_what_not(tmp_path: Path) -> None:
    config = small_config({"a": "x", "b": "y"})
    assert parse({**config, "profile": False}) == parse(config)
    asked = parse({**config, "profile": True}).profile
    assert asked is not None
    assert asked.steps == (3, 5)
    with pytest.raises(UserError, match=r"steps is \[4, 2\], but the first may not come after the last"):
        parse({**config, "profile": {"steps": [4, 2]}})
    # A run goes on with one or without.
    with RunFolder(tmp_path, parse(config)) as folder:
        folder.begin({})
    RunFolder(tmp_path, parse({**config, "profile": True}))
