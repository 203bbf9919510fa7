"""Read a run folder in any state: finished, in progress or killed half-way through a line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from mmcorl.errors import UserError
from mmcorl.labels.rules import RULES
from mmcorl.rewards import REWARDS
from mmcorl.run.folder import read_json, read_jsonl

Record = Mapping[str, Any]
Points = list[tuple[int, float]]
"""(step, value) with growing steps and finite values."""

LINE_FILES = ("metrics.jsonl", "validation.jsonl", "timings.jsonl", "gallery.jsonl")

DELETE = "delete it and run the report again"

SUPERVISION_LABELS = {row.name: row.title for row in (*RULES.values(), *REWARDS.values()) if row.title} | {
    "debate": "debate: a verifier's scores",
    "comas": "CoMAS: scores of the others",
}
"""Where rewards come from, in words."""


@dataclass(frozen=True)
class StartEnd:
    """The first and the latest evaluation of one number; `end` is None until there are two."""

    start: float | None
    end: float | None
    start_step: int | None = None
    end_step: int | None = None
    items: int | None = None
    """How many prompts the latest evaluation answered."""

    @property
    def change(self) -> float | None:
        """End minus start, or None where one of them is unknown."""
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder for reports; numbers that are absent, null, NaN or infinite read as None."""

    path: Path
    config: Record = field(default_factory=dict)
    config_text: str | None = None
    metrics: Sequence[Record] = ()
    validation: Sequence[Record] = ()
    timings: Sequence[Record] = ()
    gallery: Sequence[Record] = ()
    data_check: Record = field(default_factory=dict)
    summary: Record | None = None
    torn: Sequence[str] = ()
    """Files whose last line was cut off while it was written; that line is left out."""

    @property
    def name(self) -> str:
        """The run's name in its config or summary, else its folder's name."""
        return str(self.config.get("name") or (self.summary or {}).get("name") or self.path.name)

    @property
    def supervision(self) -> str:
        """What rewards come from: `ring`, `self`, `gold` or another rule of teaching, a reward that needs no label
        (`entropy`, ...), or an episode (`debate`, `comas`); `unknown` when no file says."""
        setting, reward = self.config.get("supervision"), mapping(self.config.get("reward")).get("kind", "match")
        if episode := mapping(self.config.get("episode")).get("kind"):
            return str(episode)
        if reward != "match":
            return str(reward)
        kind = setting.get("kind") if isinstance(setting, Mapping) else setting
        return str(kind or (self.summary or {}).get("supervision") or "unknown")

    @property
    def supervision_label(self) -> str:
        """`supervision` in words."""
        return SUPERVISION_LABELS.get(self.supervision, self.supervision)

    @property
    def agents(self) -> list[str]:
        """Agent names: the config's order, then any that only the records know."""
        names: dict[str, None] = {}
        for agent in self.config.get("agents") or ():
            if isinstance(agent, Mapping) and agent.get("name"):
                names[str(agent["name"])] = None
        sources: Iterable[Record] = (self.summary or {}, *self.validation[:1], *self.metrics[:1])
        for record in sources:
            names.update(dict.fromkeys(mapping(record.get("agents"))))
        return list(names)

    @property
    def sets(self) -> list[str]:
        """Validation sets in order of appearance."""
        names = dict.fromkeys(str(record["set"]) for record in self.validation)
        for agent in mapping((self.summary or {}).get("agents")).values():
            names.update(dict.fromkeys(mapping(mapping(agent).get("end"))))
        return list(names)

    @property
    def steps_planned(self) -> int | None:
        """The number of training steps the config asks for."""
        steps = self.config.get("steps", (self.summary or {}).get("steps"))
        return steps if isinstance(steps, int) else None

    @property
    def steps_done(self) -> int:
        """The last training step on record."""
        if self.metrics:
            return int(self.metrics[-1]["step"])
        done = (self.summary or {}).get("steps")
        return done if isinstance(done, int) else 0

    @property
    def finished(self) -> bool:
        """Whether every planned step is on record and the summary has been written."""
        return self.summary is not None and (self.steps_planned is None or self.steps_done >= self.steps_planned)

    @property
    def seconds(self) -> float | None:
        """Run time: the summary's, else the sum of the steps' totals."""
        seconds = number((self.summary or {}).get("seconds"))
        if seconds is not None:
            return seconds
        totals = [number(mapping(record.get("seconds")).get("total")) for record in self.timings]
        known = [total for total in totals if total is not None]
        return sum(known) if known else None

    def agent_series(self, agent: str, key: str) -> Points:
        """One training metric of one agent over the steps."""
        return _points((r["step"], mapping(mapping(r.get("agents")).get(agent)).get(key)) for r in self.metrics)

    def cohort_series(self) -> Points:
        """Agreement between the agents' votes on the training prompts."""
        return _points((r["step"], mapping(r.get("cohort")).get("agreement")) for r in self.metrics)

    def validation_records(self, set_name: str) -> list[Record]:
        """The evaluations of one set, by growing step."""
        return [record for record in self.validation if record["set"] == set_name]

    def validation_series(self, set_name: str, agent: str, key: str = "accuracy") -> Points:
        """One evaluated number of one agent over the steps."""
        return _points(
            (r["step"], mapping(mapping(r.get("agents")).get(agent)).get(key))
            for r in self.validation_records(set_name)
        )

    def agreement_series(self, set_name: str, pair: str | None = None) -> Points:
        """Agreement on one set, of the cohort or of one pair such as `qwen|intern`."""
        cohorts = ((r["step"], mapping(r.get("cohort"))) for r in self.validation_records(set_name))
        if pair is None:
            return _points((step, cohort.get("agreement")) for step, cohort in cohorts)
        return _points((step, mapping(cohort.get("pairs")).get(pair)) for step, cohort in cohorts)

    def pairs(self, set_name: str) -> list[str]:
        """The pairs of agents whose agreement on one set is on record."""
        names: dict[str, None] = {}
        for record in self.validation_records(set_name):
            names.update(dict.fromkeys(mapping(mapping(record.get("cohort")).get("pairs"))))
        return list(names)

    def accuracy(self, set_name: str, agent: str) -> StartEnd:
        """First and latest accuracy; from validation.jsonl, or from the summary where that file is absent."""
        points = self.validation_series(set_name, agent)
        if not self.validation_records(set_name):
            summary = mapping(mapping((self.summary or {}).get("agents")).get(agent))
            return StartEnd(
                number(mapping(summary.get("start")).get(set_name)),
                number(mapping(summary.get("end")).get(set_name)),
            )
        items = None
        for record in self.validation_records(set_name):
            n = mapping(mapping(record.get("agents")).get(agent)).get("n")
            items = n if isinstance(n, int) else items
        return _start_end(points, items)

    def agreement(self, set_name: str) -> StartEnd:
        """First and latest agreement of the cohort on one set."""
        if not self.validation_records(set_name):
            agreement = mapping(mapping((self.summary or {}).get("agreement")).get(set_name))
            return StartEnd(number(agreement.get("start")), number(agreement.get("end")))
        return _start_end(self.agreement_series(set_name), None)

    def by_tag(self, set_name: str, agent: str) -> dict[str, StartEnd]:
        """First and latest accuracy of one agent for each tag (skill, level, subject) of one set."""
        series: dict[str, list[tuple[int, object]]] = {}
        for record in self.validation_records(set_name):
            tags = mapping(mapping(mapping(record.get("agents")).get(agent)).get("by_tag"))
            for tag, value in tags.items():
                series.setdefault(str(tag), []).append((record["step"], value))
        return {tag: _start_end(_points(points), None) for tag, points in series.items()}


def read_run(run_dir: Path) -> RunFiles:
    """Read a run folder; files that do not exist yet read as empty.

    Raises:
        UserError: the folder is absent, holds none of a run's files, or a file in it cannot be read.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise UserError(f"{run_dir} is not a folder; give the folder of a run, which holds its metrics.jsonl.")
    known = (*LINE_FILES, "config.yaml", "summary.json", "data_check.json")
    if not any((run_dir / name).exists() for name in known):
        raise UserError(f"{run_dir} holds none of {', '.join(known)}; give the folder of a run that has been started.")
    logs = {name: read_jsonl(run_dir / name) for name in LINE_FILES}
    lines = {name: records for name, (records, _) in logs.items()}
    config_path = run_dir / "config.yaml"
    config_text = config_path.read_text(encoding="utf-8") if config_path.exists() else None
    return RunFiles(
        path=run_dir,
        config=_parse_config(config_path, config_text),
        config_text=config_text,
        metrics=_last_of_each(lines["metrics.jsonl"], "metrics.jsonl", run_dir, ("step",)),
        validation=_last_of_each(lines["validation.jsonl"], "validation.jsonl", run_dir, ("step", "set")),
        timings=_last_of_each(lines["timings.jsonl"], "timings.jsonl", run_dir, ("step",)),
        gallery=lines["gallery.jsonl"],
        data_check=read_json(run_dir / "data_check.json", DELETE) or {},
        summary=read_json(run_dir / "summary.json", DELETE),
        torn=tuple(name for name, (_, is_torn) in logs.items() if is_torn),
    )


def number(value: object) -> float | None:
    """A finite number as float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def mapping(value: object) -> Mapping[str, Any]:
    """The value if it is a mapping, else an empty one: the level of a record that is null or absent."""
    return value if isinstance(value, Mapping) else {}


def _points(pairs: Iterable[tuple[object, object]]) -> Points:
    known = ((number(step), number(value)) for step, value in pairs)
    return [(int(step), value) for step, value in known if step is not None and value is not None]


def _start_end(points: Points, items: int | None) -> StartEnd:
    if not points:
        return StartEnd(None, None, items=items)
    if len(points) == 1:
        return StartEnd(points[0][1], None, points[0][0], items=items)
    return StartEnd(points[0][1], points[-1][1], points[0][0], points[-1][0], items)


def _last_of_each(records: Sequence[Record], name: str, run_dir: Path, key: tuple[str, ...]) -> list[Record]:
    """By growing step, with the last record of each key: a resumed run may have written a step twice."""
    latest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if any(part not in record for part in key) or not isinstance(record["step"], int):
            raise UserError(f"{run_dir / name} has a record without {' and '.join(key)}; it is not a run's file.")
        latest[tuple(record[part] for part in key)] = record
    return sorted(latest.values(), key=lambda record: record["step"])


def _parse_config(path: Path, text: str | None) -> Record:
    if text is None:
        return {}
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML ({' '.join(str(error).split())}); restore it.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a mapping of settings; restore it.")
    return value
