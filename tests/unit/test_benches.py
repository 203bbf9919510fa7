"""The benches run from end to end on tiny models, and their pictures are drawn from what they write."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.bench import flops, results, step, thesis, thesis_page, update_step

SMALL = ["--size", "tiny", "--threads", "1", "--repeat", "1"]


@pytest.fixture(autouse=True)
def _threads():
    """Benches set torch's threads for their process; this one goes on with other tests."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


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
