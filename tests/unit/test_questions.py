"""`mmcorl report --questions`: the ten answers by hand from a run's files, and what is said where a file is missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evaluations import Cli, write_rows
from mmcorl.apps.report.questions import questions

GOLD = "1"
N = 10


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def run(folder: Path, answers: Mapping[int, Mapping[str, Sequence[str | None]]], **settings: Any) -> Path:
    """Write a run that answered ten prompts at some steps: by step and agent the answers; right is "1"."""
    agents = [{"name": name} | settings.pop(name, {}) for name in next(iter(answers.values()))]
    config = {"name": folder.name, "steps": max(answers), "batch": {"prompts": 2, "completions": 4}, "agents": agents}
    validation, responses = [], []
    for step, by_agent in answers.items():
        shown = {}
        for agent, given in by_agent.items():
            right = [answer == GOLD for answer in given]
            tags = {"easy": sum(right[:5]) / 5, "hard": sum(right[5:]) / 5}
            shown[agent] = {"accuracy": sum(right) / N, "n": N, "by_tag": tags}
            responses += [
                {
                    "step": step,
                    "set": "test",
                    "agent": agent,
                    "id": str(n),
                    "uid": str(n),
                    "answer": answer,
                    "right": ok,
                }
                for n, (answer, ok) in enumerate(zip(given, right, strict=True))
            ]
        validation.append({"step": step, "set": "test", "agents": shown, "cohort": {"agreement": None, "pairs": {}}})
    write_rows(folder / "validation.jsonl", validation)
    write_rows(folder / "responses.jsonl", responses)
    write_rows(folder / "metrics.jsonl", [{"step": max(answers), "agents": {}, "cohort": {}}])
    (folder / "config.yaml").write_text(json.dumps({"supervision": {"kind": "ring"}} | config | settings))
    return folder


def said(*runs: Path) -> dict[str, str | None]:
    return {reply.letter: reply.answer for reply in questions(runs).replies}


START = {"a": ["1"] * 6 + ["7", "7", "8", None], "b": ["1", "1"] + ["2"] * 4 + ["7", "7", "9", None]}
END = {"a": ["1"] * 9 + [None], "b": ["1"] * 8 + ["7", "7"]}


def test_the_answers_by_hand(tmp_path: Path) -> None:
    co_rl = run(tmp_path / "co_rl", {0: START, 5: {"a": ["1"] * 10, "b": ["1"] * 8 + ["7"] * 2}, 10: END})
    frozen = run(tmp_path / "frozen", {0: START, 10: {"a": ["1"] * 7 + ["7"] * 3, "b": START["b"]}}, b={"frozen": True})
    alone = run(tmp_path / "alone", {0: START, 10: START}, supervision={"kind": "self"})
    longer = run(tmp_path / "longer", {0: START, 100: END}, steps=100)
    answers = said(co_rl, frozen, alone, longer)
    # a: 0.6 to 0.7 beside a frozen b, 0.9 together: a third of the gain. Two prompts apart in one direction: p 1/2.
    assert answers["a"].startswith("a 0.600 → 0.700 with b frozen, 0.900 together: ~ +0.200 [")
    assert answers["a"].endswith(", 33% of the gain is there without a peer that learns")
    # 10 steps of 2 prompts and 4 completions are 80 samples of each of two agents.
    assert "a 0.600 on its own votes with 80 samples, fewer than the cohort's, cohort minus that: " in answers["b"]
    assert answers["b"].endswith("(the cohort: 160 in all)")
    # At the start both are wrong on four, twice with a 7; two missing answers agree on nothing. At the end on one.
    assert "20.0 % [5.7, 51.0] → 0.0 % [0.0, 27.8] of the prompts, 2 of 4 → 0 of 1 that both" in answers["c"]
    # b: six prompts won, none lost: 2 / 2^6.
    assert answers["d"].startswith("a 0.600 → 0.900, ~ +0.300 [")
    assert "; b 0.200 → 0.800, +0.600 [" in answers["d"]
    assert answers["e"].startswith("apart by 0.400 at the start; strong: a 0.600 → 0.900")
    # By tag: easy 5/5 + 2/5, hard 1/5 + 0/5 at the start; at the end hard 4/5 + 3/5.
    assert answers["f"] == "p_A + p_B = 0.800 at the start; below 1: hard 0.20 → 1.40"
    assert "a best 1.000 at step 5, -0.100 to the end at 10; b best 0.800 at step 5" in answers["g"]
    assert "a after 100 steps instead of 10: +0.000" in answers["g"]
    assert (answers["h"], answers["i"]) == (None, None)
    # Both right 2, only a 4, only b 0, neither 4: p_o 0.6, p_e 0.6 * 0.2 + 0.4 * 0.8 = 0.44, kappa 0.16 / 0.56.
    assert f"co_rl: kappa {0.16 / 0.56:.2f} [" in answers["j"]
    assert "of a and b, mean gain +0.450" in answers["j"]
    assert "mean gain +0.100; alone: " in answers["j"]  # of the one that learns


def test_what_is_missing_is_said_with_a_command(tmp_path: Path, cli: Cli) -> None:
    co_rl = run(tmp_path / "co rl", {0: START, 10: END})
    (co_rl / "responses.jsonl").unlink()
    answers = said(co_rl)
    assert answers["d"] == "a 0.600 → 0.900, +0.300; b 0.200 → 0.800, +0.600"  # no interval without the responses
    assert [letter for letter, answer in answers.items() if answer is None] == list("abchij")
    shown = cli("report", co_rl, "--questions")
    for agent in ("a", "b"):  # either may be the teacher
        assert f"train '{co_rl}/config.yaml' name=frozen_{agent} agents.{agent}.frozen=true --run-dir" in shown
    assert f"mmcorl report '{co_rl}' '{co_rl}_frozen_a' '{co_rl}_frozen_b' --questions" in shown
    assert "supervision.kind=self batch.completions=8 " in shown
    assert "(h) mmcorl eval " in shown
    # A run that has not been evaluated, in a program's form and in a paper's.
    (co_rl / "validation.jsonl").unlink()
    replies = cli.json("report", co_rl, "--questions")
    assert (replies["set"], {reply["answer"] for reply in replies["questions"]}) == (None, {None})
    assert "| (j) " in cli("report", co_rl, "--questions", "--format", "markdown")
    assert "leave --out, --png and --format csv out" in cli.refused("report", co_rl, "--questions", "--format", "csv")


def test_damaged_responses_count_as_absent(tmp_path: Path) -> None:
    co_rl = run(tmp_path / "co_rl", {0: START, 10: END})
    lines = [json.loads(line) for line in (co_rl / "responses.jsonl").read_text().splitlines()]
    del lines[0], lines[-1]["right"]
    write_rows(co_rl / "responses.jsonl", lines)
    answers = said(co_rl)
    # Prompt 0 of a is gone at the start and prompt 9 of b at the end: neither pairs any more.
    assert (answers["c"], answers["d"]) == (None, "a 0.600 → 0.900, +0.300; b 0.200 → 0.800, +0.600")
