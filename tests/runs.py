"""Runs as users start them, for the tests: small configs, models that know the answer format, processes to end."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
import yaml

TESTS = Path(__file__).resolve().parent
LOGS = ("metrics.jsonl", "validation.jsonl", "responses.jsonl", "votes.jsonl", "gallery.jsonl", "probes.jsonl")


def taught(name: str, cache: Path) -> Path:
    """A zoo model after a few steps of teaching: most completions are an answer, few of them right.

    Random weights would never agree on anything, so no reward would ever differ and no weight would move. It is made in
    `cache`, or once for all tests where $MMCORL_CACHE names a folder.
    """
    from mmcorl.apps.demos import zoo

    recipe = zoo.Recipe(
        batch=16, rows=128, clean_steps=80, more_steps=10, most_steps=200, enough=0.0, habit_steps=1, checks=8
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMCORL_CACHE", os.environ.get("MMCORL_CACHE", str(cache)))
        return zoo.build(name, recipe=recipe, quiet=True)


def small_config(models: Mapping[str, Path | str], kind: str = "visual") -> dict[str, Any]:
    """Six steps of 4 prompts and 4 completions: evaluated at 0, 3 and 6, checkpoints at 2, 4, 6 and the best."""
    return {
        "name": "small",
        "steps": 6,
        "agents": [{"name": name, "model": str(model)} for name, model in models.items()],
        "data": {"train": {"source": f"synthetic:{kind}", "size": 40}},
        "validation": {
            "every": 3,
            "sets": [{"name": "held_out", "data": {"source": f"synthetic:{kind}", "seed": 1, "size": 8}}],
        },
        "batch": {"prompts": 4, "completions": 4},
        "prompt": {"style": "plain"},
        "sampling": {"max_new_tokens": 12},
        "optimizer": {"lr": 1e-3},
        "training": {"dtype": "fp32"},
        "checkpoint": {"every": 2},
        "logging": {"gallery": 2},
        # Without `threads: 1`, so that agents share a process and the nth call of a method belongs to a known agent.
        "device": "cpu",
    }


def changed(config: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A copy with other settings; `a__b__0` stands for `a.b[0]`, and None removes a key."""
    new = copy.deepcopy(dict(config))
    for path, value in changes.items():
        node: Any = new
        *above, last = path.split("__")
        for part in above:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        key: int | str = int(last) if isinstance(node, list) else last
        if value is None:
            del node[key]
        else:
            node[key] = value
    return new


def write_config(folder: Path, config: Mapping[str, Any]) -> Path:
    """The config as a YAML file in `folder`."""
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(dict(config), sort_keys=False))
    return file


@dataclass(frozen=True)
class TrainedRun:
    """A finished run and the config file it was started from; agents `qwen` and `intern`."""

    config: Path
    path: Path

    def copy(self, folder: Path) -> TrainedRun:
        """A copy in `folder` that a test may change."""
        return TrainedRun(
            Path(shutil.copy(self.config, folder / "config.yaml")), Path(shutil.copytree(self.path, folder / "run"))
        )


def train_small(folder: Path, cache: Path) -> TrainedRun:
    """Train `small_config` with two families on images, in this process, into `folder`."""
    from mmcorl.cli.main import main

    models = {"qwen": taught("qwen2.5-vl", cache), "intern": taught("internvl3.5", cache)}
    trained = TrainedRun(write_config(folder, small_config(models)), folder / "run")
    assert main(["train", str(trained.config), "--run-dir", str(trained.path), "--quiet"]) == 0
    return trained


def records(run: Path, name: str) -> list[dict[str, Any]]:
    """The lines of one log."""
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def contents(run: Path) -> dict[str, bytes]:
    """What has to be equal after any number of kills: logs, final weights, the last checkpoint, by path.

    Not the model card, which holds settings that change nothing in them.
    """
    last = sorted((run / "checkpoints").glob("step_*/COMMIT"))[-1].parent
    files = [run / name for name in LOGS]
    files += [path for folder in (run / "final", run / "gallery", last) for path in folder.rglob("*") if path.is_file()]
    return {str(file.relative_to(run)): file.read_bytes() for file in files if file.name not in ("COMMIT", "README.md")}


def assert_same_run(run: Path, reference: Path) -> None:
    """Byte for byte, with the names of what differs."""
    got, expected = contents(run), contents(reference)
    assert sorted(got) == sorted(expected)
    assert [name for name in got if got[name] != expected[name]] == []


def assert_it_learns(run: Path) -> None:
    """The comparison would mean nothing in a run whose weights never moved."""
    norms = [agent["grad_norm"] for line in records(run, "metrics.jsonl") for agent in line["agents"].values()]
    assert sum(norm > 0 for norm in norms) >= len(norms) / 2


@dataclass(frozen=True)
class Ended:
    """How a command ended, and all it printed."""

    code: int
    """Exit status; minus the signal's number where one ended it."""
    output: str


class ForkServer:
    """Commands in forks of one warm process (see fork_server.py). A context manager."""

    def __init__(self, folder: Path):
        self._folder, self._count = folder, 0
        environment = {**os.environ, "PYTHONPATH": str(TESTS.parent), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        self._process = subprocess.Popen(
            [sys.executable, str(TESTS / "fork_server.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self, *argv: str | Path, sabotage: str = "", file_limit: int | None = None) -> Ended:
        """Run `mmcorl` with some arguments to its end."""
        self._count += 1
        output = self._folder / f"output_{self._count}.txt"
        request = {
            "argv": [str(item) for item in argv],
            "output": str(output),
            "sabotage": f"from sabotage import *\n{sabotage}",
            "file_limit": file_limit,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        code = os.waitstatus_to_exitcode(int(self._process.stdout.readline()))
        return Ended(code, output.read_text(errors="replace"))


def command(*argv: str | Path) -> Sequence[str]:
    """The command line of a real process."""
    return [sys.executable, "-m", "mmcorl.cli", *(str(item) for item in argv)]
