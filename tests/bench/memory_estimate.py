"""Predicted against measured memory of a policy step: `python -m tests.bench.memory_estimate --help`.

The real `Worker.update` on a fabricated rollout, on the CPU. Measured is what tensors hold: every storage that an
operator makes is counted from then until it is freed, which is what a GPU's allocator would report, without what
kernels take while they work. Resident memory of the process is told beside it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmcorl import activations
from mmcorl.logprobs import CHUNK
from mmcorl.worker import Worker
from tests.bench.update_step import PeakMemory, arguments, build_worker, fabricate, release


class Living(TorchDispatchMode):
    """Bytes of the storages that operators made and that still live: now, and at the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        for one in tree_leaves(out):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                key = storage._cdata
                if key not in self._known and key not in given:
                    self._known.add(key)
                    self.now += storage.nbytes()
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._freed, key, storage.nbytes())
        return out

    def _freed(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def measure(worker: Worker, options: argparse.Namespace) -> dict[str, float]:
    """One step: bytes above what was there before it, by tensors and of the process."""
    rewards = fabricate(worker, options, 2)
    release()
    with PeakMemory() as resident, Living() as living:
        worker.update(rewards, 2)
    return {"tensors": living.peak, "resident_peak": resident.peak}


def stacks(worker: Worker) -> dict[str, activations.Stack]:
    """The decoder's layers, and the tower's where there is one."""
    model, adapter = worker.policy.model, worker.adapter
    decoder: Any = adapter.decoder(model)
    found = {"text": activations.stack_of(decoder.layers, model.config.get_text_config())}
    for part in adapter.vision_modules(model):
        for module in part.modules():
            if isinstance(module, torch.nn.ModuleList) and len(module) and "vision" not in found:
                found["vision"] = activations.stack_of(list(module), model.config.vision_config)
    return found


def predicted(worker: Worker, options: argparse.Namespace) -> dict[str, int]:
    """Bytes by purpose, at the peak of a step whose micro-batches hold one group each."""
    fabricate(worker, options, 2)
    prompt = next(iter(worker._pending.values())).prompt
    work = activations.groups_of(len(prompt.input_ids), options.tokens, options.completions, 1)
    low, own = (2 if options.dtype == "bf16" else 4), stacks(worker)
    trained = [parameter for parameter in worker.policy.parameters() if parameter.requires_grad]
    vocabulary = worker.policy.model.config.get_text_config().vocab_size
    kept = {
        "gradients": sum(4 * parameter.numel() for parameter in trained),
        "bf16 weights": sum(2 * one.numel() for one in trained) if low == 2 else 0,
        "decoder": activations.kept(own["text"], work, low, options.gradient_checkpointing),
        # One after the other.
        "at work": max(
            activations.head(own["text"], min(CHUNK, work.completions), vocabulary),
            activations.working(own["text"], work, low, options.gradient_checkpointing),
        ),
        "ends": activations.ends(own["text"], work),
    }
    if "vision" in own and prompt.vision:
        patches = activations.Work(len(prompt.vision["pixel_values"].flatten(0, -2)))
        kept["tower"] = activations.kept(own["vision"], patches, low, options.gradient_checkpointing)
        kept["tower's ends"] = activations.ends(own["vision"], patches, towers=True)
    return kept


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Build, warm up, predict, measure."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        worker = build_worker(options, Path(folder))
    parameters = sum(parameter.numel() for parameter in worker.policy.parameters())
    worker.update(fabricate(worker, options, 1), 1)
    told = predicted(worker, options)
    found = measure(worker, options)
    return {
        "family": options.family,
        "parameters": parameters,
        "predicted": told,
        "predicted_sum": sum(told.values()),
        **found,
        "predicted_over_measured": sum(told.values()) / found["tensors"],
        "activations_predicted_over_measured": (sum(told.values()) - told["gradients"])
        / (found["tensors"] - told["gradients"]),
    }


def main() -> None:
    """Run one measurement."""
    parser = arguments()
    parser.prog = "python -m tests.bench.memory_estimate"
    options = parser.parse_args()
    # Room for one group and not for two, so that gradients of the one before lie beside the activations of the next.
    options.tokens_per_microbatch = options.completions * options.tokens + options.prompt_tokens + 300
    options.prefix = "shared"
    result = run(options)
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
