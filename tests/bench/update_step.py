"""Time and memory of one policy step on a mid-size random model: `python -m tests.bench.update_step --help`.

The real `Worker.update` on a fabricated rollout (random completions, so nothing is sampled): forward, backward
and the optimizer, as a training run does them. Prints a table on stdout and writes JSON with versions. Numbers
compare within one machine in one state, no further.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import transformers
from PIL import Image

from mmcorl.config import parse
from mmcorl.data.reading import prompt_uid
from mmcorl.engines.base import Sample
from mmcorl.reader import Reader
from mmcorl.types import Prompt
from mmcorl.update import Rollout
from mmcorl.worker import Worker
from model_adapters.tiny import build_tiny

FAMILIES = ("qwen2_5_vl", "internvl3_5", "gemma3")
SIDE = 448  # pixels; 256 image tokens in all three families
TEXT = {
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "vocab_size": 8192,
    "tie_word_embeddings": False,
}
VISION: dict[str, dict[str, Any]] = {
    "qwen2_5_vl": {"hidden_size": 256, "intermediate_size": 1024, "depth": 6, "fullatt_block_indexes": [2, 5]},
    "internvl3_5": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
    "gemma3": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6},
}


class Clock:
    """Seconds by part, summed over the calls of one step."""

    def __init__(self, device: torch.device):
        self.device, self.seconds = device, dict[str, float]()
        self._since: dict[str, float] = {}

    def start(self, part: str) -> None:
        """A part begins."""
        self._since[part] = self._now()

    def stop(self, part: str) -> None:
        """A part ends."""
        self.seconds[part] = self.seconds.get(part, 0.0) + self._now() - self._since.pop(part)

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


class PeakMemory:
    """Largest resident memory of this process while the block runs, sampled every 5 ms."""

    def __enter__(self) -> PeakMemory:
        self.peak, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while True:
            self.peak = max(self.peak, process.memory_info().rss)
            if self._stop.wait(0.005):
                return


def build_worker(options: argparse.Namespace, folder: Path) -> Worker:
    """A worker on a random model of about 50 million parameters."""
    sliding = {"layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2, "sliding_window": 512}
    text = {**TEXT, **(sliding if options.family == "gemma3" else {})}
    build_tiny(
        options.family,
        folder,
        image_size=SIDE,
        hidden=512,
        layers=8,
        initializer_range=0.02,
        text_config=text,
        vision_config=VISION[options.family],
    )
    config = parse(
        {
            "steps": 100,
            "agents": [{"name": options.family, "model": str(folder)}],
            "supervision": {"kind": "self"},
            "data": {"train": {"source": "synthetic:visual", "size": 8}},
            "batch": {"prompts": options.prompts, "completions": options.completions},
            "sampling": {"max_new_tokens": options.tokens},
            "training": {
                "dtype": options.dtype,
                "gradient_checkpointing": options.gradient_checkpointing,
                "tokens_per_microbatch": options.tokens_per_microbatch,
            },
        }
    )
    return Worker(config, Reader(config, config.agents[0], str(folder)), 100, torch.device(options.device))


def fabricate(worker: Worker, options: argparse.Namespace, step: int) -> dict[str, tuple[float, ...]]:
    """Put a rollout of random completions into the worker; returns rewards of which half are 1."""
    generator = torch.Generator().manual_seed(step)
    allowed = torch.arange(worker.policy.model.config.get_text_config().vocab_size)
    allowed = allowed[~torch.isin(allowed, worker.policy.banned.cpu())]
    rewards: dict[str, tuple[float, ...]] = {}
    pending: dict[str, Rollout] = {}
    for number in range(options.prompts):
        pixels = np.random.default_rng(number).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        question = "How many dots are there in this picture, and which shape is the largest? " * 2
        image = file.getvalue()
        prompt = Prompt(prompt_uid(question, None, [image]), str(number), question, (image,))
        encoded = worker.reader.encode(prompt)
        samples = []
        for _ in range(options.completions):
            ids = allowed[torch.randint(len(allowed), (options.tokens,), generator=generator)]
            samples.append(Sample(ids, torch.full((options.tokens,), -np.log(len(allowed))), "length"))
        pending[prompt.uid] = Rollout(encoded, samples)
        rewards[prompt.uid] = tuple(float(k % 2) for k in range(options.completions))
    worker._pending = pending
    return rewards


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, measure, summarise."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        worker = build_worker(options, Path(folder))
    clock = Clock(worker.device)
    worker.policy.register_forward_pre_hook(lambda *_: clock.start("forward"))
    worker.policy.register_forward_hook(lambda *_: clock.stop("forward"))
    worker.optimizer.register_step_pre_hook(lambda *_: clock.start("optimizer"))
    worker.optimizer.register_step_post_hook(lambda *_: clock.stop("optimizer"))
    before = psutil.Process().memory_info().rss
    if worker.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(worker.device)
    rows: list[dict[str, float]] = []
    with PeakMemory() as memory:
        for number in range(1, options.warmup + options.repeat + 1):
            rewards = fabricate(worker, options, number)
            clock.seconds = {}
            clock.start("step")
            worker.update(rewards, number)
            clock.stop("step")
            seconds = clock.seconds
            # What is left is the backward passes; clipping and bookkeeping beside them take milliseconds.
            seconds["backward"] = seconds["step"] - seconds["forward"] - seconds["optimizer"]
            rows.append(seconds)
    kept = rows[options.warmup :]
    median = {part: statistics.median(row[part] for row in kept) for part in kept[0]}
    cuda = torch.cuda.max_memory_allocated(worker.device) if worker.device.type == "cuda" else None
    prompt = next(iter(worker.reader._cache.values()))
    token = worker.adapter.image_token_id(worker.policy.model.config)
    return {
        "family": options.family,
        "parameters": sum(parameter.numel() for parameter in worker.policy.parameters()),
        "prompt_tokens": len(prompt.input_ids),
        "image_tokens": int((prompt.input_ids == token).sum()),
        "settings": {key: value for key, value in vars(options).items() if key not in ("family", "json")},
        "seconds": median,
        "steps": [row["step"] for row in kept],
        "tokens_per_second": options.prompts * options.completions * options.tokens / median["step"],
        "rss_before_gib": before / 2**30,
        "rss_peak_gib": memory.peak / 2**30,
        "cuda_peak_gib": None if cuda is None else cuda / 2**30,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": {"cpus": os.cpu_count(), "load_average": os.getloadavg()[0], "processor": platform.processor()},
    }


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    seconds, options = result["seconds"], result["settings"]
    lines = [
        f"{result['family']}: {result['parameters'] / 1e6:.1f} M parameters, {options['prompts']} prompts of "
        f"{result['prompt_tokens']} tokens ({result['image_tokens']} of an image), K = {options['completions']}, "
        f"{options['tokens']} new tokens, {options['dtype']}, {options['threads']} threads",
        f"{'part':<12}{'median s':>10}{'share':>8}",
    ]
    for part in ("forward", "backward", "optimizer"):
        lines.append(f"{part:<12}{seconds[part]:>10.3f}{seconds[part] / seconds['step']:>8.0%}")
    spread = f"{min(result['steps']):.3f} to {max(result['steps']):.3f}"
    lines.append(f"{'step':<12}{seconds['step']:>10.3f}    {spread}, {result['tokens_per_second']:.0f} new tokens/s")
    lines.append(f"memory      {result['rss_before_gib']:.2f} GiB before, {result['rss_peak_gib']:.2f} GiB at the peak")
    if result["cuda_peak_gib"] is not None:
        lines.append(f"GPU memory  {result['cuda_peak_gib']:.2f} GiB at the peak")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.update_step", description="Time one policy step.")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--prompts", type=int, default=2, help="prompts per step, one image each")
    parser.add_argument("--completions", type=int, default=8, help="K")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of every completion")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--tokens-per-microbatch", type=int, default=16384)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--repeat", type=int, default=3, help="steps of which the median is taken")
    parser.add_argument("--json", type=Path, default=None, help="also write the result to this file")
    return parser


def main() -> None:
    """Run one measurement."""
    options = arguments().parse_args()
    result = run(options)
    print(table(result))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1, default=str) + "\n")


if __name__ == "__main__":
    main()
