"""The paper's matched-budget table: agents alone and pooled, trained apart and together, at budgets that are stated.

A pool of two trained agents has cost two trainings and samples twice, so it is fair only beside another pool of as many
models with as many responses. Pools of other sizes, or of responses sampled otherwise, are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from eval_suite import pipeline
from eval_suite.evaluations import Evaluation, open_evaluations
from eval_suite.folder import EvalFolder
from eval_suite.metrics.aggregate import aggregate
from eval_suite.metrics.outcomes import Outcome, pool
from eval_suite.metrics.paired import Paired, Scored, compare
from eval_suite.tables import DASH, bounds, check_one_table, mean, percent, shown_interval, title
from mmcorl.errors import UserError
from mmcorl.labels.voting import Relation
from mmcorl.report.table import Align, Cell, Table

SAMPLED = ("temperature", "top_p", "max_new_tokens")
"""Settings of sampling in which responses that are compared must agree."""


@dataclass(frozen=True)
class Team:
    """Agents that were trained in one way: together, or each for itself."""

    name: str
    members: tuple[Evaluation, ...]
    """One finished evaluation per agent."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    team: str
    who: str
    """The agent, or `pooled`."""
    models: int
    """Models that were trained for it, and that answer."""
    each: int
    """Responses per problem of each of them."""
    vote: bool
    """Whether the responses vote; else their mean counts."""
    summary: Mapping[str, Any]

    @property
    def how(self) -> str:
        """The name of the score."""
        return f"{'maj' if self.vote else 'avg'}@{self.models * self.each}"


@dataclass(frozen=True)
class Training:
    """What one agent cost to train, as its run says."""

    steps: int
    prompts: int
    completions: int

    def sentence(self) -> str:
        """The cost in words."""
        return f"{self.steps:,} steps of {self.prompts} prompts × {self.completions} completions per agent"


@dataclass(frozen=True)
class Tied:
    """How far the tie rule made a pool's score: two agents that are each sure of another answer tie on every vote."""

    team: str
    benchmark: str
    ties: int
    n: int
    correct: int
    """Problems that are right when a tie counts as wrong."""


@dataclass(frozen=True)
class Matched:
    """The table: its rows, every pool against the first one, and what the rows cost."""

    rows: tuple[Row, ...]
    against_first: tuple[tuple[Paired, ...], ...]
    """For each pool but the first, the paired comparison with the first, by benchmark."""
    training: Mapping[str, Training | None]
    tied: tuple[Tied, ...]
    """Pools with tied votes."""


def open_teams(teams: Sequence[tuple[str, Sequence[Path]]]) -> list[Team]:
    """The finished evaluations of every team; see `open_evaluations` for what is refused."""
    paths = [path for _, members in teams for path in members]
    opened = iter(open_evaluations(paths))
    return [Team(name, tuple(next(opened) for _ in members)) for name, members in teams]


def matched(teams: Sequence[Team], relation: Relation, votes: int | None = None) -> Matched:
    """Score every agent alone (mean and vote) and every team pooled.

    `votes`: responses per problem that each agent puts into the pool; by default all it has given. Where the agents
    have given as many responses as the whole pool, each also votes alone with that many: the same cost at inference.

    Raises:
        UserError: teams whose pools are not of one size, responses that were sampled differently or are too few, other
            problems or graders, runs of other budgets.
    """
    everyone = [one for team in teams for one in team.members]
    check_one_table([(one.label, one.summary) for one in everyone])
    names = _benchmarks(everyone)
    each, given = _responses(everyone, names, votes)
    _same_size(teams, each)
    _same_sampling(everyone, names)
    training = {one.label: _training(one.folder) for one in everyone}
    _same_training(training)
    rows: list[Row] = []
    pools: list[dict[str, Scored]] = []
    tied: list[Tied] = []
    for team in teams:
        told = [_outcomes(one.folder, names) for one in team.members]
        whole = len(team.members) * each
        for one, outcomes in zip(team.members, told, strict=True):
            rows.append(_row(team.name, one.label, one.folder, outcomes, 1, given, vote=False))
            for count in dict.fromkeys((each, whole) if whole <= given else (each,)):
                rows.append(_row(team.name, one.label, one.folder, outcomes, 1, count, vote=True))
        if len(team.members) > 1:
            pooled = pool([_first(outcomes, each) for outcomes in told])
            row = _row(team.name, "pooled", team.members[0].folder, pooled, len(team.members), each, vote=True)
            rows.append(row)
            pools.append(_scored(team, pooled, row, names, relation))
            tied += [_tied(team, scored, pooled, relation) for scored in pools[-1].values() if scored.score.ties]
    against = tuple(tuple(compare(pools[0][name], scored[name]) for name in names) for scored in pools[1:])
    return Matched(tuple(rows), against, training, tuple(tied))


def grid(told: Matched, *, digits: int = 2) -> Table:
    """The table for people."""
    names = list(told.rows[0].summary["benchmarks"])
    columns: list[tuple[str, Align]] = [("", "left"), ("", "left"), ("score", "left"), ("responses", "right")]
    columns += [(f"{title(name)} %", "right") for name in names]
    if len(names) > 1:
        columns.append((f"mean of {len(names)}", "right"))
    rows = []
    for place, row in enumerate(told.rows):
        scores = [row.summary["benchmarks"][name] for name in names]
        cells = [
            Cell(percent(one["correct"], one["total"], digits), bounds(shown_interval(one)))
            if one["total"]
            else Cell(DASH)
            for one in scores
        ]
        if len(names) > 1:
            known = all(one["total"] for one in scores)
            cells.append(Cell(percent(mean(scores), digits=digits)) if known else Cell(DASH))
        first = not place or told.rows[place - 1].team != row.team
        budget = f"{row.models} × {row.each}"
        rows.append([Cell(row.team if first else ""), Cell(row.who), Cell(row.how), Cell(budget), *cells])
    return Table("Matched budgets", columns, rows, _notes(told))


def _score(told: Mapping[str, Any], digits: int) -> Cell:
    if not told["total"]:
        return Cell(DASH)
    return Cell(percent(told["correct"], told["total"], digits), bounds(shown_interval(told)))


def as_dict(told: Matched) -> dict[str, Any]:
    """The table for programs."""
    return {
        "rows": [
            {
                "team": row.team,
                "who": row.who,
                "score": row.how,
                "models": row.models,
                "responses_per_model": row.each,
                "benchmarks": {
                    name: {
                        **{key: one[key] for key in ("n", "correct", "total", "accuracy", "ties")},
                        "interval": shown_interval(one),
                    }
                    for name, one in row.summary["benchmarks"].items()
                },
            }
            for row in told.rows
        ],
        "pools_against_the_first": [[one.as_dict() for one in compared] for compared in told.against_first],
        "tied": [asdict(one) for one in told.tied],
        "training": {label: None if one is None else asdict(one) for label, one in told.training.items()},
    }


def _notes(told: Matched) -> list[str]:
    notes = ["responses: models × responses of each per problem. In brackets: 95% interval."]
    notes.append("avg: mean of an agent's responses; maj: their vote, ties to the smallest answer.")
    trained = {label: one.sentence() if one else "unknown" for label, one in told.training.items()}
    if len(set(trained.values())) == 1:
        notes.append(f"Training: {next(iter(trained.values()))}.")
    else:
        notes.append("Training: " + "; ".join(f"{label} {said}" for label, said in trained.items()) + ".")
    notes += [
        f"{one.team} pooled, {title(one.benchmark)}: {one.ties:,} of {one.n:,} votes tied, which the smaller answer "
        f"won; with a tie counted as wrong {percent(one.correct, one.n)}%."
        for one in told.tied
    ]
    return notes


def _benchmarks(everyone: Sequence[Evaluation]) -> list[str]:
    names = list(everyone[0].summary["benchmarks"])
    for one in everyone[1:]:
        if set(one.summary["benchmarks"]) != set(names):
            others = ", ".join(one.summary["benchmarks"])
            raise UserError(
                f"{everyone[0].label!r} holds {', '.join(names)} and {one.label!r} {others}: one table "
                "needs the same benchmarks everywhere"
            )
    return names


def _responses(everyone: Sequence[Evaluation], names: Sequence[str], votes: int | None) -> tuple[int, int]:
    """Responses that each agent puts into a pool, and those that all have given."""
    given = {(one.label, name): int(one.summary["benchmarks"][name]["samples"]) for one in everyone for name in names}
    (least, few), (most, many) = (pick(given.items(), key=lambda pair: pair[1]) for pick in (min, max))
    if votes is None and few != many:
        raise UserError(
            f"budgets do not match: {least[0]!r} has {few} responses per problem of {least[1]} and {most[0]!r} {many} "
            f"of {most[1]}: evaluate both with the same --samples, or let each put in {few} with --votes {few}"
        )
    if votes is not None and not 1 <= votes <= few:
        raise UserError(f"--votes {votes} cannot be put in: {least[0]!r} has {few} responses per problem of {least[1]}")
    return votes or few, few


def _same_size(teams: Sequence[Team], each: int) -> None:
    pools = [team for team in teams if len(team.members) > 1]
    for team in pools[1:]:
        first = pools[0]
        if len(team.members) != len(first.members):
            raise UserError(
                f"budgets do not match: {first.name!r} pools {len(first.members)} models × {each} responses and "
                f"{team.name!r} {len(team.members)} × {each}: give each team as many agents"
            )


def _same_sampling(everyone: Sequence[Evaluation], names: Sequence[str]) -> None:
    for name in names:
        known: tuple[str, Mapping[str, Any]] | None = None
        for one in everyone:
            how = one.folder.manifest.get("generation", {}).get(name)
            if how is None:
                continue  # a graded file of responses does not say how they were sampled
            known = known or (one.label, how)
            for key in SAMPLED:
                if how[key] != known[1][key]:
                    raise UserError(
                        f"{key} of {name} is {known[1][key]} in {known[0]!r} and {how[key]} in {one.label!r}: budgets "
                        "match only where all responses are sampled alike"
                    )


def _same_training(training: Mapping[str, Training | None]) -> None:
    known = [(label, one) for label, one in training.items() if one is not None]
    for label, one in known[1:]:
        if one != known[0][1]:
            raise UserError(
                f"budgets do not match: {known[0][0]!r} was trained for {known[0][1].sentence()} and {label!r} for "
                f"{one.sentence()}: compare runs of one budget"
            )


def _training(folder: EvalFolder) -> Training | None:
    """The budget of the run a checkpoint comes from, which lies in RUN/final/AGENT; None where there is no such run."""
    model = folder.manifest.get("model")
    run = Path(model).resolve().parent.parent if model and Path(model).is_dir() else None
    if run is None or not (run / "config.yaml").is_file() or not (run / "summary.json").is_file():
        return None
    batch = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8")).get("batch", {})
    summary = yaml.safe_load((run / "summary.json").read_text(encoding="utf-8"))
    return Training(int(summary["steps"]), int(batch["prompts"]), int(batch["completions"]))


def _outcomes(folder: EvalFolder, names: Sequence[str]) -> list[Outcome]:
    return [outcome for outcome in pipeline.outcomes(folder) if outcome.benchmark in names]


def _first(outcomes: Sequence[Outcome], count: int) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.sample < count]


def _row(
    team: str, who: str, folder: EvalFolder, outcomes: Sequence[Outcome], models: int, each: int, *, vote: bool
) -> Row:
    chosen = _first(outcomes, models * each)
    how = f"{'maj' if vote else 'avg'}@{models * each}"
    names = {outcome.benchmark for outcome in chosen}
    return Row(team, who, models, each, vote, pipeline.pooled_summary(folder, chosen, dict.fromkeys(names, how)))


def _scored(
    team: Team, pooled: Sequence[Outcome], row: Row, names: Sequence[str], relation: Relation
) -> dict[str, Scored]:
    folder = team.members[0].folder
    items, prints = folder.items(), folder.fingerprints()
    scored = {}
    for name in names:
        members = [item for item in items if item.benchmark == name]
        told = row.summary["benchmarks"][name]
        score = aggregate(
            members, [one for one in pooled if one.benchmark == name], row.how, relation=relation, tie=told["tie_rule"]
        )
        marks = {item.id: prints[name, item.id] for item in members}
        scored[name] = Scored(f"{team.name} {row.how}", name, score, members, marks, told["grader"], told["judge"])
    return scored


def _tied(team: Team, scored: Scored, pooled: Sequence[Outcome], relation: Relation) -> Tied:
    votes = [one for one in pooled if one.benchmark == scored.benchmark]
    strict = aggregate(scored.items, votes, scored.score.aggregation, relation=relation, tie="drop")
    return Tied(team.name, scored.benchmark, scored.score.ties or 0, len(scored.items), strict.correct)
