"""Several evaluations together: paired comparison, one table, pooled votes, teams at matched budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval_suite.benchmarks.tasks import by_problems
from eval_suite.comparisons import matched
from eval_suite.evaluation import comas, steps
from eval_suite.evaluation.pipeline import evaluate, open_sandbox
from eval_suite.metrics.outcomes import pool as pool_outcomes
from eval_suite.metrics.paired import Paired, check_alike, refuse_differently_asked
from eval_suite.metrics.paired import compare as compare_scored
from eval_suite.metrics.prompt_protocol import asked_differences
from eval_suite.options import CodeOptions, EvalOptions, PoolOptions
from eval_suite.reporter import SILENT, Reporter
from eval_suite.results.finished import Evaluation, Result, is_evaluation, labels_of, open_evaluations
from eval_suite.results.sampled_tables import sampled_comparison, sampled_tables
from eval_suite.results.tables import check_one_table, comparison_table, csv_text, score_tables, title
from mmcorl.answers import Equivalence
from mmcorl.errors import UserError
from mmcorl.run.table import Table

Folder = str | Path | Evaluation
Team = tuple[str, Sequence[Folder]]
"""Name and agents of a team."""


@dataclass(frozen=True)
class Comparison(Result):
    """B against A, benchmark by benchmark."""

    benchmarks: tuple[Paired, ...]
    left_out: tuple[str, ...] = ()
    """Benchmarks that the two were asked in different forms, which have no comparison, each in a sentence."""

    def as_dict(self) -> list[dict[str, Any]]:
        return [paired.as_dict() for paired in self.benchmarks]

    def tables(self) -> list[Table]:
        return [comparison_table(self.benchmarks, self.left_out), *sampled_comparison(self.benchmarks)]


@dataclass(frozen=True)
class ScoreTable(Result):
    """Several evaluations side by side."""

    summaries: tuple[tuple[str, dict[str, Any]], ...]
    """Label and summary of each."""

    def as_dict(self) -> dict[str, Any]:
        return dict(self.summaries)

    def tables(self) -> list[Table]:
        return [*score_tables(self.summaries), *sampled_tables(self.summaries)]

    def csv(self) -> str:
        return csv_text(self.summaries)


@dataclass(frozen=True)
class Pooled(ScoreTable):
    """The votes of several checkpoints, counted together: one summary, like that of an evaluation."""

    @property
    def summary(self) -> dict[str, Any]:
        """The content of a summary.json."""
        return self.summaries[0][1]

    def as_dict(self) -> dict[str, Any]:
        return self.summary


def compare(a: Folder, b: Folder, *, asked_differently: bool = False) -> Comparison:
    """Compare two evaluations, item by item, on every benchmark they share.

    Args:
        a: an evaluation, or its folder.
        b: another one.
        asked_differently: compare also where other prompts or another sampling contribute to the difference.

    Raises:
        UserError: no benchmark in common, or other items, grader, judge or aggregation, or asked differently.
    """
    with Equivalence() as relation:
        first, second = (evaluation.scored(relation) for evaluation in open_evaluations([_path(a), _path(b)]))
    shared = [name for name in first if name in second]
    names = [str(_path(folder)) for folder in (a, b)]
    forms = [by_problems(each) for each in (first, second)]
    apart = tuple(
        f"{title(name)} was asked in different forms, {' and '.join(forms[0][name])} in {names[0]} and "
        f"{' and '.join(forms[1][name])} in {names[1]}, which do not compare: evaluate both in one form."
        for name in forms[0]
        if name in forms[1] and not {*forms[0][name]} & {*forms[1][name]}
    )
    if not shared:
        raise UserError(
            f"{names[0]} and {names[1]} have no benchmark in common: "
            + (apart[0].rstrip(".") if apart else f"they hold {list(first)} and {list(second)}")
        )
    pairs = [compare_scored(first[name], second[name], asked_differently=asked_differently) for name in shared]
    return Comparison(tuple(pairs), apart)


def table(*folders: Folder) -> ScoreTable | comas.ComasResults:
    """Put evaluations, or folders of the CoMAS protocol, side by side in one table.

    Raises:
        UserError: evaluations that were graded differently, or on other items.
    """
    paths = [_path(folder) for folder in folders]
    if any((path / comas.FILE).is_file() for path in paths):
        return comas.ComasResults(comas.read_results(paths))
    summaries = tuple((evaluation.label, evaluation.summary) for evaluation in open_evaluations(paths))
    check_one_table(summaries)
    return ScoreTable(summaries)


def pool(
    *folders: Folder,
    options: PoolOptions | None = None,
    benchmarks: Sequence[str] = (),
    evaluation: EvalOptions | None = None,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> Pooled:
    """Pool the responses of several checkpoints to the same items and vote: maj@k across checkpoints.

    Args:
        folders: evaluations; or a run, which stands for its agents; or checkpoints.
        options: how it is done; `changes` override its fields.
        benchmarks: what checkpoints without an evaluation are evaluated on first, into `options.out`.
        evaluation: how they are evaluated.
        reporter: where progress goes; nowhere by default.
    """
    options = PoolOptions.build(options, changes)
    if options.votes is not None:
        raise UserError(f"votes={options.votes} is for table=NAME=DIR,DIR: leave it out")
    ((_, members),) = _evaluated([("cohort", folders)], benchmarks, evaluation, options.out, reporter)
    evaluations = open_evaluations(members)
    _observe_voters(evaluations, options, options.aggregation, reporter)
    with Equivalence() as relation:
        first, *others = (member.scored(relation) for member in evaluations)
    for other in others:
        for name in first:
            if name in other:
                check_alike(first[name], other[name])
                if not options.asked_differently:
                    differing = asked_differences(first[name].asked, other[name].asked, families=True)
                    refuse_differently_asked(first[name], other[name], differing)
    pooled = pool_outcomes([member.folder.outcomes() for member in evaluations])
    votes: dict[str, int] = {}
    for outcome in pooled:
        votes[outcome.benchmark] = max(votes.get(outcome.benchmark, 0), 1 + outcome.sample)
    aggregations = {name: options.aggregation or f"maj@{count}" for name, count in votes.items()}
    label = " + ".join(member.label for member in evaluations)
    return Pooled(((label, steps.summary_of(evaluations[0].folder, pooled, aggregations)),))


def match_teams(
    teams: Mapping[str, Sequence[Folder]] | Sequence[Team],
    options: PoolOptions | None = None,
    *,
    benchmarks: Sequence[str] = (),
    evaluation: EvalOptions | None = None,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> matched.Matched:
    """Compare teams of agents, each alone and pooled, at matched budgets; arguments as for `pool`.

    Raises:
        UserError: teams of different sizes, or budgets that do not match.
    """
    options = PoolOptions.build(options, changes)
    if options.aggregation:
        raise UserError(f"aggregation={options.aggregation} does not fit a table of avg and maj: leave it out")
    pairs = list(teams.items()) if isinstance(teams, Mapping) else list(teams)
    opened = matched.open_teams(_evaluated(pairs, benchmarks, evaluation, options.out, reporter))
    _observe_voters([member for _, members in opened for member in members], options, None, reporter)
    with Equivalence() as relation:
        return matched.matched(opened, relation, options.votes, options.asked_differently)


def parse_teams(texts: Sequence[str]) -> list[tuple[str, list[Path]]]:
    """Split `NAME=DIR,DIR` into names and folders."""
    teams = []
    for text in texts:
        name, equals, paths = text.partition("=")
        folders = [Path(part) for part in paths.split(",") if part]
        if not (name and equals and folders):
            raise UserError(f"{text!r} is not a team: write NAME=DIR,DIR with the folder of each of its agents")
        teams.append((name, folders))
    names = [name for name, _ in teams]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"`table` names the team {twice!r} twice: give each its own name")
    return teams


def members_of(path: Path) -> list[Path]:
    """Expand a folder: its evaluations, or the checkpoints of a run that has ended; anything else is itself."""
    if is_evaluation(path) or not path.is_dir():
        return [path]
    inside = sorted(part for part in path.iterdir() if is_evaluation(part))
    final = path / "final"
    agents = sorted(part for part in final.iterdir() if part.is_dir()) if final.is_dir() else []
    return inside or agents or [path]


def _evaluated(
    teams: Sequence[Team], benchmarks: Sequence[str], options: EvalOptions | None, out: Path | None, reporter: Reporter
) -> list[tuple[str, list[Path]]]:
    """Return the evaluation folder of every agent; checkpoints are evaluated into OUT/TEAM/AGENT, where work resumes.

    Raises:
        UserError: a checkpoint without `benchmarks` or `out`.
    """
    evaluated = []
    for team, folders in teams:
        members = []
        parts = [part for folder in folders for part in members_of(_path(folder))]
        for part, label in zip(parts, labels_of(parts), strict=True):
            if not (part / "config.json").is_file() or is_evaluation(part):
                members.append(part)
                continue
            if not benchmarks or out is None:
                raise UserError(
                    f"{str(part)!r} is a checkpoint that has not been evaluated: say how with `evaluate`, "
                    "such as `math500 --samples 4 --temperature 0.6`, and where with `out`"
                )
            members.append(out / team / label.replace("/", "-"))
            evaluate(part, benchmarks, members[-1], options, reporter=reporter)
        evaluated.append((team, members))
    return evaluated


def _observe_voters(
    evaluations: Sequence[Evaluation], options: CodeOptions, aggregation: str | None, reporter: Reporter
) -> None:
    """Run programs on public examples where their pooled vote is requested and allowed."""
    if not options.run_code or not (aggregation or "maj").startswith("maj"):
        return
    items = [item for evaluation in evaluations for item in evaluation.folder.items()]
    sandbox = open_sandbox(options, items, reporter)
    if sandbox is not None:
        for evaluation in evaluations:
            with evaluation.folder as folder:
                if steps.observe(folder, sandbox):
                    steps.sum_up(folder)


def _path(folder: Folder) -> Path:
    return folder.path if isinstance(folder, Evaluation) else Path(folder)
