"""One rank that loads checkpoints under DeepSpeed ZeRO-3 and compares every gathered tensor with the file.

`python tests/zero3_load.py RENDEZVOUS RANK SIZE STEPS`, once per rank and all at the same time. STEPS is a JSON list:
a checkpoint's folder is loaded, any other word is a patch that is applied. It prints a JSON list with one answer per
checkpoint: `{"compared": n}`, `{"differ": [names]}` or `{"error": "IndexError: ..."}`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


def load_on_two_ranks(folder: Path, *steps: Path | str) -> list[list[dict[str, Any]]]:
    """What each of two ranks answered; `folder` is made here and theirs alone."""
    folder.mkdir()
    told = json.dumps([str(step) for step in steps])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder / "world"), str(rank), "2", told],
            stdout=subprocess.PIPE,
            stderr=(folder / f"{rank}.err").open("w"),
            cwd=Path(__file__).parent.parent,
            env={**os.environ, "LOCAL_RANK": str(rank), "LOCAL_SIZE": "2"},
            text=True,
        )
        for rank in range(2)
    ]
    answers = []
    try:
        for rank, process in enumerate(ranks):
            out, _ = process.communicate(timeout=600)  # DeepSpeed compiles an operator the first time
            assert process.returncode == 0, (folder / f"{rank}.err").read_text()[-4000:]
            answers.append(json.loads(out.splitlines()[-1]))
    finally:
        for process in ranks:
            process.kill()  # a rank whose peer has died waits for it
            process.wait()
    return answers


def main() -> None:
    rendezvous, rank, size, steps = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).parent.parent))
    import patches

    patches.apply("torchvision_cpu", "torchaudio_cpu")
    import deepspeed
    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(size)
    )
    deepspeed.init_distributed("gloo")
    answers = []
    for step in json.loads(steps):
        if Path(step).is_dir():
            answers.append(load(step))
        else:
            patches.apply(step)
    print(json.dumps(answers), flush=True)
    torch.distributed.barrier()
    os._exit(0)  # All is said; threads of process groups may end an interpreter that takes itself down with an abort.


def load(checkpoint: str) -> dict[str, Any]:
    import deepspeed
    import torch
    from transformers import AutoModelForImageTextToText
    from transformers.integrations import HfDeepSpeedConfig

    model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    whole = {name: value.detach().clone() for name, value in model.named_parameters()}
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}
    plan = HfDeepSpeedConfig(settings)  # transformers looks for it as long as it is alive
    try:
        model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    except IndexError as error:
        return {"error": f"IndexError: {error}"}
    finally:
        del plan
    sharded = dict(model.named_parameters())
    assert sharded.keys() == whole.keys()
    assert all(parameter.numel() == 0 for parameter in sharded.values())  # ZeRO-3 it is
    differ = []
    for name, parameter in sharded.items():
        with deepspeed.zero.GatheredParameters([parameter]):
            if not torch.equal(parameter, whole[name]):
                differ.append(name)
    return {"differ": differ} if differ else {"compared": len(sharded)}


if __name__ == "__main__":
    main()
