"""`mmcorl diversity --engine vllm`: one engine after another, each in a process that gives its memory back."""

from __future__ import annotations

import json

import pytest

from mmcorl.cli.main import main
from model_adapters.testing.tiny import build_tiny

pytestmark = pytest.mark.stack


def test_two_models_are_sampled_one_after_the_other_and_refused_alike(tmp_path, capsys):
    models = [f"{family}={build_tiny(family, tmp_path / family, seed=0)}" for family in ("qwen2", "llama")]
    argv = ["diversity", *models, "--data", "synthetic:text", "--problems", "6", "--engine", "vllm", "--quiet"]
    argv += ["--out", str(tmp_path / "div"), "--style", "plain"]
    # What only the process that holds the model can see comes back as a sentence.
    assert main([*argv, "--max-new-tokens", "100000"]) == 2
    assert "lower --max-new-tokens" in capsys.readouterr().err
    out = ["--out", str(tmp_path / "more")]
    assert main([*argv, *out, "--max-new-tokens", "8", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [pair["kind"] for pair in summary["pairs"]] == ["different_family"]
    for family in ("qwen2", "llama"):
        assert (tmp_path / "more" / "samples" / family / "responses.jsonl").read_text().count("\n") == 6
