"""Time and memory of one policy step on a mid-size random model: `python -m tests.bench.update_step --help`.

The real `Worker.update` on a fabricated rollout (random completions, so nothing is sampled): forward, backward
and the optimizer, as a training run does them. `--prefix both` takes turns, step by step on one rollout each, between
computing prompts once per completion and once for all (`training.shared_prefix`), and gives their ratio. Prints a table
on stdout and writes JSON with versions. Numbers compare within one machine in one state, no further.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import platform
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from gpu_check.prove import fabricated
from mmcorl.trainer.worker import Worker
from model_adapters.base import Encoded
from model_adapters.testing.shapes import FAMILIES, SIZES, build, shape
from tests.bench import flops, results


class Clock:
    """Seconds by part, on the wall and of the processor, summed over the calls of one step."""

    def __init__(self, device: torch.device):
        self.device, self.seconds, self.busy = device, dict[str, float](), dict[str, float]()
        self._since: dict[str, tuple[float, float]] = {}

    def clear(self) -> None:
        """A new step begins."""
        self.seconds, self.busy = {}, {}

    def start(self, part: str) -> None:
        """A part begins."""
        self._since[part] = self._now()

    def stop(self, part: str) -> None:
        """A part ends."""
        since, now = self._since.pop(part), self._now()
        self.seconds[part] = self.seconds.get(part, 0.0) + now[0] - since[0]
        self.busy[part] = self.busy.get(part, 0.0) + now[1] - since[1]

    def _now(self) -> tuple[float, float]:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter(), time.process_time()


def clocked(worker: Worker) -> Clock:
    """A clock of the worker's forward passes (`forward`) and of its optimizer (`optimizer`)."""
    clock = Clock(worker.device)
    worker.policy.register_forward_pre_hook(lambda *_: clock.start("forward"))
    worker.policy.register_forward_hook(lambda *_: clock.stop("forward"))
    worker.optimizer.register_step_pre_hook(lambda *_: clock.start("optimizer"))
    worker.optimizer.register_step_post_hook(lambda *_: clock.stop("optimizer"))
    return clock


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
    """A worker on a new random model of one of the sizes of `model_adapters.testing.shapes`."""
    training = {
        "dtype": options.dtype,
        "shared_prefix": "off" if options.prefix == "plain" else "on",
        "gradient_checkpointing": options.gradient_checkpointing,
        "tokens_per_microbatch": options.tokens_per_microbatch,
    }
    return load_worker(options, build(options.family, options.size, folder), training=training)


def load_worker(options: argparse.Namespace, folder: Path, **sections: Any) -> Worker:
    """A worker on the checkpoint in `folder`; `sections` of the config are added."""
    sizes = {"prompts": options.prompts, "completions": options.completions, "tokens": options.tokens}
    return fabricated.load_worker(fabricated.config_of(options.family, folder, options.device, **sizes, **sections))


def fabricate(
    worker: Worker, options: argparse.Namespace, step: int, images: int = 1, copies: int = 2
) -> dict[str, tuple[float, ...]]:
    """Put a rollout of random completions into the worker; returns rewards of which half are 1.

    A text prompt is `options.prompt_tokens` tokens; others have `images` pictures and a sentence `copies` times.
    """
    side = shape(options.family, options.size).side
    if worker.adapter.multimodal:
        prompts = fabricated.questions(worker, options.prompts, side, images=images, copies=copies)
    else:
        prompts = fabricated.questions(worker, options.prompts, side, tokens=options.prompt_tokens)
    # Ragged lengths are spread evenly from a quarter of the most to all of it.
    shares = [
        1 - 0.75 * k / max(options.completions - 1, 1) if options.ragged else 1 for k in range(options.completions)
    ]
    lengths = [max(1, round(share * options.tokens)) for share in shares]
    return fabricated.fabricate(worker, prompts, [lengths] * options.prompts, step)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, measure, summarise."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        worker = build_worker(options, Path(folder))
    clock = clocked(worker)
    ways = ("plain", "shared") if options.prefix == "both" else (options.prefix,)
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(1, options.warmup + options.repeat + 1):
        for way in ways:
            worker.shared_prefix = way == "shared"
            rows[way].append(measure(worker, options, clock, number))
    told = {way: summary(measured[options.warmup :], options) for way, measured in rows.items()}
    fabricate(worker, options, 0)
    encoded = [rollout.prompt for rollout in worker.rollouts.pending.values()]
    prompt = encoded[0].input_ids
    token = worker.adapter.image_token_id(worker.policy.model.config)
    found = {
        "family": options.family,
        "parameters": sum(parameter.numel() for parameter in worker.policy.parameters()),
        "prompt_tokens": len(prompt),
        "image_tokens": 0 if token is None else int((prompt == token).sum()),
        "ways": told,
        "arithmetic": None if options.ragged else arithmetic(worker, encoded, options),
        "plain_over_shared": ratio(rows, options.warmup) if len(ways) == 2 else None,
    }
    return results.record("update_step", options, found)


def arithmetic(worker: Worker, prompts: list[Encoded], options: argparse.Namespace) -> dict[str, float]:
    """Operations of a step with prompts computed once and K times, and those per second that large matrices reach."""
    again, text = options.gradient_checkpointing, flops.cost(worker)
    seen = sum(flops.tower(worker, prompt, again) for prompt in prompts)
    size, dtype = len(prompts[0].input_ids), torch.bfloat16 if options.dtype == "bf16" else torch.float32
    told = {
        way: seen + len(prompts) * text.group(size, options.completions, options.tokens, way == "shared", again)
        for way in ("plain", "shared")
    }
    return {**told, "of_matrices": flops.of_matrices(worker.device, dtype)}


def measure(worker: Worker, options: argparse.Namespace, clock: Clock, number: int, **asked: int) -> dict[str, float]:
    """One step: seconds by part, and bytes above what was there before it; `asked` goes to `fabricate`."""
    rewards = fabricate(worker, options, number, **asked)
    release()
    cuda = worker.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(worker.device)
    before = torch.cuda.memory_allocated(worker.device) if cuda else psutil.Process().memory_info().rss
    clock.clear()
    with PeakMemory() as memory:
        clock.start("step")
        worker.update(rewards, number)
        clock.stop("step")
    seconds = {**clock.seconds, "processor": clock.busy["step"], "optimizer_processor": clock.busy["optimizer"]}
    # What is left is the backward passes; clipping and bookkeeping beside them take milliseconds.
    seconds["backward"] = seconds["step"] - seconds["forward"] - seconds["optimizer"]
    # The update itself starts its count of GPU memory anew in the end, so it is asked what it saw.
    peak = worker.timings["peak_gpu_gb"] * 1e9 if cuda else memory.peak
    return {**seconds, "before_gib": before / 2**30, "peak_gib": peak / 2**30}


def release() -> None:
    """Give what is free back to the system, so that memory is counted from the same level before every step."""
    gc.collect()
    if platform.system() == "Linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def summary(rows: list[dict[str, float]], options: argparse.Namespace) -> dict[str, Any]:
    """Medians over the steps of one way, and all step times."""
    median = {part: statistics.median(row[part] for row in rows) for part in rows[0]}
    tokens = options.prompts * options.completions * options.tokens
    return {"median": median, "steps": [row["step"] for row in rows], "tokens_per_second": tokens / median["step"]}


def ratio(rows: dict[str, list[dict[str, float]]], warmup: int) -> dict[str, float]:
    """Plain over shared, step by step: median and range of time, and of memory above the level before."""
    pairs = [*zip(rows["plain"], rows["shared"], strict=True)][warmup:]
    times = [plain["step"] / shared["step"] for plain, shared in pairs]
    busy = [plain["processor"] / shared["processor"] for plain, shared in pairs]
    memory = [
        (plain["peak_gib"] - plain["before_gib"]) / max(shared["peak_gib"] - shared["before_gib"], 1e-9)
        for plain, shared in pairs
    ]
    return {
        "time": statistics.median(times),
        "time_least": min(times),
        "time_most": max(times),
        "processor": statistics.median(busy),
        "memory": statistics.median(memory),
    }


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    options = result["settings"]
    lines = [
        f"{result['family']}: {result['parameters'] / 1e6:.1f} M parameters, {options['prompts']} prompts of "
        f"{result['prompt_tokens']} tokens ({result['image_tokens']} of an image), K = {options['completions']}, "
        f"{options['tokens']} new tokens{' at most' if options['ragged'] else ''}, {options['dtype']}, "
        f"{options['threads']} threads",
        f"{'':<8}{'forward':>9}{'backward':>10}{'optimizer':>11}{'step':>8}  {'from to':<15}"
        f"{'processor':>10}{'GiB before':>12}{'peak':>7}",
    ]
    for way, one in result["ways"].items():
        median = one["median"]
        parts = (
            f"{median['forward']:>9.3f}{median['backward']:>10.3f}{median['optimizer']:>11.3f}{median['step']:>8.3f}"
        )
        spread = f"{min(one['steps']):.3f} {max(one['steps']):.3f}"
        lines.append(
            f"{way:<8}{parts}  {spread:<15}{median['processor']:>10.3f}"
            f"{median['before_gib']:>12.2f}{median['peak_gib']:>7.2f}"
        )
    for way, one in result["ways"].items() if result["arithmetic"] else ():
        # On a CPU large matrices are told per second of the processor.
        seconds = one["median"]["processor" if options["device"] == "cpu" else "step"]
        rate, limit = result["arithmetic"][way] / seconds, result["arithmetic"]["of_matrices"]
        lines.append(
            f"{way}: {result['arithmetic'][way] / 1e9:.0f} GFLOP, {rate / 1e9:.1f} GFLOP/s, {rate / limit:.0%} of the "
            f"{limit / 1e9:.1f} of large matrices"
        )
    if found := result["plain_over_shared"]:
        lines.append(
            f"plain / shared: time {found['time']:.2f} ({found['time_least']:.2f} to {found['time_most']:.2f}), "
            f"processor time {found['processor']:.2f}, memory above the level before {found['memory']:.2f}"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = results.parser("update_step", "Time one policy step.")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--size", choices=SIZES, default="middle", help="see model_adapters/testing/shapes.py")
    parser.add_argument(
        "--prompts", type=int, default=2, help="prompts per step, with one image each but for the text family"
    )
    parser.add_argument("--completions", type=int, default=8, help="K")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of every completion")
    parser.add_argument("--ragged", action="store_true", help="completions of a quarter of that up to all of it")
    parser.add_argument("--prompt-tokens", type=int, default=130, help="of the text family's prompts")
    parser.add_argument("--prefix", choices=("both", "plain", "shared"), default="both", help="ways of passing prompts")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--tokens-per-microbatch", type=int, default=16384)
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--repeat", type=int, default=3, help="steps of which the median is taken")
    return parser


if __name__ == "__main__":
    results.main(arguments(), run, table)
