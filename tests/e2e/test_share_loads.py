"""What a trained run uploads opens in plain transformers, and is prompted as it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

from hub_server import serving
from mmcorl.policy.trained_with import trained_with
from mmcorl.share import push as tool
from runs import TrainedRun


@pytest.mark.slow
def test_what_a_run_uploads_opens_as_a_model(trained_run: TrainedRun, tmp_path: Path, monkeypatch: Any) -> None:
    from transformers import AutoModelForImageTextToText

    import patches

    patches.apply("torchvision_cpu")
    # Training itself leaves a card without a picture.
    written = (trained_run.path / "final" / "qwen" / "README.md").read_text()
    assert ModelCard(written).data.pipeline_tag == "image-text-to-text"
    assert "curves.png" not in written
    with serving() as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
        uploads = tool.plan(trained_run.path, "lab/pair", agent="qwen")
        assert [one.url for one in tool.push(uploads, private=False)] == [f"{hub.url}/lab/pair"]
    for name, content in hub.repos["lab/pair"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    arrived, sent = (
        AutoModelForImageTextToText.from_pretrained(folder).state_dict()
        for folder in (tmp_path, trained_run.path / "final" / "qwen")
    )
    assert arrived.keys() == sent.keys()
    assert all(torch.equal(arrived[name], sent[name]) for name in sent)
    asked = trained_with(str(tmp_path))
    assert asked is not None
    assert asked.prompt.style == "plain"
