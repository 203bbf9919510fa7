"""The paper's matched-budget table: agents alone and pooled, trained apart and together, at budgets that are stated.

A pool of two trained agents costs two trainings and twice the samples, so it is fair only beside a pool of as many
models with as many responses. Pools of other sizes, or of responses sampled differently, are refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from eval_suite.evaluation.steps import summary_of
from eval_suite.metrics.aggregate import aggregate
from eval_suite.metrics.outcomes import Outcome, pool
from eval_suite.metrics.paired import Paired, Scored, compare
from eval_suite.metrics.prompt_protocol import asked_differences, asked_of
from eval_suite.results.finished import Evaluation, Result, labels_of, open_evaluations, scored_benchmarks
from eval_suite.results.folder import EvalFolder
from eval_suite.results.tables import (
    check_one_table,
    comparison_table,
    mean_cell,
    percent,
    score_cell,
    shown_interval,
    title,
)
from mmcorl.answers.relation_base import Relation
from mmcorl.apps.analysis.run_files import read_run
from mmcorl.errors import UserError
from mmcorl.grading.grade_by_relation import Relations
from mmcorl.run.records import mapping
from mmcorl.run.table import Align, Cell, Table

SAMPLED = ("temperature", "top_p", "max_new_tokens")
"""Settings in which responses of one budget must agree whatever they were asked."""


Team = tuple[str, Sequence[Evaluation]]
"""A name and agents trained by one method, together or each alone: one finished evaluation per agent."""


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    team: str
    who: str
    """The agent, or `pooled`."""
    models: int
    """Models that were trained for it and answer."""
    each: int
    """Responses per problem of each model."""
    score: str
    """`maj@k` where the responses vote, `avg@k` where their mean counts."""
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """Training budget of one agent, as its run records it."""

    steps: int
    prompts: int
    completions: int

    def sentence(self) -> str:
        """Return the budget in words."""
        return f"{self.steps:,} steps of {self.prompts} prompts × {self.completions} completions per agent"


@dataclass(frozen=True)
class Matched(Result):
    """The table: its rows, every pool against the first one, and what the rows cost."""

    rows: tuple[Row, ...]
    against_first: tuple[tuple[Paired, ...], ...]
    """For each pool but the first, the paired comparison with the first, by benchmark."""
    training: Mapping[str, Training | None]
    tied: tuple[dict[str, Any], ...]
    """`team`, `benchmark`, `ties`, `n` and, with a tie counted as wrong, `correct` of every pool with tied votes: two
    agents, each sure of another answer, tie on every vote."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "rows": [
                {
                    "team": row.team,
                    "who": row.who,
                    "score": row.score,
                    "models": row.models,
                    "responses_per_model": row.each,
                    "benchmarks": {
                        name: {
                            **{key: score[key] for key in ("n", "correct", "total", "accuracy", "ties")},
                            "interval": shown_interval(score),
                        }
                        for name, score in row.summary["benchmarks"].items()
                    },
                }
                for row in self.rows
            ],
            "pools_against_the_first": [[paired.as_dict() for paired in pairs] for pairs in self.against_first],
            "tied": list(self.tied),
            "training": {label: None if cost is None else asdict(cost) for label, cost in self.training.items()},
        }

    def tables(self) -> list[Table]:
        """Return the matched budgets, then every pool against the first."""
        return [self._budgets(), *(comparison_table(pairs) for pairs in self.against_first)]

    def _budgets(self) -> Table:
        names = list(self.rows[0].summary["benchmarks"])
        columns: list[tuple[str, Align]] = [("", "left"), ("", "left"), ("score", "left"), ("responses", "right")]
        columns += [(f"{title(name)} %", "right") for name in names]
        if len(names) > 1:
            columns.append((f"mean of {len(names)}", "right"))
        rows = []
        for number, row in enumerate(self.rows):
            scores = [row.summary["benchmarks"][name] for name in names]
            cells = [*map(score_cell, scores), *([mean_cell(scores)] if len(names) > 1 else [])]
            first = not number or self.rows[number - 1].team != row.team
            budget = f"{row.models} × {row.each}"
            rows.append([Cell(row.team if first else ""), Cell(row.who), Cell(row.score), Cell(budget), *cells])
        return Table("Matched budgets", columns, rows, self._notes())

    def _notes(self) -> list[str]:
        notes = ["responses: models × responses of each per problem. In brackets: 95% interval."]
        notes.append("avg: mean of an agent's responses; maj: their vote, ties to the smallest answer.")
        costs = {label: cost.sentence() if cost else "unknown" for label, cost in self.training.items()}
        if len(set(costs.values())) == 1:
            notes.append(f"Training: {next(iter(costs.values()))}.")
        else:
            notes.append("Training: " + "; ".join(f"{label} {cost}" for label, cost in costs.items()) + ".")
        notes += [
            f"{tied['team']} pooled, {title(tied['benchmark'])}: {tied['ties']:,} of {tied['n']:,} votes tied, which "
            f"the smaller answer won; with a tie counted as wrong {percent(tied['correct'], tied['n'])}%."
            for tied in self.tied
        ]
        return notes


def open_teams(teams: Sequence[tuple[str, Sequence[Path]]]) -> list[Team]:
    """Open the evaluations of every team; one may be in several teams. `open_evaluations` says what is refused."""
    for _, members in teams:
        labels_of(members)  # refuses an agent that is in one team twice
    paths = {path.resolve(): path for _, members in teams for path in members}
    opened = dict(zip(paths, open_evaluations(list(paths.values())), strict=True))
    return [(name, [opened[path.resolve()] for path in members]) for name, members in teams]


def matched(
    teams: Sequence[Team], relation: Relation, votes: int | None = None, asked_differently: bool = False
) -> Matched:
    """Score every agent alone (mean and vote) and every team pooled.

    `votes`: responses per problem that each agent puts into the pool; all by default. Where an agent has as many
    responses as the whole pool, it also votes alone with that many: the same cost at inference.

    Raises:
        UserError: pools of different sizes, responses sampled (or, unless allowed, asked) differently or too few,
            other problems or graders, runs with other training budgets.
    """
    agents = [member for _, members in teams for member in members]
    check_one_table([(agent.label, agent.summary) for agent in agents])
    names = _benchmarks(agents)
    each, given = _responses(agents, names, votes)
    _same_size(teams, each)
    _same_sampling(agents, names, asked_differently)
    training = {agent.label: _training(agent.folder) for agent in agents}
    _same_training(training)
    rows: list[Row] = []
    pools: list[dict[str, Scored]] = []
    tied: list[dict[str, Any]] = []
    for team, members in teams:
        outcomes = [[o for o in agent.folder.outcomes() if o.benchmark in names] for agent in members]
        whole = len(members) * each
        for agent, graded in zip(members, outcomes, strict=True):
            rows.append(_row(team, agent.label, agent.folder, graded, 1, given, "avg"))
            for count in dict.fromkeys((each, whole) if whole <= given else (each,)):
                rows.append(_row(team, agent.label, agent.folder, graded, 1, count, "maj"))
        if len(members) > 1:
            pooled = pool([[outcome for outcome in graded if outcome.sample < each] for graded in outcomes])
            folder = members[0].folder
            row = _row(team, "pooled", folder, pooled, len(members), each, "maj")
            rows.append(row)
            pools.append(scored_benchmarks(f"{team} {row.score}", folder, pooled, row.summary, relation))
            for name, scored in pools[-1].items():
                if scored.score.ties:
                    cast = [outcome for outcome in pooled if outcome.benchmark == name]
                    with Relations(relation) as relations:
                        of = relations.of(scored.items[0])
                        strict = aggregate(scored.items, cast, row.score, relation=of, tie="drop")
                    votes_of = {"team": team, "benchmark": name, "ties": scored.score.ties}
                    tied.append(votes_of | {"n": len(scored.items), "correct": strict.correct})
    against = tuple(
        tuple(compare(pools[0][name], scored[name], asked_differently=True) for name in names) for scored in pools[1:]
    )
    return Matched(tuple(rows), against, training, tuple(tied))


def _benchmarks(agents: Sequence[Evaluation]) -> list[str]:
    held = [frozenset(agent.scores) for agent in agents]
    usual = Counter(held).most_common(1)[0][0]
    like = agents[held.index(usual)]
    for agent in agents:
        if set(agent.scores) != usual:
            raise UserError(
                f"{agent.label!r} holds {', '.join(agent.scores)} and {like.label!r} {', '.join(like.scores)}: one "
                "table needs the same benchmarks everywhere, or files of the same ids, questions and known answers"
            )
    return list(like.scores)


def _responses(agents: Sequence[Evaluation], names: Sequence[str], votes: int | None) -> tuple[int, int]:
    """Return the responses each agent puts into a pool, and the number that all agents have."""
    held = {(agent.label, name): int(agent.scores[name]["samples"]) for agent in agents for name in names}
    (least, few), (most, many) = (pick(held.items(), key=lambda pair: pair[1]) for pick in (min, max))
    if votes is None and few != many:
        raise UserError(
            f"budgets do not match: {least[0]!r} has {few} responses per problem of {least[1]} and {most[0]!r} {many} "
            f"of {most[1]}: evaluate both with the same `samples`, or let each put in {few} with votes={few}"
        )
    if votes is not None and not 1 <= votes <= few:
        raise UserError(f"votes={votes} cannot be put in: {least[0]!r} has {few} responses per problem of {least[1]}")
    return votes or few, few


def _same_size(teams: Sequence[Team], each: int) -> None:
    pools = [(name, len(members)) for name, members in teams if len(members) > 1]
    for (first, size), (other, others) in pairwise(pools):
        if size != others:
            raise UserError(
                f"budgets do not match: {first!r} pools {size} models × {each} responses and {other!r} {others} × "
                f"{each}: give each team as many agents"
            )


def _same_sampling(agents: Sequence[Evaluation], names: Sequence[str], asked_differently: bool) -> None:
    for name in names:
        # A graded file of responses does not say how they were sampled.
        known = [(agent.label, how) for agent in agents if (how := asked_of(agent.folder.manifest, name)) is not None]
        for label, how in known[1:]:
            differing = asked_differences(known[0][1], how, families=True)
            if asked_differently:
                differing = [difference for difference in differing if difference.partition(":")[0] in SAMPLED]
            if differing:
                raise UserError(
                    f"{name} was asked differently in {known[0][0]!r} and {label!r} ({'; '.join(differing)}): budgets "
                    "match only where all responses are sampled alike; `asked_differently=True` allows other prompts"
                )


def _same_training(training: Mapping[str, Training | None]) -> None:
    known = [(label, cost) for label, cost in training.items() if cost is not None]
    for label, cost in known[1:]:
        if cost != known[0][1]:
            raise UserError(
                f"budgets do not match: {known[0][0]!r} was trained for {known[0][1].sentence()} and {label!r} for "
                f"{cost.sentence()}: compare runs of one budget"
            )


def _training(folder: EvalFolder) -> Training | None:
    """Read the budget of the run whose RUN/final/AGENT a checkpoint is; None without such a run."""
    model = folder.manifest.get("model")
    run = Path(model).resolve().parent.parent if model and Path(model).is_dir() else None
    if run is None or not (run / "config.yaml").is_file() or not (run / "summary.json").is_file():
        return None
    files = read_run(run)
    batch, summary = mapping(files.config.get("batch")), mapping(files.summary)
    try:
        return Training(int(summary["steps"]), int(batch["prompts"]), int(batch["completions"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{str(run)!r} does not say how much it trained ({error!r}): restore its config.yaml"
        ) from error


def _row(
    team: str, who: str, folder: EvalFolder, outcomes: Sequence[Outcome], models: int, each: int, kind: str
) -> Row:
    chosen = [outcome for outcome in outcomes if outcome.sample < models * each]
    how = f"{kind}@{models * each}"
    names = {outcome.benchmark for outcome in chosen}
    return Row(team, who, models, each, how, summary_of(folder, chosen, dict.fromkeys(names, how)))
