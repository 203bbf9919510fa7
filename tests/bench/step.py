"""Where the time of a whole co-training step goes, by engine: `python -m tests.bench.step --help`.

Algorithm 1 itself (`mmcorl.cotrain`) with the agents, journal, logs and votes of a run, two agents of different
families, each engine in a process of its own. `--size toy` is `configs/quickstart.yaml`: the zoo's
models, whose groups of equal rewards are skipped as in any run. The other sizes are random models
(`tests/bench/shapes.py`), which agree on nothing: their answers are compared and voted on, and then every second
completion is rewarded all the same, so that every group is trained.

A step is split into rollout, sync (weights to an engine that has its own), exchange (ballots, votes, rewards), update,
and the rest (reading and preparing prompts, logs), from the run's own timings.jsonl. Where agents work
at the same time, parts are those of the slower one. Processor time is that of all processes and threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from mmcorl.agent import in_turn
from mmcorl.answers import Equivalence
from mmcorl.config import Config, parse
from mmcorl.cotrain import cotrain
from mmcorl.data.sources import load_prompts
from mmcorl.data.training_prompts import TrainingPrompts
from mmcorl.interactions.independent import Independent
from mmcorl.labels.supervision import Supervision
from mmcorl.launch import launcher
from mmcorl.launch.process_setup import prepare_process
from mmcorl.policy.prompt_encoder import PromptEncoder
from mmcorl.rewards import Reward, Rewards
from mmcorl.run.progress import Progress
from mmcorl.run.recorder import Recorder
from mmcorl.run.run_folder import RunFolder
from mmcorl.tools import zoo
from tests.bench import results, shapes

QUICKSTART = Path(__file__).resolve().parents[2] / "configs" / "quickstart.yaml"
PARTS = ("rollout", "sync", "exchange", "update", "rest")
ENGINES = ("transformers", "vllm")
SIZES = ("toy", *shapes.SIZES)
COHORT = ("qwen2_5_vl", "internvl3_5")


class Clocked(Recorder):
    """A run that notes both clocks with each line of timings.jsonl, and keeps no checkpoints."""

    clocks: list[tuple[float, float]]

    def _timing(self, *arguments: Any) -> None:
        super()._timing(*arguments)
        self.clocks.append((time.perf_counter(), processor_seconds()))

    def checkpoint_when_due(self, *_: Any) -> None:
        """Nothing is to be resumed."""

    def close(self) -> None:
        """Wait for the updates of the last step."""
        self._write_step()
        self.trackers.close()


def processor_seconds() -> float:
    """Of this process and those that it started, so far."""
    children = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(one.user + one.system for one in children)


class Dealt(Reward):
    """Rewards of which half are 1, whatever the completions say; what they say is compared before."""

    def __call__(self, *arguments: Any) -> Rewards:
        """As every reward, then every second one instead."""
        earned = super().__call__(*arguments)
        return {uid: tuple(float(k % 2) for k in range(len(values))) for uid, values in earned.items()}


def cotrain_steps(config: Config, models: Sequence[str], dealt: bool, folder: Path) -> list[dict[str, Any]]:
    """Train the cohort; of each step but the first and the last, seconds by part, of the whole and of the processor.

    `together` is whether agents worked at the same time. The first step has no end of a step before it, and where
    agents do not wait for each other's updates, no rollout follows the last.
    """
    assert config.steps is not None
    prepare_process(config)
    names = [agent.name for agent in config.agents]
    with (
        RunFolder(folder, config) as run_folder,
        launcher(config) as launch,
        Equivalence() as relation,
        Progress("bench", names, config.steps, quiet=True) as progress,
    ):
        readers = [PromptEncoder(config, agent, path) for agent, path in zip(config.agents, models, strict=True)]
        cohort = launch.cohort(readers, config.steps)
        run_folder.begin({})
        source = load_prompts(config.data.train)
        prompts = TrainingPrompts(source, range(len(source)), config.batch.prompts, config.seed)
        prompts.last = config.steps
        for agent in cohort.agents:
            agent.coming = prompts.ahead
        rates = {agent.name: agent.take_rates for agent in cohort.agents}
        journal = Clocked(run_folder, config, config.steps, [], relation, progress, None, cohort.parallel, rates)
        journal.clocks = []
        kind = Dealt if dealt else Reward
        cotrain(
            cohort.agents,
            prompts,
            Independent(),
            Supervision(config.supervision.kind, names, relation=relation),
            kind(relation, **config.reward.model_dump(), style=config.prompt.style),
            journal,
            config.steps,
            cohort.parallel,
        )
        journal.close()
        lines, together = run_folder.lines("timings.jsonl"), cohort.parallel is not in_turn
    pairs = zip(journal.clocks, journal.clocks[1:], strict=False)
    return [
        split(line, later[0] - earlier[0], later[1] - earlier[1], together)
        for line, (earlier, later) in [*zip(lines[1:], pairs, strict=True)][:-1]
    ]


def split(line: Mapping[str, Any], step: float, processor: float, together: bool) -> dict[str, Any]:
    """One line of timings.jsonl as the parts of a step; `together`: agents work at the same time."""
    seconds, agents = line["seconds"], line["agents"]
    sync = (max if together else sum)(agent["sync_seconds"] for agent in agents.values())
    parts = {
        "rollout": seconds["rollout"],
        "sync": sync,
        "exchange": seconds["vote"],
        "update": seconds["update"] - sync,
    }
    return {**parts, "rest": step - sum(parts.values()), "step": step, "processor": processor, "together": together}


def random_cohort(
    families: Sequence[str], options: argparse.Namespace, engine: str, folder: Path
) -> tuple[Config, list[str]]:
    """Random models of a size, each from a seed of its own, and a run for them."""
    models = [
        str(shapes.build(family, options.size, folder / str(seed), seed=seed)) for seed, family in enumerate(families)
    ]
    kind = "text" if families[0] == "llama" else "visual"
    config = {
        "steps": options.warmup + options.repeat + 2,
        "agents": [{"name": f"agent{seed}", "model": path} for seed, path in enumerate(models)],
        "supervision": {"kind": "ring" if len(models) > 1 else "self"},
        "data": {"train": {"source": f"synthetic:{kind}", "size": 256}, "max_prompt_tokens": 8192},
        "batch": {"prompts": options.prompts, "completions": options.completions},
        "prompt": {"style": "plain"},
        "sampling": {"max_new_tokens": options.tokens},
        "training": {"dtype": options.dtype},
        "logging": {"gallery": 0},
        "checkpoint": {"best": False},
        "engine": {"kind": engine},
        "device": options.device,
        "threads": options.threads,
    }
    return parse(config), models


def toy_cohort(options: argparse.Namespace, engine: str) -> tuple[Config, list[str]]:
    """The quickstart, some of its steps, and without its evaluations."""
    config = yaml.safe_load(QUICKSTART.read_text(encoding="utf-8"))
    del config["validation"]
    config |= {"steps": options.warmup + options.repeat + 2, "engine": {"kind": engine}, "device": options.device}
    config |= {"checkpoint": {"best": False}}
    return parse(config), [zoo.resolve(agent["model"]) for agent in config["agents"]]


def one(options: argparse.Namespace, engine: str) -> dict[str, Any]:
    """The medians of one engine."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        toy = options.size == "toy"
        config, models = toy_cohort(options, engine) if toy else random_cohort(COHORT, options, engine, folder)
        steps = cotrain_steps(config, models, not toy, folder / "run")[options.warmup :]
    return {
        "engine": engine,
        "agents": [agent.model for agent in config.agents] if toy else list(COHORT),
        "prompts": config.batch.prompts,
        "completions": config.batch.completions,
        "tokens": config.sampling.max_new_tokens,
        "threads": config.threads,
        "together": steps[0]["together"],
        "parts": {part: statistics.median(step[part] for step in steps) for part in PARTS},
        "step": results.spread(step["step"] for step in steps),
        "processor": results.spread(step["processor"] for step in steps),
    }


def asked(options: argparse.Namespace) -> argparse.Namespace:
    """The options that count: the quickstart has its own prompts and completions."""
    own = ("prompts", "completions", "tokens") if options.size == "toy" else ()
    return argparse.Namespace(**{key: value for key, value in vars(options).items() if key not in own})


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every engine; two of them each in a process of its own, as vLLM sets up state for all of its process."""
    engines = ENGINES if options.engine == "both" else (options.engine,)
    if options.engine == "both" and importlib.util.find_spec("vllm") is None:
        results.say("vLLM is not installed, so its engine is left out")
        engines = ENGINES[:1]
    cells = []
    for engine in engines:
        results.say(f"step: {options.size}, {engine}")
        cells.append(results.apart(one, options, engine) if len(engines) > 1 else one(options, engine))
    return results.record("step", asked(options), {"cells": cells})


def table(result: Mapping[str, Any]) -> str:
    """The result for people."""
    first = result["cells"][0]
    lines = [
        f"{' and '.join(first['agents'])}: {first['prompts']} prompts, K = {first['completions']}, at most "
        f"{first['tokens']} new tokens, {first['threads']} threads; median seconds of a step of both agents",
        f"{'engine':<14}{''.join(f'{part:>10}' for part in (*PARTS, 'step'))}  from to         {'processor':>10}",
    ]
    for cell in result["cells"]:
        seconds = [*(cell["parts"][part] for part in PARTS), cell["step"]["median"]]
        lines.append(
            f"{cell['engine']:<14}{''.join(f'{value:>10.4f}' for value in seconds)}  "
            f"{cell['step']['least']:<7.3f}{cell['step']['most']:<8.3f}{cell['processor']['median']:>10.4f}"
            f"{'' if cell['together'] else '  agents in turn'}"
        )
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.step", description="Time whole co-training steps.")
    parser.add_argument("--size", choices=SIZES, default="toy", help="toy: the quickstart; else random models")
    parser.add_argument("--engine", choices=("both", *ENGINES), default="both")
    parser.add_argument("--prompts", type=int, default=2, help="of random models")
    parser.add_argument("--completions", type=int, default=8, help="K, of random models")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of random models")
    parser.add_argument("--warmup", type=int, default=2, help="steps not counted, beside the first and the last")
    parser.add_argument("--repeat", type=int, default=10, help="steps of which the median is taken")
    return results.shared_arguments(parser)


def main() -> None:
    """Run one measurement."""
    options = arguments().parse_args()
    result = run(options)
    print(table(result))
    results.keep(result, options.json)


if __name__ == "__main__":
    main()
