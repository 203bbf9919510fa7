"""An agent's weights in files: checkpoints that a run continues from, and the model it hands over.

Files hold whole tensors, so any number of ranks can load them, sharded in any way. All ranks call each function, and
rank 0 writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from mmcorl.policy.ema import Ema
from mmcorl.policy.lora import LORA, LowRankAdapters
from mmcorl.policy.weights import checkpoint_dtype, write
from mmcorl.sharding.base import Shards


def save(directory: Path, shards: Shards, schedule: Any, lora: LowRankAdapters | None, ema: Ema | None) -> None:
    """Write weights in fp32 (hub layout), processor, optimizer and schedule: everything `load` needs."""
    state, optimizer = shards.state_dict(of=LORA if lora else ""), shards.optimizer_state()
    if shards.ranks.rank == 0:
        directory.mkdir(parents=True)
        if lora is not None:
            lora.save(directory, state)
        else:
            write(shards.policy.model, directory, torch.float32, state)
        shards.policy.processor.save_pretrained(directory)
        torch.save({"optimizer": optimizer, "schedule": schedule.state_dict()}, directory / "optimizer.pt")
        if ema:
            ema.save(directory)
    shards.ranks.barrier()


def load(
    directory: Path, shards: Shards, schedule: Any, lora: LowRankAdapters | None, ema: Ema | None, attention: str
) -> None:
    """Take over weights, optimizer and schedule from `save`; sampling noise needs no state."""
    if lora is not None:
        shards.load_state_dict(lora.load(directory))
    else:
        saved = shards.policy.adapter.load_model(directory, torch.float32, attention)
        shards.load_state_dict(saved.state_dict())
    state = torch.load(directory / "optimizer.pt", map_location="cpu", mmap=True, weights_only=True)
    shards.load_optimizer_state(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    if ema:
        ema.load(directory)


def export(directory: Path, shards: Shards, lora: LowRankAdapters | None, start: str, attention: str) -> None:
    """Write weights and processor in Hugging Face format, in the dtype of the starting checkpoint `start`.

    Rounded to bf16 like most published checkpoints; `save` keeps the fp32 weights. Low-rank adapters are merged in fp32
    first, and also written to `directory`/adapter.
    """
    policy = shards.policy
    state = shards.state_dict(of=LORA if lora else "")
    if shards.ranks.rank == 0:
        directory.mkdir(parents=True)
        if lora is None:
            write(policy.model, directory, checkpoint_dtype(start), state)
        else:
            base = policy.adapter.load_model(start, torch.float32, attention)
            write(lora.merged_into(base, directory / "adapter", state), directory, checkpoint_dtype(start))
        policy.processor.save_pretrained(directory)
    shards.ranks.barrier()
