"""How far the update of divided ranks is from that of one rank, as a table.

    python tests/bench/sharding.py [--families qwen2_5_vl,gemma3] [--dtype fp32] [--out table.md]

Two updates of a tiny model of each family on the same rollouts: largest difference of any parameter, largest
difference of any gradient (AdamW's first moment), and seconds of the second update. Needs the deepspeed extra, no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

import torch

from mmcorl.sharding.ranks import ALONE
from sharding_worlds import Task, Worlds, done, train
from worker_parts import largest_difference

WAYS = (
    *("none:2", "zero2:1", "zero2:2", "zero2:2:optimizer", "zero3:1", "zero3:2", "zero3:2:optimizer", "zero3:2:all"),
    *("fsdp2:1", "fsdp2:2", "fsdp2:2:all"),
)
SHARES = {1: ((0, 2, 1, 3, 4),), 2: ((0, 2), (1, 3, 4))}


def task(path: Path, way: str, dtype: str) -> Task:
    """Five groups of four; on two ranks the first has text alone, the second images as well."""
    sharding, size, *offload = way.split(":")
    training = {"dtype": dtype, "sharding": sharding, "offload": offload[0] if offload else "none"}
    optimizer = {"lr": 1e-3, "eps": 1e-6, "betas": [0.9, 0.99], "max_grad_norm": 0.3}
    pictures = {} if path.name in ("qwen2", "llama") else {1: 1, 3: 2, 4: 1}
    return Task(path, {"training": training, "optimizer": optimizer}, SHARES[int(size)], pictures)


def main() -> None:
    """One line per family and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default="qwen2_5_vl,internvl3_5,gemma3,llama")
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| family | sharding | offload | ranks | weights | gradients | seconds |", "|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder, Worlds() as worlds:
        for family in options.families.split(","):
            path = build(family, Path(folder) / family)
            expected = done([train(ALONE, task(path, "none:1", options.dtype))])
            for way in WAYS:
                sharding, size, *offload = way.split(":")
                told = worlds[int(size)].train(task(path, way, options.dtype))
                moments = [
                    largest_difference({"m": told.optimizer["state"][i]["exp_avg"]}, {"m": state["exp_avg"]})
                    for i, state in expected.optimizer["state"].items()
                ]
                weights, seconds = largest_difference(told.weights, expected.weights), told.timings["update_seconds"]
                cells = [family, sharding, *(offload or ["none"]), size, f"{weights:.1e}", f"{max(moments):.1e}"]
                lines.append(f"| {' | '.join([*cells, f'{seconds:.3f}'])} |")
                print(lines[-1], file=sys.stderr, flush=True)
    table = "\n".join(lines) + "\n"
    print(table, end="")
    if options.out:
        options.out.write_text(table)


def build(family: str, path: Path) -> Path:
    """A tiny checkpoint with random weights."""
    import patches

    patches.apply("torchvision_cpu")
    from model_adapters.testing.tiny import build_tiny

    return build_tiny(family, path)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
