"""Time of the rollout of the transformers engine on a random model: `python -m tests.bench.rollout --help`.

K completions of each of B prompts with a picture, prompts of several lengths, ragged completions: a share of the
vocabulary stops, so that their lengths are geometric, cut off at the most. Ways take turns on the same seeds, and each
is given as its time over that of the engine as it is: `nobody leaves` keeps rows that have ended, `a copy per token`
grows the cache by one, `one by one` takes rows out whenever one ends. `--against FILE` adds another version of
`mmcorl/engines/transformers.py`, for example one written by `git show`. Numbers compare within one machine in one
state, no further.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mmcorl.engines import kv_cache
from mmcorl.engines import transformers as engine_module
from mmcorl.engines.base import Sampling
from mmcorl.policy.policy import Policy
from model_adapters.base import DEFAULT_VISION, Encoded
from model_adapters.registry import adapter_for
from tests.bench import results
from tests.bench.shapes import FAMILIES, SIZES, shape
from tests.bench.shapes import build as build_shape

HERE = "as it is"


def build(options: argparse.Namespace, folder: Path) -> Policy:
    """A random model of one of the sizes of `tests.bench.shapes`."""
    smaller = {} if options.size == "full" else {"image_size": options.side}
    build_shape(options.family, options.size, folder, initializer_range=0.02, **smaller)
    adapter = adapter_for(str(folder))
    model: Any = adapter.load_model(str(folder), torch.float32)
    processor = adapter.load_processor(str(folder), DEFAULT_VISION)
    policy = Policy(model, adapter, processor).to(options.device).eval()
    # Nearly uniform over the vocabulary: a completion ends at each token with probability 1 / mean.
    allowed = torch.arange(model.config.get_text_config().vocab_size)
    allowed = allowed[~torch.isin(allowed, policy.banned.cpu())]
    policy.stop_ids = tuple(allowed[-max(1, round(len(allowed) / options.mean)) :].tolist())
    return policy


def encoded(policy: Policy, options: argparse.Namespace) -> list[Encoded]:
    """Prompts of several lengths, each with a picture where the family sees."""
    side = shape(options.family, "full").side if options.size == "full" else options.side
    prompts = []
    for number in range(options.prompts):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        images = [Image.fromarray(pixels)] if policy.adapter.multimodal else []
        text = f"{number}. " + "How many dots are there in this picture? " * (1 + 3 * number)
        prompts.append(policy.adapter.encode(policy.processor, text, images))
    return prompts


def other_version(path: Path) -> Any:
    """The module in another file."""
    spec = importlib.util.spec_from_file_location("another_engine", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ways(policy: Policy, options: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """Makers of engines by name."""
    room = kv_cache.GROWTH

    def here(compact_at: float = engine_module.COMPACT_AT, room: int = room) -> Any:
        kv_cache.GROWTH = room
        engine = engine_module.TransformersEngine(policy)
        engine.compact_at = compact_at
        return engine

    found: dict[str, Callable[[], Any]] = {
        HERE: here,
        "nobody leaves": lambda: here(compact_at=0.0),
        "a copy per token": lambda: here(room=0),
        "one by one": lambda: here(compact_at=1.0),
    }
    for share in options.leave_at:
        found[f"leave at {share}"] = lambda share=share: here(compact_at=share)
    if options.against is not None:
        module = other_version(options.against)
        found[options.against.name] = lambda: module.TransformersEngine(policy)
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, measure in turns, summarise."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        policy = build(options, Path(folder))
    prompts, sampling = encoded(policy, options), Sampling(max_new_tokens=options.tokens)
    makers = ways(policy, options)
    seconds: dict[str, list[float]] = {name: [] for name in makers}
    processor: dict[str, list[float]] = {name: [] for name in makers}
    lengths: list[int] = []
    for seed in range(options.warmup + options.repeat):
        for name, make in makers.items():
            engine = make()
            with policy_at_work(options):
                start, busy = time.perf_counter(), time.process_time()
                drawn = engine.generate(prompts, options.completions, sampling, seed)
                if options.device != "cpu":
                    torch.cuda.synchronize()
                seconds[name].append(time.perf_counter() - start)
                processor[name].append(time.process_time() - busy)
            if name == HERE:
                lengths += [len(sample.ids) for own in drawn for sample in own]
    kept = {name: one[options.warmup :] for name, one in seconds.items()}
    busy_kept = {name: one[options.warmup :] for name, one in processor.items()}
    found = {
        "family": options.family,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "vocabulary": policy.model.config.get_text_config().vocab_size,
        "prompt_tokens": [len(one.input_ids) for one in prompts],
        "mean_length": statistics.mean(lengths),
        "cut_off": statistics.mean(length == options.tokens for length in lengths),
        "seconds": kept,
        "processor_seconds": busy_kept,
        "over_this": {name: ratio(one, kept[HERE]) for name, one in kept.items() if name != HERE},
        "processor_over_this": {name: ratio(one, busy_kept[HERE]) for name, one in busy_kept.items() if name != HERE},
    }
    return results.record("rollout", options, found)


def policy_at_work(options: argparse.Namespace) -> torch.autocast:
    """Autocast as in a run."""
    return torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=options.dtype == "bf16")


def ratio(other: list[float], this: list[float]) -> tuple[float, float, float]:
    """Median, least and most, seed by seed."""
    ratios = [a / b for a, b in zip(other, this, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    options, lengths = result["settings"], result["prompt_tokens"]
    lines = [
        f"{result['family']}: {result['parameters'] / 1e6:.1f} M parameters, vocabulary {result['vocabulary']}, "
        f"{len(lengths)} prompts of {min(lengths)} to {max(lengths)} tokens, K = {options['completions']}, completions "
        f"of {result['mean_length']:.0f} tokens on average and {options['tokens']} at most "
        f"({result['cut_off']:.0%} cut off), {options['dtype']}, {options['threads']} threads",
        f"{HERE}: {statistics.median(result['seconds'][HERE]):.3f} s",
        f"{'time over that':<24}{'median':>8}{'least':>8}{'most':>8}{'processor time':>18}",
    ]
    for name, (median, least, most) in result["over_this"].items():
        busy = result["processor_over_this"][name][0]
        lines.append(f"{name:<24}{median:>8.2f}{least:>8.2f}{most:>8.2f}{busy:>18.2f}")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.rollout", description="Time one rollout.")
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--size", choices=SIZES, default="middle")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--completions", type=int, default=8, help="K")
    parser.add_argument("--tokens", type=int, default=128, help="most new tokens")
    parser.add_argument("--mean", type=float, default=48.0, help="mean length of completions that are not cut off")
    parser.add_argument("--side", type=int, default=112, help="pixels of a picture's side, full size has its own")
    parser.add_argument("--leave-at", type=float, nargs="*", default=[], help="more shares at which rows leave")
    parser.add_argument("--against", type=Path, default=None, help="file with another version of the engine")
    parser.add_argument("--warmup", type=int, default=1, help="rollouts that are not counted")
    parser.add_argument("--repeat", type=int, default=5, help="rollouts of which the median is taken")
    return results.shared_arguments(parser)


def main() -> None:
    """Run one measurement."""
    options = arguments().parse_args()
    result = run(options)
    print(table(result))
    results.keep(result, options.json)


if __name__ == "__main__":
    main()
