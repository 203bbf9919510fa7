"""From a config to a trained cohort: everything is checked first, then `cotrain` runs in its folder."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

import patches
from mmcorl.answers import Equivalence
from mmcorl.config import Config
from mmcorl.cotrain import cotrain
from mmcorl.data.batches import Batches
from mmcorl.data.check import DataCheck, check
from mmcorl.data.sources import load_prompts
from mmcorl.errors import Refused
from mmcorl.progress import Progress, task
from mmcorl.reader import Reader
from mmcorl.report import build_report
from mmcorl.rewards import match
from mmcorl.run import HeldOut, Run, RunFolder, write_file
from mmcorl.supervision import Supervision
from mmcorl.types import Group, Prompt, PseudoLabel
from mmcorl.worker import Worker
from mmcorl.zoo import resolve
from model_adapters.registry import check_versions


class TrainingPrompts:
    """Batches of the kept training rows; a function of the step alone."""

    def __init__(self, source: Any, kept: Sequence[int], batch_size: int, seed: int):
        self.source, self.kept = source, kept
        self.batches = Batches(len(kept), batch_size, seed)

    def batch(self, step: int) -> list[Prompt]:
        """The B prompts of a step."""
        return [self.source[self.kept[row]] for row in self.batches.rows(step)]


def train(config: Config, run_dir: Path, *, quiet: bool = False) -> dict[str, Any]:
    """Run or resume `config` in `run_dir`; returns the summary.

    Raises Refused before work starts on anything that cannot work.
    """
    check_versions()
    patches.apply("torchvision_cpu")
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    if config.threads:
        torch.set_num_threads(config.threads)
    device = _device(config.device)
    folder = RunFolder(run_dir, config)
    readers = [Reader(config, agent, str(resolve(agent.model, quiet=quiet))) for agent in config.agents]
    names = [reader.name for reader in readers]
    with Equivalence() as relation:
        supervision = Supervision(
            config.supervision.kind,
            names,
            relation=relation,
            tie=config.supervision.tie,
            min_votes=config.supervision.min_votes,
            min_share=config.supervision.min_share,
        )
        prompts, validation = _data(config, readers, folder, quiet)
        steps = config.steps or math.ceil((config.epochs or 1.0) * len(prompts.kept) / config.batch.prompts)
        start = folder.resume()
        workers = [Worker(config, reader, steps, device) for reader in readers]
        if start:
            for worker in workers:
                worker.load(start.path / worker.name)
        facts = {worker.name: worker.facts() for worker in workers}

        def reward(
            groups: Sequence[Group], labels: Sequence[PseudoLabel], batch: Sequence[Prompt]
        ) -> dict[str, tuple[float, ...]]:
            return match(groups, labels, relation, {prompt.uid: prompt.choices for prompt in batch})

        with Progress(config.name, names, steps, start.step if start else 0, quiet=quiet) as progress:
            for name, fact in facts.items():
                progress.message(
                    f"{name}: {fact['family']}, {fact['trainable_parameters']:,} of {fact['parameters']:,} "
                    "parameters trained"
                )
            if start:
                progress.message(f"resuming after step {start.step} of {steps}")
            run = Run(folder, config, steps, validation, relation, progress, start)
            previous = signal.signal(signal.SIGINT, lambda *_: _ask_to_stop(run))
            try:
                cotrain(workers, prompts, supervision, reward, run, steps)
                progress.phase("export")
                run.export(workers)
            finally:
                signal.signal(signal.SIGINT, previous)
                run.trackers.close()
    summary = run.write_summary(facts)
    build_report(run_dir)
    return summary


def _ask_to_stop(run: Run) -> None:
    """First Ctrl-C: finish the step, checkpoint, leave. Second: leave at once."""
    if run.stop_requested:
        raise KeyboardInterrupt
    run.stop_requested = True
    run.progress.message("stopping after this step (Ctrl-C again to stop at once)")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Refused(f"device is {name!r} but torch sees no GPU: use device=cpu, or device=auto")
    return torch.device(name)


def _data(
    config: Config, readers: Sequence[Reader], folder: RunFolder, quiet: bool
) -> tuple[TrainingPrompts, list[HeldOut]]:
    """Load and check every row of training and validation data; what was skipped is written down."""
    limits = {reader.name: (reader.length, reader.longest_prompt()) for reader in readers}
    parts = {"train": config.data.train} | {part.name: part.data for part in config.validation.sets}
    sources = {name: load_prompts(data) for name, data in parts.items()}
    record = folder.path / "data_check.json"
    before = json.loads(record.read_text()) if record.is_file() else {}
    checks: dict[str, DataCheck] = {}
    for name, source in sources.items():
        with task(f"checking {name} data", len(source), quiet=quiet) as bar:
            checks[name] = check(
                source, max_side=config.vision.max_side, lengths=limits, on_progress=lambda *_: bar.advance()
            )
        if name in before and before[name]["fingerprint"] != checks[name].fingerprint:
            raise Refused(f"the data of {name!r} changed since this run began: restore it, or choose another --run-dir")
    write_file(record, json.dumps({name: done.to_json() for name, done in checks.items()}, indent=1) + "\n")
    train_source, train_check = sources.pop("train"), checks.pop("train")
    if config.supervision.kind == "gold" and train_check.answers < len(train_check.kept):
        raise Refused(
            f"supervision.kind is 'gold' but {len(train_check.kept) - train_check.answers} of {len(train_check.kept)} "
            f"rows of {train_source.name} have no answer: name the answer column in data.train.columns, or use "
            "supervision.kind=ring, which needs none"
        )
    validation = [HeldOut(name, [source[row] for row in checks[name].kept]) for name, source in sources.items()]
    return TrainingPrompts(train_source, train_check.kept, config.batch.prompts, config.data_seed), validation
