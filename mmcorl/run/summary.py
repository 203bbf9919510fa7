"""summary.json: start and end of every agent and validation set, and what produced the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmcorl.answers import RELATIONS
from mmcorl.config import Config
from mmcorl.run.throughput import overall, peak_memory


def summarize(
    config: Config,
    steps: int,
    seconds: float,
    agents: Mapping[str, Mapping[str, Any]],
    validation: Sequence[Mapping[str, Any]],
    timings: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the content of summary.json.

    Args:
        config: of the run.
        steps: steps done.
        seconds: of the whole run.
        agents: facts of each agent, such as its model and parameters.
        validation, timings: the lines of these logs.
    """
    summary: dict[str, Any] = {
        "name": config.name,
        "supervision": config.supervision.kind,
        "reward": config.reward.kind,
        **({"episode": config.episode.kind} if config.episode else {}),
        "steps": steps,
        "seconds": round(seconds, 2),
        "seed": config.seed,
        "agents": {},
        "agreement": {},
        "grader": dict(zip(("name", "version"), RELATIONS.find(config.answers.relation).version, strict=True)),
        "notes": list(config.notes),
    }
    for name, facts in agents.items():
        throughput, memory = overall(timings, name), peak_memory(timings, name)
        summary["agents"][name] = {
            **facts,
            **({"throughput": throughput} if throughput else {}),
            **({"memory": facts.get("memory", {}) | memory} if memory else {}),
            "start": {line["set"]: line["agents"][name]["accuracy"] for line in reversed(validation)},
            "end": {line["set"]: line["agents"][name]["accuracy"] for line in validation},
        }
    for line in validation:
        agreement = summary["agreement"].setdefault(line["set"], {"start": line["cohort"]["agreement"]})
        agreement["end"] = line["cohort"]["agreement"]
    return summary
