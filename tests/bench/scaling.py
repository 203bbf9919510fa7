"""Measure how the cost of an update grows: `python -m tests.bench.scaling --help`.

The real `Worker.update` on fabricated rollouts (`tests.bench.update_step`), per completion, with prompts computed once
and, for a small K, once per completion. Predictions come from `tests.bench.flops`, one rate of arithmetic fitted to all
points with prompts computed once, and the seconds of the optimizer. On the CPU seconds are processor time: other work
matters little; wall-clock seconds are listed too.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mmcorl.trainer.worker import Worker
from model_adapters.testing import shapes
from tests.bench import flops, results
from tests.bench.update_step import Clock, build_worker, clocked, fabricate, measure

KINDS = ("completions", "images", "prompt")
Point = dict[str, Any]


def updates(options: argparse.Namespace, kinds: Sequence[str]) -> dict[str, Any]:
    """Points of each kind from one worker, with the rate that fits them, and the rate of large matrices."""
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        worker = build_worker(argparse.Namespace(**{**vars(options), "completions": options.group}), Path(folder))
    clock = clocked(worker)
    found: dict[str, list[Point]] = {}
    for kind in kinds:
        found[kind] = []
        for value in getattr(options, kind):
            results.say(f"scaling: {kind} {value}")
            found[kind] += points(worker, options, clock, kind, value)
    on_cpu = worker.device.type == "cpu"
    once = [one for made in found.values() for one in made if one["way"] == "shared"]
    work = sum(one["flops"] for one in once)
    rate = work / sum(seconds(one, on_cpu) - optimizer(one, on_cpu) for one in once)
    for one in (one for made in found.values() for one in made):
        one["predicted"] = one["flops"] / rate + optimizer(one, on_cpu)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    return {
        "parameters": sum(parameter.numel() for parameter in worker.policy.parameters()),
        "points": found,
        "clock": "processor" if on_cpu else "wall",
        "flops_per_second": rate,
        "matmul_flops_per_second": flops.of_matrices(worker.device, dtype),
    }


def points(worker: Worker, options: argparse.Namespace, clock: Clock, kind: str, value: int) -> list[Point]:
    """One value of one kind: seconds of a step with prompts computed once; for a small K in the other way, too."""
    now = copy.copy(options)
    now.completions = value if kind == "completions" else options.group
    now.prompt_tokens = value if kind == "prompt" else 128
    asked = {"images": value if kind == "images" else 1}
    if kind == "prompt":
        asked["copies"] = copies(worker, now, value)
    fabricate(worker, now, 0, **asked)
    encoded = [rollout.prompt for rollout in worker.rollouts.pending.values()]
    length = len(encoded[0].input_ids)
    passed = now.prompts * now.completions * (length + now.tokens)
    ways = ("shared", "plain") if kind == "completions" and passed <= options.plain_tokens else ("shared",)
    rows: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(options.warmup + options.repeat):
        for way in ways:
            worker.shared_prefix = way == "shared"
            rows[way].append(measure(worker, now, clock, number + 1, **asked))
    kept = {way: medians(measured[options.warmup :]) for way, measured in rows.items()}
    text = flops.cost(worker)
    seen = flops.tower(worker, encoded[0], options.gradient_checkpointing)
    return [
        {
            "way": way,
            "value": value,
            "prompt_tokens": length,
            "completions": now.prompts * now.completions,
            "seconds": kept.get(way),
            # What is not measured is still predicted, with the optimizer's seconds of what is.
            "optimizer": kept["shared"]["optimizer"],
            "optimizer_processor": kept["shared"]["optimizer_processor"],
            "flops": now.prompts
            * (text.group(length, now.completions, now.tokens, way == "shared", options.gradient_checkpointing) + seen),
        }
        for way in ("shared", "plain")
    ]


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each number."""
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def copies(worker: Worker, options: argparse.Namespace, tokens: int) -> int:
    """How often the sentence must stand in a prompt with a picture for about so many tokens; a text prompt has none."""
    if not worker.adapter.multimodal:
        return 1
    lengths = []
    for count in (1, 11):
        fabricate(worker, options, 0, copies=count)
        lengths.append(len(next(iter(worker.rollouts.pending.values())).prompt.input_ids))
    each = (lengths[1] - lengths[0]) / 10
    return max(1, 1 + round((tokens - lengths[0]) / each))


def seconds(point: Point, on_cpu: bool) -> float:
    """Of a measured step."""
    return float(point["seconds"]["processor" if on_cpu else "step"])


def optimizer(point: Point, on_cpu: bool) -> float:
    """Of its optimizer, which no completion adds to."""
    return float(point["optimizer_processor" if on_cpu else "optimizer"])


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything that is asked for."""
    found: dict[str, Any] = {}
    if kinds := [kind for kind in KINDS if kind in options.what]:
        if options.family == "llama" and "images" in kinds:
            kinds.remove("images")
        found["updates"] = updates(options, kinds)
    return results.record("scaling", options, found)


def table(result: Mapping[str, Any]) -> str:
    """The result for people."""
    options, lines = result["settings"], []
    lines.append(
        f"{options['family']}, {options['size']}: {options['prompts']} prompts, K = {options['group']} unless it "
        f"varies, {options['tokens']} new tokens, {options['dtype']}, {options['threads']} threads"
    )
    if found := result.get("updates"):
        on_cpu = found["clock"] == "processor"
        share = found["flops_per_second"] / found["matmul_flops_per_second"]
        lines += [
            "",
            f"ms of an update per completion; {found['flops_per_second'] / 1e9:.1f} GFLOP/s, {share:.0%} of what large "
            "matrices reach here",
            f"{'':<12}{'value':>6}{'prompt':>8}  {'computed':<9}{found['clock']:>10}{'wall':>10}{'predicted':>11}"
            f"{'GFLOP':>9}",
        ]
        for kind, made in found["points"].items():
            for one in made:
                each = 1e3 / one["completions"]
                shown = ["-", "-"]
                if one["seconds"]:
                    shown = [f"{seconds(one, on_cpu) * each:.1f}", f"{one['seconds']['step'] * each:.1f}"]
                lines.append(
                    f"{kind:<12}{one['value']:>6}{one['prompt_tokens']:>8}  "
                    f"{'once' if one['way'] == 'shared' else 'K times':<9}{shown[0]:>10}{shown[1]:>10}"
                    f"{one['predicted'] * each:>11.1f}{one['flops'] / one['completions'] / 1e9:>9.2f}"
                )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = results.parser("scaling", "Measure how the cost of an update grows.")
    parser.add_argument("--what", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--family", choices=shapes.FAMILIES, default="qwen2_5_vl")
    parser.add_argument("--size", choices=shapes.SIZES, default="middle", help="see model_adapters/testing/shapes.py")
    parser.add_argument("--completions", type=int, nargs="+", default=[2, 4, 8, 16, 32], help="values of K")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 2, 3, 4], help="of a prompt")
    parser.add_argument("--prompt", type=int, nargs="+", default=[300, 600, 1200], help="about so many tokens")
    parser.add_argument("--group", type=int, default=8, help="K, where it does not vary")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64, help="new tokens")
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--tokens-per-microbatch", type=int, default=16384)
    parser.add_argument(
        "--plain-tokens", type=int, default=4000, help="measure K also with prompts computed K times, up to so many"
    )
    parser.add_argument("--warmup", type=int, default=1, help="steps that are not counted")
    parser.add_argument("--repeat", type=int, default=3, help="steps of which the median is taken")
    parser.set_defaults(prefix="shared", ragged=False)
    return parser


if __name__ == "__main__":
    results.main(arguments(), run, table)
