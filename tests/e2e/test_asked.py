"""Scores that stand together: asked alike, or refused, or marked."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval_suite.metrics.prompt_protocol import asked_differences, asked_of
from evaluations import Cli, math500, trained_copy


def made(cli: Cli, model: str | Path, file: Path, out: Path, *options: str) -> Path:
    cli("eval", model, f"math500={file}", "--out", out, "--max-new-tokens", "4", "--quiet", *options)
    return out


def test_a_base_and_what_was_trained_from_it_compare_and_other_prompts_do_not(
    cli: Cli, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    base, file = tiny_checkpoints["qwen2"], math500(tmp_path / "math500.jsonl", ["1+1?", "2+2?"])
    prompt = {"style": "paper_text", "system": "Be brief."}
    trained = trained_copy(base, tmp_path / "qwen", prompt=prompt, vision={"max_pixels": 90000})
    first = made(cli, base, file, tmp_path / "base")
    same = made(cli, base, file, tmp_path / "same", "--seed", "3")
    assert cli.json("compare", first, same)[0]["asked_differently"] == []
    # The image settings belong to what was trained; `--like` asks the base with them.
    own, like = made(cli, trained, file, tmp_path / "own"), made(cli, base, file, tmp_path / "like", "--like", trained)
    assert "(vision: default, max_pixels=90000): evaluate both by one command" in cli.refused("compare", first, own)
    assert cli.json("compare", like, own)[0]["asked_differently"] == []
    assert "* " not in cli("table", like, own, "--format", "markdown")
    asked = made(cli, trained, file, tmp_path / "asked", "--style", "as-trained")
    says = "math500 was asked differently in 'own' and 'asked' (style: boxed, paper_text; system: none, 'Be brief.')"
    for command in (["compare", own, asked], ["ensemble", own, asked]):
        assert says in cli.refused(*command)
        cli(*command, "--asked-differently")
    assert says in cli.refused("ensemble", "--table", f"a={own}", f"b={asked}")
    assert "so the difference is not the models' alone" in cli("compare", own, asked, "--asked-differently")
    text = cli("table", like, own, asked, "--format", "markdown")
    assert "| MATH-500 pass@1 \\* |" in text
    assert "MATH-500: asked differently, style boxed (like, own), paper\\_text (asked); system none (like, own)" in text
    rows = list(csv.DictReader(io.StringIO(cli("table", own, asked, "--format", "csv"))))
    assert [(row["style"], row["vision"], row["template"], row["max_new_tokens"]) for row in rows] == [
        (style, "max_pixels=90000", "on", "4") for style in ("boxed", "paper_text")
    ]
    assert json.loads((asked / "summary.json").read_text())["benchmarks"]["math500"]["asked"]["system"] == "Be brief."


HOW: dict[str, Any] = {"style": "boxed", "temperature": 0.0, "top_p": 1.0, "max_new_tokens": 8}


@pytest.mark.parametrize(
    ("changes", "differing", "across_families"),
    [
        ({}, [], []),
        ({"seed": 3, "engine": "vllm", "samples": 4, "instruction": None, "vision": {}}, [], []),
        # Image settings as earlier versions wrote them, defaults and all.
        ({"vision": {"max_side": 1024, "tiles": 1, "min_pixels": None, "max_pixels": None}}, [], []),
        ({"vision": {"tiles": 4}}, ["vision: default, tiles=4"], ["vision: default, tiles=4"]),
        ({"template": {"enable_thinking": False}}, ["template: on, enable_thinking=False"], []),
        ({"template": "off"}, ["template: on, off"], ["template: on, off"]),
        ({"temperature": 0.6, "top_p": 0.95}, ["temperature: 0, 0.6", "top_p: 1, 0.95"], None),
    ],
)
def test_what_changes_a_question_is_compared(changes: Any, differing: list[str], across_families: Any) -> None:
    """A manifest of an earlier version lacks some entries, which stand for what it did."""
    first, second = (asked_of({"generation": {"amc": how}}, "amc") for how in (HOW, HOW | changes))
    assert asked_differences(first, second) == differing
    if across_families is not None:
        assert asked_differences(first, second, families=True) == across_families
    assert asked_differences(first, None) == []
    assert asked_of({"responses": "r.jsonl"}, "amc") is None
    # Sixth calls read drafts: what counts is how these were asked.
    sixth = {"generation": {"amc": HOW | {"style": "plain"}}, "drafts": {"amc": HOW | changes}}
    assert asked_of(sixth, "amc") == second
