"""Instruments for GPUs, run from a checkout: `python -m gpu_check prove` and `python -m gpu_check dry CONFIG`.

Neither is in the installed package. Torch is imported only once the arguments are understood.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

from mmcorl.cli.arguments import Arguments, Command, Config, Flag, Output, Overrides, add_arguments
from mmcorl.config import load
from mmcorl.errors import RunError, UserError
from mmcorl.system import user_code
from model_adapters.errors import AdapterError


class ProveArguments(Arguments):
    groups: Annotated[tuple[str, ...], Flag(positional=True, metavar="GROUP")] = ()
    """only these, such as update or steady (default: all)"""
    minutes: float = 9.0
    """time budget: measurements that no longer fit are skipped, not cut short"""
    out: Path | None = None
    """write all numbers to this JSON file, complete after every line"""


class DryArguments(Arguments):
    config: Config
    """YAML file or shipped config"""
    overrides: Overrides = ()
    """settings that differ from the file"""
    batch_by_batch: bool = False
    """compute attention as where no kernel takes segments"""
    trust: tuple[Path, ...] = ()
    """FILE.py: code of your own that the config names and this command line does not: let it run, from now on"""


PROVE = """On a GPU of 80 GB the real update, engine and time slicing run at full size (Qwen2.5-VL-3B, InternVL3.5-2B,
Gemma-3-4B; random weights made on the GPU, no download, no network), and each line is PASS, FAIL or SKIP with its
numbers and their bounds. About nine minutes for everything. On a CPU the same lines come from models of a
megabyte in one to two minutes; speed and memory are then not judged, and nothing is shown about a GPU. Exit
status 1 if a line fails.

groups:
  machine              GPU, driver, versions, what is missing, which attention kernels torch chooses
  arithmetic           tiny models of four families against fp32 on the CPU: log-probabilities and gradients
  update               full-size updates: seconds, MFU, peak beside the prediction, host waits
  ragged               new lengths at every step: no step may be much slower; the same with cuDNN's attention
  long                 completions of 16,384 tokens: fits, seconds, peak
  mask against varlen  attention of one layer behind a dense mask and as the update computes it
  engine               tokens per second, kernels and weight casts per token, drift to the trainer; vLLM, if installed
  slicing              45 GB of weights and moments leave the GPU and come back bit by bit
  steady               60 ragged steps: no memory grows or is lost

words:
  prompts once         the shared prefix (a prompt computed once for its completions) against one prompt per completion
  P, C, K              tokens of the prompt, tokens of a completion, completions of a prompt
  mask / ours          seconds behind a dense mask over seconds of ours: above 1 ours is faster
  batch by batch       several attention calls per layer instead of one, and why
  rest, ready          slicing: an agent's weights and moments leave the GPU, and come back

examples:
  python -m gpu_check prove --minutes 9 --out proof.json
  python -m gpu_check prove update long --minutes 5 --out part.json"""
DRY = """The real update of each agent at full size, two micro-batches and the optimizer, on a CUDA device that computes
nothing: kernels, arithmetic, bytes at the peak and where the host waits. It reads no data, and needs g++ and a
build of torch for CPUs.

examples:
  python -m gpu_check dry my_run.yaml
  python -m gpu_check dry paper/vlm_3b_open_r1 training.tokens_per_microbatch=4096 --json"""


def prove(chosen: ProveArguments) -> int:
    """Print a line per measurement; exit status 1 if one failed."""
    from gpu_check.prove.report import run

    return run(chosen.groups, chosen.minutes, chosen.out)


def dry(run: DryArguments, output: Output) -> NoReturn:
    """Print what the update of each agent asks of a GPU, and end the process."""
    from gpu_check.fake_gpu import library

    for path in run.trust:
        user_code.trust(path)
    library.load()  # The first to import torch; the user's own files, which the config names, may do so as well.
    config = load(run.config, run.overrides)

    from gpu_check.fake_gpu import report
    from model_adapters import varlen

    if run.batch_by_batch:
        varlen.KERNELS.clear()
    records = []
    for record in report.examine(config):
        records.append(record)
        if not output.as_json:
            print(*report.lines(record), sep="\n", flush=True)
    if output.as_json:
        print(json.dumps(records, indent=1))
    sys.stdout.flush()
    # A process of its own, as no other may load the device; ending in order, torch's thread for it may abort it.
    os._exit(0)


INSTRUMENTS = {
    command.name: command
    for command in (
        Command("prove", "test correctness and speed of the real kernels on this GPU, at full size", prove, PROVE),
        Command("dry", "count an update of each agent of a config on a GPU that computes nothing", dry, DRY),
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one instrument; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = INSTRUMENTS.get(words[0]) if words else None
    if command is None:
        lines = [f"  {name:<6} {command.help}" for name, command in INSTRUMENTS.items()]
        wanted = words[:1] in ([], ["-h"], ["--help"])
        print("usage: python -m gpu_check INSTRUMENT ...", *lines, sep="\n", file=sys.stdout if wanted else sys.stderr)
        return 0 if wanted else 2
    parser = argparse.ArgumentParser(
        prog=f"python -m gpu_check {command.name}",
        description=command.help,
        epilog=str(command.epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for model in command.models.values():
        add_arguments(parser, model)
    user_code.tells = True
    try:
        return command.run(**command.options(parser.parse_intermixed_args(words[1:])))
    except (AdapterError, RunError, UserError) as error:
        print(f"gpu_check: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2


if __name__ == "__main__":
    sys.exit(main())
