"""Our policy step against that of TRL's GRPOTrainer: `python -m tests.bench.against_trl --help`.

Both train the same random weights on the same prompts, completions and rewards, each in a process of its own, and take
turns step by step, so that whatever disturbs the machine disturbs both. The norms of their first gradients must agree,
because a faster step that is another step proves nothing. TRL's settings stand in `trl_side.settings`; its pass for old
log-probabilities, which it makes whenever an engine of its own sampled, is timed by itself and given with and without.
Memory is the largest resident set of each process (on a GPU: of what its tensors hold), libraries included.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gpu_check.prove.fabricated import question, sampled_ids
from mmcorl.engines.base import Sample
from mmcorl.trainer.microbatches import Rollout
from mmcorl.trainer.worker import Worker
from mmcorl.types import Prompt
from model_adapters.base import Encoded
from model_adapters.testing.shapes import FAMILIES, TEXT, build, shape
from tests.bench import results, trl_side
from tests.bench.update_step import PeakMemory, load_worker

QWEN, INTERN, GEMMA, LLAMA = "qwen2_5_vl", "internvl3_5", "gemma3", "llama"
CELLS: dict[str, list[tuple[str, int, int, int]]] = {
    # Lengths of the completion for the longest prompt, then the other families at P:C = 2.4:1.
    "race": [(QWEN, 304, c, 8) for c in (64, 128, 256)] + [(f, 304, 128, 8) for f in (INTERN, GEMMA, LLAMA)],
    # Where there is least to win: few completions, prompts shorter than what follows them.
    "corners": [(QWEN, 304, 128, 2), (QWEN, 304, 128, 16), (INTERN, 304, 256, 4), (GEMMA, 304, 256, 4)]
    + [(LLAMA, p, c, k) for p, c in ((32, 256), (128, 128), (512, 64)) for k in (2, 8)],
}
"""(family, tokens of a prompt, of a completion, K) by name."""
TOLERANCE = {"fp32": 1e-4, "bf16": 2e-2}
"""Largest relative difference of the first norms."""
KEEPING = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_ARENA_MAX": "1"}
"""glibc told to give nothing back to the system."""


def main() -> None:
    """Run cells one after the other; a file is kept up to date while it goes on."""
    parser = arguments()
    options = parser.parse_args()
    if min(options.tokens, options.prompts, options.repeat) < 1 or options.completions < 2:
        parser.error(
            "at least one token, prompt and counted round, and two completions: a group of one teaches nothing"
        )
    if options.allocator == "keeping":
        os.environ.update(KEEPING)
    cells = [(options.family, options.prompt_tokens, options.tokens, options.completions)]
    raced: list[dict[str, Any]] = []
    print(HEADER, flush=True)
    for cell in cells if options.cells == "one" else CELLS[options.cells]:
        for checkpointing in (False, True) if options.checkpointing == "both" else (options.checkpointing == "on",):
            raced.append(race(cell, checkpointing, options))
            print(line(raced[-1]), flush=True)
            results.keep(results.record("against_trl", options, {"cells": raced}), options.json)


def race(cell: tuple[str, int, int, int], checkpointing: bool, options: argparse.Namespace) -> dict[str, Any]:
    """Both sides, turn by turn."""
    family, prompt, tokens, completions = cell
    rounds = options.warmup + options.repeat
    with tempfile.TemporaryDirectory() as folder:
        job = {
            "family": family,
            "prompt_tokens": prompt,
            "completions": completions,
            "count": options.prompts,
            "sizes": (tokens, rounds),
            "checkpointing": checkpointing,
            "threads": options.threads,
            "device": options.device,
            "dtype": options.dtype,
            "size": options.size,
            "images": family != LLAMA,
        }
        with side(serve, folder, job) as us:
            about = us.recv()
            job["prompts"] = about.pop("prompts")
            with side(trl_side.serve, folder, job) as them:
                if (found := them.recv())["parameters"] != about["parameters"]:
                    raise RuntimeError(f"TRL trains {found['parameters']} parameters, we {about['parameters']}")
                steps = [turn(us, them) for _ in range(rounds)]
    first = [step["norm"] for step in steps[0]]
    apart = abs(first[0] - first[1]) / first[1]
    if not apart < TOLERANCE[options.dtype]:
        raise RuntimeError(f"the first gradients have the norms {first[0]} (ours) and {first[1]}: not the same step")
    ours, theirs = ([pair[number] for pair in steps[options.warmup :]] for number in (0, 1))
    return {
        "family": family,
        "parameters": about["parameters"],
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "completions": completions,
        "prompts": options.prompts,
        "checkpointing": checkpointing,
        "norm_difference": apart,
        "ours": summary(ours),
        "trl": summary(theirs),
        "ratio": {
            "with_old": results.spread([b["step"] / a["step"] for a, b in zip(ours, theirs, strict=True)]),
            "without_old": results.spread(
                [(b["step"] - b["old"]) / a["step"] for a, b in zip(ours, theirs, strict=True)]
            ),
            "processor": results.spread([b["processor"] / a["processor"] for a, b in zip(ours, theirs, strict=True)]),
            "memory": max(b["peak"] for b in theirs) / max(a["peak"] for a in ours),
        },
    }


def turn(us: Connection, them: Connection) -> tuple[dict[str, float], dict[str, float]]:
    """One step of both on one batch."""
    them.send(us.recv())
    theirs = them.recv()
    us.send("go")
    ours = us.recv()
    return ours, theirs


@contextmanager
def side(target: Any, folder: str, job: dict[str, Any]) -> Iterator[Connection]:
    """A process of its own and the pipe to it."""
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(there, folder, job))
    process.start()
    there.close()
    try:
        yield here
    finally:
        here.close()
        process.join(30)
        process.kill()


def serve(pipe: Connection, folder: str, job: dict[str, Any]) -> None:
    """Our side: the real `Worker.update` on random completions, of which it also tells the other side."""
    torch.set_num_threads(job["threads"])
    worker = load(folder, job)
    cuda = worker.device.type == "cuda"
    asked = [prompt(worker, number, job) for number in range(job["count"])]
    vocabulary = worker.policy.model.config.get_text_config().vocab_size
    allowed = sampled_ids(worker)
    # TRL's distribution is over the whole vocabulary; so that the steps are the same, ours is here, too.
    worker.policy.banned = worker.policy.banned[:0]
    pipe.send(
        {
            "parameters": sum(one.numel() for one in worker.policy.parameters()),
            "prompts": [(one.text, list(one.images)) for one, _ in asked],
        }
    )
    tokens, rounds = job["sizes"]
    rewards = {one.uid: tuple(float(k % 2) for k in range(job["completions"])) for one, _ in asked}
    for number in range(1, rounds + 1):
        noise = torch.Generator().manual_seed(number)
        said = torch.full((tokens,), -math.log(vocabulary))
        for one, encoded in asked:
            drawn = allowed[torch.randint(len(allowed), (job["completions"], tokens), generator=noise)]
            worker.rollouts.pending[one.uid] = Rollout(encoded, [Sample(ids, said, "length") for ids in drawn])
        rows = [(one.prompt, sample) for one in worker.rollouts.pending.values() for sample in one.samples]
        ids = [[encoded.input_ids.tolist() for encoded, _ in rows], [sample.ids.tolist() for _, sample in rows]]
        pipe.send((*ids, [said.tolist() for _ in rows], [one for row in rewards.values() for one in row]))
        pipe.recv()
        gc.collect()
        with PeakMemory() as memory:
            began, busy = time.perf_counter(), time.process_time()
            metrics = worker.update(rewards, number)
            told = {"step": time.perf_counter() - began, "processor": time.process_time() - busy}
        peak = worker.timings["peak_gpu_gb"] * 1e9 if cuda else memory.peak
        pipe.send({**told, "norm": metrics["grad_norm"], "peak": peak})


def load(folder: str, job: dict[str, Any]) -> Worker:
    """A worker on a new random checkpoint, all groups in one micro-batch as TRL has all its rows."""
    more: dict[str, Any] = {}
    if job["family"] == LLAMA and job["size"] == "middle":
        # The middle text model has 134 million parameters; this one as many as the others.
        more = {"text_config": {**TEXT, "num_hidden_layers": 10}, "hidden": 512, "layers": 10}
    build(job["family"], job["size"], Path(folder), **more)
    options = argparse.Namespace(**job, prompts=job["count"], tokens=job["sizes"][0])
    return load_worker(
        options,
        Path(folder),
        prompt={"style": "plain"},
        objective={"aggregation": "token", "importance_correction": "token_truncate", "importance_cap": 3.0},
        optimizer={"lr": 1e-6, "warmup_ratio": 0.0, "schedule": "constant"},
        training={
            "dtype": job["dtype"],
            "shared_prefix": "on",
            "gradient_checkpointing": job["checkpointing"],
            "tokens_per_microbatch": 2**20,
        },
    )


def prompt(worker: Worker, number: int, job: dict[str, Any]) -> tuple[Prompt, Encoded]:
    """Prompt `number`, with a picture of noise for a family that sees, as long as it is wanted."""
    side, length = shape(job["family"], job["size"]).side, job["prompt_tokens"]
    text = f"{number}."
    while True:
        one = question(text, number, side, int(job["images"]))
        encoded = worker.encoder.encode(one)
        if len(encoded.input_ids) >= length:
            break
        text += " a"
    if not one.images:
        vocabulary = worker.policy.model.config.get_text_config().vocab_size
        ids = torch.randint(vocabulary // 2, vocabulary, (length,), generator=torch.Generator().manual_seed(number))
        encoded = Encoded(ids, torch.arange(length)[None], length)
    if len(encoded.input_ids) != length:
        raise SystemExit(
            f"--prompt-tokens {length}: the shortest prompt of {job['family']} has {len(encoded.input_ids)}"
        )
    return one, encoded


def summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Medians of seconds, and the largest memory in GiB."""
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0] if key not in ("peak", "norm")}
    return {**medians, "peak_gib": max(row["peak"] for row in rows) / 2**30}


HEADER = (
    f"{'family':<12}{'P':>5}{'C':>5}{'K':>4}  {'recompute':<11}{'ours s':>8}{'TRL s':>8}{'of it old':>10}"
    f"{'TRL / ours':>12}{'least..most':>14}{'without old':>13}{'GiB ours':>10}{'TRL':>7}{'ratio':>7}"
)


def line(cell: dict[str, Any]) -> str:
    """One cell for people."""
    old, new, ratio = cell["trl"], cell["ours"], cell["ratio"]
    between = f"{ratio['with_old']['least']:.2f}..{ratio['with_old']['most']:.2f}"
    return (
        f"{cell['family']:<12}{cell['prompt_tokens']:>5}{cell['completion_tokens']:>5}{cell['completions']:>4}  "
        f"{'on' if cell['checkpointing'] else 'off':<11}{new['step']:>8.2f}{old['step']:>8.2f}{old['old']:>10.2f}"
        f"{ratio['with_old']['median']:>12.2f}{between:>14}{ratio['without_old']['median']:>13.2f}"
        f"{new['peak_gib']:>10.2f}{old['peak_gib']:>7.2f}{ratio['memory']:>7.2f}"
    )


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = results.parser("against_trl", "Race TRL's GRPOTrainer.")
    parser.add_argument("--cells", choices=("one", *CELLS), default="race", help="which cells; one: the four below")
    parser.add_argument("--family", choices=FAMILIES, default=QWEN)
    parser.add_argument("--prompt-tokens", type=int, default=304)
    parser.add_argument("--tokens", type=int, default=128, help="of every completion")
    parser.add_argument("--completions", type=int, default=8, help="K")
    parser.add_argument("--prompts", type=int, default=2, help="per step, with one image each where the family sees")
    parser.add_argument(
        "--checkpointing", choices=("off", "on", "both"), default="both", help="on both sides (TRL: on)"
    )
    parser.add_argument("--size", choices=("tiny", "middle", "full"), default="middle")
    parser.add_argument("--warmup", type=int, default=1, help="rounds that are not counted")
    parser.add_argument("--repeat", type=int, default=3, help="rounds of which the median is taken")
    parser.add_argument("--allocator", choices=("default", "keeping"), default="default", help="glibc's, on both sides")
    return parser


if __name__ == "__main__":
    main()
