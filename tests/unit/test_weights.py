"""Trained weights are fp32 masters; frozen ones are bf16 under bf16; an export has the dtype it started in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from adapter_passes import TEXT_FAMILIES, VISION_FAMILIES, adapter_of, each_family, encode_all, load
from adapter_passes import rows as three_rows
from mmcorl.policy.policy import Policy, Rows
from mmcorl.policy.weights import checkpoint_dtype, lower_frozen, write
from worker_parts import copy_of, largest_difference, mixed_prompts, rollout, worker

FAMILIES = (*VISION_FAMILIES, *TEXT_FAMILIES)
LORA = {"rank": 4, "alpha": 8}


def in_bf16(family: str, path: Path, to: Path) -> Path:
    """The checkpoint as hubs publish it: in bf16."""
    loaded = load(family, path)
    write(loaded.model, to, torch.bfloat16)
    loaded.processor.save_pretrained(to)
    return to


def dtypes(folder: Path) -> set[torch.dtype]:
    return {tensor.dtype for file in folder.glob("model*.safetensors") for tensor in load_file(file).values()}


def said(value: Any) -> set[str]:
    """Every dtype that a config.json names."""
    if not isinstance(value, dict):
        return set()
    own = {one for key, one in value.items() if key in ("dtype", "torch_dtype") and one}
    return own.union(*(said(one) for one in value.values()))


# -- what the engine and the trainer compute with -------------------------------------------------------------------


@each_family(*FAMILIES)
def test_frozen_weights_in_bf16_change_no_number(
    family: str, tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """A bf16 checkpoint under autocast: the same log-probabilities, whether its weights are kept as fp32 or bf16.

    Gemma-3 scales its embeddings in the table's own dtype, as published, so there it is within bf16 noise.
    """
    path = in_bf16(family, tiny_checkpoints[family], tmp_path / "bf16")
    results = []
    for lowered in (False, True):
        loaded = load(family, path)
        loaded.model.requires_grad_(False)
        if lowered:
            lower_frozen(loaded.model, loaded.adapter)
            halved = sum(p.numel() for p in loaded.model.parameters() if p.dtype == torch.bfloat16)
            assert halved > 0.95 * sum(p.numel() for p in loaded.model.parameters())
        policy = Policy(loaded.model, loaded.adapter, loaded.processor)
        rows = Rows(encode_all(loaded, three_rows(family)), [0, 1, 2], [torch.tensor([301, 302, 303])] * 3)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            results.append(policy(rows))
    if family == "gemma3":
        assert torch.allclose(*results, atol=0.1)
    else:
        assert torch.equal(*results)


@pytest.mark.parametrize("training", [{"lora": LORA}, {"freeze_vision": True}], ids=["lora", "frozen"])
def test_what_is_trained_stays_in_fp32(training: dict[str, Any], tiny_checkpoints: Mapping[str, Path]) -> None:
    path = tiny_checkpoints["qwen2_5_vl"]
    for dtype in ("bf16", "fp32"):
        agent = worker(path, training={"dtype": dtype, **training}, objective={"kl_coef": 0.1})
        trained = {p.dtype for p in agent.shards.trainable}
        frozen = {p.dtype for p in agent.policy.parameters() if not p.requires_grad and p.ndim == 2}
        assert trained == {torch.float32}
        assert frozen == {torch.bfloat16 if dtype == "bf16" else torch.float32}
        if agent.reference is not None:
            matrices = {p.dtype for n, p in agent.reference.named_parameters() if "proj.weight" in n}
            assert matrices == frozen


# -- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "training"),
    [(torch.float32, {}), (torch.bfloat16, {"freeze_vision": True}), (torch.bfloat16, {"lora": LORA})],
    ids=["fp32", "bf16-frozen", "bf16-lora"],
)
def test_an_export_has_the_dtype_of_the_starting_checkpoint(
    start: torch.dtype, training: dict[str, Any], tiny_checkpoints: Mapping[str, Path], tmp_path: Path
) -> None:
    """Weights and every place of the config that says so; the checkpoint of the run stays in fp32."""
    family = "qwen2_5_vl"
    path = tiny_checkpoints[family]
    if start == torch.bfloat16:
        path = in_bf16(family, path, tmp_path / "start")
    assert checkpoint_dtype(path) == start
    agent = worker(path, training={"dtype": "bf16", **training})
    rollout(agent, mixed_prompts(family))
    agent.update(dict.fromkeys(agent.rollouts.pending, (1.0, 0.0, 0.0, 1.0)), 1)
    agent.save(tmp_path / "saved")
    agent.export(tmp_path / "exported")
    assert dtypes(tmp_path / "exported") == {start}
    modes = {file.stat().st_mode for file in (tmp_path / "exported").iterdir() if file.is_file()}
    assert len(modes) == 1, "whoever may read the config may read the weights"
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert said(config) == {str(start).removeprefix("torch.")}
    if "lora" not in training:
        assert dtypes(tmp_path / "saved") == {torch.float32}
        again = worker(path, training={"dtype": "bf16", **training})
        again.load(tmp_path / "saved")
        assert largest_difference(again.policy.model.state_dict(), agent.policy.model.state_dict()) == 0.0
        exported = adapter_of(family).load_model(tmp_path / "exported").state_dict()
        own = {name: value.to(start).float() for name, value in agent.policy.model.state_dict().items()}
        assert largest_difference(exported, own) == 0.0
    if start == torch.bfloat16:
        # No tied weight twice: two bytes for each parameter, and the header.
        size = (tmp_path / "exported" / "model.safetensors").stat().st_size
        assert size < 2.2 * sum(p.numel() for p in copy_of(load(family, path).model).parameters())
