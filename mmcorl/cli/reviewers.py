"""Commands that answer what reviewers ask of a run, ready to be typed; see docs/reviewers.md."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from mmcorl.apps.analysis.run_files import RunFiles
from mmcorl.run.records import dig, number


def commands(run: RunFiles) -> dict[str, str]:
    """Return by letter of `mmcorl.apps.report.questions.QUESTIONS` the commands that answer it for a run."""
    learns = [agent for agent in run.agents if agent not in run.frozen] or ["AGENT"]
    config, final = (shlex.quote(str(path)) for path in (run.path / "config.yaml", run.path / "final" / learns[0]))
    completions = (number(dig(run.config, "batch", "completions")) or 8) * len(learns)
    samples = "BENCHMARK --samples 16 --temperature 1"
    evaluated = f"mmcorl train {config} with validation.sets that have known answers"
    return {
        "a": _train(run, {f"frozen_{agent}": [f"agents.{agent}.frozen=true"] for agent in learns}),
        "b": _train(run, {"alone": ["supervision.kind=self", f"batch.completions={completions:.0f}"]}),
        "c": evaluated,
        "d": evaluated,
        "e": "mmcorl pair MODEL MODEL, and a run of that pair with validation.sets that have known answers",
        "f": f"mmcorl dynamics --run {shlex.quote(str(run.path))}",
        "g": _train(run, {"longer": [f"steps={10 * (run.steps_planned or run.steps_done or 100)}"]}),
        "h": f"mmcorl eval {final} {samples} --out evals/trained; mmcorl eval BASE {samples} --like {final} --out "
        "evals/base; mmcorl boundary evals/base evals/trained",
        "i": f"mmcorl doctor {config} --blind; mmcorl eval {final} BENCHMARK --blind",
        "j": "mmcorl report with runs of several pairs --questions",
    }


def _train(run: RunFiles, others: Mapping[str, Sequence[str]]) -> str:
    """Return what trains runs beside this one, each by its name with settings, and compares them all."""
    folders = {name: run.path.with_name(f"{run.path.name}_{name}") for name in others}
    typed = [
        _joined("mmcorl", "train", run.path / "config.yaml", f"name={name}", *others[name], "--run-dir", folder)
        for name, folder in folders.items()
    ]
    return "; ".join([*typed, f"mmcorl report {_joined(run.path, *folders.values())} --questions"])


def _joined(*paths: str | Path) -> str:
    return shlex.join(map(str, paths))
