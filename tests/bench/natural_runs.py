"""Numbers of the runs of `tests.bench.natural`: the rows of runs.csv and curves.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from mmcorl.apps.analysis.run_files import RunFiles, read_run
from mmcorl.apps.sweep.sweep import Planned
from mmcorl.rewards import REWARDS
from mmcorl.run.diagnosis import Watch
from mmcorl.run.records import dig
from tests.bench.tables import HELD_OUT, WINDOW, greedy, held_out_cells, last_of, mean, sampled, sampled_cells

AGENTS = (1, 2, 3, 4)
"""Places in the ring; a run of fewer agents leaves the columns of the others empty."""
FALL = 0.05
"""A run has fallen from the first evaluation on that is this far below its peak, as are all after it."""
COLLAPSED, COLLAPSE_STEPS = 0.01, 10
"""Mean reward accuracy over so many steps below which a model has collapsed, Model Collapse Step of He et al.
(arXiv 2603.08660); its smoothing is ours."""


def numbers(one: Planned, costs: Mapping[str, float]) -> dict[str, Any]:
    """The row of one run in runs.csv."""
    run = read_run(one.path)
    experiment, arm = one.method.split("/")
    places = dict(zip(run.agents, AGENTS, strict=False))
    learners = [name for name in run.agents if name not in run.frozen]
    ends = {name: run.accuracy(HELD_OUT, name) for name in run.agents}
    votes, agreement = sampled(run), run.agreement(HELD_OUT)
    last = max(step for step, *_ in votes)
    early = [right for step, _, right in votes if step <= WINDOW]
    late = [right for step, _, right in votes if step > last - WINDOW]
    answers = list(greedy(run).values())
    watch = Watch("warn", run.metrics, run.supervision, run.validation)
    # Where certainty is rewarded, labels are on record and teach nothing.
    accuracy = "sampled_accuracy" if run.supervision in REWARDS else "pseudo_label_accuracy"
    collapses = [one for one in watch.alarms if one.collapse]
    by_agent = {
        f"{key}_{places[name]}": value
        for name in run.agents
        for key, value in (
            ("start", ends[name].start),
            ("end", ends[name].end),
            ("sampled_start", float(np.mean([right[places[name] - 1] for right in early]))),
            ("sampled_end", float(np.mean([right[places[name] - 1] for right in late]))),
        )
    }
    columns = [f"{key}_{place}" for key in ("start", "end", "sampled_start", "sampled_end") for place in AGENTS]
    seconds = costs.get(f"{one.method}/seed_{one.seed}")
    return {
        "experiment": experiment,
        "arm": arm,
        "seed": one.seed,
        "rewards": run.supervision,
        "models": " ".join(agent.model for agent in one.config.agents),
        "steps": run.steps_done,
        "start": mean(ends[name].start for name in learners),
        "end": mean(ends[name].end for name in learners),
        **{column: by_agent.get(column) for column in columns},
        "agreement_start": agreement.start,
        "agreement_end": agreement.end,
        "kappa": mean(pair.kappa for pair in held_out_cells(run)),
        "kappa_sampled": mean(table.kappa for table in sampled_cells(early)),
        "oracle": fmean(any(own[key][1] for own in answers) for key in answers[0]),
        "reward_accuracy": mean(last_of(run, name, accuracy) for name in learners),
        **turns(curve(run, learners)),
        "collapse_step": collapse_step(run, learners, accuracy),
        "first_alarm": min((one.step for one in collapses if one.step is not None), default=None),
        "alarms": " ".join(f"{one.kind}@{one.step}" for one in collapses),
        "relation": dig(run.summary, "grader", "version"),
        "core_seconds": seconds,
    }


def curve(run: RunFiles, agents: Sequence[str]) -> dict[int, float]:
    """Mean held-out accuracy of some agents by step."""
    series = [dict(run.validation_series(HELD_OUT, name)) for name in agents]
    return {step: fmean(own[step] for own in series) for step in series[0] if all(step in own for own in series)}


def turns(accuracy: Mapping[int, float]) -> dict[str, float | int | None]:
    """Where a curve is highest, and from where on it stays `FALL` below that."""
    peak_step = max(accuracy, key=accuracy.__getitem__)
    peak, fall_step = accuracy[peak_step], None
    for step in reversed([step for step in accuracy if step > peak_step]):
        if accuracy[step] > peak - FALL:
            break
        fall_step = step
    return {"peak": peak, "peak_step": peak_step, "fall_step": fall_step}


def collapse_step(run: RunFiles, agents: Sequence[str], key: str) -> int | None:
    """The step at which reward accuracy is gone; `key` is the metric that tells it."""
    series = [run.agent_series(name, key) for name in agents]
    by_step = list(zip(*series, strict=False))
    means = [(points[0][0], fmean(value for _, value in points)) for points in by_step]
    for place in range(COLLAPSE_STEPS, len(means) + 1):
        if fmean(value for _, value in means[place - COLLAPSE_STEPS : place]) < COLLAPSED:
            return means[place - 1][0]
    return None


def curves(one: Planned) -> Iterator[dict[str, Any]]:
    """The rows of one run in curves.csv."""
    run = read_run(one.path)
    experiment, arm = one.method.split("/")
    agreement = dict(run.agreement_series(HELD_OUT))
    series = [dict(run.validation_series(HELD_OUT, name)) for name in run.agents]
    for step, accuracy in curve(run, [name for name in run.agents if name not in run.frozen]).items():
        by_agent = {f"accuracy_{place}": values[step] for place, values in zip(AGENTS, series, strict=False)}
        yield {
            "experiment": experiment,
            "arm": arm,
            "seed": one.seed,
            "step": step,
            "accuracy": accuracy,
            **{f"accuracy_{place}": by_agent.get(f"accuracy_{place}") for place in AGENTS},
            "agreement": agreement.get(step),
        }
