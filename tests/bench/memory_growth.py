"""Whether a long run needs more memory than a short one: `python -m tests.bench.memory_growth --help`.

A cohort of tiny random models trains in this process, with the journal, logs and evaluations of a run; after every so
many steps the resident memory of the process and its living tensors and objects are noted. After the warm-up, in which
caches fill and allocators find their size, the slope of a line through the notes is what each step leaves behind.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from mmcorl.answers import Equivalence
from mmcorl.config import Config, parse
from mmcorl.cotrain import StepRecord, cotrain
from mmcorl.data.sources import load_prompts
from mmcorl.data.training_prompts import TrainingPrompts
from mmcorl.interactions.independent import Independent
from mmcorl.labels.supervision import Supervision
from mmcorl.launch import launcher
from mmcorl.launch.process_setup import prepare_process
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.rewards import Reward
from mmcorl.run.evaluation import HeldOut
from mmcorl.run.progress import Progress
from mmcorl.run.recorder import Recorder
from mmcorl.run.run_folder import RunFolder
from model_adapters.testing.tiny import TinyFamily, build_tiny

ROWS = 16
"""Of the data: few enough that the cache of encoded prompts is full after some steps."""


@dataclass(frozen=True)
class Note:
    """What there was after a step."""

    step: int
    seconds: float
    resident: int
    """Bytes of memory of the process, with what is free given back to the system."""
    tensors: int
    tensor_bytes: int
    """Of distinct storages."""
    objects: int
    """That the garbage collector knows of."""


class Watched(Recorder):
    """A run that notes its memory."""

    notes: list[Note]
    every: int
    began: float

    def record(self, record: StepRecord) -> None:
        """As every run; then a note, when it is time."""
        super().record(record)
        step = record.step
        if step % self.every == 0:
            self.notes.append(note(step, time.perf_counter() - self.began))


def note(step: int, seconds: float) -> Note:
    """Count what there is now."""
    gc.collect()
    if platform.system() == "Linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    known = gc.get_objects()
    tensors = [one for one in known if issubclass(type(one), torch.Tensor)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    resident = psutil.Process().memory_info().rss
    return Note(step, seconds, resident, len(tensors), sum(storages.values()), len(known))


def config_of(models: Sequence[str], options: argparse.Namespace) -> Config:
    """Steps that cost little and do everything: rewards differ, so that every agent is updated."""
    return parse(
        {
            "steps": options.steps,
            "agents": [{"name": name, "model": path} for name, path in zip("ab", models, strict=False)],
            "supervision": {"kind": "ring"},
            "data": {"train": {"source": f"synthetic:{options.kind}", "size": ROWS}},
            "validation": {
                "every": max(1, options.steps // 10),
                "sets": [{"name": "held_out", "data": {"source": f"synthetic:{options.kind}", "seed": 1, "size": 4}}],
            },
            "batch": {"prompts": 2, "completions": 2},
            "prompt": {"style": "plain"},
            # A KL term, so that groups in which all rewards are equal are passed through the models, too.
            "objective": {"kl_coef": 0.01},
            "sampling": {"max_new_tokens": options.tokens},
            "training": {"dtype": "fp32"},
            "logging": {"gallery": 0},
            "checkpoint": {"best": False, "every": options.steps},
            "device": "cpu",
        }
    )


def run(options: argparse.Namespace) -> list[Note]:
    """Train, and note."""
    families: Sequence[TinyFamily] = ("llama", "qwen2")
    if options.kind == "visual":
        families = ("qwen2_5_vl", "internvl3_5")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        models = [str(build_tiny(family, folder / family, seed=0)) for family in families]
        config = config_of(models, options)
        prepare_process(config)
        # Not by `threads: 1`, which gives agents processes of their own: what they hold could not be counted here.
        torch.set_num_threads(1)
        with (
            RunFolder(folder / "run", config) as run_folder,
            launcher(config) as launch,
            Equivalence() as relation,
            Progress("growth", ["a", "b"], options.steps, quiet=True) as progress,
        ):
            readers = [PromptEncoder(config, agent, agent.model) for agent in config.agents]
            cohort = launch.cohort(readers, options.steps)
            run_folder.begin({})
            source = load_prompts(config.data.train)
            held_out = load_prompts(config.validation.sets[0].data)
            validation = [HeldOut("held_out", [held_out[row] for row in range(len(held_out))])]
            rates = {agent.name: agent.take_rates for agent in cohort.agents}
            journal = Watched(
                run_folder, config, options.steps, validation, relation, progress, None, cohort.parallel, rates
            )
            journal.notes, journal.every, journal.began = [], options.every, time.perf_counter()
            cotrain(
                cohort.agents,
                TrainingPrompts(source, range(len(source)), config.batch.prompts, 0),
                Independent(),
                Supervision("ring", ["a", "b"], relation=relation),
                Reward(relation, **config.reward.model_dump(), style=config.prompt.style),
                journal,
                options.steps,
                cohort.parallel,
            )
            journal.trackers.close()
    return journal.notes


def growth(notes: Sequence[Note], warmup: int) -> dict[str, float]:
    """What each step after the warm-up added, by least squares: resident bytes, tensors, bytes of tensors, objects."""
    kept = [one for one in notes if one.step > warmup]
    steps = [one.step for one in kept]
    return {
        key: statistics.linear_regression(steps, [getattr(one, key) for one in kept]).slope
        for key in ("resident", "tensors", "tensor_bytes", "objects")
    }


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory_growth", description="Memory of a long run.")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=50, help="steps between two notes")
    parser.add_argument("--warmup", type=int, default=200, help="steps after which nothing may grow")
    parser.add_argument(
        "--kind", choices=("visual", "text"), default="visual", help="of the data, and so of the models"
    )
    parser.add_argument("--tokens", type=int, default=4, help="longest completion")
    parser.add_argument("--json", type=Path, default=None, help="also write the notes to this file")
    return parser


def main() -> None:
    """Run one measurement."""
    options = arguments().parse_args()
    notes = run(options)
    print(f"{'step':>6}{'seconds':>9}{'MiB resident':>14}{'tensors':>9}{'MiB in them':>13}{'objects':>10}")
    for one in notes:
        print(
            f"{one.step:>6}{one.seconds:>9.0f}{one.resident / 2**20:>14.1f}{one.tensors:>9}"
            f"{one.tensor_bytes / 2**20:>13.2f}{one.objects:>10}"
        )
    grown = growth(notes, options.warmup)
    told = f"{grown['resident']:.0f} bytes resident, {grown['tensors']:.4f} tensors, {grown['objects']:.3f} objects"
    print(f"a step after step {options.warmup} leaves {told}")
    if options.json is not None:
        result = {"notes": [asdict(one) for one in notes], "growth": grown, "torch": torch.__version__}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
