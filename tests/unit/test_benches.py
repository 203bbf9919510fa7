"""The benches run from end to end on tiny models, and their pictures are drawn from what they write."""

from __future__ import annotations

import argparse
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.bench import flops, plots, results, scaling, step, thesis, thesis_page, update_step

SMALL = ["--size", "tiny", "--threads", "1", "--repeat", "1"]


@pytest.fixture(autouse=True)
def _threads():
    """Benches set torch's threads for their process; this one goes on with other tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(result: dict, folder: Path) -> list[str]:
    """Names of the pictures of a result that went through a file; each is an SVG."""
    results.keep(result, folder / "result.json")
    pictures = plots.draw([folder / "result.json"], folder)
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    return [picture.name for picture in pictures]


def test_update_step(tmp_path: Path) -> None:
    options = update_step.arguments().parse_args([*SMALL, "--prompts", "1", "--completions", "2", "--tokens", "4"])
    result = update_step.run(options)
    assert "plain / shared: time" in update_step.table(result)
    assert {"python", "torch", "transformers"} <= result["versions"].keys()
    assert result["settings"]["tokens"] == 4
    results.keep(result, tmp_path / "deep" / "one.json")
    assert json.loads((tmp_path / "deep" / "one.json").read_text())["bench"] == "update_step"


def test_step() -> None:
    arguments = [*SMALL, "--engine", "transformers", "--prompts", "1", "--completions", "2", "--tokens", "4"]
    result = step.run(step.arguments().parse_args([*arguments, "--warmup", "1"]))
    (cell,) = result["cells"]
    # `rest` is what the other phases leave of the step.
    assert sum(cell["phases"].values()) == pytest.approx(cell["step"]["median"], abs=1e-3)
    assert cell["phases"]["rollout"] > 0
    assert cell["phases"]["update"] > 0
    assert "transformers" in step.table(result)


@pytest.mark.slow
def test_scaling(tmp_path: Path) -> None:
    small = ["--completions", "2", "4", "--images", "2", "--prompt", "200"]
    result = scaling.run(
        scaling.arguments().parse_args([*SMALL, "--warmup", "1", "--group", "2", "--tokens", "4", *small])
    )
    points = result["updates"]["points"]
    # Two ways for each value, predicted in both; a prompt K times is measured for a varying K alone.
    assert [(point["value"], point["way"]) for point in points["completions"]] == [
        (2, "shared"),
        (2, "plain"),
        (4, "shared"),
        (4, "plain"),
    ]
    assert all(point["seconds"] for point in points["completions"])
    assert [bool(point["seconds"]) for point in points["prompt"]] == [True, False]
    # A sentence has about 15 tokens.
    assert points["prompt"][0]["prompt_tokens"] == pytest.approx(200, abs=10)
    # The rate is fitted: predictions of what it was fitted to add up to what was measured.
    fitted = [point for group in points.values() for point in group if point["way"] == "shared"]
    measured = sum(scaling.seconds(point, True) for point in fitted)
    assert sum(point["predicted"] for point in fitted) == pytest.approx(measured)
    assert "K times" in scaling.table(result)
    assert drawn(result, tmp_path) == ["completions.svg"]


def test_a_race_is_drawn(tmp_path: Path) -> None:
    ratio = {"median": 4.0, "least": 3.5, "most": 4.5}
    cell = {
        "family": "gemma3",
        "prompt_tokens": 304,
        "completion_tokens": 128,
        "completions": 8,
        "ratio": {"with_old": ratio, "without_old": ratio, "memory": 2.0},
    }
    result = {"cells": [{**cell, "checkpointing": False}, {**cell, "checkpointing": True}]}
    assert drawn(result, tmp_path) == ["race.svg"]
    words = (tmp_path / "race.svg").read_text()
    assert "Gemma-3: P 304, C 128, K 8, checkpointing" in words
    again = tmp_path / "again"
    again.mkdir()
    drawn(result, again)
    assert (again / "race.svg").read_text() == words


@pytest.mark.parametrize(("family", "way"), [("llama", "shared"), ("llama", "plain"), ("qwen2_5_vl", "shared")])
def test_arithmetic_is_what_torch_counts(family: str, way: str, tmp_path: Path) -> None:
    options = argparse.Namespace(
        **vars(update_step.arguments().parse_args([*SMALL, "--family", family, "--prompts", "1", "--prefix", way]))
    )
    options.completions, options.tokens = 4, 8
    worker = update_step.build_worker(options, tmp_path)
    worker.update(update_step.fabricate(worker, options, 1), 1)
    rewards = update_step.fabricate(worker, options, 2)
    prompt = next(iter(worker.rollouts.pending.values())).prompt
    with FlopCounterMode(display=False) as counter:
        worker.update(rewards, 2)
    text, seen = flops.cost(worker), flops.tower(worker, prompt)
    # torch counts matrices on the CPU, and no attention.
    matrices = flops.Cost(text.body, 0.0, text.head).group(len(prompt.input_ids), 4, 8, way == "shared")
    # Pixels need no gradient: in a tower this small the first layer is a good part.
    assert counter.get_total_flops() == pytest.approx(matrices + seen, rel=0.05 if seen else 0.01)
    # Against a count by hand of one layer of the text model: 4 projections of attention (64 wide, 2 heads of 32, one
    # head of keys and values) and 3 of the MLP (64 to 128), twice, two operations each.
    if family == "llama":
        by_hand = 2 * 2 * (64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128)
        assert text.body == by_hand
        assert text.pair == 2 * 4 * 64


def test_every_arm_of_the_thesis_is_a_run_and_the_theory_says_where_it_ends(tmp_path: Path) -> None:
    planned = {one.method: one for one in thesis.plan(["*"], [1], tmp_path)}
    assert len(planned) == sum(len(list(arms())) for arms in thesis.EXPERIMENTS.values())
    for one in planned.values():
        assert one.config.seed == one.config.data_seed == 1
        assert all(agent.model.endswith("draw=1@1") for agent in one.config.agents)
    # With own votes half of the task ends right, with a peer's all but what both have a habit on, (1 + kappa) / 4.
    for arm, kappa, end in (
        ("overlap/self_0.6", 0.6, 0.5),
        ("overlap/ring_0.6", 0.6, 0.6),
        ("overlap/ring_-1.0", -1.0, 1.0),
        ("basin/sum_0.9", -1.0, 0.0),
        ("basin/sum_1.0", -1.0, 0.5),
        ("basin/sum_1.1", -1.0, 1.0),
    ):
        assert thesis_page.expected(planned[arm]) == pytest.approx((kappa, end), abs=0.02)
    assert thesis_page.expected(planned["weak_peer/strong_1_weak_0.2"]) == (None, None)
    assert thesis_page.expected(planned["certainty/rent"])[1] is None


def test_what_the_thesis_reads_off_samples() -> None:
    # Two prompts, two samples each: right together, only A, only A, only B.
    (cells,) = thesis_page.sampled_cells([[[True, True], [True, False]], [[True, False], [False, True]]])
    assert (cells.both, cells.only_a, cells.only_b, cells.neither) == (1, 2, 1, 0)
    votes = [
        (1, ("add", 3), [[True, False], [False, False]]),
        (5, ("add", 4), [[True, True], [True, False]]),
        (6, ("count", 4), [[True, True], [True, True]]),
        (40, ("add", 9), [[True, True], [True, False]]),
    ]
    assert thesis_page.by_skill(votes, 40) == {"add": (1.0, 0.75)}


def test_a_fork_tells_how_it_ended(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        assert thesis.in_fork(lambda: 3, log) == 3
        assert thesis.in_fork(lambda: 1 // 0, log) == 70
