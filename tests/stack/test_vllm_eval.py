"""`mmcorl eval --engine vllm`: the same greedy responses as the transformers engine, faster where it counts."""

from __future__ import annotations

import json

import pytest

from mmcorl.cli.main import main
from model_adapters.testing.tiny import build_tiny
from paths import FIXTURES

pytestmark = pytest.mark.stack


def test_greedy_responses_are_those_of_the_transformers_engine(tmp_path):
    model = build_tiny("internvl3_5", tmp_path / "model", seed=0)
    summaries = {}
    for engine in ("transformers", "vllm"):
        out = tmp_path / engine
        sets = [f"mathvision={FIXTURES / 'mathvision.parquet'}", f"wemath={FIXTURES / 'wemath.parquet'}"]
        options = ["--max-new-tokens", "12", "--limit", "6", "--engine", engine, "--device", "cpu"]
        assert main(["eval", str(model), *sets, "--out", str(out), *options]) == 0
        lines = (out / "responses.jsonl").read_text().splitlines()
        summaries[engine] = {(row["benchmark"], row["id"]): row for row in map(json.loads, lines)}
        assert json.loads((out / "manifest.json").read_text())["generation"]["wemath"]["engine"] == engine
    assert len(summaries["vllm"]) == 12
    assert summaries["vllm"] == summaries["transformers"]
