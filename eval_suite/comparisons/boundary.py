"""Sharper or wider? What a model could answer before and after training, by pass@k and Cover@tau.

pass@k counts a problem if one of k samples is right (Chen et al. 2021), so that at large k lucky guesses are enough;
Cover@tau counts it if at least a share tau of the samples is (arXiv 2510.08325). Training that only prefers what was
sampled before raises pass@1 and leaves pass@n as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eval_suite.evaluation.pipeline import grade_file
from eval_suite.metrics.outcomes import Outcome, pool
from eval_suite.metrics.paired import check_alike
from eval_suite.metrics.prompt_protocol import asked_differences
from eval_suite.metrics.sampled import Change, changes, covers, passes, right_samples
from eval_suite.reporter import SILENT, Reporter, counted
from eval_suite.results.finished import Evaluation, Result, open_evaluations
from eval_suite.results.tables import p_text, title
from mmcorl.answers import Equivalence
from mmcorl.apps.analysis.statistics import MARK, RESAMPLES
from mmcorl.errors import UserError
from mmcorl.grading.items import Item
from mmcorl.run.table import Align, Cell, Table, cells
from mmcorl.system.install_hints import naming_extras

TEAM = "team"
"""Name of all agents together: their samples as if one model had drawn them."""


@dataclass(frozen=True)
class Reach:
    """What one agent, or the team, reaches on one benchmark."""

    benchmark: str
    who: str
    problems: int
    units: int
    """Independent ones: problems, or whole groups of them."""
    samples: int
    """Per problem, before and after."""
    passes: tuple[Change, ...]
    covers: tuple[Change, ...]
    reached: tuple[str, ...]
    """Problems that no sample solved before and some sample solves now."""
    lost: tuple[str, ...]
    """Problems that some sample solved before and none solves now."""

    def reading(self) -> str:
        """Say whether training made it sharper or wider, as far as the intervals say it."""
        sharp, wide = self.passes[0], self.passes[-1]
        words = {1: "sharper", 0: "not shown to be sharper", -1: "less sharp"}[sharp.direction]
        words += {1: " and wider", 0: ", not shown to be wider or narrower", -1: " and narrower"}[wide.direction]
        words += ", as every problem was within reach before" * (wide.before == 1 and not wide.direction)
        numbers = ", ".join(f"{change.name} {_points(change)}" for change in (sharp, wide))
        return f"{self.who} on {title(self.benchmark)}: {words} ({numbers})."


@dataclass(frozen=True)
class Boundary(Result):
    """Reach before and after training, by benchmark: of every agent, and of the team where there are several."""

    reaches: tuple[Reach, ...]
    notes: tuple[str, ...] = ()
    listed: int = 0
    """Problems that are listed of those newly reached and of those lost."""

    def as_dict(self) -> list[dict[str, Any]]:
        return [asdict(reach) | {"reading": reach.reading()} for reach in self.reaches]

    def tables(self) -> list[Table]:
        """Return a table per benchmark, a group of rows per agent."""
        columns: list[tuple[str, Align]] = [("", "left"), ("before %", "right"), ("after %", "right")]
        columns += [("after − before", "right"), ("p", "right")]
        tables = []
        for name in dict.fromkeys(reach.benchmark for reach in self.reaches):
            of_name = [reach for reach in self.reaches if reach.benchmark == name]
            rows: list[list[Cell]] = []
            groups = {}
            for reach in of_name:
                groups[len(rows)] = f"{reach.who}, {reach.samples} samples"
                rows.append(cells("new, lost", "", "", f"{len(reach.reached):,}, {len(reach.lost):,}", ""))
                rows += [_row(change) for change in (*reach.passes, *reach.covers)]
            first = of_name[0]
            grouped = f" in {first.units:,} groups, which are resampled whole" if first.units < first.problems else ""
            notes = [
                f"{first.problems:,} problems{grouped}. In points, with the 95% interval (paired bootstrap, "
                f"{RESAMPLES:,} resamples, seed 0); {MARK.strip()} marks what may be chance. cover@t: at least a share "
                "t of the samples is right. new, lost: problems that some sample solves only after, only before."
            ]
            tables.append(
                Table(f"Before and after on {title(name)}", columns, rows, [*notes, *self.notes], groups=groups)
            )
        return tables

    def paragraphs(self) -> list[str]:
        """Return the reading of every agent, and the problems where they are asked for."""
        texts = []
        for reach in self.reaches:
            texts.append(reach.reading())
            for what, ids in (("newly reached", reach.reached), ("lost", reach.lost)) if self.listed else ():
                more = f" and {len(ids) - self.listed} more" if len(ids) > self.listed else ""
                texts.append(f"{reach.who}, {what}: {', '.join(ids[: self.listed]) or 'none'}{more}")
        return texts


@naming_extras()
def boundary(
    agents: Mapping[str, Sequence[str | Path]],
    *,
    listed: int = 0,
    reporter: Reporter = SILENT,
) -> Boundary:
    """Compare what agents reach before and after training, each and all together, on every benchmark they share.

    Args:
        agents: by name, the evaluation of the base and that of the trained checkpoint: folders, or files of responses,
            which are graded beside themselves.
        listed: problems to list of those newly reached and lost.
        reporter: where progress goes; nowhere by default.

    Raises:
        UserError: other problems, graders, prompts or numbers of samples; one sample per problem.
    """
    for name, pair in agents.items():
        if len(pair) != 2:
            raise UserError(f"{name!r} has {len(pair)} evaluations: give two, of the base and of the trained model")
    paths = [_folder(Path(path), reporter) for pair in agents.values() for path in pair]
    evaluations = open_evaluations(paths)
    shared = [name for name in evaluations[0].scores if all(name in other.scores for other in evaluations)]
    if not shared:
        raise UserError(f"{' and '.join(map(str, paths))} have no benchmark in common: evaluate all on the same one")
    notes = _check(evaluations, shared)
    sides = [evaluations[::2], evaluations[1::2]]
    reaches = []
    for name in shared:
        items = [item for item in evaluations[0].folder.items() if item.benchmark == name]
        drawn = [[[o for o in e.folder.outcomes() if o.benchmark == name] for e in side] for side in sides]
        for number, who in enumerate(agents):
            reaches.append(_reach(name, who, items, drawn[0][number], drawn[1][number]))
        if len(agents) > 1:
            reaches.append(_reach(name, TEAM, items, pool(drawn[0]), pool(drawn[1])))
    return Boundary(tuple(reaches), tuple(notes), listed)


def _folder(path: Path, reporter: Reporter) -> Path:
    """Return the folder of an evaluation; files of responses are graded first."""
    return grade_file(path, reporter=reporter, out=path.with_suffix(".boundary")).path if path.is_file() else path


def _check(evaluations: Sequence[Evaluation], names: Sequence[str]) -> list[str]:
    """Refuse evaluations that do not compare; return notes on what is missing."""
    with Equivalence() as relation:
        scored = [evaluation.scored(relation) for evaluation in evaluations]
    notes = []
    for name in names:
        samples = {evaluation.label: int(evaluation.scores[name]["samples"]) for evaluation in evaluations}
        (few, least), (many, most) = (pick(samples.items(), key=lambda pair: pair[1]) for pick in (min, max))
        if least != most:
            raise UserError(
                f"{few!r} has {least} samples per problem of {name} and {many!r} {most}: evaluate all with the same "
                "`samples`, or problems count as reached for having been asked more often"
            )
        if least < 2:
            raise UserError(f"{few!r} has one sample per problem of {name}: evaluate with several, such as samples=16")
        of_name = [each[name] for each in scored]
        # Every agent beside the first, then every trained model beside its base.
        pairs = [*((of_name[0], base) for base in of_name[2::2]), *zip(of_name[::2], of_name[1::2], strict=True)]
        for number, (a, b) in enumerate(pairs):
            check_alike(a, b)
            differing = asked_differences(a.asked, b.asked, families=number < len(of_name) // 2 - 1)
            if differing:
                raise UserError(
                    f"{name} was asked differently in {a.label!r} and {b.label!r} ({'; '.join(differing)}): evaluate "
                    "both by one command; `like` asks a base as what was trained from it"
                )
        notes += [
            f"{title(name)}: {counted(each.unsettled, 'response', 'responses')} of {each.label} missing or unjudged, "
            "counted as wrong."
            for each in of_name
            if each.unsettled
        ]
    return notes


def _reach(
    benchmark: str, who: str, items: Sequence[Item], before: Sequence[Outcome], after: Sequence[Outcome]
) -> Reach:
    n = len(before) // len(items)
    right = [right_samples(items, outcomes) for outcomes in (before, after)]
    reached, lost = (tuple(item.id for item in items if not a[item.id] and b[item.id]) for a, b in (right, right[::-1]))
    passed, covered = (changes(measures, items, *right) for measures in (passes(n), covers(n)))
    return Reach(benchmark, who, len(items), len({item.cluster for item in items}), n, passed, covered, reached, lost)


def _points(change: Change) -> str:
    low, high = change.interval
    return f"{100 * change.difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _row(change: Change) -> list[Cell]:
    mark = MARK if not change.direction and change.difference else ""
    numbers = (f"{100 * value:.1f}" for value in (change.before, change.after))
    return cells(change.name, *numbers, f"{mark}{_points(change)}", "" if change.p is None else p_text(change.p))
