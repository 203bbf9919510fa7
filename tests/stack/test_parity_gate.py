"""The gate in front of training, with real vLLM engines: it passes what is the same model and stops what is not."""

from __future__ import annotations

import json

import pytest

from mmcorl.config import parse
from mmcorl.errors import RunError
from mmcorl.training import train
from model_adapters.testing.tiny import build_tiny

pytestmark = pytest.mark.stack


def settings(model, **engine):
    return parse(
        {
            "steps": 1,
            "agents": [{"name": "a", "model": str(model)}],
            "supervision": {"kind": "self"},
            "data": {"train": {"source": "synthetic:visual", "size": 20}},
            "batch": {"prompts": 2, "completions": 2},
            "prompt": {"style": "plain"},
            "sampling": {"max_new_tokens": 16},
            "training": {"dtype": "fp32"},
            "engine": {"kind": "vllm", **engine},
            "device": "cpu",
            "threads": 1,
        }
    )


def test_gemma_with_images_is_another_model_on_the_cpu_engine_and_the_gate_says_so(tmp_path):
    # vLLM's attention on a CPU is causal over image tokens, where Gemma-3's is not.
    model = build_tiny("gemma3", tmp_path / "gemma3", seed=0)
    with pytest.raises(RunError, match="processes images differently"):
        train(settings(model), tmp_path / "stopped", quiet=True)
    assert not (tmp_path / "stopped" / "metrics.jsonl").exists()
    (record,) = json.loads((tmp_path / "stopped" / "engines.json").read_text())
    assert record["text"]["mean"] < 1e-5
    assert record["image"]["mean"] > 1e-3
    # The same command goes on where the user accepts it; what was measured stays on record.
    train(settings(model, parity="warn"), tmp_path / "stopped", quiet=True)
    assert len((tmp_path / "stopped" / "metrics.jsonl").read_text().splitlines()) == 1
    (again,) = json.loads((tmp_path / "stopped" / "engines.json").read_text())
    assert "processes images differently" in again["fault"]


def test_an_identical_engine_passes(tmp_path):
    model = build_tiny("qwen2_5_vl", tmp_path / "qwen", seed=0)
    train(settings(model), tmp_path / "run", quiet=True)
    (record,) = json.loads((tmp_path / "run" / "engines.json").read_text())
    assert record["fault"] is None
    assert max(record["text"]["most"], record["image"]["most"]) < 1e-4
